"""Models as folders of compressed-tensors, which transformers and vLLM read: tensors, names, configuration.

The first pass looks at every tensor: a reader's values are computed and compared. Only then is anything written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from octavo.errors import FormatError
from octavo.interchange import compressed_tensors_layout as layouts
from octavo.interchange.compressed_tensors_config import METHOD
from octavo.interchange.compressed_tensors_former import NAME, FormerFolder
from octavo.interchange.compressed_tensors_joined import FUSED, encoded_together
from octavo.interchange.compressed_tensors_layout import GLOBAL, PACKED, SCALE, WEIGHT
from octavo.interchange.compressed_tensors_pack import NoFormatError, StoredParts, check_format, parts_of
from octavo.interchange.conversion_report import ConversionReport, WrittenTensor, progress_of
from octavo.interchange.foreign_readers import is_packed_by, reader_of
from octavo.interchange.gguf_metadata import NAME as GGUF_NAME
from octavo.interchange.model_source import ModelSource, model_source, with_layers
from octavo.model_folder.companion_files import copy_companions
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.model_folder.model_card import remove_card
from octavo.model_folder.model_config import CONFIG
from octavo.model_folder.quantization_entry import ENTRY
from octavo.model_folder.weight_files import PLAIN_NAME, Checkpoint, replaced
from octavo.nn.embedding import is_table
from octavo.storage import files, folders
from octavo.storage.reading import read_json
from octavo.tensors import container
from octavo.tensors.container import Deferred
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.tensor_names import Placed
    from octavo.recipe import Recipe

_NATIVE = ("fp32", "fp16", "bf16")
_SCALE_DTYPES = {
    layouts.MXFP4: "torch.uint8", layouts.MXFP6: "torch.uint8", layouts.MXFP8: "torch.uint8",
    layouts.NVFP4: "torch.float8_e4m3fn",
}  # fmt: skip
_TABLE = "tables stay floats: few readers take packed ones"
_MOST_LISTED = 8


def write_compressed_tensors(
    source: Path,
    target: Path,
    *,
    recipe: Recipe | None = None,
    decode: bool = False,
    bar: Bar | None = None,
) -> ConversionReport:
    """Write a model as a folder of compressed-tensors; arguments and errors are those of ``convert``.

    Source: :func:`octavo.interchange.convert.convert`.
    """
    if recipe is None and is_packed_by(METHOD)(source):
        return _copy(source, target)
    check = partial(_check_plan, decode)
    with model_source(source, recipe=recipe, check=check, bar=bar, rewritten_with=NAME) as model:
        together = {} if recipe is None or reader_of(source) is not None else encoded_together(model, source)
        if together:
            sentence = f"{len(together)} weights of nvfp4 share a factor with those that vLLM joins them with"
            model = replace(model, tensors={**model.tensors, **together}, notes=[*model.notes, sentence])
        return _write(model, target, decode, bar)


# --- such a folder again ----------------------------------------------------------------------------------------------


def _copy(source: Path, target: Path) -> ConversionReport:
    """Write the tensors of a folder as they are."""
    checkpoint = Checkpoint.open(source)
    names = [file.name for file in checkpoint.files]
    index = [file.name for file in source.glob("*.safetensors.index.json")]
    with folders.whole(target, owned=replaced(target, *names, *index), overwrite=True) as folder:
        copy_companions(source, folder)
        for name in (*names, *index):
            shutil.copyfile(source / name, folder / name)
    rows = [
        WrittenTensor(entry.name, entry.name, entry.dtype, entry.dtype, entry.shape, entry.nbytes)
        for entry in checkpoint.entries()
    ]
    return ConversionReport(target, checkpoint.nbytes, rows)


# --- a model ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planned:
    """A tensor of the model. ``tensors``: of the folder, by name. ``stored``: how a packed weight lies there."""

    name: str
    tensors: Mapping[str, Tensor | Deferred]
    row: WrittenTensor
    stored: StoredParts | None = None
    layer: str = ""
    divisor: float | None = None


def _check_plan(decode: bool, _: str, plan: Sequence[TensorReport], __: Mapping[str, Any]) -> None:
    """Refuse a recipe that gives tensors formats which compressed-tensors has not. Raises FormatError."""
    wrong = []
    for report in plan:
        if report.format is not None and report.format not in _NATIVE and len(report.shape) == 2:
            try:
                check_format(Format(report.format), report.shape[1])
            except NoFormatError as error:
                wrong.append((report.name, report.format, str(error)))
    if wrong and not decode:
        raise _refused(wrong)


def _refused(wrong: Sequence[tuple[str, str, str]]) -> FormatError:
    """Return the error for tensors that compressed-tensors has no format for: name, format and reason of each."""
    listed = "; ".join(f"{name}: '{label}': {reason}" for name, label, reason in wrong[:_MOST_LISTED])
    more = f"; and {len(wrong) - _MOST_LISTED} more" if len(wrong) > _MOST_LISTED else ""
    return FormatError(f"{listed}{more}; --decode writes the same values as floats")


def _write(source: ModelSource, target: Path, decode: bool, bar: Bar | None) -> ConversionReport:
    network = with_layers(skeleton(source.folder), source.modules)
    former = FormerFolder.read(source.folder)
    planned = _plan(source, network, former, decode, bar)
    entry = _entry(planned, network, former, source.modules)
    notes = [*source.notes, *_scale_notes(planned, _dtype(source.config)), *_fused_notes(planned)]
    tensors: dict[str, Tensor | Deferred] = {}
    extra = {} if former is None or not _is_whole(planned, former) else former.extra
    for one in planned:
        tensors |= one.tensors
    tensors |= {name: tensor for name, tensor in extra.items() if name not in tensors}
    with folders.whole(target, owned=replaced(target, PLAIN_NAME, NAME), overwrite=True) as folder:
        copy_companions(source.folder, folder)
        for name in (NAME, GGUF_NAME):  # of the folder that this one was made of
            (folder / name).unlink(missing_ok=True)
        remove_card(folder)
        config = {key: value for key, value in read_json(source.folder / CONFIG, finite=False).items() if key != ENTRY}
        config |= {ENTRY: entry} if entry is not None else {}
        files.write(folder / CONFIG, json.dumps(config, indent=2) + "\n")
        with progress_of(bar, "writing", sum(tensor.nbytes for tensor in tensors.values())) as done:
            container.save(tensors, folder / PLAIN_NAME, metadata={"format": "pt"}, progress=done)
    rows = [one.row for one in planned]
    return ConversionReport(target, (target / PLAIN_NAME).stat().st_size, rows, notes)


def _is_whole(planned: Sequence[_Planned], former: FormerFolder) -> bool:
    """Whether all weights lie again as they lay in the former folder, and no others are packed."""
    packed = {one.layer: one.stored for one in planned if one.stored is not None}
    formers = [*former.weights.values(), *(one for parts in former.experts.values() for one in parts)]
    were = {one.layer: one for one in formers}
    return packed.keys() == were.keys() and all(
        (stored.form, stored.format, stored.scheme, stored.dense) == (was.form, was.format, was.scheme, was.dense)
        for layer, stored in packed.items()
        for was in (were[layer],)
    )


def _plan(
    source: ModelSource, network: nn.Module, former: FormerFolder | None, decode: bool, bar: Bar | None
) -> list[_Planned]:
    """Return every tensor as the folder has it. Raises FormatError for those that it cannot have."""
    planned: list[_Planned] = []
    wrong = []
    dtype = _dtype(source.config)
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    with progress_of(bar, "looking", total) as done:
        for name, tensor in source.tensors.items():
            try:
                if any(name.startswith(f"{path}.") for path in source.modules):
                    planned += _experts(former, name, tensor, dtype)
                else:
                    planned.append(_planned(source, network, former, name, tensor, dtype, decode))
            except NoFormatError as error:
                label = tensor.format if isinstance(tensor, PackedTensor) else tensor.dtype
                wrong.append((name, str(label).removeprefix("torch."), str(error)))
            done(name, tensor.nbytes)
    if wrong:
        raise _refused(wrong)
    return planned


def _planned(
    source: ModelSource,
    network: nn.Module,
    former: FormerFolder | None,
    name: str,
    tensor: Placed,
    dtype: torch.dtype,
    decode: bool,
) -> _Planned:
    place = name if former is None else former.names.get(name, name)
    if isinstance(tensor, MergedTensor):
        if not decode:
            raise NoFormatError("made of several tensors of the folder, which are not written one by one")
        tensor = tensor.tensor()
    if isinstance(tensor, Tensor):
        origin = str(tensor.dtype).removeprefix("torch.")
        row = WrittenTensor(place, name, origin, origin, tuple(tensor.shape), tensor.nbytes)
        return _Planned(name, {place: tensor}, row)
    if str(tensor.format) in _NATIVE:
        return _float(source, network, place, name, tensor, None)
    was = None if former is None else former.weights.get(name)
    path, _, part = name.rpartition(".")
    module = network.get_submodule(path)
    names = [name, *(tied for tied, first in source.ties.items() if first == name)]
    has_table = any(is_table(network.get_submodule(one.rpartition(".")[0])) for one in names)
    if has_table and (was is None or len(names) > 1):
        return _float(source, network, place, name, tensor, _TABLE)
    try:
        if part != "weight" or not (isinstance(module, nn.Linear) or is_table(module)) or tensor.axis != 1:
            raise NoFormatError("of no Linear layer; compressed-tensors packs those alone")
        return _packed(place, name, tensor, parts_of(tensor, dtype, was), None if was is None else was.layer)
    except NoFormatError as error:
        if not decode:
            raise
        return _float(source, network, place, name, tensor, f"decoded: {error}")


def _experts(former: FormerFolder | None, name: str, tensor: Placed, dtype: torch.dtype) -> Iterator[_Planned]:
    """Give the weights of the former folder whose rows a layer of an expert has."""
    parts = None if former is None else former.experts.get(name)
    if parts is None or not isinstance(tensor, PackedTensor):
        raise NoFormatError("a layer of an expert, which transformers has in a tensor of all experts")
    first = 0
    for was in parts:
        _, shape = was.parts.get(PACKED, was.parts.get(WEIGHT, ("", ())))
        rows = tensor[first : first + (shape[0] if shape else 0)]
        yield _packed(f"{was.layer}.weight", name, rows, parts_of(rows, dtype, was), was.layer)
        first += len(rows)
    if first != len(tensor):
        raise NoFormatError(f"{len(tensor)} rows, where the folder that it was read from had {first}")


def _float(
    source: ModelSource, network: nn.Module, place: str, name: str, tensor: PackedTensor, note: str | None
) -> _Planned:
    """Return a packed tensor as floats of its logical dtype, which are its values."""
    shape = tuple(network.state_dict(keep_vars=True)[name].shape)
    is_turned = source.layers.get(name.rpartition(".")[0], {}).get("transposed") is True
    later = Deferred(tensor.dtype, shape, partial(_decode_into, tensor, is_turned))
    kind = str(tensor.dtype).removeprefix("torch.")
    row = WrittenTensor(place, name, str(tensor.format), kind, shape, later.nbytes, note=note)
    return _Planned(name, {place: later}, row)


def _decode_into(tensor: PackedTensor, is_turned: bool, out: Tensor) -> None:
    values = tensor.decode()
    out.copy_((values.t() if is_turned else values).reshape(out.shape))


def _packed(place: str, name: str, tensor: PackedTensor, stored: StoredParts, layer: str | None) -> _Planned:
    layer = place.removesuffix(".weight") if layer is None else layer
    tensors: dict[str, Tensor | Deferred] = {}
    nbytes, divisor = 0, None
    for part, make in stored.makers.items():
        made_part = make()
        nbytes += made_part.nbytes
        divisor = float(made_part.flatten()[0]) if part == GLOBAL else divisor
        shape, dtype = tuple(made_part.shape), made_part.dtype
        tensors[f"{layer}.{part}"] = Deferred(dtype, shape, partial(_make_into, make))
    is_rounded = stored.form == layouts.NVFP4 and tensor.dtype != torch.bfloat16
    note = "codes and scales are; readers round values to bfloat16" if is_rounded else stored.note
    row = WrittenTensor(
        f"{layer}.weight", name, str(tensor.format), f"{stored.format}, {stored.scheme}", tuple(tensor.shape), nbytes,
        exact=note is None, note=note,
    )  # fmt: skip
    return _Planned(name, tensors, row, stored, layer, divisor)


def _make_into(make: Callable[[], Tensor], out: Tensor) -> None:
    out.copy_(make())


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype that transformers gives a model of this configuration."""
    stated = config.get("dtype", config.get("torch_dtype"))
    dtype = getattr(torch, stated.removeprefix("torch."), None) if isinstance(stated, str) else stated
    return dtype if isinstance(dtype, torch.dtype) and dtype in FLOATS else torch.float32


# --- the configuration ------------------------------------------------------------------------------------------------


def _entry(
    planned: Sequence[_Planned], network: nn.Module, former: FormerFolder | None, modules: Collection[str]
) -> dict[str, Any] | None:
    """Return ``quantization_config``; the former one where all weights lie as they did, None where none is packed."""
    packed = [one for one in planned if one.stored is not None]
    if not packed:
        return None
    if former is not None and _is_whole(planned, former):
        return dict(former.config)
    groups: dict[tuple[str, str], list[str]] = {}
    arguments: dict[tuple[str, str], dict[str, Any]] = {}
    for one in packed:
        assert one.stored is not None  # of the packed ones
        scheme = one.stored.scheme.as_dict()
        if (kind := _SCALE_DTYPES.get(one.stored.form)) is not None:
            scheme |= {"scale_dtype": kind, "zp_dtype": kind}
        key = one.stored.format, json.dumps(scheme)
        groups.setdefault(key, []).append(one.layer)
        arguments[key] = scheme
    layers = {one.layer for one in packed}
    places = {one.name: one.row.name for one in planned}
    linear = [
        name for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not any(name.startswith(f"{path}.") for path in modules)
    ]  # fmt: skip
    ignore = [
        layer for name in linear if (layer := places.get(f"{name}.weight", name).removesuffix(".weight")) not in layers
    ]
    ordered = sorted(groups, key=lambda key: -len(groups[key]))
    tables = {name for name, module in network.named_modules() if is_table(module)}
    config_groups = {}
    for number, key in enumerate(ordered):
        by_name = groups[key] if number else [layer for layer in groups[key] if layer in tables]
        config_groups[f"group_{number}"] = {
            "targets": by_name if number else ["Linear", *by_name],
            "weights": arguments[key],
            "input_activations": None,
            "output_activations": None,
            "format": key[0],
        }
    stated = {key[0] for key in groups}
    return {
        "quant_method": METHOD,
        "format": stated.pop() if len(stated) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": ignore,
        "kv_cache_scheme": None,
        "config_groups": config_groups,
    }


def _scale_notes(planned: Sequence[_Planned], dtype: torch.dtype) -> list[str]:
    """Tell of scales that the model's dtype does not hold, which readers round that keep scales in it."""
    count = sum(
        one.stored is not None
        and one.stored.form in (layouts.WORDS, layouts.BYTES)
        and one.tensors[f"{one.layer}.{SCALE}"].dtype == torch.float32
        for one in planned
    )
    if not count or dtype == torch.float32:
        return []
    name = str(dtype).removeprefix("torch.")
    return [
        f"scales of {count} weights are float32, since {name} does not hold them; transformers reads them so with "
        f"CompressedTensorsConfig(dequantize=True), else it rounds them to {name}, as vLLM does"
    ]


def _fused_notes(planned: Sequence[_Planned]) -> list[str]:
    """Tell of layers that vLLM joins and that have different divisors, of which it takes the largest."""
    divisors = {one.layer: one.divisor for one in planned if one.divisor is not None}
    parents = {layer.rpartition(".")[0] for layer in divisors}
    different = sum(
        len({divisors[layer] for part in parts if (layer := f"{parent}.{part}") in divisors}) > 1
        for parent in parents
        for parts in FUSED
    )
    if not different:
        return []
    return [f"vLLM joins q, k, v and gate, up and takes one {GLOBAL} of them; in {different} places they differ"]
