"""The layers of a model in the order they run, and runs that end at one of them."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.data.kept_trees import KeptTrees
from octavo.quant.calibration import call, hooked, replaced_forward

Heard = TypeVar("Heard")


class Stage(NamedTuple):
    """Layers that got the same tensor when they first ran, in that order.

    ``once``: each ran once in every batch. ``alike``: and got the same tensor in every batch.
    """

    layers: list[nn.Module]
    once: bool
    alike: bool


class _Reached(BaseException):  # past handlers of Exception in a model, which would go on
    """Nothing after this layer is needed."""


class Walk:
    """Runs a model to one stage of its layers after the other, from the outputs of the blocks before.

    A block is a member of a ``ModuleList`` or ``Sequential``. When the caller is done with all of its layers
    (:meth:`done`), its outputs are fixed: the next run keeps them, and later ones take them instead of computing them
    again. So layer after layer costs a few passes through the model, not one pass for each. What runs is the model
    itself, with the same operations on the same numbers.
    """

    def __init__(
        self, model: nn.Module, layers: Iterable[nn.Module], batches: Batches, *, inputs_alone: bool = False
    ) -> None:
        """Run every batch, to see in which order ``layers`` run.

        ``inputs_alone``: runs end before the last layer of a stage computes: its input is enough.
        """
        self.model, self.batches, self._inputs_alone = model, batches, inputs_alone
        self._number = -1
        layers = list(layers)
        blocks = {block for chain in _chains(model, layers) for block in chain}
        self.stages, once = _stages(model, layers, batches, blocks)
        self._left = {block: {layer for layer in layers if layer in set(block.modules())} for block in blocks & once}
        self._next = {
            block: after
            for chain in _chains(model, layers)
            for block, after in itertools.pairwise(chain)
            if {block, after} <= self._left.keys()
        }
        self._kept: dict[nn.Module, KeptTrees] = {}

    def done(self, layer: nn.Module) -> None:
        """Take it that a layer, and what it computes, no longer changes."""
        for left in self._left.values():
            left.discard(layer)

    def run_to(self, stage: Stage, listen: Callable[[], AbstractContextManager[Heard]]) -> Heard:
        """Run every batch until the stage's layers have run, inside ``listen()``, and return what that gives.

        To the end where one of the layers may run again, or not at all. ``listen`` is called a second time, and
        everything is run, for a model that needs more of earlier blocks than what the last of them gave.
        """
        if self._left and stage.once:
            try:
                with listen() as heard, ExitStack() as stack:
                    recorded = self._relay(stack)
                    self._run(stage)
            except Exception:  # a tensor without numbers was met, or an error that the whole run meets again
                self._left, self._kept = {}, {}
            else:
                self._kept |= {
                    block: outputs for block, outputs in recorded.items() if len(outputs) == self._number + 1
                }
                return heard
        with listen() as heard:
            self._run(stage)
        return heard

    def _run(self, stage: Stage) -> None:
        with _ends(stage, self._inputs_alone) as reached:
            for number, batch in enumerate(self.batches):
                reached.clear()
                self._number = number
                try:
                    call(self.model, batch, number)
                except _Reached:
                    continue

    def _relay(self, stack: ExitStack) -> dict[nn.Module, KeptTrees]:
        """Have finished blocks give what was kept, until the stack is closed; return what is being kept of others."""
        recorded: dict[nn.Module, KeptTrees] = {}
        for block, left in self._left.items():
            if left:
                continue
            if block in self._kept:
                if self._next.get(block) in self._kept:
                    self._kept[block].forget_numbers()
                stack.enter_context(replaced_forward(block, self._given(self._kept[block])))
            else:
                recorded[block] = KeptTrees()
                stack.enter_context(replaced_forward(block, _recording(block.forward, recorded[block])))
        return recorded

    def _given(self, outputs: KeptTrees) -> Callable[..., Any]:
        return lambda *_, **__: outputs[self._number]


def _recording(forward: Callable[..., Any], outputs: KeptTrees) -> Callable[..., Any]:
    @functools.wraps(forward)
    def recorded(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        outputs.append(output)
        return output

    return recorded


@contextmanager
def _ends(stage: Stage, inputs_alone: bool) -> Iterator[set[nn.Module]]:
    """Have runs end where all layers of the stage have run, or begin to, which the set collects, if they run once."""
    reached: set[nn.Module] = set()

    def count(layer: nn.Module, *_: Any) -> None:
        reached.add(layer)
        if len(reached) == len(stage.layers):
            raise _Reached

    handles = []
    for layer in stage.layers if stage.once else ():
        register = layer.register_forward_pre_hook if inputs_alone else layer.register_forward_hook
        handles.append(register(count))
    try:
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def _chains(model: nn.Module, layers: list[nn.Module]) -> list[list[nn.Module]]:
    """Return lists of blocks that hold ``layers``, the longest first, none inside a block of another.

    Blocks that share a parameter with a layer outside of them are left out: it may still change.
    """
    owners: dict[int, set[nn.Module]] = {}
    for layer in layers:
        for parameter in layer.parameters():
            owners.setdefault(id(parameter), set()).add(layer)
    wanted = set(layers)

    def is_block(module: nn.Module) -> bool:
        inside = set(module.modules())
        shared = (owners.get(id(parameter), set()) for parameter in module.parameters())
        return bool(inside & wanted) and all(layer in inside for each in shared for layer in each)

    candidates = [
        [block for block in module if is_block(block)]
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    chosen: list[list[nn.Module]] = []
    taken: set[nn.Module] = set()
    for chain in sorted(candidates, key=len, reverse=True):
        if len(chain) > 1:
            inside = {module for block in chain for module in block.modules()}
            if not inside & taken:
                chosen.append(chain)
                taken |= inside
    return chosen


def _stages(
    model: nn.Module, layers: list[nn.Module], batches: Batches, blocks: set[nn.Module]
) -> tuple[list[Stage], set[nn.Module]]:
    """Return ``layers`` in the order they first run, together those that get the same tensor, and the blocks that run
    once in every batch. Runs every batch.

    Layers that do not run come last, in stages of their own.
    """
    groups: list[list[nn.Module]] = []
    wanted, watched = set(layers), {*layers, *blocks}
    once, alike = set(watched), set(layers)  # not alike: what got another tensor than its stage's layer before it
    calls: Counter[nn.Module] = Counter()
    before: tuple[nn.Module | None, Tensor | None] = None, None

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        nonlocal before
        calls[layer] += 1
        if layer not in wanted:  # a block around layers
            return
        last, tensor = before
        before = layer, arguments[0]
        if layer not in place:
            if groups and groups[-1][-1] is last and tensor is arguments[0]:
                groups[-1].append(layer)
            else:
                groups.append([layer])
            place[layer] = len(groups) - 1
        elif groups[place[layer]][0] is not layer and not (last in groups[place[layer]] and tensor is arguments[0]):
            alike.discard(layer)

    place: dict[nn.Module, int] = {}
    with hooked(watched, note):
        for number, batch in enumerate(batches):
            calls.clear()
            before = None, None
            call(model, batch, number)
            once = {layer for layer in once if calls[layer] == 1}
    before = None, None
    ran = [Stage(together, once.issuperset(together), (once & alike).issuperset(together)) for together in groups]
    return ran + [Stage([layer], False, False) for layer in layers if layer not in place], once & blocks
