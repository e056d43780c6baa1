"""What valid calls work on: models of a few hundred weights, their batches, and what is measured of them, made once."""

import functools

import octavo
import torch
from octavo.prune import prune_activations
from octavo.search import allocate, measure_sensitivity
from torch import nn


class Net(nn.Module):
    """Two linear layers, a norm and dropout."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.norm, self.drop = nn.Linear(16, 32), nn.LayerNorm(32), nn.Dropout(0.1)
            self.last = nn.Linear(32, 16)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x).relu())))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.mix, self.norm = nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.mix(x))


class Text(nn.Module):
    """The scores of the next token, from this one."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(7, 16), nn.Linear(16, 7)

    def forward(self, ids):
        return self.head(self.embed(ids))


class Projections(nn.Module):
    """Three layers on one input, which fuse_qkv joins."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        return self.q_proj(x) + self.k_proj(x) * self.v_proj(x)


def net():
    return Net().eval()


def plain():
    """A model whose neurons can be taken out."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval()


def x():
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def batches():
    return [x(), x() + 1, x() - 1]


def text():
    return Text().eval()


def ids():
    return torch.randint(7, (40,), generator=torch.Generator().manual_seed(1))


def quantized():
    return octavo.quantize_model(net(), "int8:channel", progress=False)


def packed():
    return octavo.pack_model(quantized())


def adapted():
    return octavo.lora.insert(net(), rank=2)


def masked():
    return octavo.prune_model(net(), 0.5, progress=False)


def cut():
    return prune_activations(net(), 0.5, method="quantile", progress=False)


@functools.cache
def sensitivity():
    return measure_sensitivity(net(), batches(), ["int4", "int8"], progress=False)


@functools.cache
def front():
    return allocate(sensitivity())


@functools.cache
def graph():
    return octavo.graph.capture(net(), x())


@functools.cache
def measured():
    return octavo.evaluate(text(), ids().tolist(), context=8)
