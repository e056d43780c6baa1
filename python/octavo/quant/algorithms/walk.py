"""The layers of a model in the order they run, and runs that end at one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.quant.calibration import call, hooked


class Stage(NamedTuple):
    """Layers that get the same tensor, in the order they first ran; ``once``: each ran once in every batch."""

    layers: list[nn.Module]
    once: bool


class _Reached(BaseException):  # past handlers of Exception in a model, which would go on
    """Nothing after this layer is needed."""


def stages(model: nn.Module, layers: Iterable[nn.Module], batches: Batches) -> list[Stage]:
    """Return ``layers`` in the order they first run, together those that get the same tensor. Runs every batch.

    Layers that do not run come last, in stages of their own.
    """
    layers = list(layers)
    groups: list[tuple[Tensor, list[nn.Module]]] = []
    seen: set[nn.Module] = set()
    once = set(layers)
    calls: Counter[nn.Module] = Counter()

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        calls[layer] += 1
        if layer in seen:
            return
        seen.add(layer)
        if groups and groups[-1][0] is arguments[0]:
            groups[-1][1].append(layer)
        else:
            groups.append((arguments[0], [layer]))

    with hooked(layers, note):
        for number, batch in enumerate(batches):
            calls.clear()
            call(model, batch, number)
            once = {layer for layer in once if calls[layer] == 1}
    ran = [Stage(together, once.issuperset(together)) for _, together in groups]
    return ran + [Stage([layer], False) for layer in layers if layer not in seen]


def run_to(model: nn.Module, batches: Batches, stage: Stage) -> None:
    """Run every batch until the stage's layers have run; to the end where one of them may run again, or not at all.

    Hooks that were registered on the layers before see their calls.
    """
    reached: set[nn.Module] = set()

    def count(layer: nn.Module, *_: Any) -> None:
        reached.add(layer)
        if len(reached) == len(stage.layers):
            raise _Reached

    handles = [layer.register_forward_hook(count) for layer in stage.layers] if stage.once else []
    try:
        for number, batch in enumerate(batches):
            reached.clear()
            try:
                call(model, batch, number)
            except _Reached:
                continue
    finally:
        for handle in handles:
            handle.remove()
