"""Models of other packages' files before their tensors are read: what all readers give, and the model that it makes."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from octavo.errors import OctavoWarning
from octavo.model_folder.save_load import fill_packed
from octavo.tensors.fresh import empty
from octavo.tensors.packed_tensor import PackedTensor


@dataclass(frozen=True)
class TensorOrigin:
    """A tensor of another package's file, and how it was read.

    ``type``: in the file. ``nbytes``: there. ``format``: that it was carried into; None where it is plain.
    ``reason``: why its blocks were decoded to ``dtype``; None where they were not.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    format: str | None
    reason: str | None
    dtype: str = "float32"


class ForeignModel(Protocol):
    """A model of another package's file before its tensors are read."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of transformers, with the class of the model."""

    @property
    def names(self) -> Mapping[str, str]:
        """Names of tensors in the file, with those that they have in the model."""

    @property
    def ties(self) -> Mapping[str, str]:
        """Names in the model of tensors that are another one, with its name."""

    def as_floats(self) -> ForeignModel:
        """Return the model with the parameters that its class has, none of them as layers."""

    def skeleton(self) -> nn.Module:
        """Return the float model without memory for its weights. Raises ContainerError for sizes of other tensors."""

    def carried(self, name: str) -> tuple[PackedTensor | None, TensorOrigin]:
        """Return a tensor in a format of ours, None where none holds it or it is plain, and how it is to be read."""

    def decoded(self, name: str) -> Tensor:
        """Return the values of a tensor as the float model has it."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in the float model."""

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype that a tensor has in the float model."""

    def notes(self) -> list[str]:
        """Return sentences on what of the file is not in the model."""

    def companions(self) -> list[str]:
        """Return the names of the files that :meth:`write_companions` writes."""

    def write_companions(self, folder: Path) -> None:
        """Write configuration, tokenizer and what else belongs to the model into a folder."""


def load_foreign_model(subject: ForeignModel, *, mmap: bool = False) -> tuple[nn.Module, list[TensorOrigin]]:
    """Return the model of a file, in evaluation mode, and how each of its tensors was read.

    ``mmap``: tensors may share memory with the mapped file, as for :func:`octavo.load`. Raises ContainerError for
    tensors that do not fit the model, and as the reader does.
    """
    model = subject.skeleton()
    tensors: dict[str, Tensor | PackedTensor] = {}
    origins = []
    for name, place in subject.names.items():
        carried, origin = subject.carried(name)
        tensor = subject.decoded(name) if carried is None else carried
        tensors[place] = tensor if mmap else _copied(tensor)
        origins.append(origin)
    return fill_packed(model, tensors, subject.ties, subject.path), origins


def _copied(tensor: Tensor | PackedTensor) -> Tensor | PackedTensor:
    """Return a tensor in memory of its own, which no file is mapped to."""
    if isinstance(tensor, Tensor):
        return tensor.clone()
    parts = []
    for part in tensor.parts:
        own = empty(list(part.shape), part.dtype)  # products of packed weights are faster in huge pages
        parts.append(own.copy_(part))
    return PackedTensor(
        tensor.format, *parts, shape=tensor.shape, dtype=tensor.dtype, axis=tensor.axis, scale=tensor.scale
    )


def tell_decoded(path: str | os.PathLike[str], origins: Sequence[TensorOrigin]) -> None:
    """Warn of blocks that were decoded to floats, with the reasons."""
    sentence = decoded_sentence(origins)
    if sentence is not None:
        warnings.warn(f"{os.fspath(path)}: {sentence}", OctavoWarning, stacklevel=5)  # the caller of octavo.load_model


def decoded_sentence(origins: Sequence[TensorOrigin]) -> str | None:
    """Return how many tensors were decoded, and why; None where none was."""
    reasons = Counter((origin.type, origin.reason) for origin in origins if origin.reason is not None)
    if not reasons:
        return None
    listed = "; ".join(f"{count} of {kind}: {reason}" for (kind, reason), count in reasons.most_common(3))
    more = f"; {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
    dtypes = " and ".join(sorted({origin.dtype for origin in origins if origin.reason is not None}))
    return f"{sum(reasons.values())} of {len(origins)} tensors are decoded to {dtypes}: {listed}{more}"
