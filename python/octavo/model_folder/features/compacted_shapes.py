"""Sizes of a compacted model that has no configuration to hold them."""

from __future__ import annotations

from typing import Any

from torch import nn

from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature
from octavo.prune.sizes import KEY, note_sizes, shrink, sizes_of


def _describe(model: nn.Module) -> dict[str, Any] | None:
    return sizes_of(model) if getattr(model, "config", None) is None else None


def _restore(restoration: Restoration, sizes: Any) -> None:
    if sizes is not None:
        note_sizes(shrink(restoration.model, sizes, str(restoration.file)), sizes)


COMPACTED = StoredFeature(KEY, Stage.SHAPES, describe=_describe, restore=_restore)
