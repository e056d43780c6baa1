"""Attention over rounded operands: a model of transformers gets the modules that such layers stand in."""

from __future__ import annotations

from typing import Any

from octavo.model_folder.features.described_layers import LAYERS
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature
from octavo.nn import attention


def _restore(restoration: Restoration, layers: Any) -> None:
    if restoration.from_config and any(path.endswith(f".{attention.CHILD}") for path in layers):
        attention.attach(restoration.model)


ATTENTION = StoredFeature(LAYERS.key, Stage.MODULES, restore=_restore)
