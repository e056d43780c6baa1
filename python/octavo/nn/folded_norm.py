"""FoldedNorm: the place of a batch normalization that is in the weight and bias of the layer before it."""

from __future__ import annotations

from torch import nn


class FoldedNorm(nn.Identity):
    """Passes on what it gets. Folders tell where it stands, so that a model is built with it again."""


def folded_norms(model: nn.Module) -> list[str]:
    """Return the paths of normalizations that were folded, each place of a shared one."""
    return [path for path, module in model.named_modules(remove_duplicate=False) if isinstance(module, FoldedNorm)]
