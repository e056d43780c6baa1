"""Transforms change what a model is made of and not what it gives; what stays is told with its reason."""

import copy

import octavo
import pytest
import torch
from graph.zoo import BERT, LLAMA, MODELS, ResNet, classifier, masked, tokens
from octavo import ModelError
from octavo.compress.graph_subjects import _of_path
from octavo.data.batches import call_on
from octavo.graph import (
    Pipeline,
    capture,
    extract,
    fold_batchnorm,
    fuse_qkv,
    module_inputs,
    remove_dropout,
)
from octavo.graph.dropout_removal import dropping, training_graph
from octavo.graph.exporting import held_tensors
from octavo.graph.qkv_fusion import candidates
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.joined_linear import JoinedLinear
from torch import nn
from torch.nn import functional as F

NEAR = 1e-5


def outputs(model, inputs):
    with torch.no_grad():
        return held_tensors(call_on(model, inputs))


def assert_near(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=NEAR, atol=NEAR)


# --- drop-out ---------------------------------------------------------------------------------------------------------

SLOW = ["llama", "t5", "resnet", "seq2seq"]  # to capture
NAMES = ["bert with labels", "gpt2", "vit", "nn.TransformerEncoder", "classifier"]


@pytest.mark.parametrize("name", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_without_drop_out_training_gives_what_evaluation_gives(name):
    make, inputs = MODELS[name]
    model, given = make(), inputs(2, 7)
    before = copy.deepcopy(model.state_dict())
    made, report = remove_dropout(model, given)
    assert not dropping(training_graph(made, given))
    assert not made.training and list(made.state_dict()) == list(before)
    assert report.rows or name in ("llama", "resnet", "seq2seq")  # their shares are 0
    assert_near(outputs(made, given), outputs(model, given))
    if name != "resnet":  # its batch normalization is the batch's in training
        assert_near(outputs(made.train(), given), outputs(model, given))


class Drops(nn.Module):
    """Every way to drop: modules, attributes, functions with a share of their own."""

    def __init__(self):
        super().__init__()
        self.layer, self.again = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2, inplace=True))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
        self.gru = nn.GRU(8, 8, 2, dropout=0.3, batch_first=True)
        self.dropout = 0.1

    def forward(self, x):
        x = self.again(F.dropout(self.layer(x), self.dropout, training=self.training))
        x = F.alpha_dropout(torch.dropout(x, 0.25, self.training), 0.5, self.training)
        x = F.feature_alpha_dropout(F.dropout1d(x, 0.5, training=self.training), training=self.training)
        x = F.scaled_dot_product_attention(x, x, x, None, 0.3 if self.training else 0.0)
        return self.gru(x + self.attention(x, x, x)[0])[0]


def test_drop_out_by_functions_is_removed_and_the_model_copied():
    model, x = Drops(), torch.randn(2, 5, 8)
    assert dropping(training_graph(model, x))
    made, report = remove_dropout(model, x)
    told = {(row[0], row[1]) for row in report.rows}
    assert {("", "dropout"), ("again.1", "Dropout"), ("attention", "dropout"), ("gru", "dropout")} <= told
    assert not dropping(training_graph(made, x)) and made.training and model.dropout == 0.1
    twin = copy.deepcopy(made)
    for each in (made, twin):
        assert torch.equal(outputs(each.train(), x)[0], outputs(each, x)[0])
        assert_near(outputs(each.train(), x), outputs(model.eval(), x))
    with torch.no_grad():
        twin.layer.weight.zero_()  # the forward of a copy is its own
    assert not torch.equal(outputs(twin, x)[0], outputs(made, x)[0])
    assert isinstance(remove_dropout(nn.Dropout(0.5))[0](x), torch.Tensor)


def test_a_saved_model_has_no_drop_out_either(tmp_path):
    made, _ = remove_dropout(BERT(), masked(2, 7))
    octavo.save_model(made, tmp_path / "bert")
    loaded = octavo.load_model(tmp_path / "bert").train()
    assert all(module.p == 0 for module in loaded.modules() if isinstance(module, nn.Dropout))
    assert_near(outputs(loaded, masked(2, 7)), outputs(made, masked(2, 7)))


# --- batch normalization ----------------------------------------------------------------------------------------------


def seasoned(model, *shape):
    """A model whose normalizations have statistics, weights and biases of their own."""
    torch.manual_seed(1)
    model.train()(torch.randn(shape) * 3 + 1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


def conv(dims, bias, groups=1):
    padding = {"padding": 1, "padding_mode": "circular"} if bias else {}
    layer = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](4, 6, 3, groups=groups, bias=bias, **padding)
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](6, affine=bias)
    return nn.Sequential(layer, norm, nn.ReLU())


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("bias", "groups"), [(True, 1), (False, 2)])
def test_a_normalization_goes_into_the_convolution(dims, bias, groups):
    shape = (3, 4, 7, 6, 5)[: dims + 2]
    model = seasoned(conv(dims, bias, groups), *shape)
    x = torch.randn(shape)
    made, report = fold_batchnorm(model, x)
    assert report.rows == (("1", "0", "folded"),) and isinstance(made[1], nn.Identity)
    assert_near(outputs(made, x), outputs(model, x))
    assert not [op for op in capture(made, x).operators() if "norm" in op]


def test_a_network_of_residual_blocks_is_folded_whole(tmp_path):
    model = seasoned(ResNet(), 4, 3, 16, 16)
    x = torch.randn(2, 3, 16, 16)
    result = Pipeline(["fold_batchnorm", ("quantize", {"recipe": "int8"})]).run(model, inputs=x)
    made, report = fold_batchnorm(model, x)
    assert len(report.rows) == 9 and {row[2] for row in report.rows} == {"folded"}
    assert_near(outputs(made, x), outputs(model, x))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in result.model.modules())
    octavo.save_model(made, tmp_path / "folded")
    assert_near(outputs(octavo.load_model(tmp_path / "folded", ResNet), x), outputs(made, x))


def test_folders_of_folded_models_are_read_as_they_were_written(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetForImageClassification(config).train()
    given = {"pixel_values": torch.randn(3, 3, 32, 32)}
    model(**given)
    made, report = fold_batchnorm(model.eval(), given)
    assert {row[2] for row in report.rows} == {"folded"}
    assert_near(outputs(made, given), outputs(model, given))
    packed = octavo.pack_model(octavo.quantize_model(made, "int8"))
    for number, each in enumerate((made, copy.deepcopy(made), packed)):
        each.save_pretrained(tmp_path / str(number))
        loaded = octavo.load_model(tmp_path / str(number))
        assert all(torch.equal(a, b) for a, b in zip(outputs(loaded, given), outputs(each, given), strict=True))
        octavo.save_model(loaded, tmp_path / "again")
        assert list(loaded.state_dict()) == list(each.state_dict())
    shown = _of_path(tmp_path / "0", values=False, priced=False)  # what octavo graph shows
    assert not any(isinstance(module, nn.BatchNorm2d) for module in shown.modules())
    with pytest.raises(octavo.ContainerError, match=r"normalization .* is folded into the layer before it"):
        unpack(Checkpoint.open(tmp_path / "2"))
    with pytest.raises(octavo.ContainerError, match="a folded batch normalization in the file, and none in this model"):
        octavo.load_model(tmp_path / "0", lambda: nn.Sequential(nn.Linear(2, 2)))


class Keeps(nn.Module):
    """Pairs that must stay: an output read twice, a shared layer, a linear layer over a sequence, no statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Conv1d(4, 4, 1) for _ in range(3))
        self.norm_a, self.norm_b = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.norm_c = nn.BatchNorm1d(4, track_running_stats=False)
        self.norm_d, self.line = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.hooked, self.norm_e = nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)
        self.hooked.register_forward_hook(lambda *_: None)

    def forward(self, x):
        y = self.a(x)
        y = self.norm_a(y) + y
        y = self.norm_b(self.b(self.b(y)))
        y = self.norm_d(self.line(self.norm_c(self.c(y))))
        return self.norm_e(self.hooked(y))


def test_what_cannot_be_folded_stays_and_says_why():
    model, x = seasoned(Keeps(), 3, 4, 4), torch.randn(3, 4, 4)
    made, report = fold_batchnorm(model, x)
    reasons = {row[0]: row[2] for row in report.rows}
    for name, why in {"norm_a": "read elsewhere", "norm_b": "more than once", "norm_c": "no running statistics",
                      "norm_d": "more than two dimensions", "norm_e": "hooks"}.items():  # fmt: skip
        assert why in reasons[name], reasons
    assert torch.equal(outputs(made, x)[0], outputs(model, x)[0])
    with pytest.raises(ModelError, match=r"norm_a is in training.*call model\.eval"):
        fold_batchnorm(model.train(), x)


# --- queries, keys, values --------------------------------------------------------------------------------------------

GROUPS = {
    "bert with a mask": ["bert.encoder.layer.0.attention.self:query,key,value"],
    "llama": ["model.layers.0.self_attn:q_proj,k_proj,v_proj"],  # 4 query heads, 2 of keys and values
    "vit": ["vit.layers.0.attention:q_proj,k_proj,v_proj"],
    "t5": ["encoder.block.0.layer.0.SelfAttention:q,k,v", "decoder.block.0.layer.1.EncDecAttention:k,v"],
    "classifier": ["encoder.0.attention:query,key,value"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("t5", "vit"))) for name in GROUPS]
)
def test_joined_projections_give_what_single_ones_give(name, tmp_path):
    make, inputs = MODELS[name]
    model, given = make(), inputs(2, 7)
    found = [f"{path}:{','.join(names)}" for path, names in candidates(model, capture(model, given))]
    assert set(GROUPS[name]) <= set(found)
    made, report = fuse_qkv(model, groups=tuple(found))
    assert report.settled.groups == tuple(found)
    assert sum(isinstance(module, JoinedLinear) for module in made.modules()) == sum(x.count(",") + 1 for x in found)
    for length in (7, 3):
        other = inputs(2, length)
        assert_near(outputs(made, other), outputs(model, other))
    assert list(made.state_dict()) == list(model.state_dict())
    octavo.save_model(made, tmp_path / "saved")
    assert_near(outputs(octavo.load_model(tmp_path / "saved"), given), outputs(model, given))


def test_only_what_is_faster_is_joined_and_the_choice_replays(monkeypatch):
    import octavo.graph.qkv_fusion as module

    model, given = classifier(), tokens(2, 7)
    times = iter([(2.0, 1.0), (3.0, 2.0)])
    monkeypatch.setattr(module, "_by_turns", lambda *calls: [call() for call in calls] and next(times))
    result = Pipeline(["fuse_qkv"]).run(model, inputs=given)
    assert [row[2:] for row in result.reports[0][1].rows] == [(2.0, 1.0, "joined")] * 2 + [(3.0, 2.0, "joined")]
    assert len(result.pipeline.steps[0].config.groups) == 2
    again = Pipeline.from_toml(result.pipeline.to_toml()).run(model)
    assert torch.equal(outputs(again.model, given)[0], outputs(result.model, given)[0])
    for slow in ([(1.0, 2.0)], [(2.0, 1.0), (2.0, 2.0)]):
        times = iter(slow)
        made, report = fuse_qkv(model, given)
        assert not any(isinstance(m, JoinedLinear) for m in made.modules()) and report.settled.groups == ()
        assert all("stays" in row[4] for row in report.rows)
        assert Pipeline([("fuse_qkv", {"groups": []})]).run(model).model is not None


def test_joined_layers_are_quantized_and_adapted_as_single_ones():
    model = LLAMA()
    joined, _ = fuse_qkv(model, groups=("model.layers.0.self_attn:q_proj,k_proj,v_proj",))
    given = masked(2, 7)
    for change in (lambda m: octavo.quantize_model(m, "int8:g16"), lambda m: octavo.lora.insert(m, rank=2)):
        assert_near(outputs(change(joined), given), outputs(change(model), given))


@pytest.mark.parametrize(
    ("groups", "told"),
    [(["a"], "give the path of a module"), (["bert.pooler:dense,none"], "has no layer 'none'"),
     (["bert.encoder.layer.0:attention,output"], "accepted are layers of nn.Linear"),
     (["bert.encoder.layer.0.attention.self:query,query"], "two or more")],
)  # fmt: skip
def test_groups_that_are_none_are_refused(groups, told):
    with pytest.raises(ModelError, match=told):
        fuse_qkv(BERT(), groups=tuple(groups))


def test_measuring_needs_inputs_and_values():
    with pytest.raises(ModelError, match="give inputs=batch"):
        fuse_qkv(BERT())
    with pytest.raises(ModelError, match="meta device"):
        fuse_qkv(BERT().to("meta"), tokens(2, 7))


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path"),
    [("bert with a mask", "bert.encoder.layer.1"), ("gpt2", "transformer.h.0"), ("llama", "model.layers.1.mlp"),
     ("vit", "vit.layers.0"), ("t5", "encoder"), ("resnet", "stages.2"), ("classifier", "encoder.0")],
)  # fmt: skip
def test_a_part_gives_what_it_gives_in_the_model(name, path):
    make, inputs = MODELS[name]
    model, given = make(), inputs(2, 7)
    seen = []
    handle = model.get_submodule(path).register_forward_hook(lambda m, a, output: seen.append(output))
    outputs(model, given)
    handle.remove()
    made, report = extract(model, path, given)
    assert_near(outputs(made, module_inputs(model, path, given)), held_tensors(seen[0]))
    assert {row[0] for row in report.rows} == {"input", "output"}
    assert not model.get_submodule(path)._forward_hooks and not made._forward_hooks


def test_what_follows_an_extraction_gets_its_inputs():
    model = classifier()
    steps = [("extract", {"path": "encoder.0"}), ("quantize", {"recipe": "int8 input=int8@mse"}), "costs"]
    result = Pipeline(steps).run(model, inputs=masked(2, 7), calibration=[masked(2, 7), masked(3, 5)])
    assert type(result.model) is type(model.encoder[0]) and result.reports[2][1].macs
    with pytest.raises(ModelError, match=r"has no module 'encoder\.9'"):
        extract(model, "encoder.9")
    with pytest.raises(ModelError, match="does not call it on these"):
        extract(nn.ModuleDict({"a": nn.Linear(2, 2), "b": Holds()})["b"], "unused", torch.zeros(1, 2))


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)
