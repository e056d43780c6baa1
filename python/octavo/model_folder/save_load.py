"""Models in folders: packed and simulated layers, written and read without pickle and without a dense copy."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from octavo.errors import ContainerError, ModelError
from octavo.late_binding import late
from octavo.model_folder.carried_files import carry_files, replaced_files, write_files
from octavo.model_folder.companion_files import README, measurements
from octavo.model_folder.features import FEATURES
from octavo.model_folder.hf_loading import CONFIG
from octavo.model_folder.infer_structure import fitting, infer_structure, own_skeleton
from octavo.model_folder.model_card import note_base, write_card
from octavo.model_folder.model_config import SHAPE, config_text, described, own_model
from octavo.model_folder.place_tensors import assign_plain, refuse_empty
from octavo.model_folder.quantization_entry import ENTRY, entry_of, folder_entry, is_ours, write_entry
from octavo.model_folder.skeleton import build, build_from_config, drop_pooler
from octavo.model_folder.stored_feature import Restoration, Stage
from octavo.model_folder.stored_tensors import main_dtype, stored_state
from octavo.model_folder.structure import (
    KEY,
    describe_model,
    describe_packed,
    model_digests,
    model_metadata,
    read_structure,
    restore,
)
from octavo.model_folder.weight_files import (
    CONFIGURATIONS,
    OF_TENSORS,
    PACKED_INDEX,
    PACKED_NAME,
    Checkpoint,
    held,
    packed_files,
    packed_shard,
)
from octavo.nn.former_names import current_names
from octavo.nn.meta_tensors import refuse_meta
from octavo.storage import files, folders
from octavo.storage.arguments import checks_arguments
from octavo.storage.named_models import resolved
from octavo.tensors import container
from octavo.tensors.packed_tensor import PackedTensor


@checks_arguments
def save_model(model: nn.Module, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write a model to a folder: ``model.octavo.safetensors``, and ``config.json`` of a model of transformers or ours.

    Packed weights are in the file as ``LAYER.weight``, with their format; every other tensor of the state dict under
    its name; tied tensors once. Its metadata name the packed and simulated layers, their options, and the recipe where
    one gave the whole model its formats. The folder appears complete or not at all. In a folder that is there, weights
    and configuration are replaced in one step, measurements of the old weights (``accuracy.json``) removed, and other
    files kept. Tokenizer, chat templates, processors and licenses are written, too, from the folder that
    :func:`load_model` or ``from_pretrained`` read the model from; the latter's not where ``path`` has a tokenizer
    already. Source: FORMATS.md section 5.

    Args:
        model: float, simulated or packed.
        path: folder to write.
        overwrite: False refuses a folder that is there.

    Raises:
        DTypeError: for an object that is no module.
        ModelError: for adapters and state that is no tensor, which a file cannot hold.
        ContainerError: where the path is a file, or holds weights under another name.
        FileExistsError: for a folder that is there, with ``overwrite=False``.
        OSError: as the system gives it.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "int4:g32")), "small")
        >>> for entry in octavo.inspect("small/model.octavo.safetensors"):
        ...     print(entry.name, entry.format, entry.nbytes)
        0.bias None 512
        0.weight int4:g32 4608
        2.bias None 40
        2.weight int4:g32 720
    """
    write_model(model, Path(path), overwrite=overwrite)


def write_model(
    model: nn.Module, target: Path, *, overwrite: bool, most_bytes: int | None = None, card: bool = False
) -> None:
    """Write the folder of :func:`save_model`.

    ``most_bytes``: of a file of weights; a larger model is written to several, with an index. ``card``: write a model
    card, too. Raises as :func:`save_model`.
    """
    _check_target(target, overwrite)
    stored = _collect(model)
    owned = {*packed_files(target), *CONFIGURATIONS, SHAPE, *measurements(target), *replaced_files(model, target)}
    former = target / README
    with folders.whole(target, owned={*owned, README} if card else owned, overwrite=overwrite) as folder:
        _write(model, folder, stored, target, most_bytes)
        if card:
            if former.is_file():
                files.write(folder / README, former.read_text(encoding="utf-8", errors="replace"))
            write_card(model, folder)


def save_weights(model: nn.Module, file: Path, metadata: Mapping[str, str]) -> None:
    """Write the file of :func:`save_model` alone, with more metadata. Raises as it does."""
    _save_weights(_collect(model), file, metadata)


@checks_arguments
def load_model(
    path: str | os.PathLike[str], model: nn.Module | Callable[[], nn.Module] | None = None, *, mmap: bool = False
) -> nn.Module:
    """Return the model of a folder or file of :func:`save_model` or ``octavo pack``, in evaluation mode.

    Without ``model``, ``config.json`` says what to build: a model of transformers, or a network that a package
    registers (:mod:`octavo.model_folder.subject_registry`); no code of the folder runs. Folders that transformers wrote
    are read, too, in one file or in shards, and keep their dtypes; and those of ``octavo lab train``, ``compress`` and
    ``unpack``. Tensors that are packed in no layer, such as those of an LSTM, are decoded. Source: FORMATS.md section
    5. Of a GGUF file, and of a folder that another package has packed, such as GPTQ, weights that a format holds
    stay packed; others are decoded to floats, which is warned of.

    Args:
        path: a model folder, a file of weights, or a GGUF file; ``"minilm"`` and ``"smollm2"`` are models that packages
            carry.
        model: the model to fill, or a function without arguments that makes it, whose dense weights are then never
            allocated; its layers are replaced by those of the file.
        mmap: map the file instead of reading it, as :func:`octavo.load`.

    Returns:
        The model.

    Raises:
        ContainerError: for an invalid file, or one of another model; names the tensor or layer. A ``model`` may be
            filled in part then.
        ModelError: where the model cannot be built.
        OctavoError: for a name whose package is missing.
        DTypeError: for a ``model`` that is neither a module nor a function.
        OSError: as the system gives it.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
        >>> packed = octavo.pack_model(octavo.quantize_model(model, "int4:g32"))
        >>> octavo.save_model(packed, "small")
        >>> loaded, x = octavo.load_model("small", model), torch.randn(1, 64)
        >>> torch.equal(loaded(x), packed(x))
        True
    """
    path = resolved(path)
    reader = late("foreign_reader")(path)
    if reader is not None:
        if model is not None:
            raise ModelError(f"{os.fspath(path)}: {reader.kind} says what to build; leave model out")
        opened = cast("nn.Module", reader.load(path, mmap=mmap))
        if os.path.isdir(path):
            carry_files(opened, Path(path))
        return opened
    source = Checkpoint.open(path)
    loaded = _load(source, model, mmap)
    if source.is_folder:
        carry_files(loaded, source.path)
    return loaded


def fill_from(source: Checkpoint, model: nn.Module) -> nn.Module:
    """Return ``model``, filled from a file of :func:`save_model`. Raises as :func:`load_model`."""
    return _load(source, model, False)


def _load(source: Checkpoint, model: nn.Module | Callable[[], nn.Module] | None, mmap: bool) -> nn.Module:
    metadata = source.metadata()
    text = metadata.get(KEY)
    own = own_model(source.folder) if model is None or text is None else None
    if text is None and own is None and model is None and source.has_config:
        return _load_undescribed(source, mmap)
    if len(source.files) != 1 and text is None:
        raise ContainerError(f"{source.path}: {len(source.files)} files of weights; save_model writes one")
    if not mmap:
        source.verify()
    file = source.files[0]
    # Folders of our networks that nothing describes, such as those of 0.1, are told by their configuration.
    structure = None if text is None and own is not None else read_structure(file, text)
    from_config = model is None and own is None
    if model is None and own is not None:
        model = own_skeleton(own, source)
    elif model is None:
        assert structure is not None  # no network of ours
        model = build_from_config(source.folder, structure["class"], source)
        drop_pooler(model, [entry.name for entry in source.entries()])
    elif not isinstance(model, nn.Module):
        model = build(model)
    tensors = current_names(source.tensors(mmap=mmap))
    structure = structure or describe_packed(model, tensors)
    filled = _filled(Restoration(model, tensors, structure["ties"], file, from_config), structure, metadata)
    note_base(filled, folder_entry(source.folder).get("base_model"))
    return filled


def fill_packed(
    model: nn.Module,
    tensors: Mapping[str, Tensor | PackedTensor],
    ties: Mapping[str, str],
    file: Path,
) -> nn.Module:
    """Return a float ``model`` without weights, filled; packed tensors become packed layers, or are decoded.

    ``tensors``: by name in the model. ``ties``: further names, and the tensor that each is tied to. ``file``: for
    errors. Raises ContainerError for tensors that do not fit the model.
    """
    structure = describe_packed(model, {**tensors, **{name: tensors[first] for name, first in ties.items()}})
    return _filled(Restoration(model, dict(tensors), ties, file, from_config=True), structure, {})


def fill_folder(model: nn.Module, folder: Path) -> None:
    """Write what :func:`save_model` writes into a folder that is there and being filled. Raises as it does."""
    _write(model, folder, _collect(model), folder)


def file_bytes(model: nn.Module, metadata: Mapping[str, str] | None = None) -> int:
    """Return the bytes of the file that :func:`save_weights` would write, header included, to the byte.

    ``metadata``: as for :func:`save_weights`. Values of tensors are not read. Raises as :func:`save_model`.
    """
    stored = _collect(model)
    unknown = dict.fromkeys(stored.tensors, container.NO_DIGEST)
    return container.planned_bytes(stored.tensors, metadata=_metadata(stored, unknown, metadata))


# --- writing --------------------------------------------------------------------------------------------------------


def _write(model: nn.Module, folder: Path, stored: _Stored, target: Path, most_bytes: int | None = None) -> None:
    is_whole = most_bytes is None or sum(tensor.nbytes for tensor in stored.tensors.values()) <= most_bytes
    write_config(model, folder)
    if is_whole:
        _save_weights(stored, folder / PACKED_NAME)
    else:
        assert most_bytes is not None  # it is not whole
        _save_shards(stored, folder, most_bytes)
        write_entry(folder, {**(entry_of(model) or {}), "weights": PACKED_INDEX})
    write_files(model, folder, target)


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ContainerError(f"{target}: a file; models are written to a folder")
    others = [name for name in held(target) if name not in packed_files(target)] if target.is_dir() else []
    if others:
        raise ContainerError(f"{target}: holds {others[0]}, and {PACKED_NAME} beside it would be ambiguous")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} exists; overwrite=True replaces the model in it")


@dataclass(frozen=True)
class _Stored:
    """What a file holds: the tensors, and what its metadata say about the model."""

    tensors: dict[str, Tensor | PackedTensor]
    description: dict[str, str]


def _collect(model: nn.Module) -> _Stored:
    for feature in FEATURES:
        feature.refuse(model)
    refuse_meta(model, "save_model")
    values, ties = stored_state(model)
    for name, value in values.items():
        if not isinstance(value, Tensor | PackedTensor):
            raise ModelError(f"{name}: state that is a {type(value).__name__}; files hold tensors alone")
    return _Stored(values, describe_model(model, ties))


def _save_weights(stored: _Stored, file: Path, more: Mapping[str, str] | None = None) -> None:
    metadata = _metadata(stored, container.digests(stored.tensors), more)
    container.save(stored.tensors, file, metadata=metadata)


def _save_shards(stored: _Stored, folder: Path, most_bytes: int) -> None:
    """Write files of at most so many bytes, or one tensor, and their index; the first one describes the model."""
    shards: list[dict[str, Tensor | PackedTensor]] = [{}]
    size = 0
    for name, tensor in stored.tensors.items():
        if shards[-1] and size + tensor.nbytes > most_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    places: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = packed_shard(number, len(shards))
        digests = container.digests(tensors)
        metadata = _metadata(stored, digests, None) if number == 1 else model_digests(digests)
        container.save(tensors, folder / file, metadata=metadata)
        places |= dict.fromkeys(tensors, file)
    total = sum(tensor.nbytes for tensor in stored.tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    files.write(folder / PACKED_INDEX, json.dumps(index, indent=2) + "\n")


def _metadata(stored: _Stored, digests: Mapping[str, str], more: Mapping[str, str] | None) -> dict[str, str]:
    others = {key: value for key, value in (more or {}).items() if key not in OF_TENSORS}
    return {**others, **model_metadata(stored.description, digests)}


def write_config(model: nn.Module, folder: Path) -> None:
    """Write the configuration of a model of transformers, and that of its generation, or that of a network of ours."""
    if (own := described(model)) is not None:
        files.write(folder / CONFIG, config_text(*own))
        return
    for name in ("config", "generation_config"):
        config = getattr(model, name, None)
        if config is not None and callable(getattr(config, "save_pretrained", None)):
            config = copy.deepcopy(config)
            if name == "config":
                config.architectures = [type(model).__name__]
                entry = entry_of(model)
                if entry is not None:
                    setattr(config, ENTRY, entry)
                    if hasattr(config, "dtype"):  # transformers reads the weights in it
                        config.dtype = main_dtype(model)
                elif is_ours(getattr(config, ENTRY, None)):
                    delattr(config, ENTRY)
            config.save_pretrained(folder)


# --- reading --------------------------------------------------------------------------------------------------------


def _load_undescribed(source: Checkpoint, mmap: bool) -> nn.Module:
    """Return the model of a folder whose file does not describe it: of transformers, or of ``octavo pack`` of 0.1."""
    what = f"{source.files[0]}: holds tensors but no model"
    try:
        model, found = fitting(source, source.tensors(mmap=mmap))
    except (ContainerError, ModelError) as error:
        raise type(error)(f"{what}: {error}; octavo.load reads the tensors") from None
    try:
        structure = infer_structure(model, found)
    except ContainerError as error:
        raise ContainerError(f"{what}: {error}; octavo pack {source.path} -o NEW writes the model") from None
    for name, tensor in found.tensors.items():
        if not isinstance(tensor, PackedTensor):
            found.tensors[name] = found.value(name)
    tensors = cast("dict[str, Tensor | PackedTensor]", found.tensors)
    return _filled(Restoration(model, tensors, structure["ties"], source.path), structure, {})


def _filled(restoration: Restoration, structure: Mapping[str, Any], metadata: Mapping[str, str]) -> nn.Module:
    """Return a model with the tensors of a file and what the file says about it, in evaluation mode."""
    try:
        return _fill(restoration, structure, metadata)
    except ContainerError as error:
        place = str(restoration.file)
        raise error if str(error).startswith(place) else ContainerError(f"{place}: {error}") from None


def _fill(restoration: Restoration, structure: Mapping[str, Any], metadata: Mapping[str, str]) -> nn.Module:
    tensors = restoration.tensors
    for name, source in restoration.ties.items():
        if source not in tensors or name in tensors:
            raise ContainerError(f"{name}: tied to {source}, which must be in the file, and {name} itself not")
    restore(restoration, structure, metadata, Stage.SHAPES, Stage.PARAMETERS)
    model, by_name = restoration.model, restoration.by_name()
    restoration.placed |= assign_plain(model, restoration.ties, by_name, restoration.placed)
    stray = sorted(by_name.keys() - restoration.placed)
    if stray:
        raise ContainerError(f"{stray[0]}: has no place in this {type(model).__name__} ({len(stray)} such tensors)")
    refuse_empty(model)
    restore(restoration, structure, metadata, Stage.FILLED, Stage.FILLED)
    return model.eval()
