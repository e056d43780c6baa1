"""A graph shows the model as it runs: every operator, shape and weight, for any size of the batch, and changes nothing."""

import copy
import gc
import weakref

import octavo
import pytest
import torch
from graph.zoo import MODELS, classifier, masked, tokens
from helpers.quick import spread
from octavo import DTypeError, ModelError
from octavo.data.batches import call_on
from octavo.graph import capture
from octavo.graph.exporting import held_tensors
from torch import nn


def own_sizes(inputs):
    """The sizes of the zoo's inputs by name."""
    if not isinstance(inputs, dict):
        tensors = inputs if isinstance(inputs, tuple) else (inputs,)
        return {"batch": len(tensors[0]), "sequence": tensors[0].shape[1], "target_BT_length": tensors[-1].shape[1]}
    ids = next(iter(inputs.values()))
    target = inputs.get("decoder_input_ids", ids)
    return {"batch": len(ids), "sequence": ids.shape[1], "decoder_sequence": target.shape[1]}


@pytest.mark.parametrize("name", MODELS)
def test_what_runs_is_what_is_shown(name):
    """Shapes of outputs at two sizes, the order of operators, the weights that a forward pass reads, the modules."""
    make, inputs = MODELS[name]
    model = make()
    graph = capture(model, inputs(2, 7))
    assert graph.refusal is None and graph.nodes
    assert graph.costs().unknown == {}
    fixed = name == "seq2seq"  # its loop over the target runs in Python: the sizes are those of the inputs
    assert fixed or "batch" in graph.symbols
    for batch, length in ((2, 7),) if fixed else ((2, 7), (5, 11)):
        given = inputs(batch, length)
        with torch.no_grad():
            real = held_tensors(call_on(model, given))
        shown = [graph.tensors[output].shape_at(**own_sizes(given)) for output in graph.outputs]
        assert [tuple(tensor.shape) for tensor in real] == shown
        assert [tensor.dtype for tensor in real] == [graph.tensors[output].dtype for output in graph.outputs]
    known = {tensor for tensor, record in graph.tensors.items() if record.kind != "activation"}
    for node in graph.nodes:
        assert known.issuperset(node.inputs), node
        assert type(model.get_submodule(node.module_path)).__name__ == node.module_class
        known.update(node.outputs)
    called = set()
    handles = [module.register_forward_hook(lambda m, *_: called.add(m)) for module in model.modules()]
    call_on(model, inputs(2, 7))
    for handle in handles:
        handle.remove()
    names = {id(parameter): path for path, parameter in reversed(list(model.named_parameters(remove_duplicate=False)))}
    layers = (nn.Linear, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.BatchNorm2d)
    read = {tensor for node in graph.nodes for tensor in node.inputs}
    assert {names[id(m.weight)] for m in called if isinstance(m, layers)} <= read
    assert {record.name for record in graph.weights} == set(dict(model.named_parameters()))
    assert sum(record.elements for record in graph.weights) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    [("bert", "BertLayer", 2), ("gpt2", "GPT2Block", 2), ("llama", "LlamaDecoderLayer", 2), ("vit", "ViTLayer", 2),
     ("nn.TransformerEncoder", "TransformerEncoderLayer", 2), ("resnet", "Residual", 2)],
)  # fmt: skip
def test_repeated_blocks_are_folded(name, classes, count):
    """Blocks that differ in anything but their weights are not: the third of the ResNet has a stride."""
    make, inputs = MODELS[name]
    graph = capture(make(), inputs(2, 7))
    assert next(block.count for block in graph.blocks if block.module_class == classes) == count
    assert sum(len(node.nodes) for node in graph.module_nodes) == len(graph.nodes)
    assert sum(block.count for block in graph.blocks) == len(graph.module_nodes)


def test_the_module_level_reads_from_top_to_bottom():
    graph = capture(MODELS["bert"][0](), tokens(2, 7))
    paths = [node.module_path for node in graph.level("module")]
    kept = [path for path in paths if path not in ("bert", "dropout")]
    assert kept == ["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "bert.pooler", "classifier"]
    by_path = {node.module_path: node for node in graph.level("module")}
    first, second = by_path["bert.encoder.layer.0"], by_path["bert.encoder.layer.1"]
    assert set(first.outputs) <= set(second.inputs) and first.hash == second.hash and len(first.weights) == 16


def test_sizes_have_the_names_of_their_meaning():
    graph = capture(MODELS["t5"][0](), MODELS["t5"][1](2, 7))
    assert graph.symbols == ("batch", "sequence", "decoder_sequence")
    assert dict(graph.sizes) == {"batch": 2, "sequence": 7, "decoder_sequence": 9}
    flat = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48), 1).eval()
    graph = capture(flat, torch.randn(7, 2, 32), dimensions={"src": ("sequence", "batch", None)})
    assert [str(size) for size in graph.tensors["src"].shape] == ["sequence", "batch", "32"]


def test_one_sample_is_as_symbolic_as_two():
    model = classifier()
    one, two = capture(model, tokens(1, 7)), capture(model, tokens(2, 7))
    assert [str(record.shape) for record in one.tensors.values()] == [str(r.shape) for r in two.tensors.values()]
    assert one.sizes["batch"] == 1 and two.sizes["batch"] == 2


def test_quantized_packed_and_adapted_models_show_our_operators():
    model = classifier()
    simulated = octavo.quantize_model(model, "mxint8; type:Linear weight=mxint8 input=mxint8")
    packed = octavo.pack_model(simulated)
    adapted = octavo.lora.insert(model, rank=2)
    shown = [capture(each, masked(2, 7)) for each in (model, simulated, packed, adapted)]
    linears = shown[0].operators()["aten.linear"]
    assert all(graph.refusal is None for graph in shown)
    assert shown[1].operators()["octavo.quantize_plain"] >= 2 * linears
    assert shown[2].operators()["octavo.rounded_linear_plain"] == linears
    assert shown[3].operators()["aten.linear"] == 3 * linears
    weight = shown[2].tensors["classifier.weight"]
    assert (weight.format, weight.shape, weight.nbytes) == (
        "mxint8",
        (2, 32),
        model.classifier.weight.numel() * 33 // 32,
    )
    assert [node.module_path for node in shown[3].nodes if node.module_path.endswith("classifier.lora.default")]
    rounded = [record for record in shown[1].tensors.values() if record.kind == "activation" and record.format]
    assert {record.format for record in rounded} == {"mxint8"}


def test_nothing_changes_and_nothing_is_printed(capfd):
    model = classifier().train()
    held, values = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    refused, given, others = Chooses(), torch.randn(2, 4), tokens(2, 7)
    random = torch.get_rng_state()
    capture(model, others)
    capture(refused, given)
    assert model.training and torch.equal(random, torch.get_rng_state())
    assert all(held[path] is parameter for path, parameter in model.named_parameters())
    assert all(torch.equal(values[path], tensor) for path, tensor in model.state_dict().items())
    assert capfd.readouterr() == ("", "")


def test_the_meta_device_will_do():
    graph = capture(MODELS["bert"][0]().to("meta"), tokens(2, 7))
    assert graph.refusal is None and graph.symbols == ("batch", "sequence")


CHANGES = {
    "mode": lambda m: m.train(),
    "layer": lambda m: setattr(m, "classifier", nn.Linear(32, 2)),
    "shape": lambda m: setattr(m.classifier, "weight", nn.Parameter(torch.zeros(3, 32))),
    "tie": lambda m: tie(m),
    "attribute": lambda m: setattr(next(x for x in m.modules() if isinstance(x, nn.Dropout)), "p", 0.3),
    "hook": lambda m: m.classifier.register_forward_hook(lambda *_: None),
    "dtype": lambda m: m.to(torch.float64),
    "forward": lambda m: setattr(m.classifier, "forward", lambda x: x[..., :2]),
    "drop-out removed": lambda m: octavo.graph.remove_dropout(m, tokens(2, 7), inplace=True),
    "layers joined": lambda m: octavo.graph.fuse_qkv(m, groups=["encoder.0.attention:query,key"], inplace=True),
    "quantized": lambda m: octavo.quantize_model(m, "int8", inplace=True),
    "one layer quantized": lambda m: octavo.quantize_model(m, "first:Linear int4", inplace=True),
    "adapted": lambda m: octavo.lora.insert(m, rank=2, inplace=True),
    "pipeline": lambda m: octavo.graph.Pipeline([("quantize", {"recipe": "int8"}), "pack"]).run(m, inplace=True),
}


def tie(model):
    first, second, *_ = (module for module in model.modules() if isinstance(module, nn.Linear))
    second.weight = first.weight


@pytest.mark.parametrize("change", spread(CHANGES))
def test_a_change_of_the_model_is_captured_again(change):
    model, given = classifier(), tokens(2, 7)
    graph = capture(model, given)
    assert capture(model, tokens(2, 7)) is graph
    CHANGES[change](model)
    assert capture(model, given) is not graph


def test_other_inputs_are_captured_again():
    model = classifier()
    assert capture(model, tokens(2, 7)) is not capture(model, masked(2, 7))


def test_a_graph_does_not_hold_the_model():
    model = classifier()
    graph, seen = capture(model, tokens(2, 7)), weakref.ref(model)
    weight = weakref.ref(model.classifier.weight)
    del model
    gc.collect()
    assert seen() is None and weight() is None and graph.weights


class Chooses(nn.Module):
    """A branch on values, which torch.export refuses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if x.sum() > 0 else x
        return x


def test_the_module_level_remains_where_torch_export_refuses():
    graph = capture(Chooses(), torch.randn(2, 4))
    assert "data-dependent" in graph.refusal and graph.refusal in str(graph)
    assert [(block.count, block.module_class) for block in graph.blocks] == [(3, "Linear"), (3, "ReLU")]
    assert len(graph.weights) == 6
    with pytest.raises(ModelError, match=r"Chooses: the operator level needs operators.*data-dependent"):
        graph.level("operator")


def test_the_common_view_tells_arguments_and_results():
    graph = capture(classifier(), tokens(2, 7))
    node = next(node for node in graph.nodes if node.module_path == "classifier")
    told = graph.common[node.id]
    assert (told["kind"], told["op"]) == ("layer", "aten.linear")
    assert told["args"]["classifier.weight"]["shape"] == (2, 32)
    assert any("classifier" in line and ":" in line for line in node.stack)
    assert octavo.graph.capture is capture and "aten.linear" in graph.to_json()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"ids": torch.zeros(2, 7, dtype=torch.int64)}, ModelError, "it takes input_ids, attention_mask"),
        ({"input_ids": None}, ModelError, "hold no tensor"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given, error, told):
    with pytest.raises(error, match=told):
        capture(classifier(), given)


def test_what_is_no_module_and_wrong_names_are_refused():
    with pytest.raises(DTypeError, match=r"capture: model is .*; accepted is a torch.nn.Module"):
        capture("bert", {})
    with pytest.raises(ModelError, match="no input is called 'x'; the inputs are input_ids"):
        capture(classifier(), tokens(2, 7), dimensions={"x": ("batch",)})
    with pytest.raises(ModelError, match="got 1 names"):
        capture(classifier(), tokens(2, 7), dimensions={"input_ids": ("batch",)})
    with pytest.raises(ModelError, match="level 'layer'; accepted are"):
        capture(classifier(), tokens(2, 7)).level("layer")
    for names in ("ab", ("batch", 2), ("batch", "")):
        with pytest.raises((DTypeError, ModelError), match=r"for each dimension|dimensions\['input_ids'\]"):
            capture(classifier(), tokens(2, 7), dimensions={"input_ids": names})


def test_attributes_and_modules_of_any_kind_are_captured():
    """Containers that hold themselves, and a scripted module, whose class has no forward."""
    model = nn.Linear(4, 4)
    model.table, model.list = {}, []
    model.table["self"], model.table["list"] = model.table, model.list
    model.list.append(model.list)
    graph = capture(model, torch.randn(2, 4))
    assert len(graph.weights) == 2 and capture(model, torch.randn(2, 4)) is graph
    model.list.append(3)
    assert capture(model, torch.randn(2, 4)) is not graph
    assert capture(torch.jit.script(nn.Linear(4, 4)), torch.randn(2, 4)).model_class
    with pytest.raises(ModelError, match="the module that was traced"):
        capture(torch.jit.trace(nn.Linear(4, 4), torch.randn(2, 4)), torch.randn(2, 4))


def test_a_traced_module_whose_hooks_are_lists_is_captured():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert isinstance(vars(traced)["_replace_hooks"], list)
    assert capture(traced, torch.zeros(2, 4)).operators()
