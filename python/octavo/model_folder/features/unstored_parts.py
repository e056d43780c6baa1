"""Parts of a model that no file holds: adapters, and thresholds of inputs."""

from __future__ import annotations

from torch import nn

from octavo.errors import ModelError
from octavo.lora import adapters
from octavo.model_folder.stored_feature import StoredFeature
from octavo.nn.input_threshold import input_thresholds


def _refuse_adapters(model: nn.Module) -> None:
    path = next(iter(adapters(model)), None)
    if path is not None:
        raise ModelError(
            f"{path}: has adapters; octavo.lora.save_adapters saves them, fuse and commit make them part of the weights"
        )


def _refuse_thresholds(model: nn.Module) -> None:
    path = next((path for path, _, _ in input_thresholds(model)), None)
    if path is not None:
        raise ModelError(
            f"{path}: has its inputs pruned, which files do not hold; octavo.prune.restore_activations takes that off"
        )


ADAPTERS = StoredFeature("adapters", refuse=_refuse_adapters)
INPUT_THRESHOLDS = StoredFeature("input_thresholds", refuse=_refuse_thresholds)
