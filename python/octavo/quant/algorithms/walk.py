"""The layers of a model in the order they run, and runs that end at one of them."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from octavo.data.batches import Batches, map_leaves, tensors_in
from octavo.data.kept_trees import KeptTrees, can_keep, without_numbers
from octavo.quant.calibration import call, hooked, replaced_forward
from octavo.recipe.expert_families import expert_family, experts_module
from octavo.train.concurrent_batches import current_batch, in_turn, keeps_nothing, run_batches
from octavo.train.unpadded_samples import shape_of

Heard = TypeVar("Heard")

_SEVERAL = 4  # batches of one shape, for which a pass without numbers is worth its time


class Stage(NamedTuple):
    """Layers that got the same tensor when they first ran, in that order, or one matrix of all experts of a mixture.

    ``once``: each ran once in every batch, of experts their mixture. ``alike``: and got the same numbers in every
    batch. ``mixture``: the module of the experts, of which a batch reaches some.
    """

    layers: list[nn.Module]
    once: bool
    alike: bool
    mixture: nn.Module | None = None


class _Reached(BaseException):  # past handlers of Exception in a model, which would go on
    """Nothing after this module is needed."""


class Walk:
    """Runs a model to one stage of its layers after the other, from the outputs of the blocks before.

    A block is a member of a ``ModuleList`` or ``Sequential``. When the caller is done with all of its layers
    (:meth:`done`), its outputs are fixed: the next run keeps them, and later ones take them instead of computing them
    again. Inside the block that is worked on, layers that the caller is done with give their kept outputs, too, and so
    do modules of such layers, where no module keeps anything from a pass. So layer after layer costs little more than
    one pass through the model, not one pass for each. What runs is the model itself, with the same operations on the
    same numbers.

    Every run is whole where batches run the layers in different orders, where the parameter that changes is used
    elsewhere too, and where a trial on the first batch shows that a model needs more of a block than its output: one
    that writes into its input, an attribute or a list, say.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        batches: Batches,
        *,
        inputs_alone: bool = False,
        changes: str = "weight",
    ) -> None:
        """Run batches, to see in which order ``layers`` run, and the first and the last one for the trial.

        ``inputs_alone``: runs end before the last layer of a stage computes: its input is enough. ``changes``: the
        parameter of layers that the caller changes.
        """
        self.model, self.batches, self._inputs_alone = model, batches, inputs_alone
        self._count = 0
        layers = list(layers)
        chains = [] if _is_shared(model, layers, changes) else _chains(model, layers)
        wanted = set(layers)
        inside = {
            block: [part for part in block.modules() if not wanted.isdisjoint(part.modules())]
            for chain in chains
            for block in chain
        }
        self.stages, once = _stages(model, layers, batches, {part for parts in inside.values() for part in parts})
        blocks = [block for block in once if block in inside]
        self._parts = {block: [part for part in inside[block][1:] if part in once] for block in blocks}
        if not keeps_nothing(model):
            self._parts = {block: [part for part in parts if part in wanted] for block, parts in self._parts.items()}
        self._left = {block: wanted & set(block.modules()) for block in blocks}
        self._changing = set(layers)
        self._next = {
            block: after
            for chain in chains
            for block, after in itertools.pairwise(block for block in blocks if block in chain)
        }
        self._kept: dict[nn.Module, KeptTrees] = {}
        if blocks and not self._goes_on(blocks, layers):
            self._left = {}

    def _goes_on(self, blocks: list[nn.Module], layers: list[nn.Module]) -> bool:
        """Tell whether blocks, and layers outside of them, get the same numbers when blocks before are not computed.

        Forgets which block comes next where outputs are needed after it.
        """
        inside = {module for block in blocks for module in block.modules()}
        outside = [layer for layer in layers if layer not in inside]
        first, (last,) = next(iter(self.batches)), deque(self.batches, maxlen=1)
        recorded = {block: KeptTrees(len(blocks)) for block in blocks}
        try:  # a model may raise anything when a block is not computed
            with ExitStack() as stack:
                for block in blocks:
                    stack.enter_context(replaced_forward(block, _recording(block.forward, recorded[block])))
                inputs = stack.enter_context(_inputs(outside))
                call(self.model, first, 0)
            for block in [block for block in blocks if len(recorded[block]) != 1]:
                del self._left[block], recorded[block]
                self._next = {one: after for one, after in self._next.items() if block not in (one, after)}
            if last is not first:  # another batch in between shows what blocks leave behind
                call(self.model, last, len(self.batches) - 1)
            try:
                self._try(first, recorded, inputs, outside)
            except Exception:
                self._next = {}
                self._try(first, recorded, inputs, outside)
        except Exception:
            return False
        return True

    def _try(
        self, batch: Any, recorded: dict[nn.Module, KeptTrees], inputs: list[Tensor], outside: list[nn.Module]
    ) -> None:
        """Compute the rest of the model, and each block, from the outputs of blocks before it.

        From the last to the first: what blocks before left behind is of another batch. Raises where numbers differ.
        """
        blocks = list(recorded)
        forgotten = {block: without_numbers(recorded[block][0]) for block in self._next}
        for place in range(len(blocks), -1, -1):
            finished = set(blocks[:place])
            with ExitStack() as stack:
                for block in finished:
                    output = forgotten[block] if self._next.get(block) in finished else recorded[block][0]
                    stack.enter_context(replaced_forward(block, _giving(output)))
                if place == len(blocks):
                    again = stack.enter_context(_inputs(outside))
                    call(self.model, batch, 0)
                    _check_same(inputs, again)
                    continue
                ended = stack.enter_context(_ends_after(blocks[place]))
                try:
                    call(self.model, batch, 0)
                except _Reached:
                    _check_same(tensors_in(recorded[blocks[place]][0]), tensors_in(ended))
                else:
                    raise _Different

    def done(self, layer: nn.Module) -> None:
        """Take it that a layer, and what it computes, no longer changes."""
        self._changing.discard(layer)
        for left in self._left.values():
            left.discard(layer)

    def run_to(
        self, stage: Stage, listen: Callable[[], AbstractContextManager[Heard]], *, first_alone: bool = False
    ) -> Heard:
        """Run every batch until the stage's layers have run, inside ``listen()``, and return what that gives.

        ``first_alone``: the first of them is enough, as others get the same numbers.

        To the end where one of the layers may run again, or not at all. ``listen`` is called a second time, and
        everything is run, for a model that needs more of earlier blocks than what the last of them gave.
        """
        if self._left and stage.once:
            try:
                with listen() as heard, ExitStack() as stack:
                    recorded = self._relay(stack)
                    self._run(stage, first_alone)
            except Exception:  # a tensor without numbers was met, or an error that the whole run meets again
                self._left, self._kept = {}, {}
            else:
                whole = {module: outputs for module, outputs in recorded.items() if len(outputs) == self._count}
                self._kept |= whole
                for part in {inner for module in whole for inner in module.modules() if inner is not module}:
                    self._kept.pop(part, None)
                return heard
        with listen() as heard:
            self._run(stage, first_alone)
        return heard

    def _run(self, stage: Stage, first_alone: bool) -> None:
        def visit(number: int, batch: Any) -> None:
            with suppress(_Reached):
                call(self.model, batch, number)

        self._count = 0
        with _ends(stage, self._inputs_alone, 1 if first_alone else len(stage.layers)):
            if stage.once:
                # Where each layer runs once, what is heard of a batch can wait for what is heard of those before it.
                for _ in run_batches(self.model, self.batches, visit, together=stage.mixture is None):
                    self._count += 1
            else:
                for number, batch in enumerate(self.batches):
                    visit(number, batch)

    def _relay(self, stack: ExitStack) -> dict[nn.Module, KeptTrees]:
        """Have blocks and layers that are done give what was kept, until the stack is closed.

        Returns what is being kept of others: of blocks that are done, and of layers of others.
        """
        recorded: dict[nn.Module, KeptTrees] = {}
        for block, left in self._left.items():
            if not left:
                if block in self._kept and self._next.get(block) in self._kept:
                    self._kept[block].forget_numbers()
                self._give_or_record(block, 1 if self._next else len(self._left), stack, recorded)
            if block not in self._kept:
                self._relay_parts(block, stack, recorded)
        return recorded

    def _relay_parts(self, block: nn.Module, stack: ExitStack, recorded: dict[nn.Module, KeptTrees]) -> None:
        """Have the parts of a block that are done, from the largest on, give what was kept, or keep it."""
        silent: set[nn.Module] = set()  # what does not run, because what it is inside of gives its output
        recorded_whole: set[nn.Module] = set(block.modules()) if block in recorded else set()
        for part in self._parts[block]:
            inner = set(part.modules())
            if part in silent or not self._changing.isdisjoint(inner):
                continue
            if part in self._kept:
                silent |= inner
            elif part in recorded_whole:
                continue
            else:
                recorded_whole |= inner
            self._give_or_record(part, len(self._parts[block]), stack, recorded)

    def _give_or_record(
        self, module: nn.Module, lists: int, stack: ExitStack, recorded: dict[nn.Module, KeptTrees]
    ) -> None:
        if module in self._kept:
            stack.enter_context(replaced_forward(module, self._given(self._kept[module])))
        else:
            recorded[module] = KeptTrees(lists)
            stack.enter_context(replaced_forward(module, _recording(module.forward, recorded[module])))

    def _given(self, outputs: KeptTrees) -> Callable[..., Any]:
        return lambda *_, **__: outputs[current_batch()]


def _recording(forward: Callable[..., Any], outputs: KeptTrees) -> Callable[..., Any]:
    @functools.wraps(forward)
    def recorded(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        if can_keep(output):
            with in_turn(outputs):
                outputs.append(output)
        return output

    return recorded


def _giving(output: Any) -> Callable[..., Any]:
    return lambda *_, **__: output


class _Different(Exception):
    """A block or a layer got other numbers."""


def _check_same(before: Iterable[Tensor], after: Iterable[Tensor]) -> None:
    """Raise where tensors differ."""
    for old, new in itertools.zip_longest(before, after):
        if old is None or new is None or old.dtype != new.dtype or not torch.equal(old, new):
            raise _Different


@contextmanager
def _inputs(layers: list[nn.Module]) -> Iterator[list[Tensor]]:
    """Yield copies of the inputs that layers get inside."""
    seen: list[Tensor] = []
    with hooked(layers, lambda _, arguments: seen.append(arguments[0].detach().clone())):
        yield seen


@contextmanager
def _ends_after(block: nn.Module) -> Iterator[list[Any]]:
    """Have runs end where a block was computed, whose output is in the list then."""
    ended: list[Any] = []
    forward = block.forward

    def compute(*arguments: Any, **named: Any) -> Any:
        ended.append(forward(*arguments, **named))
        raise _Reached

    with replaced_forward(block, compute):
        yield ended


@contextmanager
def _ends(stage: Stage, inputs_alone: bool, count: int) -> Iterator[None]:
    """Have runs end where so many layers of the stage have run, or begin to, if they run once."""
    reached: defaultdict[int, set[nn.Module]] = defaultdict(set)  # by the number of the batch

    def reach(layer: nn.Module, *_: Any) -> None:
        layers = reached[current_batch()]
        layers.add(layer)
        if len(layers) == count:
            raise _Reached

    handles = []
    if stage.once and stage.mixture is not None:

        def end(*_: Any) -> None:
            raise _Reached

        handles.append(stage.mixture.register_forward_hook(end))
    for layer in stage.layers if stage.once and stage.mixture is None else ():
        register = layer.register_forward_pre_hook if inputs_alone else layer.register_forward_hook
        handles.append(register(reach))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_shared(model: nn.Module, layers: list[nn.Module], name: str) -> bool:
    """Tell whether a parameter of that name of a layer is one of another module too."""
    users: dict[int, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter.data_ptr(), set()).add(module)
    own = (getattr(layer, name, None) for layer in layers)
    return any(len(users.get(one.data_ptr(), ())) > 1 for one in own if isinstance(one, Tensor) and one.numel())


def _chains(model: nn.Module, layers: list[nn.Module]) -> list[list[nn.Module]]:
    """Return lists of blocks that hold ``layers``, the longest first, none inside a block of another."""
    wanted = set(layers)
    candidates = [
        [block for block in module if not wanted.isdisjoint(block.modules())]
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
) -> tuple[list[Stage], list[nn.Module]]:
    """Return ``layers`` in the order they first run, together those that get the same tensor; and the blocks that run
    once in every batch, in their order; none if layers come in another order in another batch.

    Layers that do not run come last, in stages of their own; experts that do not run, in the stage of the others. Runs
    every batch, but of batches of one shape the first alone where what runs depends on shapes alone.
    """
    static = _static_shapes(model, batches)
    seen: set[Any] = set()
    groups: list[list[nn.Module]] = []
    families, mixtures = _experts(model, layers)
    group_of: dict[str, int] = {}  # by family
    first_of: dict[nn.Module, int] = {}  # the place of the first stage of a mixture: its experts come one by one
    once, alike = set(layers), set(layers)  # not alike: what got other numbers than its stage's layer before it
    # Apart from those of layers: torch.compile refuses a hook inside a compiled block that knows the block.
    watched = blocks | set(mixtures.values())
    whole = set(watched)
    started: dict[nn.Module, None] = {}
    place: dict[nn.Module, int] = {}
    in_order = True
    heard: defaultdict[int, _Heard] = defaultdict(_Heard)  # by the number of the batch

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        heard[current_batch()].note(layer, arguments[0])

    def start(block: nn.Module, _: tuple[Any, ...]) -> None:
        heard[current_batch()].blocks.append(block)

    def visit(number: int, batch: Any) -> bool:
        shape = shape_of(batch)
        if shape in static and shape in seen and keeps_nothing(model):
            return False
        call(model, batch, number)
        seen.add(shape)
        return True

    with hooked(watched, start), hooked(layers, note):
        for number, ran in enumerate(run_batches(model, batches, visit)):
            if not ran:
                continue
            calls, furthest = Counter[nn.Module](), 0
            batch = heard.pop(number, _Heard())
            for layer, last, together, written in batch.layers:
                calls[layer] += 1
                family = families.get(layer)
                if layer not in place:
                    if family in group_of:
                        groups[group_of[family]].append(layer)
                        place[layer] = group_of[family]
                    else:
                        if groups and groups[-1][-1] is last and together and family is None:
                            groups[-1].append(layer)
                        else:
                            groups.append([layer])
                        place[layer] = len(groups) - 1
                        if family is not None:
                            group_of[family] = place[layer]
                            first_of.setdefault(mixtures[layer], place[layer])
                group = groups[place[layer]]
                if group[0] is not layer and (last not in group or not together or written):
                    alike.discard(layer)
                if calls[layer] == 1:
                    rank = place[layer] if family is None else first_of[mixtures[layer]]
                    in_order &= rank >= furthest
                    furthest = max(furthest, rank)
            started.update(dict.fromkeys(block for block in batch.blocks if block in blocks))
            starts = Counter(batch.blocks)
            once = {layer for layer in once if calls[layer] == 1}
            whole = {block for block in whole if starts[block] == 1}
    for layer in layers:
        if layer not in place and (family := families.get(layer)) in group_of:
            groups[group_of[family]].append(layer)
            place[layer] = group_of[family]
    ran_once = [
        Stage(together, once.issuperset(together), (once & alike).issuperset(together))
        if together[0] not in families
        else Stage(together, mixtures[together[0]] in whole, False, mixtures[together[0]])
        for together in groups
    ]
    stages = ran_once + [Stage([layer], False, False) for layer in layers if layer not in place]
    return stages, [block for block in started if block in whole] if in_order else []


def _experts(model: nn.Module, layers: list[nn.Module]) -> tuple[dict[nn.Module, str], dict[nn.Module, nn.Module]]:
    """Return the family of each of ``layers`` that is one of the experts of a mixture, and the module that calls it.

    A list calls nothing; the module that holds it does.
    """
    wanted = set(layers)
    families: dict[nn.Module, str] = {}
    mixtures: dict[nn.Module, nn.Module] = {}
    for path, layer in model.named_modules():
        family, owner = expert_family(path), experts_module(path)
        if layer not in wanted or family is None or owner is None:
            continue
        mixture = model.get_submodule(owner)
        while isinstance(mixture, nn.ModuleList | nn.ModuleDict) and owner:
            owner = owner.rpartition(".")[0]
            mixture = model.get_submodule(owner)
        families[layer], mixtures[layer] = family, mixture
    return families, mixtures


def _static_shapes(model: nn.Module, batches: Batches) -> set[Any]:
    """Return the shapes of batches for which what runs does not depend on numbers.

    torch's tensors without numbers pass through the model, and raise where it looks at one.
    """
    counts: Counter[Any] = Counter()
    first: dict[Any, Any] = {}
    for batch in batches:
        counts[shape_of(batch)] += 1
        first.setdefault(shape_of(batch), batch)
    static = set()
    for shape in [shape for shape, count in counts.items() if count >= _SEVERAL]:
        with suppress(Exception), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = map_leaves(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, first[shape])
            call(model, fake, 0)
            static.add(shape)
    return static


class _Heard:
    """What ran in a batch.

    ``layers``: each call of a layer, with the layer before it, whether that got the same tensor, and whether the tensor
    may have been written since.
    """

    def __init__(self) -> None:
        self.blocks: list[nn.Module] = []
        self.layers: list[tuple[nn.Module, nn.Module | None, bool, bool]] = []
        self._before: tuple[nn.Module | None, Any, int] = None, None, 0

    def note(self, layer: nn.Module, tensor: Any) -> None:
        """Hear a layer and its input."""
        (last, other, version), self._before = self._before, (layer, tensor, _version(tensor))
        self.layers.append((layer, last, other is tensor, not 0 <= version == self._before[2]))


def _version(tensor: Any) -> int:
    """Return a number that changes when a tensor is written into; -1 where torch counts none."""
    return tensor._version if isinstance(tensor, Tensor) and not tensor.is_inference() else -1
