"""Checkpoints that transformers writes of a simulated model: what its layers do is said in the metadata of the file."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from octavo.errors import ContainerError
from octavo.model_folder.carried_files import write_files
from octavo.model_folder.stored_tensors import stored_state
from octavo.model_folder.structure import describe_model, model_metadata
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, held
from octavo.tensors import container


def refuse_packed_weights(path: str | os.PathLike[str]) -> None:
    """Refuse a folder with the weights of a packed model, beside which others would be ambiguous: ContainerError."""
    if PACKED_NAME in held(Path(path)):
        raise ContainerError(f"{path}: holds {PACKED_NAME}, and other weights beside it would be ambiguous")


def describe_checkpoint(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Say in the weights that ``save_pretrained`` of transformers wrote of ``model`` which layers round, and how.

    transformers passes over that; :func:`octavo.load_model` reads the simulated model. The tensors stay as they are,
    names included; a file under a name of its own (``variant=``) and one whose tensors have other names stay as well.
    Tokenizer and the like are written as :func:`octavo.save_model` does.
    """
    folder = Path(path)
    write_files(model, folder, folder)
    if not held(folder):
        return
    source = Checkpoint.open(folder)
    values, ties = stored_state(model)
    written = {entry.name for entry in source.entries()}
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
