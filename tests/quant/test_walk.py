"""Walks through a model: the inputs of every stage are those of a whole run, to the bit, and cost a few passes."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from octavo.data import kept_trees
from octavo.data.batches import Batches
from octavo.quant.algorithms.walk import Walk
from octavo.quant.calibration import hooked, undisturbed
from torch import nn

WIDTH = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + self.c(torch.tanh(self.a(x)) * self.b(x))


class Chain(nn.Module):
    """Blocks in a row; ``kind`` says what else the model does with them."""

    def __init__(self, kind="plain", count=5):
        super().__init__()
        self.kind, self.head = kind, nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        if kind == "tied":
            self.blocks[3].a.weight = self.head.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
            self.head.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        seen = []
        for place, block in enumerate(self.blocks):
            if self.kind == "alternate" and place % 2:
                block = self.blocks[0]
            x = block(x)
            if self.kind == "in place":
                x += 1
            seen.append(x)
        if self.kind == "skips":
            x = x + seen[0]
        if self.kind == "skips at once":
            x = torch.stack(seen).sum(0)
        if self.kind == "reversed":
            x = seen[1] - x
        return self.head(x)


class TwoChains(nn.Module):
    """An encoder and a decoder, each of whose blocks reads what the encoder gave."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (nn.ModuleList(Block() for _ in range(3)) for _ in range(2))

    def forward(self, x):
        y = x
        for block in self.encoder:
            x = block(x)
        for block in self.decoder:
            y = block(y + x)
        return y


class Tuples(nn.Module):
    """Blocks that give tuples with things that are no tensors, and take keywords."""

    class Inner(Block):
        def forward(self, x, *, scale, memory=None):
            return super().forward(x) * scale, memory, {"scale": scale}

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(self.Inner() for _ in range(4))

    def forward(self, x):
        memory = x.mean()
        for block in self.blocks:
            x, memory, more = block(x, scale=torch.tensor(0.5), memory=memory)
            memory = memory + more["scale"]
        return x * memory


class Outlet:
    """An output that torch's trees do not look into."""

    def __init__(self, x):
        self.x = x


class Leaves(Block):
    """A block that leaves something behind, or whose output is an object."""

    def forward(self, x, state, kind):
        if kind == "writes objects":
            return Outlet(super().forward(x.x))
        y = super().forward(x)
        if kind == "appends":
            state.append(y)
        if kind == "sets an attribute":
            self.last = y.mean(0)
        if kind == "writes into its input":
            x.copy_(y)
        return None if kind == "writes into its input" else y


class Odd(nn.Module):
    """A model that needs more of its blocks than their outputs."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.head = kind, nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(Leaves() for _ in range(4))

    def forward(self, x):
        state, x = [], Outlet(x) if self.kind == "writes objects" else x.clone()
        for block in self.blocks:
            y = block(x, state, self.kind)
            x = x if y is None else y
            if self.kind == "writes objects":
                x.x += 1
            if self.kind == "sets an attribute":
                x = x + self.blocks[0].last
        return self.head(x.x if self.kind == "writes objects" else x + sum(state))


class ListedLayers(nn.Module):
    """A list of layers, run from the last to the first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


class ByLength(Chain):
    """Long batches take the blocks in the other order, and need all of their outputs."""

    def forward(self, x):
        seen = []
        for block in reversed(self.blocks) if len(x) > 2 else self.blocks:
            x = block(x)
            seen.append(x)
        return self.head(sum(seen))


class Swallows(Chain):
    """A model that goes on where something fails."""

    def forward(self, x):
        seen = []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        try:
            x = x + seen[0]
        except Exception:
            x = x + 1
        return self.head(x)


def sequential():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(*(Block() for _ in range(4))), nn.Linear(WIDTH, 2))


MODELS = {
    **{
        kind: lambda kind=kind: Chain(kind)
        for kind in ("plain", "alternate", "in place", "skips", "skips at once", "reversed", "tied")
    },
    "one block": lambda: Chain(count=1),
    "two chains": TwoChains,
    "tuples": Tuples,
    "sequential": sequential,
    "nested layers": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), sequential(), nn.Linear(2, 2)),
    "listed layers": ListedLayers,
    "by length": ByLength,
    "swallows": Swallows,
    **{
        kind: lambda kind=kind: Odd(kind)
        for kind in ("writes objects", "appends", "sets an attribute", "writes into its input")
    },
}


def batches_of(count=3):
    return Batches([torch.randn(2 + number, WIDTH) for number in range(count)])


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def inputs(model, batches, *, relay, change, inputs_alone=True, changes="weight"):
    """Inputs of every stage, whose layers change before the next one; and how often each layer computed."""
    names = {layer: name for name, layer in model.named_modules()}
    heard = {}
    calls = Counter()

    @contextmanager
    def listen(stage):
        got = {names[layer]: [] for layer in stage.layers}
        with hooked(stage.layers, lambda layer, given: got[names[layer]].append(given[0].clone())):
            yield got

    counts = [layer.register_forward_hook(lambda layer, *_: calls.update([names[layer]])) for layer in layers_of(model)]
    with undisturbed(model):
        walk = Walk(model, layers_of(model), batches, inputs_alone=inputs_alone, changes=changes)
        if not relay:
            walk._left = {}
        calls.clear()
        for stage in walk.stages:
            heard |= walk.run_to(stage, lambda stage=stage: listen(stage))
            for layer in stage.layers:
                change(layer)
                walk.done(layer)
    for handle in counts:
        handle.remove()
    return heard, calls


def change(layer):
    layer.weight.mul_(0.9)


@pytest.mark.parametrize("inputs_alone", [True, False])
@pytest.mark.parametrize("held", [1 << 28, 0], ids=["memory", "file"])
@pytest.mark.parametrize("kind", MODELS)
def test_inputs_are_those_of_whole_runs(kind, held, inputs_alone, monkeypatch):
    monkeypatch.setattr(kept_trees, "MOST_HELD", held)
    torch.manual_seed(0)
    model = MODELS[kind]()
    batches = batches_of()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    plain, _ = inputs(model, batches, relay=False, change=change, inputs_alone=inputs_alone)
    model.load_state_dict(state)
    relayed, _ = inputs(model, batches, relay=True, change=change, inputs_alone=inputs_alone)
    assert plain.keys() == relayed.keys()
    for name, wanted in plain.items():
        assert len(wanted) == len(relayed[name])
        assert all(map(torch.equal, wanted, relayed[name])), name
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_layers_of_a_list_come_in_the_order_they_run():
    model = ListedLayers()
    stages = Walk(model, layers_of(model), batches_of()).stages
    assert [stage.layers for stage in stages] == [[layer] for layer in reversed(model.layers)]
    assert all(stage.once for stage in stages)


def test_a_bias_that_is_used_twice_is_no_longer_fixed():
    def model():
        torch.manual_seed(0)
        chain = Chain()
        chain.blocks[3].a.bias = chain.blocks[0].b.bias
        return chain

    def shift(layer):
        layer.bias.add_(0.1)

    runs = [inputs(model(), batches_of(), relay=relay, change=shift, changes="bias")[0] for relay in (False, True)]
    for name, wanted in runs[0].items():
        assert all(map(torch.equal, wanted, runs[1][name])), name


@pytest.mark.parametrize("kind", ["skips", "reversed", "by length"])
def test_blocks_whose_outputs_are_needed_later_are_not_forgotten(kind):
    torch.manual_seed(0)
    model = MODELS[kind]()
    walk = Walk(model, layers_of(model), batches_of())
    assert (walk._next == {}) and bool(walk._left) == (kind != "by length")


def test_a_block_is_computed_a_few_times_however_many_there_are():
    batches = batches_of()
    for count in (4, 16):
        _, calls = inputs(Chain(count=count), batches, relay=True, change=change)
        for place in range(count):
            assert calls[f"blocks.{place}.a"] <= 3 * len(list(batches)), calls
    _, calls = inputs(Chain(count=16), batches, relay=False, change=change)
    assert calls["blocks.0.a"] > 30 * len(list(batches))


def test_hooks_of_blocks_act_once():
    def model():
        torch.manual_seed(0)
        chain = Chain()
        chain.blocks[1].register_forward_hook(lambda module, given, output: 2 * output)
        return chain

    batches = batches_of()
    plain, _ = inputs(model(), batches, relay=False, change=change)
    relayed, _ = inputs(model(), batches, relay=True, change=change)
    assert all(torch.equal(a, b) for name in plain for a, b in zip(plain[name], relayed[name], strict=True))


def test_an_error_of_the_model_is_its_own_and_nothing_stays_replaced():
    model = Chain()
    broken = [0]

    def fail(*_):
        broken[0] += 1
        if broken[0] > 4:
            raise ValueError("of the model")

    model.blocks[2].register_forward_pre_hook(fail)
    with pytest.raises(Exception, match="of the model"):
        inputs(model, batches_of(), relay=True, change=change)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_stages_have_the_order_in_which_layers_run():
    """Members of a Sequential may be layers themselves."""
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, 2))
    )
    stages = Walk(model, reversed(layers_of(model)), batches_of()).stages
    assert [stage.layers for stage in stages] == [[layer] for layer in layers_of(model)]
    assert all(stage.once for stage in stages)


def test_layers_are_alike_where_they_got_one_tensor_in_every_batch():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

        def forward(self, x):
            return self.a(x) + self.b(x if len(x) == 2 else x.clone())

    model = Sometimes()
    for count, alike in ((1, True), (3, False)):
        (stage,) = Walk(model, layers_of(model), batches_of(count)).stages
        assert stage.once and stage.alike is alike


def test_layers_are_not_alike_where_their_tensor_is_written_into_between_them():
    class Written(Chain):
        def forward(self, x):
            y, x = self.blocks[0].a(x), x
            return y + self.blocks[0].b(x.relu_())

    model = Written()
    stage = Walk(model, [model.blocks[0].a, model.blocks[0].b], batches_of()).stages[0]
    assert len(stage.layers) == 2 and stage.once and not stage.alike


def test_an_interrupt_leaves_nothing_replaced():
    for stop in (2, 4, 5, 6, 8, 10):  # of the first runs, of the trial, and of runs that keep outputs
        model, calls = Chain(), [0]

        def interrupt(*_, stop=stop, calls=calls):
            calls[0] += 1
            if calls[0] == stop:
                raise KeyboardInterrupt

        model.blocks[2].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            inputs(model, batches_of(), relay=True, change=change)
        assert all("forward" not in module.__dict__ for module in model.modules())


def test_compiled_blocks_walk_too():
    torch.manual_seed(0)
    model = Chain(count=2)
    for place, block in enumerate(model.blocks):
        model.blocks[place] = torch.compile(block, backend="eager")
    before = [vars(module).get("forward") for module in model.modules()]
    with undisturbed(model):
        stages = Walk(model, layers_of(model), batches_of()).stages
    assert [len(stage.layers) for stage in stages] == [2, 1, 2, 1, 1] and all(stage.once for stage in stages)
    assert [vars(module).get("forward") for module in model.modules()] == before
