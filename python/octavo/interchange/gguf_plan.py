"""What each tensor of a model becomes in a GGUF file: its name, its type, and why it has none.

Every tensor is looked at before anything is written. Its blocks are made when they are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange.conversion_report import WrittenTensor, progress_of
from octavo.interchange.ggml_carry import CARRIERS, PLAIN
from octavo.interchange.ggml_pack import blocks_of, check_format, float_bytes, holds, smallest_float, type_for
from octavo.interchange.ggml_types import GgmlType
from octavo.interchange.gguf_config import Config
from octavo.interchange.gguf_metadata import TYPE_OF, FormerFile
from octavo.interchange.gguf_names import Architecture, FilePlace, architecture_of_class, file_place_of, keys_of
from octavo.interchange.gguf_tensors import FACTOR, WEIGHT
from octavo.interchange.gguf_writer import FileTensor
from octavo.interchange.model_source import ModelSource
from octavo.interchange.packed_rows import NoTypeError
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.tensor_names import Placed

_NATIVE = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
# llama.cpp adds and multiplies these as they are; it takes no blocks of them.
_FLOAT_ALWAYS = ("token_types.weight", "position_embd.weight")


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of a model, and what it is in the file.

    ``values``: as the model has it. ``row``: of the report.
    """

    place: FilePlace
    values: Tensor | PackedTensor
    type: GgmlType
    row: WrittenTensor


def check_plan(path: Path, decode: bool, model: str, plan: Sequence[TensorReport], config: Mapping[str, Any]) -> None:
    """Refuse a recipe that gives tensors formats which no type holds. Raises FormatError, ModelError."""
    architecture = architecture_of_class(str(path), model)[1]
    fields = Config(str(path), config)
    keys_of(architecture, fields)
    wrong: list[tuple[str, str, str]] = []
    for report in plan:
        if report.format is None or report.format in _NATIVE or _is_pooler(report.name, architecture):
            continue
        place = file_place_of(report.name, architecture, fields)
        columns = report.shape[0] if place.turned else report.shape[-1]
        try:
            if place.name not in _FLOAT_ALWAYS:
                _refuse_level(Format(report.format), place, None)
                check_format(Format(report.format), columns)
        except NoTypeError as error:
            wrong.append((report.name, report.format, str(error)))
    if wrong and not decode:
        raise _refused(wrong)


def _refused(wrong: Sequence[tuple[str, str, str]]) -> FormatError:
    """Return the error for tensors that no type holds: name, format and reason of each."""
    name, label, reason = wrong[0]
    more = f" ({len(wrong)} such tensors)" if len(wrong) > 1 else ""
    return FormatError(
        f"{name}: '{label}': {reason}{more}; --decode writes the same values as floats, --recipe int8:g32 of a float "
        "folder packs them for Q8_0"
    )


def _is_pooler(name: str, architecture: Architecture) -> bool:
    return architecture.pooler is not None and name.startswith(architecture.pooler)


def plan_tensors(
    source: ModelSource,
    architecture: Architecture,
    config: Config,
    former: FormerFile | None,
    decode: bool,
    bar: Bar | None,
) -> tuple[list[PlannedTensor], list[str]]:
    """Return every tensor with its type, and the names of those that files lack. Raises FormatError for others."""
    ties = dict(source.ties)
    wrong: list[tuple[str, str, str]] = []
    planned: list[PlannedTensor] = []
    left_out = [name for name in source.tensors if _is_pooler(name, architecture)]
    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in left_out}
    names = _table_first(tensors, ties, architecture)
    places = {name: file_place_of(names[name], architecture, config) for name in tensors}
    total = sum(tensor.nbytes for tensor in tensors.values())
    with progress_of(bar, "looking", total) as done:
        for name, tensor in tensors.items():
            try:
                planned.append(_planned_one(source, name, tensor, places[name], former, decode))
            except NoTypeError as error:
                label = str(tensor.format if isinstance(tensor, PackedTensor) else tensor.dtype)
                wrong.append((name, label.removeprefix("torch."), str(error)))
            done(name, tensor.nbytes)
    if wrong:
        raise _refused(wrong)
    return sorted(planned, key=lambda one: one.place.order), left_out


def _table_first(tensors: Iterable[str], ties: Mapping[str, str], architecture: Architecture) -> dict[str, str]:
    """Return the name of each tensor in the class; of the table and a tied head, that of the table."""
    names = {name: name for name in tensors}
    head, table = architecture.head, architecture.table
    if head is not None and table is not None and ties.get(table) == head:
        names[head] = table
    return names


def _planned_one(
    source: ModelSource,
    name: str,
    tensor: Placed,
    place: FilePlace,
    former: FormerFile | None,
    decode: bool,
) -> PlannedTensor:
    """Return a tensor with its type. Raises NoTypeError where none holds it."""
    wanted = None if former is None else former.types.get(place.name)
    if isinstance(tensor, MergedTensor):
        raise NoTypeError("made of several tensors, which no architecture of GGUF has")
    if not isinstance(tensor, PackedTensor):
        return _plain(source, name, tensor, place, wanted)
    origin = str(tensor.format)
    if origin not in (carrier.format for carrier in CARRIERS.get(wanted or "", ())):
        wanted = None  # it was packed anew
    is_matrix = name.rpartition(".")[0] in source.layers
    if origin in _NATIVE and (is_matrix or not place.turned):
        return _as(name, replace(place, turned=False), tensor, TYPE_OF[_NATIVE[origin]], origin)
    reason: str | None = None
    try:
        if place.turned and not is_matrix:
            raise NoTypeError("packed along rows, which a GGUF file has as columns")
        if place.name in _FLOAT_ALWAYS and wanted is None:
            reason = "llama.cpp takes no blocks here"
        else:
            _refuse_level(tensor.format, place, wanted)
            kind = type_for(tensor, wanted)
            return _with_level(_as(name, replace(place, turned=False), tensor, kind, origin), tensor)
    except NoTypeError as error:
        if not decode:
            raise
        reason = str(error)
    values = tensor.decode(torch.float32)
    kind = TYPE_OF["F32" if place.name in _FLOAT_ALWAYS else smallest_float(values)]
    planned = _as(name, replace(place, turned=place.turned and not is_matrix), tensor, kind, origin)
    return replace(planned, row=replace(planned.row, note=f"decoded: {reason}"))


def _refuse_level(fmt: Format, place: FilePlace, wanted: str | None) -> None:
    """Refuse a factor of a tensor where llama.cpp reads none. Raises NoTypeError."""
    if fmt.core.has_levels and not place.name.startswith("blk.") and wanted is None:
        raise NoTypeError("llama.cpp reads a factor of a tensor only in layers")


def _with_level(planned: PlannedTensor, tensor: PackedTensor) -> PlannedTensor:
    """Return the plan of a tensor, which says where its values move by the order of two products."""
    if not tensor.format.core.has_levels or tensor.levels.item() == 1:
        return planned
    note = "codes and scales are; values within one unit in the last place"
    return replace(planned, row=replace(planned.row, exact=False, note=note))


def _plain(source: ModelSource, name: str, tensor: Tensor, place: FilePlace, wanted: str | None) -> PlannedTensor:
    origin = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in FLOATS:
        raise NoTypeError(f"dtype {origin}; GGUF files of models hold float32, float16 and bfloat16")
    if wanted in PLAIN and holds(tensor, wanted):
        kind = wanted
    else:
        own = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[tensor.dtype]
        is_vector = tensor.ndim < 2 or place.name in _FLOAT_ALWAYS or place.name.endswith("_norm.weight")
        kind = "F32" if is_vector else own
    return _as(name, place, tensor, TYPE_OF[kind], origin)


def _as(name: str, place: FilePlace, values: Tensor | PackedTensor, kind: GgmlType, origin: str) -> PlannedTensor:
    shape = tuple(reversed(values.shape) if place.turned else values.shape)
    if place.heads and (not shape or shape[0] % (2 * place.heads)):
        raise NoTypeError(f"shape {list(shape)}; accepted are multiples of twice its {place.heads} heads")
    nbytes = math.prod(shape) // kind.elements * kind.nbytes
    row = WrittenTensor(place.name, name, origin, kind.name, shape, nbytes)
    return PlannedTensor(place, values, kind, row)


def tensors_of(planned: PlannedTensor, former: FormerFile | None) -> Iterator[FileTensor]:
    """Yield a tensor, and the factor of its scales where it has one."""
    name, values = planned.place.name, planned.values
    yield FileTensor(name, planned.type, planned.row.shape, partial(_parts, planned))
    if planned.type.name == "NVFP4" and isinstance(values, PackedTensor):
        factor = name.removesuffix(WEIGHT) + FACTOR
        if values.levels.item() != 1 or (former is not None and factor in former.types):
            yield FileTensor(factor, TYPE_OF["F32"], (1,), partial(_bytes, values.levels))


def _bytes(values: Tensor) -> Iterator[Tensor]:
    yield float_bytes(values, "F32")


def _parts(planned: PlannedTensor) -> Iterator[Tensor]:
    """Yield the bytes of a tensor, its rows in the order of the file."""
    values, kind, shape = planned.values, planned.type, planned.row.shape
    order = planned.place.row_order(shape[0]) if shape else None
    if isinstance(values, PackedTensor) and kind.name not in PLAIN:
        blocks = blocks_of(values, kind)
        if order is None:
            yield from blocks
        else:
            yield torch.cat(list(blocks)).view(shape[0], -1)[order]
        return
    plain = values.decode(torch.float32) if isinstance(values, PackedTensor) else values
    plain = plain.t() if planned.place.turned else plain
    yield float_bytes(plain if order is None else plain[order], kind.name)
