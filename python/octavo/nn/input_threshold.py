"""InputThreshold: sets the small elements of a layer's input to 0; RandomInputs: any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError

ATTRIBUTE = "input_threshold"


class InputThreshold(nn.Module):
    """Sets the elements of a tensor with magnitudes up to a threshold to 0.

    ``threshold``: fixed, a buffer; None: the ``round(sparsity * n)``-th smallest magnitude of each tensor.
    ``enabled``: switches it off.
    """

    threshold: Tensor | None

    def __init__(self, sparsity: float, threshold: float | None) -> None:
        """Take a share, and the threshold that gives it on some data."""
        super().__init__()
        self.sparsity, self.enabled = sparsity, True
        self.register_buffer("threshold", None if threshold is None else torch.tensor(threshold))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` without its small elements; gradients of those are 0."""
        size = x.detach().abs()
        threshold = self.threshold
        if threshold is None:
            count = round(self.sparsity * x.numel())
            if not count:
                return x
            threshold = size.flatten().float().kthvalue(count).values
        return x.masked_fill(size <= threshold, 0)

    def attach(self, layer: nn.Module) -> None:
        """Act on the input of ``layer``. Raises ModelError where the name is taken."""
        if hasattr(layer, ATTRIBUTE):
            raise ModelError(f"a {type(layer).__name__} has an attribute of its own called {ATTRIBUTE!r}; rename it")
        layer.add_module(ATTRIBUTE, self)
        layer.register_forward_pre_hook(_cut, with_kwargs=True)

    def detach(self, layer: nn.Module) -> None:
        """Leave ``layer`` as it was before :meth:`attach`."""
        for key in [key for key, hook in layer._forward_pre_hooks.items() if hook is _cut]:
            del layer._forward_pre_hooks[key]
            layer._forward_pre_hooks_with_kwargs.pop(key, None)
        delattr(layer, ATTRIBUTE)

    def extra_repr(self) -> str:
        """Tell the share and the threshold."""
        return f"{self.sparsity:g}, {'quantile' if self.threshold is None else f'{float(self.threshold):.4g}'}"


class RandomInputs(InputThreshold):
    """Sets the share ``sparsity`` of the elements of a tensor to 0, chosen at random: ``round(sparsity * n)`` of them.

    In training they are drawn anew for every tensor, from torch's generator of the CPU; in evaluation they are a
    function of ``seed`` and the number of elements.
    """

    def __init__(self, sparsity: float, seed: int) -> None:
        """Take a share and a seed."""
        super().__init__(sparsity, None)
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` without the elements that are drawn; gradients of those are 0."""
        count = round(self.sparsity * x.numel())
        generator = None if self.training else torch.Generator().manual_seed(self.seed)
        gone = torch.zeros(x.numel(), dtype=torch.bool)
        gone[torch.randperm(x.numel(), generator=generator)[:count]] = True
        return x.masked_fill(gone.view(x.shape).to(x.device), 0)

    def extra_repr(self) -> str:
        """Tell the share and the seed."""
        return f"{self.sparsity:g}, random, seed {self.seed}"


def _cut(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    own = layer._modules[ATTRIBUTE]
    assert isinstance(own, InputThreshold)
    if not own.enabled:
        return None
    if arguments:
        return (own(arguments[0]), *arguments[1:]), keywords
    name = next(iter(keywords))
    return arguments, {**keywords, name: own(keywords[name])}


def input_thresholds(model: nn.Module) -> Iterator[tuple[str, nn.Module, InputThreshold]]:
    """Yield path, layer and threshold of every layer that has one."""
    for path, module in model.named_modules():
        own = getattr(module, ATTRIBUTE, None)
        if isinstance(own, InputThreshold):
            yield path, module, own
