"""fold_model: turns the zeros of masks into plain weights and removes the masks."""

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

    The state dict has the names it had before pruning, and forward passes run the same operators as then. Training
    changes the zeros again.

    Args:
        model: with masks.
        inplace: change ``model`` itself; else a copy.

    Returns:
        The model.

    Raises:
        DTypeError: for an argument that is no module.
        ModelError: for a model without masks.

    Example:
        >>> model = octavo.prune_model(nn.Sequential(nn.Linear(64, 64)), 0.5)
        >>> folded = octavo.prune.fold_model(model)
        >>> len(list(folded.buffers())), int((folded[0].weight == 0).sum())
        (0, 2048)
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
