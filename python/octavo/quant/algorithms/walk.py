"""The layers of a model in the order they run, and runs that end at one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from octavo.quant.calibration import Batches, call, hooked


class _Reached(Exception):
    """Nothing after this layer is needed."""


def stages(model: nn.Module, layers: Iterable[nn.Module], batches: Batches) -> list[list[nn.Module]]:
    """Return ``layers`` in the order they first run on the first batch, together those that get the same tensor.

    Layers that do not run there come last, in stages of their own.
    """
    layers = list(layers)
    found: list[tuple[Tensor, list[nn.Module]]] = []
    seen = set()

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        if layer in seen:
            return
        seen.add(layer)
        if found and found[-1][0] is arguments[0]:
            found[-1][1].append(layer)
        else:
            found.append((arguments[0], [layer]))

    with hooked(layers, note):
        call(model, next(iter(batches)))
    return [together for _, together in found] + [[layer] for layer in layers if layer not in seen]


def run_to(model: nn.Module, batches: Batches, last: nn.Module) -> None:
    """Run every batch until ``last`` has run, to the end if it runs more than once.

    Hooks that were registered on ``last`` before see its call.
    """
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == once:
            raise _Reached

    once = 0  # the first batch is run to the end, to see how often the layer runs
    handle = last.register_forward_hook(count)
    try:
        for batch in batches:
            calls = 0
            try:
                call(model, batch)
            except _Reached:
                continue
            once = 1 if calls == 1 else 0
    finally:
        handle.remove()
