"""Modules whose weights are no layers: made of layers, they compute the same bits and go the whole way of a model."""

import copy
import importlib
import io
import re
import types
from pathlib import Path

import octavo
import pytest
import torch
from helpers.models import packed, same_tensors, transformer
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn import QuantLayer, QuantLinear
from octavo.nn.rewriting import (
    _REWRITINGS,
    Origin,
    Rewriting,
    bare_copy,
    layers_in_reach,
    linear_of,
    register_rewriting,
    rewrite_modules,
    rewritten,
    rewritten_modules,
)
from octavo.recipe import Recipe
from torch import nn

X = torch.randn(5, 32, generator=torch.Generator().manual_seed(3))


class Pair(nn.Module):
    """Two products with one parameter ``[2, in, out]`` that no layer holds, and one with a row for each bias."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.matrices = nn.Parameter(torch.randn(2, 32, 32, generator=generator))
        self.shifts = nn.Parameter(torch.randn(2, 32, generator=generator))
        self.norm = nn.LayerNorm(32)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        return self.norm(sum(x @ matrix + shift for matrix, shift in zip(self.matrices, self.shifts, strict=True)))


class LayerPair(nn.Module):
    def forward(self, x):
        return self.norm(self.one(x) + self.two(x))


def build(module, parts):
    made = bare_copy(module, LayerPair, ("matrices", "shifts"))
    for name in ("one", "two"):
        made.add_module(name, linear_of(parts[f"{name}.weight"], parts[f"{name}.bias"]))
    return made


PAIR = Rewriting(
    "pair",
    lambda module: type(module) is Pair,
    lambda module: {
        "matrices": Origin((2, 32, 32), ("one.weight", "two.weight"), (32, 32), True),
        "shifts": Origin((2, 32), ("one.bias", "two.bias"), (32,)),
    },
    build,
)


@pytest.fixture(autouse=True)
def pair_is_registered():
    register_rewriting(PAIR)
    yield
    del _REWRITINGS["pair"]


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 32), Pair(), nn.Linear(32, 32, bias=False)).eval()


def test_parts_are_views_of_the_parameter():
    module = Pair()
    made = rewritten(module)
    assert torch.equal(made.two.weight, module.matrices[1].T) and torch.equal(made.two.bias, module.shifts[1])
    assert made.two.weight.untyped_storage().data_ptr() == module.matrices.untyped_storage().data_ptr()
    assert made.norm is module.norm and made.count is module.count


def test_a_model_is_left_alone_where_no_rule_gives_a_format():
    for recipe in ("name:0 int8", "int8; 1.* keep"):
        quantized = octavo.quantize_model(model(), recipe, progress=False)
        assert type(quantized[1]) is Pair
        assert torch.equal(quantized[1](X), model()[1](X))


def test_recipes_see_layers_and_a_rule_that_names_the_parameter_means_its_parts():
    reached, made = layers_in_reach(model())
    assert list(made) == ["1"] and [path for path in reached if path.startswith("1.")] == ["1.norm", "1.one", "1.two"]
    assert list(Recipe.parse("1.matrices int8").plan(model())) == ["1.one", "1.two"]
    assert list(Recipe.parse("1.two int8").plan(model())) == ["1.two"]
    assert Recipe.parse("1.shifts bias=fp16").plan(model())["1.two"].bias is not None


def test_one_layer_with_a_format_leaves_the_others_their_float_weights():
    quantized = octavo.quantize_model(model(), "1.two int8", progress=False)
    assert type(quantized[1].two) is QuantLinear and type(quantized[1].one) is nn.Linear
    assert torch.equal(quantized[1].one.weight, model()[1].matrices[0].T)


def test_a_quantized_model_is_packed_stored_and_unpacked_to_its_own_names(tmp_path):
    quantized = octavo.quantize_model(model(), "int4:g32; 1.two int8", progress=False)
    small = octavo.pack_model(quantized)
    assert torch.allclose(small(X), quantized(X), rtol=1e-5, atol=1e-5)
    octavo.save_model(small, tmp_path)
    assert torch.equal(octavo.load_model(tmp_path, model())(X), small(X))
    assert torch.equal(octavo.load_model(tmp_path, model)(X), small(X))  # built without memory
    float_again = unpack(Checkpoint.open(tmp_path))
    plain = model()
    assert float_again.keys() == plain.state_dict().keys()
    plain.load_state_dict(float_again)
    assert torch.allclose(plain(X), quantized(X), rtol=1e-4, atol=1e-5)


def test_a_simulated_model_is_stored_and_loaded(tmp_path):
    quantized = octavo.quantize_model(model(), "int4:g32 input=int8@minmax", calibration=[X], progress=False)
    octavo.save_model(quantized, tmp_path)
    assert torch.equal(octavo.load_model(tmp_path, model())(X), quantized(X))


def test_a_file_of_another_module_is_refused_by_name(tmp_path):
    octavo.save_model(packed(model(), "int8"), tmp_path)
    other = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32, bias=False))
    with pytest.raises(octavo.ContainerError, match=r"1: pair in the file, but the model has a Linear there"):
        octavo.load_model(tmp_path, other)


def test_a_model_that_cannot_be_quantized_is_as_it_was():
    plain = model()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    with pytest.raises(octavo.CalibrationError):
        octavo.quantize_model(plain, "int4:g32 input=int8@minmax", inplace=True, progress=False)
    with pytest.raises(octavo.NonFiniteError):
        octavo.quantize_model(
            plain, "int8 input=int8@mse", calibration=[X * float("nan")], inplace=True, progress=False
        )
    assert type(plain[1]) is Pair and same_tensors(before, plain.state_dict())


def test_copies_and_pickles_keep_what_was_made():
    quantized = octavo.quantize_model(model(), "int4:g32", progress=False)
    file = io.BytesIO()
    torch.save(quantized, file)
    file.seek(0)
    for other in (copy.deepcopy(quantized), torch.load(file, weights_only=False)):
        assert torch.equal(other(X), quantized(X))
        assert dict(rewritten_modules(other)) == dict(rewritten_modules(quantized))


def test_gradients_reach_the_layers_of_a_rewritten_module():
    quantized = octavo.quantize_model(model(), "int4:g32", progress=False).train()
    quantized(X).square().sum().backward()
    assert all(layer.weight.grad.abs().sum() > 0 for layer in (quantized[1].one, quantized[1].two))


def test_every_possible_module_is_rewritten_where_no_path_is_given_and_undone():
    plain, undo = model(), []
    changed = rewrite_modules(plain, undo=undo)
    assert changed is plain and type(plain[1]) is LayerPair
    for step in reversed(undo):
        step()
    assert type(plain[1]) is Pair
    assert type(rewrite_modules(Pair())) is LayerPair
    assert type(rewrite_modules(model(), ["0"])[1]) is Pair


# --- modules of transformers ------------------------------------------------------------------------------------------


def mixture(kind="MixtralForCausalLM", **config):
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2, **config}
    network = transformer(kind, seed=2, width=64, inner=96, heads=4, **sizes)
    for parameter in network.parameters():
        if parameter.ndim != 1 or not parameter.any():  # zeros say nothing about places
            nn.init.normal_(parameter, std=0.1)
    return network


KINDS = {
    "experts": {},
    "experts, turned, with biases": {
        "kind": "GptOssForCausalLM", "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1,
    },
    "sorted experts": {"kind": "JetMoeForCausalLM", "kv_channels": 16},
    "even experts": {
        "kind": "Llama4ForCausalLM", "head_dim": 16, "intermediate_size_mlp": 96, "interleave_moe_layer_step": 1,
        "num_experts_per_tok": 1,
    },
    "gated experts": {
        "kind": "DbrxForCausalLM", "d_model": 64, "n_heads": 4, "n_layers": 2,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "einsum attention": {"kind": "XLNetLMHeadModel", "d_model": 64, "n_head": 4, "n_layer": 2, "d_inner": 96},
}  # fmt: skip


def test_every_rewriting_of_the_table_is_held_to_its_bits():
    named = {name.partition(",")[0] for name in KINDS} | {"pair"}
    assert {name for name, one in _REWRITINGS.items() if one.build.__module__ in FILES} <= named


FILES = {f"octavo.nn.{name}" for name in ("expert_layers", "named_experts", "einsum_layers")}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_the_bits_of_the_parameters_that_they_stand_in_for(kind):
    plain = mixture(**KINDS[kind])
    if hasattr(plain, "set_experts_implementation"):
        plain.set_experts_implementation("eager")
    tokens = torch.randint(2, 50, (3, 7))
    made = rewrite_modules(copy.deepcopy(plain))
    records = dict(rewritten_modules(made))
    assert len(records) >= 2 and {record.name for record in records.values()} == {kind.partition(",")[0]}
    with torch.no_grad():
        assert torch.equal(made(tokens).logits, plain(tokens).logits)
    for network in (plain, made):
        network(tokens).logits.square().sum().backward()
    for path, record in records.items():
        for name, origin in record.origins.items():
            whole = plain.get_submodule(path).get_parameter(name).grad
            if whole is None:  # XLNet's position table, where no gradient comes
                continue
            for part, gradient in origin.split(whole).items():
                own = made.get_submodule(path).get_parameter(part).grad
                own = torch.zeros_like(gradient) if own is None else own  # of an expert that no token chose
                assert torch.allclose(own, gradient, rtol=1e-4, atol=1e-4)


def test_experts_that_no_token_chose_are_not_called():
    made = rewrite_modules(mixture(num_local_experts=8))
    called = set()
    experts = made.model.layers[0].mlp.experts
    for number in range(8):
        experts.get_submodule(str(number)).down_proj.register_forward_hook(lambda *_, n=number: called.add(n))
    with torch.no_grad():
        made(torch.tensor([[3]]))
    assert len(called) == 2


def test_a_traced_program_of_experts_takes_any_routing():
    experts = mixture().model.layers[0].mlp.experts
    made = rewritten(experts)
    x, weights = torch.randn(5, 64), torch.rand(5, 2)
    first, second = (torch.randint(0, 4, (5, 2), generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    program = torch.export.export(made, (x, first, weights)).module()
    for chosen in (first, second):
        assert torch.allclose(program(x, chosen, weights), made(x, chosen, weights), rtol=1e-4, atol=1e-5)


class AnyConfig(types.SimpleNamespace):
    """A configuration that has a value for every size that experts ask for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 5 if "expert" in name and ("num" in name or name.startswith("n_")) else None


SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24, "expert_ffn_hidden_size": 24,
    "ffn_hidden_size": 24, "expert_intermediate_size": 24, "moe_hidden_size": 16, "hidden_act": "silu",
    "hidden_activation": "silu", "mlp_hidden_act": "relu2", "_experts_implementation": "eager", "swiglu_limit": 7.0,
    "swiglu_alpha": 1.7, "post_norm_eps": 1e-6, "rms_norm_eps": 1e-6, "moe_latent_size": None,
}  # fmt: skip


@pytest.mark.slow
def test_every_class_of_experts_that_transformers_marks_is_made_of_layers():
    """Sixty classes and more, by their source: what the decorator does not tell, bits show."""
    models = Path(pytest.importorskip("transformers.models").__path__[0])
    wrong, right = {}, 0
    for file in sorted(models.glob("*/modeling_*.py")):
        names = re.findall(r"@use_experts_implementation[^\n]*\nclass (\w+)", file.read_text(encoding="utf-8"))
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}") if names else None
        for name in names:
            try:
                experts = getattr(module, name)(AnyConfig(**SIZES))
                for parameter in experts.parameters():
                    nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.ndim))
                chosen = torch.stack([torch.randperm(5)[:2] for _ in range(9)])
                arguments = torch.randn(9, 16), chosen, torch.rand(9, 2)
                made = rewritten(experts)
                if made is not None and torch.equal(made(*arguments), experts(*arguments)):
                    right += 1
                else:
                    wrong[name] = "other bits" if made is not None else "not rewritten"
            except (TypeError, AttributeError, RuntimeError) as error:  # a size of its own
                wrong[name] = f"{error}"
    assert right >= 60 and len(wrong) <= 3, wrong


class Rows(nn.Module):
    """A table that a module reads itself, which a head may share."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(64, 32, generator=torch.Generator().manual_seed(1)))

    def forward(self, ids):
        return self.rows[ids] * 2


class TiedRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = Rows(), nn.Linear(32, 64, bias=False)
        self.head.weight = self.table.rows

    def forward(self, ids):
        return self.head(self.table(ids))


@pytest.mark.parametrize("recipe", ["int4:g32", "int4:g32@hqq"])
def test_a_parameter_that_becomes_one_layer_stays_tied(tmp_path, recipe):
    ids = torch.arange(5)
    plain = TiedRows().eval()
    quantized = octavo.quantize_model(plain, recipe, progress=False)
    tables = {path: layer for path, layer in quantized.named_modules() if isinstance(layer, QuantLayer)}
    assert len(tables) == 2 and len({id(layer._own("weight")) for layer in tables.values()}) == 1
    small = octavo.pack_model(quantized)
    octavo.save_model(small, tmp_path)
    assert sum(entry.format is not None for entry in octavo.inspect(tmp_path / "model.octavo.safetensors")) == 1
    assert torch.equal(octavo.load_model(tmp_path, TiedRows())(ids), small(ids))
    plain.load_state_dict(unpack(Checkpoint.open(tmp_path)))
    assert torch.allclose(plain(ids), small(ids), rtol=1e-4, atol=1e-4)
