"""Masks of pruned parameters: the file names the parameters; the packed bits are ``LAYER.masks.NAME`` beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from octavo.errors import ContainerError, ModelError
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature, is_names
from octavo.nn.masks import ATTRIBUTE, masked_layers, masks_of, watch_tied
from octavo.recipe.sites import join


def _describe(model: nn.Module) -> list[str] | None:
    return [join(path, name) for path, _, own in masked_layers(model) for name in own.names()] or None


def _restore(restoration: Restoration, names: Any) -> None:
    model = restoration.model
    for name in names or ():
        path, _, last = name.rpartition(".")
        try:
            layer = model.get_submodule(path)
            parameter = layer.get_parameter(last)
            masks_of(layer, path or type(model).__name__).put(
                layer, last, torch.ones(parameter.shape, dtype=torch.bool)
            )
        except (AttributeError, ModelError) as error:
            raise ContainerError(f"{name}: pruned in the file, and no parameter to mask here: {error}") from None
    watch_tied(model)


def _unsaved(model: nn.Module) -> Iterator[str]:
    """Name the scores that pruning gathers in training."""
    for path, _, own in masked_layers(model):
        yield from (join(join(path, ATTRIBUTE), name) for name in own.score_names())


def _own_tensors(names: Any) -> Iterator[str]:
    for name in names:
        path, _, last = name.rpartition(".")
        yield f"{join(path, ATTRIBUTE)}.{last}"


MASKED = StoredFeature(
    "masked", Stage.PARAMETERS, describe=_describe, is_valid=is_names, restore=_restore, unsaved=_unsaved,
    own_tensors=_own_tensors,
)  # fmt: skip
