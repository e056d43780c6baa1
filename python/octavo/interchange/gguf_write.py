"""Models as GGUF files: what each tensor becomes, the metadata, and the file.

A GGUF file that becomes one again is copied block by block. Of a model folder, each tensor gets the type that holds it
with the same values; the first pass looks at all of them, and only then is anything written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from octavo.interchange.conversion_report import ConversionReport, WrittenTensor, left_out, progress_of
from octavo.interchange.foreign_readers import is_gguf
from octavo.interchange.ggml_carry import PLAIN
from octavo.interchange.ggml_pack import float_bytes
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_config import Config
from octavo.interchange.gguf_metadata import TYPE_OF, FormerFile, Typed, text, typed, u32
from octavo.interchange.gguf_names import architecture_of_class, keys_of
from octavo.interchange.gguf_plan import check_plan, plan_tensors, tensors_of
from octavo.interchange.gguf_tokenizer import PREFIX
from octavo.interchange.gguf_tokenizer_keys import CHAT_TEMPLATE, same_tokenizer, tokenizer_keys
from octavo.interchange.gguf_writer import FileTensor, write_file
from octavo.interchange.model_source import ModelSource, model_source
from octavo.model_folder.companion_files import regular_member
from octavo.storage.reading import read_json

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar
    from octavo.recipe import Recipe

_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
    "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39,
}  # fmt: skip
"""``general.file_type`` by the type of most weights. Source: llama.cpp, ``include/llama.h``."""
_ARCHITECTURE, _NAME, _FILE_TYPE, _QUANTIZATION = (
    "general.architecture", "general.name", "general.file_type", "general.quantization_version"
)  # fmt: skip
_POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2}


def write_gguf(
    source: Path,
    target: Path,
    *,
    recipe: Recipe | None = None,
    decode: bool = False,
    bar: Bar | None = None,
) -> ConversionReport:
    """Write a model as a GGUF file; arguments and errors are those of :func:`octavo.interchange.convert.convert`."""
    if recipe is None and is_gguf(source):
        return _copy(GgufFile(source), target, bar)
    check = partial(check_plan, source, decode)
    with model_source(source, recipe=recipe, check=check, bar=bar, takes_layers=True) as model:
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
    with progress_of(bar, "writing", sum(tensor.nbytes for tensor in tensors)) as done:
        return write_file(target, metadata, tensors, progress=done)


# --- a model ----------------------------------------------------------------------------------------------------------


def _write(source: ModelSource, target: Path, decode: bool, bar: Bar | None) -> ConversionReport:
    config = Config(str(source.path), source.config)
    architecture = architecture_of_class(str(source.path), source.model, config)
    name = architecture.name
    former = FormerFile.read(source.folder)
    if former is not None and not _is_of(former, name):
        former = None
    factors = architecture.factors_of(config)
    planned, others = plan_tensors(source, architecture, config, former, decode, bar)
    notes = [*source.notes, *left_out(others, "GGUF files have")]
    tensors = [*(tensor for one in planned for tensor in tensors_of(one, former)), *_factors(factors, former)]
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


def _float32(values: Tensor) -> Iterator[Tensor]:
    yield float_bytes(values, "F32")


def _factors(factors: Mapping[str, Tensor], former: FormerFile | None) -> Iterator[FileTensor]:
    """Yield the factors of rotations: those of the former file where they are the same."""
    for name, values in factors.items():
        shape, data = (tuple(values.shape), None) if former is None else former.extra.get(name, (values.shape, None))
        if data is not None:
            own = torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
            values = own if own.shape == values.shape and torch.allclose(own, values, rtol=1e-4) else values
        yield FileTensor(name, TYPE_OF["F32"], tuple(values.shape), partial(_float32, values))


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
