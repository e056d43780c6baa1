"""What each tensor of a model becomes in a GGUF file: its name, its type, and why it has none.

Every tensor is looked at before anything is written. Its blocks are made when they are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange.conversion_report import WrittenTensor, progress_of
from octavo.interchange.ggml_carry import CARRIERS, PLAIN
from octavo.interchange.ggml_pack import blocks_of, check_format, float_bytes, holds, smallest_float, type_for
from octavo.interchange.ggml_types import GgmlType
from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_config import Config
from octavo.interchange.gguf_metadata import TYPE_OF, FormerFile
from octavo.interchange.gguf_names import FileNames, FilePlace, architecture_of_class
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

    ``values``: as the model has it; of tensors that transformers joins, made when they are written. ``row``: of the
    report. ``behind``: matrices of the same type that follow it in the file's tensor.
    """

    place: FilePlace
    values: Placed
    type: GgmlType
    row: WrittenTensor
    behind: Sequence[PlannedTensor] = field(default=(), repr=False)


def check_plan(path: Path, decode: bool, model: str, plan: Sequence[TensorReport], config: Mapping[str, Any]) -> None:
    """Refuse a recipe that gives tensors formats which no type holds. Raises FormatError, ModelError."""
    fields = Config(str(path), config)
    architecture = architecture_of_class(str(path), model, fields)
    names = FileNames.of(architecture, fields)
    wrong: list[tuple[str, str, str, int]] = []
    for report in plan:
        if report.format is None or report.format in _NATIVE or _is_pooler(report.name, architecture):
            continue
        for place in names.places(report.name):
            columns = report.shape[0] if place.turned else report.shape[-1]
            try:
                if place.name not in _FLOAT_ALWAYS:
                    _refuse_moved(place)
                    _refuse_level(Format(report.format), place, None)
                    check_format(Format(report.format), columns)
            except NoTypeError as error:
                wrong.append((report.name, report.format, str(error), columns))
    if wrong and not decode:
        raise _refused(wrong)


def _refused(wrong: Sequence[tuple[str, str, str, int]]) -> FormatError:
    """Return the error for tensors that no type holds: name, format, reason and columns of each."""
    name, label, reason, _ = wrong[0]
    more = f" ({len(wrong)} such tensors)" if len(wrong) > 1 else ""
    # Every type has blocks of 32 or more.
    packs = all(columns % 32 == 0 for *_, columns in wrong)
    fix = ", --recipe int8:g32 of a float folder packs them for Q8_0" if packs else ""
    return FormatError(f"{name}: '{label}': {reason}{more}; --decode writes the same values as floats{fix}")


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
    wrong: list[tuple[str, str, str, int]] = []
    planned: list[PlannedTensor] = []
    left_out = [name for name in source.tensors if _is_pooler(name, architecture)]
    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in left_out}
    names = _table_first(tensors, ties, architecture)
    file_names = FileNames.of(architecture, config)
    places = {name: file_names.places(names[name]) for name in tensors}
    total = sum(tensor.nbytes for tensor in tensors.values())
    with progress_of(bar, "looking", total) as done:
        for name, tensor in tensors.items():
            try:
                for place, part in _matrices(places[name], tensor):
                    planned.append(_planned_one(source, name, part, place, former, decode))
            except NoTypeError as error:
                label = str(tensor.format if isinstance(tensor, PackedTensor) else tensor.dtype)
                columns = tensor.shape[0 if places[name][0].turned else -1]
                wrong.append((name, label.removeprefix("torch."), str(error), columns))
            done(name, tensor.nbytes)
    if wrong:
        raise _refused(wrong)
    return sorted(_stacked(planned), key=lambda one: one.place.order), left_out


def _matrices(places: Sequence[FilePlace], tensor: Placed) -> Iterator[tuple[FilePlace, Placed]]:
    """Yield the tensors of the file, or matrices of them, that a tensor of the model is."""
    for place in places:
        if not place.is_stack or place.number is not None:
            yield place, tensor
            continue
        if isinstance(tensor, PackedTensor):
            raise NoTypeError("packed as one tensor of all experts")
        parts: Sequence[Placed] | None = tensor.parts() if isinstance(tensor, MergedTensor) else list(tensor)
        if parts is None:
            raise NoTypeError("made of several tensors, which no architecture of GGUF has")
        for number, part in enumerate(parts):
            yield replace(place, number=number), part


def _stacked(planned: Sequence[PlannedTensor]) -> list[PlannedTensor]:
    """Return the tensors of the file: matrices of one tensor in the order of their numbers, the first with the others.

    Raises FormatError for matrices of several types, and numbers that are missing.
    """
    stacks: dict[str, list[PlannedTensor]] = {}
    whole: list[PlannedTensor] = []
    for one in planned:
        if one.place.is_stack:
            stacks.setdefault(one.place.name, []).append(one)
        else:
            whole.append(one)
    for name, parts in stacks.items():
        parts.sort(key=lambda one: one.place.number or 0)
        first, rows = parts[0], [one.row for one in parts]
        if [one.place.number for one in parts] != list(range(len(parts))):
            raise FormatError(f"{name}: experts are missing; there are numbers {[one.place.number for one in parts]}")
        other = next((one for one in parts if one.type != first.type or one.row.shape != first.row.shape), None)
        if other is not None:
            raise FormatError(
                f"{other.row.source}: {other.type.name} of shape {list(other.row.shape)}, and {first.row.source} is "
                f"{first.type.name} of shape {list(first.row.shape)}; a GGUF file has one tensor of all experts, so "
                "they need one format"
            )
        row = replace(
            first.row,
            shape=(len(parts), *first.row.shape),
            nbytes=sum(one.nbytes for one in rows),
            exact=all(one.exact for one in rows),
        )
        whole.append(replace(first, row=row, behind=parts))
    return whole


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
    if isinstance(tensor, MergedTensor) and not place.is_stack:
        raise NoTypeError("made of several tensors, which no architecture of GGUF has")
    if place.half is not None and not isinstance(tensor, MergedTensor):
        tensor = (
            _packed_half(tensor, place.half)
            if isinstance(tensor, PackedTensor)
            else tensor[_half(len(tensor), place.half)]
        )
    if not isinstance(tensor, PackedTensor):
        return _plain(source, name, tensor, place, wanted)
    origin = str(tensor.format)
    _refuse_moved(place)
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


def _half(rows: int, half: int) -> slice:
    """Return the first or the second half of rows."""
    return slice(half * (rows // 2), (half + 1) * (rows // 2))


def _packed_half(tensor: PackedTensor, half: int) -> PackedTensor:
    chosen = _half(len(tensor), half)
    has_rows = tensor.format.granularity not in ("none", "tensor")
    scales = tensor.scales[chosen] if has_rows else tensor.scales
    zeros = tensor.zeros[chosen] if tensor.format.core.has_zeros else tensor.zeros
    return PackedTensor(
        tensor.format, tensor.codes[chosen], scales, zeros, tensor.levels,
        shape=(len(tensor) // 2, *tensor.shape[1:]), dtype=tensor.dtype,
    )  # fmt: skip


def _refuse_moved(place: FilePlace) -> None:
    if place.added:
        raise NoTypeError(f"a GGUF file has its values plus {place.added:g}")


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


def _plain(
    source: ModelSource, name: str, tensor: Tensor | MergedTensor, place: FilePlace, wanted: str | None
) -> PlannedTensor:
    origin = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in FLOATS:
        raise NoTypeError(f"dtype {origin}; GGUF files of models hold float32, float16 and bfloat16")
    if wanted in PLAIN and not isinstance(tensor, MergedTensor) and holds(tensor, wanted):
        kind = wanted
    else:
        own = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[tensor.dtype]
        is_vector = tensor.ndim < 2 or place.name in _FLOAT_ALWAYS or place.name.endswith("_norm.weight")
        kind = "F32" if is_vector else own
    return _as(name, place, tensor, TYPE_OF[kind], origin)


def _as(name: str, place: FilePlace, values: Placed, kind: GgmlType, origin: str) -> PlannedTensor:
    shape = tuple(reversed(values.shape) if place.turned else values.shape)
    if place.half is not None and isinstance(values, MergedTensor):
        shape = (shape[0] // 2, *shape[1:])
    if place.row_rule is not None and (not shape or not place.row_rule.fits(shape[0])):
        raise NoTypeError(f"shape {list(shape)}; accepted are {place.row_rule.accepted}")
    nbytes = math.prod(shape) // kind.elements * kind.nbytes
    row = WrittenTensor(place.name, name, origin, kind.name, shape, nbytes)
    return PlannedTensor(place, values, kind, row)


def tensors_of(planned: PlannedTensor, former: FormerFile | None) -> Iterator[FileTensor]:
    """Yield a tensor, and the factor of its scales where it has one."""
    name, values = planned.place.name, planned.values
    matrices = planned.behind or [planned]
    yield FileTensor(name, planned.type, planned.row.shape, partial(_parts_of_all, matrices))
    if planned.type.name == "NVFP4" and isinstance(values, PackedTensor):
        factor = name.removesuffix(WEIGHT) + FACTOR
        if values.levels.item() != 1 or (former is not None and factor in former.types):
            yield FileTensor(factor, TYPE_OF["F32"], (1,), partial(_bytes, values.levels))


def _bytes(values: Tensor) -> Iterator[Tensor]:
    yield float_bytes(values, "F32")


def _parts_of_all(matrices: Sequence[PlannedTensor]) -> Iterator[Tensor]:
    """Yield the bytes of matrices that follow each other."""
    return chain.from_iterable(map(_parts, matrices))


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
    if isinstance(values, MergedTensor):
        plain = values.tensor()
        plain = plain if planned.place.half is None else plain[_half(len(plain), planned.place.half)]
    else:
        plain = values.decode(torch.float32) if isinstance(values, PackedTensor) else values
    plain = plain.t() if planned.place.turned else plain
    plain = plain.float() + planned.place.added if planned.place.added else plain
    yield float_bytes(plain if order is None else plain[order], kind.name)
