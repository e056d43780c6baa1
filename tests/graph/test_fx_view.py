"""Nodes of FX are those that its own tracer makes, and their dictionaries are sums of the operators behind them."""

from collections import Counter

import octavo
import pytest
import torch
from graph.zoo import MODELS, masked
from octavo import ModelError
from octavo.graph import capture, fx_nodes
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.pair = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.norm(x + self.pair(self.up(x)))


class Calls(nn.Module):
    """A module called twice, blocks, a parameter and a buffer of its own, methods, functions and Python's operators."""

    def __init__(self):
        super().__init__()
        self.twice, self.drop = nn.Linear(4, 4), nn.Dropout()
        self.blocks = nn.ModuleList([Inner(), Inner()])
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.ones(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x, y):
        x = self.twice(self.twice(x))
        for block in self.blocks:
            x = block(x)
        z = x.view(-1, 2, 2).transpose(1, 2)
        z = torch.matmul(z, z) + z * 2
        z = z.add(z).reshape(-1, 4) * self.scale
        z = self.drop(torch.nn.functional.softmax(z, -1) + self.shift)
        z = z[:, None].squeeze(1)
        w = -(((1 - (x - y)) / y) ** 2) @ y.T
        w = w.relu().mean() + torch.cat([z, y]).sum()
        return z, self.attention(y, y, y, need_weights=False)[0], w > 0


FIXED = {"x": (None, None), "y": (None, None)}


def calls():
    torch.manual_seed(0)
    return Calls().eval(), (torch.randn(4, 4), torch.randn(4, 4))


def test_kinds_and_names_are_those_of_the_tracer_of_fx():
    model, inputs = calls()
    nodes = fx_nodes(capture(model, inputs, dimensions=FIXED))
    traced = [node for node in torch.fx.symbolic_trace(model).graph.nodes if str(node.args[:1]) != "(attention,)"]
    assert [(node.op, node.name) for node in nodes] == [(node.op, node.name) for node in traced]
    assert {node.op for node in nodes} == {
        "placeholder", "get_attr", "call_module", "call_method", "call_function", "output",
    }  # fmt: skip
    paths = ("call_module", "get_attr", "placeholder")
    assert [n.target for n in nodes if n.op in paths] == [n.target for n in traced if n.op in paths]
    reads = {node.name: [other.name for other in node.all_input_nodes] for node in traced}
    for node in nodes[:-1]:
        if node.target != "attention":  # the tracer lists the query once more for key and value
            assert list(node.inputs) == reads[node.name], node.name


def test_every_operator_is_behind_one_node_and_its_work_is_counted_once():
    model = MODELS["bert"][0]()
    graph = capture(model, masked(2, 7))
    nodes = fx_nodes(graph)
    assert Counter(name for node in nodes for name in node.operators) == Counter(node.id for node in graph.nodes)
    for cost in ("macs", "bitops", "bytes"):
        total = sum(facts[cost] for facts in graph.hardware.values())
        assert sum(node.hardware[cost] for node in nodes) == total, cost
    names = [node.name for node in nodes]
    assert len(set(names)) == len(names)
    for number, node in enumerate(nodes):
        assert set(node.inputs) <= set(names[:number]), node.name
    layers = [node for node in nodes if node.op == "call_module" and node.common["class"] == "Linear"]
    assert {node.target for node in layers} == {path for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    weight = f"{layers[0].target}.weight"
    assert layers[0].common["args"][weight] == {"shape": (32, 32), "dtype": torch.float32, "format": None}


def test_software_has_the_values_of_the_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    batches = [torch.randn(16, 8) for _ in range(2)]
    quantized = octavo.quantize_model(model, "int8:channel input=int8@minmax", calibration=batches)
    graph = capture(quantized, batches[0])
    placeholder, first, *_ = nodes = fx_nodes(graph, quantized, batches)
    assert [node.op for node in nodes] == ["placeholder", *["call_module"] * 3, "output"]
    weight = first.software["args"]["0.weight"]
    assert weight["statistics"]["high"] == pytest.approx(float(quantized[0].weight.detach().max()))
    assert first.software["calibration"]["input"]["static"] and first.common["class"] == "QuantLinear"
    last = nodes[-2].software["results"]
    outputs = torch.cat([quantized(batch) for batch in batches])
    assert [fact["statistics"]["low"] for fact in last.values()] == [pytest.approx(float(outputs.min().detach()))]
    assert set(placeholder.common["results"]) == set(graph.inputs)
    assert fx_nodes(graph)[1].software == {}


def test_a_model_without_operators_is_refused():
    class Loops(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ModelError, match="the nodes of FX needs operators"):
        fx_nodes(capture(Loops(), torch.ones(2, 3)))
