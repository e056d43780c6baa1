"""Low-rank adapters: what they must not change, what they train, and how they come and go."""

import copy
import json
import pickle

import octavo
import pytest
import torch
from octavo import CalibrationError, ContainerError, DTypeError, ModelError, NonFiniteError, lora
from torch import nn

TOLERANCE = 1e-6  # of fused against adapted outputs, fp32: sums in another order


class Block(nn.Module):
    """One layer of a small BERT: six linear layers."""

    def __init__(self, width, inner):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        x = x + self.out(scores.softmax(-1) @ self.value(x))
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """A BERT of the labs' shape: 2 layers, 128 wide, pooler and classifier; 14 linear layers."""

    def __init__(self, words=100, width=128, inner=512):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, inner) for _ in range(2))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 2)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Bert().eval()


@pytest.fixture
def ids():
    return torch.randint(0, 100, (3, 7), generator=torch.Generator().manual_seed(1))


def trainable(model):
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def stir(model, name="default", scale=0.3):
    """Give B values, as training would."""
    generator = torch.Generator().manual_seed(2)
    for own in lora.adapters(model).values():
        b = getattr(own, name).B
        b.data = torch.randn(b.shape, generator=generator).to(b.dtype) * scale
    return model


def train(model, ids, steps=3):
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), torch.tensor([0, 1, 1])).backward()
        optimizer.step()
    model.eval()
    return optimizer


# 1 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_insertion_changes_no_bit_of_the_output(model, ids, dtype):
    model = model.to(dtype)
    before = model(ids)
    adapted = lora.insert(model, rank=4, alpha=16)
    assert torch.equal(adapted(ids), before)
    assert not lora.adapters(model), "the model given was changed"
    lora.insert(model, rank=4, inplace=True)
    assert torch.equal(model(ids), before)


def test_names_and_classes_stay(model):
    adapted = lora.insert(model, rank=4)
    state = adapted.state_dict()
    assert model.state_dict().keys() <= state.keys()
    assert {key.rsplit(".", 2)[1] for key in state.keys() - model.state_dict().keys()} == {"default"}
    assert type(adapted.pooler) is nn.Linear


# 2 ---------------------------------------------------------------------------------------------------------------------


def test_the_trainable_count_is_exact(model):
    adapted = lora.insert(model, rank=6, targets="type:Linear")
    assert trainable(adapted) == 29_964
    assert trainable(lora.insert(model, rank=6, train=["name:classifier"])) == 29_964 - 6 * (128 + 2) + 258
    assert sum(p.numel() for p in adapted.parameters()) == sum(p.numel() for p in model.parameters()) + 29_964


# 3 ---------------------------------------------------------------------------------------------------------------------


def test_frozen_parameters_have_no_gradient_no_state_and_the_same_bits(model, ids):
    adapted = lora.insert(model, rank=2, train=["name:classifier"])
    frozen = {n: p for n, p in adapted.named_parameters() if not p.requires_grad}
    before = {n: p.clone() for n, p in frozen.items()}
    optimizer = train(adapted, ids)
    assert len(frozen) == len(list(model.parameters())) - 2
    for name, parameter in frozen.items():
        assert parameter.grad is None and parameter not in optimizer.state
        assert torch.equal(parameter, before[name]), name
    assert not torch.equal(adapted.classifier.weight, model.classifier.weight)
    assert all(own.default.B.abs().sum() > 0 for own in lora.adapters(adapted).values())


def test_gradients_from_before_are_dropped(model, ids):
    model(ids).sum().backward()
    adapted = lora.insert(model, rank=2, inplace=True)
    assert all(p.grad is None for p in adapted.parameters() if not p.requires_grad)


# 4 ---------------------------------------------------------------------------------------------------------------------


def test_fused_equals_adapted_and_unfuse_restores_every_bit(model, ids):
    adapted = stir(lora.insert(model, rank=4, alpha=8))
    weights = {n: p.clone() for n, p in model.named_parameters()}
    wanted = adapted(ids)
    assert (wanted - model(ids)).abs().max() > 0.01
    report = lora.fuse(adapted, samples=ids)
    assert (adapted(ids) - wanted).abs().max() <= TOLERANCE * wanted.abs().max()
    assert report.output_change <= TOLERANCE
    assert [layer.path for layer in report.layers] == list(lora.adapters(adapted))
    assert all(layer.update > 0 and layer.lost == 0 and layer.format is None for layer in report.layers)
    lora.unfuse(adapted)
    assert torch.equal(adapted(ids), wanted)
    for name, value in weights.items():
        assert torch.equal(adapted.get_parameter(name), value), name


def test_commit_leaves_a_plain_model(model, ids):
    adapted = stir(lora.insert(model, rank=4))
    lora.fuse(adapted)
    fused = adapted(ids)
    lora.commit(adapted)
    assert adapted.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(adapted(ids), fused)
    fresh = Bert().eval()
    fresh.load_state_dict(adapted.state_dict())
    assert torch.equal(fresh(ids), fused)
    with pytest.raises(ModelError, match="nothing to unfuse"):
        lora.unfuse(adapted)


def test_fusing_a_tied_weight_leaves_its_twin_alone(model, ids):
    model.head = nn.Linear(128, 100, bias=False)
    model.head.weight = model.embed.weight
    adapted = stir(lora.insert(model, rank=4, targets="name:head"))
    lora.fuse(adapted)
    assert torch.equal(adapted.embed.weight, model.embed.weight)
    assert not torch.equal(adapted.head.weight, model.head.weight)
    lora.unfuse(adapted)
    assert adapted.head.weight is adapted.embed.weight


def test_what_would_mix_fused_and_adapted_is_refused(model):
    adapted = lora.insert(model, rank=4)
    lora.fuse(adapted)
    for refused in (
        lambda: lora.fuse(adapted),
        lambda: lora.activate(adapted, None),
        lambda: lora.insert(adapted, rank=2, name="other"),
    ):
        with pytest.raises(ModelError, match="fused"):
            refused()


def test_fusing_all_layers_or_none(model, ids):
    adapted = stir(lora.insert(model, rank=2))
    wanted, weights = adapted(ids), dict(adapted.named_parameters())
    bad = adapted.layers[1].up.lora.default.B
    good = bad.detach().clone()
    bad.data[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"lora: layers\.1\.up: 128 of 65536 weights"):
        lora.fuse(adapted)
    bad.data.copy_(good)
    assert all(own.original is None for own in lora.adapters(adapted).values())
    assert all(parameter is weights[name] for name, parameter in adapted.named_parameters())
    with pytest.raises(CalibrationError, match="samples, batch 0"):
        lora.fuse(adapted, samples=torch.zeros(3, 7))
    assert torch.equal(adapted(ids), wanted)


@pytest.mark.parametrize("kind", ["dynamic", "static", "packed"])
def test_a_failure_to_requantize_names_the_layer_and_leaves_all(model, ids, kind):
    adapted = stir(lora.insert(base(kind, model), rank=2))
    adapted.pooler.lora.default.B.data[0, 0] = float("inf")
    before = lora.base_hash(adapted)
    with pytest.raises(NonFiniteError, match="lora: pooler: "):
        lora.fuse(adapted)
    assert lora.base_hash(adapted) == before
    assert all(own.original is None for own in lora.adapters(adapted).values())


def test_fusing_in_half_precision_tells_overflow_and_what_rounding_lost():
    layer = stir(lora.insert(nn.Linear(8, 8).half(), rank=2))
    assert 0 < lora.fuse(layer).layers[0].lost < 1e-2
    lora.unfuse(layer)
    layer.lora.default.B.data.fill_(60000)
    layer.lora.default.A.data.fill_(1)
    with pytest.raises(NonFiniteError, match="64 of 64 weights plus update are NaN or beyond float16"):
        lora.fuse(layer)
    assert torch.isfinite(layer.weight).all()


def base(kind, model):
    """The model quantized, or packed."""
    recipe = {"static": "int8:channel@mse", "integer": "int8:channel; type:Linear int8:channel input=int8"}.get(
        kind, "int4:g32"
    )
    simulated = octavo.quantize_model(model, recipe, progress=False)
    return octavo.pack_model(simulated) if kind in ("packed", "integer") else simulated


BASES = ["dynamic", "static", "packed", "integer"]


@pytest.mark.parametrize("kind", BASES)
def test_adapters_on_quantized_bases_change_nothing_until_trained(model, ids, kind):
    model = base(kind, model)
    adapted = lora.insert(model, rank=6)
    assert torch.equal(adapted(ids), model(ids))
    assert trainable(adapted) == 29_964
    assert (stir(adapted)(ids) - model(ids)).abs().max() > 0.01


@pytest.mark.parametrize("kind", BASES)
def test_fusing_into_a_quantized_base_requantizes_and_reports(model, ids, kind):
    adapted = stir(lora.insert(base(kind, model), rank=4), scale=0.05)
    wanted = adapted(ids)
    state = {name: value.clone() for name, value in adapted.state_dict().items()}
    report = lora.fuse(adapted, samples=ids)
    assert 0 < report.output_change < 0.2
    for layer in report.layers:
        assert layer.format and 0 < layer.codes_changed < 1 and layer.update > 0 and layer.lost > 0
    fused = adapted(ids)
    assert torch.allclose((fused - wanted).abs().max() / wanted.abs().max(), torch.tensor(report.output_change))
    lora.unfuse(adapted)
    assert torch.equal(adapted(ids), wanted)
    assert all(torch.equal(value, state[name]) for name, value in adapted.state_dict().items())
    lora.fuse(adapted)
    lora.commit(adapted)
    assert torch.equal(adapted(ids), fused)
    assert type(adapted.pooler) is type(base(kind, model).pooler)


def test_a_fused_packed_weight_is_the_nearest_to_the_sum(model):
    adapted = stir(lora.insert(base("packed", model), rank=4))
    old, delta = adapted.pooler.weight.decode(), adapted.pooler.lora.default.delta()
    lora.fuse(adapted)
    assert adapted.pooler.weight == octavo.encode((old.double() + delta).float(), "int4:g32")


# 5 ---------------------------------------------------------------------------------------------------------------------


def test_an_int32_bias_counts_in_the_steps_of_the_fused_scales_and_comes_back_with_the_old_ones():
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 32), torch.randn(16, 64)
    nn.init.normal_(linear.bias, std=4.0)
    quantized = octavo.quantize_model(
        nn.Sequential(linear), "int8:channel input=int8@minmax bias=int32", calibration=[x], progress=False
    )
    model = lora.insert(octavo.pack_model(quantized), rank=4).eval()
    nn.init.normal_(model.get_parameter("0.lora.default.B"))
    adapted, bias = model(x), model[0].bias.clone()
    lora.fuse(model)
    assert not torch.equal(model[0].bias, bias)
    assert torch.allclose(model(x), adapted, atol=0.02 * float(adapted.abs().max()))
    lora.unfuse(model)
    assert torch.equal(model[0].bias, bias) and torch.equal(model(x), adapted)


@pytest.mark.parametrize("rank", [0, -1, 2.0, True, "4", None])
def test_rank_is_an_integer_from_1(model, rank):
    with pytest.raises(ModelError, match="rank is"):
        lora.insert(model, rank=rank)


def test_a_rank_above_both_sides_is_refused():
    lora.insert(nn.Linear(4, 2), rank=4)
    with pytest.raises(ModelError, match=r"lora: 1: rank is 9, the layer 8 -> 4; accepted are ranks up to 8"):
        lora.insert(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)), rank=9)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_adapters_go_around_modules_that_torchscript_compiled():
    traced = torch.jit.trace(nn.Linear(8, 8), torch.zeros(1, 8))
    mixed, x = nn.Sequential(nn.Linear(8, 8), traced), torch.randn(3, 8)
    adapted = lora.insert(mixed, rank=2)
    assert torch.equal(adapted(x), mixed(x))
    assert trainable(adapted) == 2 * (8 + 8)
    adapted(x).sum().backward()
    assert all(parameter.requires_grad for parameter in mixed.parameters())
    with pytest.raises(ModelError, match="TorchScript compiled it"):
        lora.insert(traced, rank=2)


def test_other_kinds_of_arguments_are_refused(model):
    for name, attempt in (
        ("config", lambda: lora.insert(model, 5)),
        ("model", lambda: lora.insert(None, rank=2)),
        ("generator", lambda: lora.insert(model, rank=2, generator=5, inplace=True)),
    ):
        with pytest.raises(DTypeError, match=f"insert: {name} is "):
            attempt()
    assert not lora.adapters(model)


def test_unknown_keys_are_errors(model):
    with pytest.raises(ModelError, match=r"unknown option 'aplha'; did you mean 'alpha'"):
        lora.insert(model, rank=4, aplha=16)
    with pytest.raises(ModelError, match="unknown option 'r'"):
        lora.insert(model, {"r": 4})
    with pytest.raises(ModelError, match="no rank given"):
        lora.insert(model, {"alpha": 4})


@pytest.mark.parametrize("bad", [{"alpha": float("nan")}, {"dropout": 1.0}, {"dropout": -0.1}, {"rslora": 1}])
def test_values_out_of_range_are_errors(model, bad):
    with pytest.raises(ModelError, match=next(iter(bad))):
        lora.insert(model, rank=4, **bad)


# 6 ---------------------------------------------------------------------------------------------------------------------


def test_dropout_acts_on_the_adapters_input_only_and_only_in_training():
    layer = nn.Linear(64, 8)
    adapted = stir(lora.insert(layer, rank=4, targets="type:Linear", dropout=0.5))
    x = torch.ones(5, 64)
    adapted.eval()
    assert torch.equal(adapted(x), adapted(x))
    adapted.train()
    outputs = [adapted(x) for _ in range(4)]
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])
    lora.activate(adapted, None)
    assert torch.equal(adapted(x), layer(x)), "the base saw dropout"


# 7 ---------------------------------------------------------------------------------------------------------------------


def test_targets_come_from_selectors(model):
    adapted = lora.insert(model, rank=2, targets=["glob:layers.*.query", "name:pooler"])
    assert list(lora.adapters(adapted)) == ["layers.0.query", "layers.1.query", "pooler"]
    some = lora.insert(model, rank=2, targets=["layers.0.*", "first:glob:layers.1.*"])
    names = ("query", "key", "value", "out", "up", "down")
    assert list(lora.adapters(some)) == [*(f"layers.0.{name}" for name in names), "layers.1.query"]
    last = lora.insert(model, rank=2, targets="last:Linear")
    assert list(lora.adapters(last)) == ["classifier"]


def test_a_head_is_adapted_or_trained_never_both(model):
    adapted = lora.insert(model, rank=2, train="name:classifier")
    assert "classifier" not in lora.adapters(adapted)
    with pytest.raises(ModelError, match="trained whole"):
        lora.insert(model, rank=2, targets="name:classifier", train="name:classifier")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("type:Embedding", "selects no linear layer; embed is a Embedding"),
        ("name:layers.0.norm", "selects no linear layer; layers.0.norm is a LayerNorm"),
        ("name:layers.0.nrm", "selects nothing; nearest names: layers.0.norm"),
        ("name:layers.0.attention.self.qury", "nearest names: layers.0.query, layers.1.query"),
        ([], "targets is empty"),
        (3, "targets is 3"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused(model, targets, message):
    with pytest.raises(octavo.OctavoError, match=message):
        lora.insert(model, rank=2, targets=targets)
    assert not lora.adapters(model) and trainable(model) > 100_000


def test_what_attention_reads_without_a_call_is_refused():
    with pytest.raises(ModelError, match=r"out_proj, whose weight nn.MultiheadAttention reads"):
        lora.insert(nn.TransformerEncoderLayer(16, 2), rank=2, targets="glob:*.out_proj")


def test_encoder_layers_of_torch_run_their_adapters(ids):
    """They have a fast path that reads weights without calling layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True).eval()
    x = torch.randn(2, 3, 16)
    adapted = lora.insert(layer, rank=2)
    assert list(lora.adapters(adapted)) == ["linear1", "linear2"]
    with torch.no_grad():
        before = adapted(x)
        assert not torch.allclose(stir(adapted)(x), before)


def test_training_what_has_no_parameters_is_refused(model):
    with pytest.raises(ModelError, match="'type:Identity' selects nothing"):
        lora.insert(model, rank=2, train="type:Identity")
    with pytest.raises(ModelError, match="selects no module with parameters; 1 is a ReLU"):
        lora.insert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), rank=2, train="name:1")


def test_training_a_module_tied_to_the_base_is_refused(model):
    model.head = nn.Linear(128, 100, bias=False)
    model.head.weight = model.embed.weight
    with pytest.raises(ModelError, match="tied to"):
        lora.insert(model, rank=2, train="name:head")


# 8 ---------------------------------------------------------------------------------------------------------------------


def test_adapters_travel_alone_with_what_was_trained(model, ids, tmp_path):
    adapted = lora.insert(model, rank=4, alpha=3, rslora=True, dropout=0.1, train=["name:classifier"], name="task")
    train(adapted, ids)
    lora.save_adapters(adapted, tmp_path / "task.safetensors")
    assert (tmp_path / "task.safetensors").stat().st_size < 4 * trainable(adapted) + 8000
    loaded = lora.load_adapters(model, tmp_path / "task.safetensors")
    assert torch.equal(loaded(ids), adapted(ids))
    assert loaded.pooler.lora.active == "task"
    assert loaded.pooler.lora.task.config == adapted.pooler.lora.task.config
    assert trainable(loaded) == trainable(adapted)


def test_a_fused_model_saves_and_hashes_as_before_fusing(model, ids, tmp_path):
    adapted = stir(lora.insert(model, rank=4))
    wanted = adapted(ids)
    lora.fuse(adapted)
    assert lora.base_hash(adapted) == lora.base_hash(model)
    lora.save_adapters(adapted, tmp_path / "a.safetensors")
    assert torch.equal(lora.load_adapters(model, tmp_path / "a.safetensors")(ids), wanted)


def test_a_layer_at_two_places_has_one_adapter(ids, tmp_path):
    torch.manual_seed(0)
    model = Bert().eval()
    model.layers[1] = model.layers[0]
    adapted = stir(lora.insert(model, rank=2))
    assert trainable(adapted) == 2 * (4 * 256 + 2 * 640 + 256 + 130)
    lora.save_adapters(adapted, tmp_path / "a.safetensors")
    assert torch.equal(lora.load_adapters(model, tmp_path / "a.safetensors")(ids), adapted(ids))


def test_a_layer_at_two_places_answers_to_both_paths():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": shared, "c": nn.Linear(4, 4)})
    assert list(lora.adapters(lora.insert(model, rank=2, targets="name:b"))) == ["a"]
    adapted = lora.insert(model, rank=2, train="name:b")
    assert list(lora.adapters(adapted)) == ["c"]
    assert list(lora.adapters(lora.insert(adapted, rank=2, name="more", train="name:b"))) == ["c"]


def test_loading_on_another_base_is_refused(model, tmp_path):
    lora.save_adapters(lora.insert(model, rank=4), tmp_path / "a.safetensors")
    with torch.no_grad():
        model.layers[1].down.bias[5] += 1e-7
    with pytest.raises(ContainerError, match="another base"):
        lora.load_adapters(model, tmp_path / "a.safetensors", inplace=True)
    assert not lora.adapters(model)


def test_files_that_do_not_fit_are_refused_by_the_tensors_name(model, tmp_path):
    file = tmp_path / "a.safetensors"
    lora.save_adapters(lora.insert(model, rank=4), file)
    metadata, tensors = octavo.tensors.container.metadata(file), octavo.load(file)

    def written(changed, **changes):
        octavo.save(changed, file, metadata={**metadata, **changes})
        return pytest.raises(ContainerError)

    with written({key: value for key, value in tensors.items() if key != "pooler.lora.B"}) as caught:
        lora.load_adapters(model, file)
    assert "pooler.lora.B is missing" in str(caught.value)
    with written({**tensors, "pooler.lora.A": torch.zeros(3, 128)}) as caught:
        lora.load_adapters(model, file)
    assert "pooler.lora.A has shape (3, 128)" in str(caught.value)
    with written({**tensors, "stray": torch.zeros(1)}) as caught:
        lora.load_adapters(model, file)
    assert "stray has no place" in str(caught.value)
    config = json.loads(metadata["lora.config"])
    with written(tensors, **{"lora.config": json.dumps({**config, "extra": 1})}) as caught:
        lora.load_adapters(model, file)
    assert "unknown option 'extra'" in str(caught.value)
    with written(tensors, **{"lora.config": "[" * 100_000}):
        lora.load_adapters(model, file)
    octavo.save(tensors, file)
    with pytest.raises(ContainerError, match="not a file of adapters"):
        lora.load_adapters(model, file)


# 9 ---------------------------------------------------------------------------------------------------------------------


def test_codes_of_a_packed_base_never_change(model, ids, tmp_path):
    packed = base("packed", model)
    adapted = lora.insert(packed, rank=4)
    before = {name: value.clone() for name, value in packed.state_dict().items()}
    train(adapted, ids, steps=5)
    assert (adapted(ids) - packed(ids)).abs().max() > 0.01
    after = adapted.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    lora.save_adapters(adapted, tmp_path / "a.safetensors")
    assert torch.equal(lora.load_adapters(packed, tmp_path / "a.safetensors")(ids), adapted(ids))
    with pytest.raises(ContainerError, match="another base"):
        lora.load_adapters(model, tmp_path / "a.safetensors")
    lora.fuse(adapted)
    assert lora.base_hash(adapted) == lora.base_hash(packed)


def test_bases_have_the_hash_that_files_of_version_0_1_hold():
    layer = nn.Linear(64, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(192.0).view(3, 64) / 64 - 1.5)
        layer.bias.zero_()
    packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(layer), "int4:g32", progress=False))
    assert lora.base_hash(packed).startswith("9c1fd01eb0031692")


def test_packed_modules_are_adapted_not_trained(model):
    with pytest.raises(ModelError, match="classifier is packed, and codes are not trained"):
        lora.insert(base("packed", model), rank=4, train="name:classifier")


@pytest.mark.slow
def test_adapted_packed_models_compile_without_a_break(model, ids):
    adapted = stir(lora.insert(base("packed", model), rank=2))
    torch._dynamo.reset()
    compiled = torch.compile(adapted, fullgraph=True, backend="aot_eager")
    compiled(ids).sum().backward()
    assert torch.allclose(compiled(ids), adapted(ids), atol=1e-5)


# Options ---------------------------------------------------------------------------------------------------------------


def test_scaling_is_alpha_over_rank_or_its_root():
    assert lora.LoraConfig(rank=16, alpha=32).scaling == 2
    assert lora.LoraConfig(rank=16, alpha=32, rslora=True).scaling == 8
    assert lora.LoraConfig(rank=16).scaling == 1


def test_of_several_adapters_one_works(model, ids, tmp_path):
    base = model(ids)
    both = stir(lora.insert(model, rank=2, name="first"), "first")
    first = both(ids)
    both = lora.insert(both, rank=3, targets="glob:layers.*.up", name="second")
    assert torch.equal(both(ids), base), "the second is active and new"
    assert trainable(both) == 2 * 3 * (128 + 512)
    lora.activate(both, "first")
    assert torch.equal(both(ids), first)
    lora.activate(both, None)
    assert torch.equal(both(ids), base) and trainable(both) == 0
    lora.save_adapters(both, tmp_path / "first.safetensors", name="first")
    assert torch.equal(lora.load_adapters(model, tmp_path / "first.safetensors")(ids), first)
    with pytest.raises(ModelError, match="no adapter 'third'; the model has first, second"):
        lora.activate(both, "third")
    with pytest.raises(ModelError, match="there is an adapter 'first' already"):
        lora.insert(both, rank=2, name="first")
    with pytest.raises(ModelError, match="shared by all adapters"):
        lora.insert(both, rank=2, name="third", train="name:classifier")


@pytest.mark.parametrize("name", ["", "a.b", "forward", "active", "1st"])
def test_names_that_cannot_be_attributes_are_refused(model, name):
    with pytest.raises(ModelError, match="cannot be called"):
        lora.insert(model, rank=2, name=name)


def test_copies_and_pickles_are_whole(model, ids):
    adapted = stir(lora.insert(model, rank=2))
    lora.fuse(adapted)
    fused = adapted(ids)
    for twin in (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))):
        assert torch.equal(twin(ids), fused)
        lora.unfuse(twin)
        assert torch.equal(twin.pooler.weight, model.pooler.weight)
        lora.fuse(twin)
        lora.commit(twin)
        assert torch.equal(twin(ids), fused)
    assert torch.equal(adapted(ids), fused)


@pytest.mark.slow
def test_adapted_models_compile_without_a_break(model, ids):
    adapted = stir(lora.insert(model, rank=2))
    torch._dynamo.reset()
    compiled = torch.compile(adapted, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(ids), adapted(ids), atol=1e-6)
    lora.activate(adapted, None)
    assert torch.allclose(compiled(ids), adapted(ids), atol=1e-6)


def test_inputs_by_keyword_are_adapted(model):
    layer = stir(lora.insert(nn.Linear(8, 4), rank=2))
    x = torch.randn(3, 8)
    assert torch.equal(layer(input=x), layer(x))
