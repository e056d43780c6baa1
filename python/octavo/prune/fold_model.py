"""fold_model: the zeros of masks become plain weights, and nothing of the masks is left."""

from __future__ import annotations

from torch import nn

from octavo.errors import ModelError
from octavo.nn.masks import masked_layers, unwatch
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import deep_copy
from octavo.storage.arguments import checks_arguments


@checks_arguments
def fold_model(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Return the model with its pruned weights as plain zeros, without masks, hooks or scores.

    Its state dict is that of the model before pruning; a forward pass runs what it ran then, and training moves the
    zeros again. ``inplace=False`` leaves ``model`` as it is. Raises DTypeError for what is no module, ModelError where
    there are no masks.
    """
    if next(masked_layers(model), None) is None:
        raise ModelError(f"{type(model).__name__}: no layer has masks; octavo.prune_model makes them")
    refuse_meta(model, "fold_model")
    if not inplace:
        model = deep_copy(model)
    for _, layer, own in list(masked_layers(model)):
        own.detach(layer)
    unwatch(model)
    return model
