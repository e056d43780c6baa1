"""Tensors that are packed for their bytes and multiplied by no packed layer, such as those of an LSTM."""

from __future__ import annotations

from typing import Any

from octavo.errors import ContainerError
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature, is_names
from octavo.tensors.packed_tensor import PackedTensor


def _restore(restoration: Restoration, names: Any) -> None:
    plain = {}
    for name in names or ():
        tensor = restoration.tensors.get(name)
        if not isinstance(tensor, PackedTensor):
            raise ContainerError(f"{name}: {'missing' if tensor is None else 'not packed'}, expected a packed tensor")
        plain[name] = tensor.decode()
    restoration.tensors = {**restoration.tensors, **plain}


DECODED = StoredFeature("decoded", Stage.TENSORS, is_valid=is_names, restore=_restore)
