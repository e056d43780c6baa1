"""``save_pretrained`` of a model of transformers with layers of ours: a model folder, or, of a simulated model, a
checkpoint of transformers whose metadata say what the layers do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from octavo.errors import ContainerError, ModelError, SettingError
from octavo.model_folder.carried_files import write_files
from octavo.model_folder.save_load import write_model
from octavo.model_folder.stored_tensors import stored_state
from octavo.model_folder.structure import describe_model, model_metadata
from octavo.model_folder.weight_files import Checkpoint, held, packed_files
from octavo.nn.folded_norm import FoldedNorm
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.rewriting import joined_state, rewritten_modules
from octavo.recipe.sites import join
from octavo.tensors import container

# Of transformers' save_pretrained; they change nothing in the files of packed models, but for their size.
_NO_MATTER = {"max_shard_size", "token", "save_peft_format", "save_original_format", "safe_serialization"}


def save_pretrained(
    model: nn.Module,
    path: str | os.PathLike[str],
    is_main_process: bool,
    of_transformers: Callable[..., None],
    options: Mapping[str, Any],
) -> None:
    """Write a model of transformers with layers of ours, as :meth:`octavo.nn.transformers_methods.OurMethods` says.

    ``of_transformers``: the ``save_pretrained`` of its class. ``options``: the other arguments that the caller gave.
    """
    if getattr(model, "_hf_peft_config_loaded", False):  # adapters alone are written, and the base stays as it is
        of_transformers(path, is_main_process, **options)
        return
    # Transformers' own loading does not know the state of packed and folded layers.
    whole = any(isinstance(module, PackedLayer | FoldedNorm) for module in model.modules())
    matter = [name for name in options if name not in _NO_MATTER] if whole else ["push_to_hub"]
    refused = [name for name in matter if options[name] is not None and options[name] is not False]
    if refused:
        how = "is written by octavo.save_model" if whole else "is written to a folder"
        raise ModelError(
            f"{type(model).__name__}.save_pretrained: this model {how}, without {', '.join(refused)}; leave that "
            "out, and load the folder with octavo.load_model"
        )
    if whole:
        if is_main_process:
            write_model(model, Path(path), overwrite=True, most_bytes=_bytes(options.get("max_shard_size")), card=True)
        return
    folder = Path(path)
    if packed := packed_files(folder) & {*held(folder)}:
        raise ContainerError(f"{path}: holds {min(packed)}, and other weights beside it would be ambiguous")
    if any(True for _ in rewritten_modules(model)):
        state = options.get("state_dict")
        options = {**options, "state_dict": joined_state(model, model.state_dict() if state is None else state)}
    # The model's own names: those of older checkpoints, which some models write, Trainer does not find again.
    of_transformers(path, is_main_process, **{"save_original_format": False, **options})
    if is_main_process:
        _describe(model, folder)


def _bytes(text: int | str | None) -> int | None:
    """Return the bytes of a size as transformers writes it, such as ``5GB``. Raises SettingError for another text."""
    from transformers.utils.hub import convert_file_size_to_int

    try:
        return None if text is None else convert_file_size_to_int(text)
    except ValueError:
        raise SettingError(
            f"max_shard_size is {text!r}; accepted are bytes, and texts such as '5GB' or '200MiB'"
        ) from None


def _describe(model: nn.Module, folder: Path) -> None:
    """Say in the weights that transformers wrote of ``model`` which layers round, and how.

    transformers passes over that; :func:`octavo.load_model` reads the simulated model. The tensors stay as they are,
    names included; a file under a name of its own (``variant=``) and one whose tensors have other names stay as well.
    Tokenizer and the like are written as :func:`octavo.save_model` does.
    """
    write_files(model, folder, folder)
    if not held(folder):
        return
    source = Checkpoint.open(folder)
    values, ties = stored_state(model)
    written = {entry.name for entry in source.entries()}
    for path, record in rewritten_modules(model):  # written whole
        for name, origin in record.origins.items():
            if join(path, name) in written:
                written |= {join(path, part) for part in origin.parts}
    # Of tied tensors transformers may keep another one than the first, or all where a state dict holds copies.
    groups: dict[str, list[str]] = {name: [name] for name in values}
    for name, first in ties.items():
        groups[first].append(name)
    kept = {first: next((name for name in group if name in written), None) for first, group in groups.items()}
    if any(name is None for name in kept.values()):
        return
    tied = {name: kept[first] for first, group in groups.items() for name in group if name not in written}
    description = describe_model(model, {name: first for name, first in tied.items() if first is not None})
    tensors = container.load(source.files[0], mmap=True)
    about = model_metadata(description, container.digests(tensors))
    container.save(tensors, source.files[0], metadata=about)
