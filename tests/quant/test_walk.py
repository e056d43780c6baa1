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
}


def batches_of(count=3):
    return Batches([torch.randn(2 + number, WIDTH) for number in range(count)])


def layers_of(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def inputs(model, batches, *, relay, change, inputs_alone=True):
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
        walk = Walk(model, layers_of(model), batches, inputs_alone=inputs_alone)
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
