"""Models as GGUF files: what each tensor becomes, the metadata, and the file.

A GGUF file that becomes one again is copied block by block. Of a model folder, each tensor gets the type that holds it
with the same values; the first pass looks at all of them, and only then is anything written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange.conversion_report import ConversionReport, WrittenTensor
from octavo.interchange.foreign_readers import is_gguf
from octavo.interchange.ggml_carry import CARRIERS, PLAIN
from octavo.interchange.ggml_pack import (
    blocks_of,
    check_format,
    float_bytes,
    holds,
    smallest_float,
    type_for,
)
from octavo.interchange.ggml_types import GgmlType
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_metadata import TYPE_OF, FormerFile, Typed, text, typed, u32
from octavo.interchange.gguf_names import (
    FACTORS,
    Architecture,
    Config,
    FilePlace,
    architecture_of_class,
    file_place_of,
    keys_of,
    rotation_factors,
)
from octavo.interchange.gguf_tensors import FACTOR, WEIGHT
from octavo.interchange.gguf_tokenizer import PREFIX
from octavo.interchange.gguf_tokenizer_keys import CHAT_TEMPLATE, same_tokenizer, tokenizer_keys
from octavo.interchange.gguf_writer import FileTensor, write_file
from octavo.interchange.model_source import ModelSource, model_source
from octavo.interchange.packed_rows import NoTypeError
from octavo.model_folder.companion_files import regular_member
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.storage.reading import read_json
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.tensor_names import Placed
    from octavo.recipe import Recipe

_NATIVE = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
    "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39,
}  # fmt: skip
"""``general.file_type`` by the type of most weights. Source: llama.cpp, ``include/llama.h``."""
_ARCHITECTURE, _NAME, _FILE_TYPE, _QUANTIZATION = (
    "general.architecture", "general.name", "general.file_type", "general.quantization_version"
)  # fmt: skip
# llama.cpp adds and multiplies these as they are; it takes no blocks of them.
_FLOAT_ALWAYS = ("token_types.weight", "position_embd.weight")
_POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2}


def write_gguf(
    source: Path,
    target: Path,
    *,
    recipe: Recipe | None = None,
    decode: bool = False,
    overwrite: bool = False,
    bar: Bar | None = None,
) -> ConversionReport:
    """Write a model as a GGUF file; arguments and errors are those of :func:`octavo.interchange.convert.convert`."""
    if target.is_dir():
        raise FormatError(f"{target}: a folder; a GGUF file is a file, give another OUT")
    if target.exists() and not overwrite:
        raise FileExistsError(17, "File exists; --force replaces it", str(target))
    if target.exists() and source.exists() and target.samefile(source):
        raise FormatError(f"{target}: the output would be the input; give another OUT")
    if recipe is None and is_gguf(source):
        return _copy(GgufFile(source), target, bar)
    check = partial(_check_plan, source, decode)
    with model_source(source, recipe=recipe, check=check, bar=bar) as model:
        return _write(model, target, decode, bar)


# --- a GGUF file again ------------------------------------------------------------------------------------------------


def _copy(file: GgufFile, target: Path, bar: Bar | None) -> ConversionReport:
    """Write the tensors of a file as they are."""
    tensors = [
        FileTensor(tensor.name, tensor.type, tensor.shape, partial(_stored, file, tensor.name))
        for tensor in file.tensors.values()
    ]
    written = [
        WrittenTensor(one.name, one.name, one.type.name, one.type.name, one.shape, one.nbytes) for one in tensors
    ]
    return ConversionReport(target, _save(target, typed(file), tensors, bar), written)


def _stored(file: GgufFile, name: str) -> Iterator[Tensor]:
    yield file.read(name)


def _save(target: Path, metadata: Mapping[str, Typed], tensors: Sequence[FileTensor], bar: Bar | None) -> int:
    if bar is None:
        return write_file(target, metadata, tensors)
    with bar("writing", sum(tensor.nbytes for tensor in tensors)) as done:
        return write_file(target, metadata, tensors, progress=done)


# --- a model ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planned:
    """A tensor of the model and of the file. ``values``: as it is written, in the model's order of rows."""

    place: FilePlace
    source: str
    values: Tensor | PackedTensor
    type: GgmlType
    row: WrittenTensor


def _write(source: ModelSource, target: Path, decode: bool, bar: Bar | None) -> ConversionReport:
    name, architecture = architecture_of_class(str(source.path), source.model)
    config = Config(str(source.path), source.config)
    former, notes = FormerFile.read(source.folder), list(source.notes)
    if former is not None and not _is_of(former, name):
        former = None
    factors = rotation_factors(config) if architecture.has_factors else None
    planned, left_out = _plan(source, architecture, config, former, decode, bar)
    if left_out:
        notes.append(f"left out, for GGUF files have no place for them: {', '.join(left_out)}")
    tensors = [*(tensor for one in planned for tensor in _tensors_of(one, former)), *_factors(factors, former)]
    if former is not None:
        ranks = {one: rank for rank, one in enumerate(former.types)}
        tensors.sort(key=lambda tensor: ranks.get(tensor.name, len(ranks)))
    metadata, problem = _metadata(source, name, architecture, config, former, tensors)
    if problem is not None:
        notes.append(f"no tokenizer: {problem}")
    by_name = {one.row.name: one.row for one in planned}
    written = [by_name.get(tensor.name) or _extra(tensor) for tensor in tensors]
    return ConversionReport(target, _save(target, metadata, tensors, bar), written, notes)


def _is_of(former: FormerFile, architecture: str) -> bool:
    value = former.metadata.get(_ARCHITECTURE)
    return value is not None and value.value == architecture


def _extra(tensor: FileTensor) -> WrittenTensor:
    """Return the row of a tensor that is none of the model: a factor of scales or of rotations."""
    return WrittenTensor(tensor.name, "", "float32", tensor.type.name, tensor.shape, tensor.nbytes)


# --- tensors ----------------------------------------------------------------------------------------------------------


def _check_plan(path: Path, decode: bool, model: str, plan: Sequence[TensorReport], config: Mapping[str, Any]) -> None:
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


def _plan(
    source: ModelSource,
    architecture: Architecture,
    config: Config,
    former: FormerFile | None,
    decode: bool,
    bar: Bar | None,
) -> tuple[list[_Planned], list[str]]:
    """Return every tensor with its type, and the names of those that files lack. Raises FormatError for others."""
    ties = dict(source.ties)
    wrong: list[tuple[str, str, str]] = []
    planned: list[_Planned] = []
    left_out = [name for name in source.tensors if _is_pooler(name, architecture)]
    tensors = {name: tensor for name, tensor in source.tensors.items() if name not in left_out}
    names = _table_first(tensors, ties, architecture)
    places = {name: file_place_of(names[name], architecture, config) for name in tensors}
    total = sum(tensor.nbytes for tensor in tensors.values())
    with bar("looking", total) if bar is not None else _silent() as done:
        for name, tensor in tensors.items():
            try:
                planned.append(_planned(source, name, tensor, places[name], former, decode))
            except NoTypeError as error:
                label = str(tensor.format if isinstance(tensor, PackedTensor) else tensor.dtype)
                wrong.append((name, label.removeprefix("torch."), str(error)))
            done(name, tensor.nbytes)
    if wrong:
        raise _refused(wrong)
    return sorted(planned, key=lambda one: one.place.order), left_out


class _silent:
    """No progress."""

    def __enter__(self) -> Any:
        return lambda name, nbytes: None

    def __exit__(self, *error: object) -> None:
        pass


def _table_first(tensors: Iterable[str], ties: Mapping[str, str], architecture: Architecture) -> dict[str, str]:
    """Return the name of each tensor in the class; of the table and a tied head, that of the table."""
    names = {name: name for name in tensors}
    head, table = architecture.head, architecture.table
    if head is not None and table is not None and ties.get(table) == head:
        names[head] = table
    return names


def _planned(
    source: ModelSource,
    name: str,
    tensor: Placed,
    place: FilePlace,
    former: FormerFile | None,
    decode: bool,
) -> _Planned:
    """Return a tensor with its type. Raises NoTypeError where none holds it."""
    wanted = None if former is None else former.types.get(place.name)
    if isinstance(tensor, MergedTensor):
        raise NoTypeError("made of several tensors, which no architecture of GGUF has")
    if not isinstance(tensor, PackedTensor):
        return _plain(source, name, tensor, place, wanted)
    origin = str(tensor.format)
    if wanted not in CARRIERS or CARRIERS[wanted].format != origin:
        wanted = None  # it was packed anew
    is_matrix = name.rpartition(".")[0] in source.layers
    if origin in _NATIVE and (is_matrix or not place.turned):
        values = tensor.decode(torch.float32)
        kind = TYPE_OF[_NATIVE[origin]]
        return _as(name, replace(place, turned=False), values, kind, origin)
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


def _with_level(planned: _Planned, tensor: PackedTensor) -> _Planned:
    """Return the plan of a tensor, which says where its values move by the order of two products."""
    if not tensor.format.core.has_levels or tensor.levels.item() == 1:
        return planned
    note = "codes and scales are; values within one unit in the last place"
    return replace(planned, row=replace(planned.row, exact=False, note=note))


def _plain(source: ModelSource, name: str, tensor: Tensor, place: FilePlace, wanted: str | None) -> _Planned:
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


def _as(name: str, place: FilePlace, values: Tensor | PackedTensor, kind: GgmlType, origin: str) -> _Planned:
    shape = tuple(reversed(values.shape) if place.turned else values.shape)
    if place.heads and (not shape or shape[0] % (2 * place.heads)):
        raise NoTypeError(f"shape {list(shape)}; accepted are multiples of twice its {place.heads} heads")
    nbytes = math.prod(shape) // kind.elements * kind.nbytes
    row = WrittenTensor(place.name, name, origin, kind.name, shape, nbytes)
    return _Planned(place, name, values, kind, row)


def _tensors_of(planned: _Planned, former: FormerFile | None) -> Iterator[FileTensor]:
    """Yield a tensor, and the factor of its scales where it has one."""
    name, values = planned.place.name, planned.values
    yield FileTensor(name, planned.type, planned.row.shape, partial(_parts, planned))
    if planned.type.name == "NVFP4" and isinstance(values, PackedTensor):
        factor = name.removesuffix(WEIGHT) + FACTOR
        if values.levels.item() != 1 or (former is not None and factor in former.types):
            yield FileTensor(factor, TYPE_OF["F32"], (1,), partial(_bytes, values.levels))


def _bytes(values: Tensor) -> Iterator[Tensor]:
    yield float_bytes(values, "F32")


def _parts(planned: _Planned) -> Iterator[Tensor]:
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


def _factors(factors: Tensor | None, former: FormerFile | None) -> Iterator[FileTensor]:
    """Yield the factors of rotations: those of the former file where they are the same."""
    if factors is None:
        return
    shape, data = (tuple(factors.shape), None) if former is None else former.extra.get(FACTORS, (factors.shape, None))
    if data is not None:
        own = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
        factors = own if own.shape == factors.shape and torch.allclose(own, factors, rtol=1e-4) else factors
    yield FileTensor(FACTORS, TYPE_OF["F32"], tuple(factors.shape), partial(_bytes, factors))


# --- metadata ---------------------------------------------------------------------------------------------------------


def _metadata(
    source: ModelSource,
    name: str,
    architecture: Architecture,
    config: Config,
    former: FormerFile | None,
    tensors: Sequence[FileTensor],
) -> tuple[dict[str, Typed], str | None]:
    """Return the metadata of a file, and why it has no tokenizer; None where it has one."""
    own = keys_of(architecture, config)
    needed = {f"{name}.{key}": value for key, value in own.needed.items()}
    customary = {f"{name}.{key}": value for key, value in own.customary.items()}
    if name == "bert":
        customary |= _token_types(config)
        pooling = _pooling(source.folder)
        if pooling is not None or former is None:
            customary[f"{name}.pooling_type"] = u32(pooling or 0)
    types = _types_of(tensors)
    if former is None:
        tokens, problem = tokenizer_keys(source.folder, config.whole("vocab_size"), config.values)
        return {
            _ARCHITECTURE: text(name), _NAME: text(source.path.resolve().name), **types, **needed, **customary, **tokens
        }, problem  # fmt: skip
    metadata = dict(former.metadata)
    for key, value in {**needed, **{key: value for key, value in customary.items() if key in metadata}}.items():
        if key not in metadata or not metadata[key].is_like(value):
            metadata[key] = value
    if {tensor.name: tensor.type.name for tensor in tensors} != former.types:
        metadata |= types
    problem = None
    if not same_tokenizer(source.folder, former.metadata, _positions(architecture, config)):
        tokenizer, problem = tokenizer_keys(source.folder, config.whole("vocab_size"), config.values)
        metadata = {
            key: value for key, value in metadata.items() if not key.startswith(PREFIX) and key != CHAT_TEMPLATE
        }
        metadata |= tokenizer
    return metadata, problem


def _positions(architecture: Architecture, config: Config) -> int:
    return config.whole(architecture.numbers["context_length"])


def _types_of(tensors: Sequence[FileTensor]) -> dict[str, Typed]:
    """Return the keys that tell the type of most weights."""
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            elements[tensor.type.name] += math.prod(tensor.shape)
    most = elements.most_common(1)[0][0] if elements else "F32"
    has_blocks = any(tensor.type.name not in PLAIN for tensor in tensors)
    keys = {_FILE_TYPE: u32(_FILE_TYPES[most])} if most in _FILE_TYPES else {}
    return {**keys, **({_QUANTIZATION: u32(2)} if has_blocks else {})}


def _token_types(config: Config) -> dict[str, Typed]:
    return {f"{PREFIX}token_type_count": u32(config.whole("type_vocab_size"))}


def _pooling(folder: Path) -> int | None:
    """Return how sentence-transformers pools the tokens of a model: 0 none, 1 mean, 2 the first; None if it is not."""
    place = folder / "1_Pooling" / "config.json"
    if not place.exists():
        return None
    values = read_json(regular_member(place, folder))
    return next((number for key, number in _POOLINGS.items() if values.get(key) is True), 0)
