"""Analyses tell what is there: counts, zeros, statistics in any order of batches, dead branches, and differences."""

import json

import octavo
import pytest
import torch
from graph.zoo import BERT, classifier, labelled, masked, tokens
from octavo import ModelError
from octavo.graph import block_counts as counts_of_blocks
from octavo.graph import capture, dead_branches, diff, module_counts, operator_counts, sparsity, tensor_statistics
from torch import nn


class Branches(nn.Module):
    """One layer is never called; the result of another is dropped."""

    def __init__(self):
        super().__init__()
        self.used, self.dropped, self.idle = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        self.last = self.dropped(x).shape
        return self.used(x).relu()


def test_counts_add_up():
    model = classifier()
    graph = capture(model, tokens(2, 7))
    rows = operator_counts(graph).to_rows()
    assert sum(row["calls"] for row in rows) == len(graph.nodes) and {row["work"] for row in rows} == {""}
    classes = module_counts(graph).to_rows()
    assert sum(row["weights"] for row in classes) == sum(p.numel() for p in model.parameters())
    assert sum(row["modules"] for row in classes) == len(list(model.modules()))
    blocks = counts_of_blocks(graph).to_rows()
    assert sum(row["count"] for row in blocks) == len(graph.module_nodes)
    assert "operator" in str(operator_counts(graph)) and json.loads(operator_counts(graph).to_json()) == rows


def test_dead_branches_are_found():
    found = dead_branches(capture(Branches(), torch.randn(2, 8))).to_rows()
    weights = {row["name"] for row in found if row["kind"] == "weight"}
    assert {"idle.weight", "idle.bias"} <= weights and not {"used.weight", "used.bias"} & weights
    assert not dead_branches(capture(nn.Linear(8, 8), torch.randn(2, 8))).rows


def test_sparsity_counts_zeros_of_each_weight_once():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    assert sparsity(model).rows[-1] == ("all", 144, 0, 0.0)
    with torch.no_grad():
        model[0].weight[:, :4] = 0
    model[1].weight = model[0].weight
    rows = {row["weight"]: row for row in sparsity(model).to_rows()}
    assert (rows["0.weight"]["zeros"], rows["0.weight"]["share"]) == (32, 0.5) and rows["all"]["elements"] == 80
    packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(model[0]), "int8:channel"))
    assert {row["weight"]: row["zeros"] for row in sparsity(packed).to_rows()}["0.weight"] >= 32


def test_statistics_do_not_depend_on_batches_and_leave_the_model_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)).train()
    x = torch.randn(64, 8)
    whole, parts = tensor_statistics(model, [x]), tensor_statistics(model, [x[48:], x[:16], x[16:48]])
    assert [row[0] for row in whole.rows] == [row[0] for row in parts.rows] and model.training
    assert not model[0]._forward_hooks and all(parameter.grad is None for parameter in model.parameters())
    for one, other in zip(whole.rows, parts.rows, strict=True):
        assert one[3:] == pytest.approx(other[3:], rel=2e-3, abs=1e-5)
    rows = {row["tensor"]: row for row in whole.to_rows()}
    weight = model[0].weight.detach()
    found = rows["0.weight"]
    assert (found["low"], found["high"]) == (weight.min().item(), weight.max().item())
    assert found["mean"] == pytest.approx(weight.mean().item(), abs=1e-3)
    assert found["deviation"] == pytest.approx(weight.std(correction=0).item(), rel=1e-3)
    assert found["0.5"] == pytest.approx(weight.quantile(0.5, interpolation="lower").item(), rel=2e-3, abs=1e-4)
    assert rows["1"]["low"] == 0 and rows["1"]["kind"] == "activation"


def test_equal_graphs_have_no_difference():
    model = classifier()
    found = diff(capture(model, tokens(2, 7)), capture(model, tokens(5, 9)))
    assert not found and str(found) == "no difference"


def test_labels_add_the_loss_and_nothing_else():
    model = BERT()
    found = diff(capture(model, tokens(2, 7)), capture(model, labelled(2, 7)))
    assert not found.removed and not found.changed and not found.weights_added
    assert [node.op for node in found.added if node.op != "aten.view"] == ["aten.cross_entropy_loss"]
    assert {node.module_path for node in found.added} == {""}


def test_adapters_add_their_own_nodes_alone():
    model = classifier()
    adapted = octavo.lora.insert(model, rank=2)
    found = diff(capture(model, masked(2, 7)), capture(adapted, masked(2, 7)))
    layers = {path for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert not found.removed and not found.changed
    assert {node.module_path.removesuffix(".lora.default") for node in found.added} == layers
    assert {record.name.rpartition(".")[2] for record in found.weights_added} == {"A", "B"}


def test_quantizing_changes_formats_and_bit_operations():
    model = classifier()
    before = capture(model, tokens(2, 7))
    after = capture(octavo.quantize_model(model, "mxint8 input=mxint8"), tokens(2, 7))
    found = diff(before, after)
    assert not found.removed and not found.weights_added
    assert "octavo.quantize_plain" in {node.op for node in found.added}
    linears = [change for change in found.changed if change.op == "aten.linear"]
    assert {change.what for change in linears} == {"format", "bitops"}
    formats = [change for change in found.changed if change.op == "weight"]
    assert {(change.before, change.after) for change in formats} == {("-", "mxint8")}
    assert json.loads(found.to_json())["changed"] and "~" in str(found)


def test_models_that_export_refuses_are_compared_by_module():
    class Chooses(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.Linear(8, width), nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) if x.sum() > 0 else self.b(x)

    one, other = capture(Chooses(8), torch.randn(2, 8)), capture(Chooses(6), torch.randn(2, 8))
    found = diff(one, other)
    assert {(change.where, change.what) for change in found.changed} == {("a.weight", "shape"), ("a.bias", "shape")}
    with pytest.raises(ModelError, match="a count of operators needs operators"):
        operator_counts(one)


@pytest.mark.parametrize("analysis", [sparsity, tensor_statistics])
def test_weights_without_values_are_refused(analysis):
    with pytest.raises(ModelError, match=r"0.weight: the weight is on the meta device"):
        analysis(nn.Sequential(nn.Linear(4, 4)).to("meta"))
    with pytest.raises(ModelError, match="weight: the weight is not initialized yet"):
        analysis(nn.LazyLinear(4))


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_quantiles_are_shares(share):
    with pytest.raises(ModelError, match="give numbers from 0 to 1"):
        tensor_statistics(nn.Linear(4, 4), quantiles=[0.5, share])


def test_views_of_one_node_tell_of_the_same_tensors():
    """common, software and hardware have the nodes of the graph; values are those of the model as it runs."""
    model = octavo.quantize_model(
        classifier(), "int8:channel input=int8@mse; type:Embedding keep", calibration=[masked(2, 7)]
    )
    with torch.no_grad():
        model.classifier.weight[0] = 0
    graph, batch = capture(model, masked(2, 7)), masked(3, 7)
    views = graph.common, graph.software(model, [batch]), graph.hardware
    assert all(list(view) == [node.id for node in graph.nodes] for view in views)
    node = [node for node in graph.nodes if node.module_path == "classifier"][-1]
    told = views[1][node.id]
    assert told["results"].keys() == views[0][node.id]["results"].keys() and told["args"].keys() == set(node.inputs)
    (seen,) = (result["statistics"] for result in told["results"].values())
    given = model.eval()(**batch).detach()
    assert (seen["low"], seen["high"]) == (float(given.min()), float(given.max()))
    reads = {name: value for view in views[1].values() for name, value in view["args"].items()}
    weight = model.classifier.weight
    assert reads["classifier.weight"]["sparsity"] == 0.5
    assert reads["classifier.weight"]["statistics"]["high"] == float(weight.max())
    assert told["calibration"]["input"]["static"] and told["calibration"]["weight"]["format"] == "int8:channel"
    assert views[1][graph.nodes[0].id]["calibration"] == {}
    with pytest.raises(ModelError, match="the graph is of another model"):
        graph.software(nn.Linear(2, 2))


def test_views_of_packed_models_have_their_weights():
    model = octavo.pack_model(octavo.quantize_model(classifier(), "int8"))
    view = capture(model, tokens(2, 7)).software(model)
    reads = {name: value for node in view.values() for name, value in node["args"].items()}
    assert reads["classifier.weight"]["sparsity"] is not None
