"""Mixtures of experts in folders: whatever form transformers stores experts in, one file of layers, and back."""

import copy
import io
import json

import octavo
import pytest
import torch
from helpers.models import packed, same_tensors, transformer
from helpers.processes import octavo_command, python
from octavo import ContainerError
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.model_folder.pack_folder import OpenFolder
from octavo.model_folder.structure import KEY
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint
from octavo.quant import coverage
from octavo.tensors import container
from torch import nn

FORMAT = "int4:g32"
TOKENS = torch.randint(2, 50, (3, 9), generator=torch.Generator().manual_seed(4))

_FEW = {"num_experts_per_tok": 2, "num_key_value_heads": 2}
MIXTURES = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 12, **_FEW}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16, **_FEW}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {
        "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, **_FEW,
    }),
    "gpt-oss": ("GptOssForCausalLM", {
        "num_local_experts": 4, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1, **_FEW,
    }),
    "granite": ("GraniteMoeForCausalLM", {"num_local_experts": 4, **_FEW}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 4, **_FEW}),
    "phimoe": ("PhimoeForCausalLM", {"num_local_experts": 4, **_FEW}),
    "deepseek": ("DeepseekV3ForCausalLM", {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "moe_intermediate_size": 32, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4,
    }),
    "jetmoe": ("JetMoeForCausalLM", {"kv_channels": 16, "num_local_experts": 4, **_FEW}),
    "llama4": ("Llama4ForCausalLM", {
        "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1,
        "num_key_value_heads": 2, "interleave_moe_layer_step": 1,
    }),
    "dbrx": ("DbrxForCausalLM", {
        "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    }),
    "xlnet": ("XLNetLMHeadModel", {"d_model": 64, "n_head": 4, "n_layer": 2, "d_inner": 96}),
}  # fmt: skip


def mixture(kind):
    name, config = MIXTURES[kind]
    model = transformer(name, width=64, inner=96, heads=4, **config)
    for path, parameter in model.named_parameters():
        if path.endswith("bias") or kind in ("llama4", "xlnet"):  # zeros, or little else, say nothing about places
            nn.init.normal_(parameter, std=0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def content(folder):
    return container.load(folder / PACKED_NAME)


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_goes_the_whole_way(tmp_path, kind):
    """Covered, packed as simulated, packed tensor by tensor from transformers' folder, loaded, unpacked, generating."""
    model = mixture(kind)
    model.save_pretrained(tmp_path / "float")
    quantized = octavo.quantize_model(model, FORMAT, progress=False)
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    assert coverage(quantized).quantized >= 0.95 * weights

    small = octavo.pack_model(quantized)
    assert torch.allclose(logits(small), logits(quantized), rtol=1e-5, atol=1e-5)
    octavo.save_model(small, tmp_path / "small")
    octavo_command("pack", tmp_path / "float", "-o", tmp_path / "streamed", "--recipe", FORMAT)
    one, other = content(tmp_path / "small"), content(tmp_path / "streamed")
    assert one.keys() == other.keys()
    assert all(torch.equal(a, b) if isinstance(a := one[n], torch.Tensor) else a == b for n, b in other.items())

    for folder in ("small", "streamed"):
        loaded = octavo.load_model(tmp_path / folder)
        assert torch.equal(logits(loaded), logits(small))
    told = loaded.generate(TOKENS[:1], max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert told.shape == (1, TOKENS.shape[1] + 4)
    assert torch.equal(logits(octavo.load_model(tmp_path / "float")), logits(model))

    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    again, report = type(model).from_pretrained(tmp_path / "plain", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert again.state_dict().keys() == model.state_dict().keys()
    assert torch.allclose(logits(again.eval()), logits(quantized), rtol=1e-4, atol=1e-5)


def test_a_file_holds_little_more_than_codes_and_scales(tmp_path):
    model = transformer("MixtralForCausalLM", width=256, inner=512, heads=4, num_local_experts=4, **_FEW)
    octavo.save_model(packed(model, FORMAT), tmp_path)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (tmp_path / PACKED_NAME).stat().st_size <= 1.05 * 4.5 / 8 * parameters


def test_experts_of_a_checkpoint_are_read_one_by_one(tmp_path):
    mixture("mixtral").save_pretrained(tmp_path)
    opened = OpenFolder.open(Checkpoint.open(tmp_path))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    whole = opened.found.tensors[name]
    assert isinstance(whole, MergedTensor)
    assert torch.equal(opened.found.value(name), mixture("mixtral").state_dict()[name])
    parts = whole.parts()
    assert len(parts) == 12 and all(len(tensors) == 1 for part in parts for tensors in part.sources.values())
    assert torch.equal(torch.stack([part.tensor() for part in parts]), whole.tensor())  # 10 comes after 9


def test_one_line_tells_of_all_experts_of_a_matrix(tmp_path):
    mixture("mixtral").save_pretrained(tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    recipe = octavo.Recipe.parse(f"{FORMAT}; model.layers.0.mlp.experts.3.gate_up_proj int8:g32")
    planned = {report.name: report for report in OpenFolder.open(Checkpoint.open(tmp_path)).plan(recipe)}
    done = OpenFolder.open(Checkpoint.open(tmp_path)).pack(recipe)
    reports = {report.name: report for report in done.reports}
    assert reports.keys() == planned.keys() == mixture("mixtral").state_dict().keys()
    assert planned[name].format == reports[name].format == "int4:g32, int8:g32"
    assert planned[name].nbytes == reports[name].nbytes
    assert 19 < reports[name].errors.sqnr_db < 24


def test_a_recipe_that_names_no_expert_leaves_their_parameters_in_the_file(tmp_path):
    mixture("mixtral").save_pretrained(tmp_path / "float")
    octavo_command("pack", tmp_path / "float", "-o", tmp_path / "small", "--recipe", f"lm_head {FORMAT}")
    tensors = content(tmp_path / "small")
    assert tensors["model.layers.0.mlp.experts.down_proj"].shape == (12, 64, 96)
    assert torch.equal(
        tensors["model.layers.0.mlp.experts.down_proj"], mixture("mixtral").model.layers[0].mlp.experts.down_proj
    )
    quantized = octavo.quantize_model(mixture("mixtral"), f"lm_head {FORMAT}", progress=False)
    assert torch.equal(logits(octavo.load_model(tmp_path / "small")), logits(octavo.pack_model(quantized)))


def test_a_checkpoint_that_lacks_an_expert_is_refused_by_name(tmp_path):
    mixture("mixtral").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = container.load(file)
    del tensors["model.layers.1.block_sparse_moe.experts.7.w2.weight"]
    container.save(tensors, file, metadata=container.metadata(file))
    with pytest.raises(ContainerError, match=r"layers\.1\.mlp\.experts\.down_proj is missing"):
        octavo.load_model(tmp_path)


def test_a_float_state_of_a_mixture_has_its_own_names(tmp_path):
    """Tensors of layers that stay float in a quantized mixture are joined, too."""
    model = mixture("gpt-oss")
    recipe = "model.layers.0.mlp.experts.1.down_proj fp32; model.layers.0.mlp.experts.2.* int8"
    octavo.save_model(packed(model, recipe), tmp_path / "small")
    octavo_command("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    state = container.load(tmp_path / "plain" / "model.safetensors")
    before = model.state_dict()
    assert state.keys() == before.keys()
    changed = {name for name, value in state.items() if not torch.equal(value, before[name])}
    assert changed == {f"model.layers.0.mlp.experts.{name}_proj" for name in ("gate_up", "down")}
    assert same_tensors(
        {name: value[[0, 1, 3]] for name, value in state.items() if name in changed},
        {name: before[name][[0, 1, 3]] for name in changed},
    )


def test_what_save_pretrained_writes_of_a_simulated_mixture_is_read_by_both(tmp_path):
    """transformers finds the float experts under its own names, load_model the quantized ones in the same file."""
    model = mixture("gpt-oss")
    quantized = octavo.quantize_model(model, "int4:g32 input=int8@minmax", calibration=[TOKENS], progress=False)
    quantized.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and same_tensors(dict(again.state_dict()), dict(model.state_dict()))
    assert torch.equal(logits(octavo.load_model(tmp_path)), logits(quantized))


def test_a_float_state_dict_loads_into_a_quantized_mixture():
    model, other = (
        mixture("gpt-oss"),
        transformer("GptOssForCausalLM", seed=5, width=64, inner=96, heads=4, **MIXTURES["gpt-oss"][1]),
    )
    quantized = octavo.quantize_model(model, FORMAT, progress=False)
    quantized.load_state_dict(other.state_dict(), strict=True)
    assert torch.equal(logits(quantized), logits(octavo.quantize_model(other, FORMAT, progress=False)))
    again = octavo.quant.prepare_model(model, FORMAT)
    again.load_state_dict(quantized.state_dict())
    assert torch.equal(logits(again), logits(quantized))


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss"])
def test_a_mixture_is_trained_copied_and_pickled(kind):
    quantized = octavo.quantize_model(mixture(kind), FORMAT, progress=False).train()
    optimizer = torch.optim.SGD(quantized.parameters(), lr=0.1)
    losses = []
    for _ in range(8):
        loss = quantized(TOKENS, labels=TOKENS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    experts = quantized.model.layers[0].mlp.experts
    trained = [layer.weight.grad is not None for layer in experts.modules() if isinstance(layer, nn.Linear)]
    assert sum(trained) >= 4  # the experts that tokens chose
    quantized.eval()
    small = octavo.pack_model(quantized)
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    for other in (copy.deepcopy(small), torch.load(file, weights_only=False)):
        assert torch.equal(logits(other), logits(small))


@pytest.mark.parametrize(
    "options", [{"bias": True, "new_decoder_architecture": True, "num_kv_heads": 2}, {"bias": False}]
)
def test_falcon_goes_the_whole_way(tmp_path, options):
    """Its linear layers have a forward of their own, which computes what nn.Linear does."""
    model = transformer("FalconForCausalLM", width=64, heads=4, **options)
    model.save_pretrained(tmp_path / "float")
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    quantized = octavo.quantize_model(model, f"{FORMAT}; **.mlp.* {FORMAT}@gptq", calibration=[TOKENS], progress=False)
    assert coverage(quantized).quantized >= 0.95 * weights
    small = octavo.pack_model(quantized)
    assert torch.allclose(logits(small), logits(quantized), rtol=1e-5, atol=1e-5)
    octavo.save_model(small, tmp_path / "small")
    assert torch.equal(logits(octavo.load_model(tmp_path / "small")), logits(small))
    octavo_command("pack", tmp_path / "float", "-o", tmp_path / "streamed", "--recipe", FORMAT)
    rounded = octavo.pack_model(octavo.quantize_model(model, FORMAT, progress=False))
    assert torch.equal(logits(octavo.load_model(tmp_path / "streamed")), logits(rounded))
    told = small.generate(TOKENS[:1], max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert told.shape == (1, TOKENS.shape[1] + 4)


def test_a_mixture_loads_in_a_fresh_process(tmp_path):
    small = packed(mixture("qwen3-moe"), FORMAT)
    octavo.save_model(small, tmp_path)
    code = (
        "import octavo, torch; "
        f"logits = octavo.load_model({str(tmp_path)!r})(torch.tensor({TOKENS.tolist()})).logits; "
        "print(logits.double().sum().item())"
    )
    found = float(python(code).stdout)
    assert found == logits(small).double().sum().item()


@pytest.mark.parametrize(
    "change",
    [
        {"parts": []},
        {"parts": ["nobody.weight"]},
        {"shape": [4, 5, 6]},
        {"shape": [2**50, 64, 96]},
        {"part_shape": [1] * 99},
        {"part_shape": [64, 95]},
        {"turned": "no"},
        {"turned": True, "part_shape": [6144]},
    ],
    ids=str,
)
@pytest.mark.parametrize("reader", ["load_model", "unpack"])
def test_a_file_whose_parts_make_up_nothing_is_refused(tmp_path, change, reader):
    octavo.save_model(packed(mixture("granite"), FORMAT), tmp_path / "small")
    file = tmp_path / "small" / PACKED_NAME
    metadata = container.metadata(file)
    structure = json.loads(metadata[KEY])
    structure["rewritten"]["model.layers.0.block_sparse_moe.experts"]["tensors"]["down_proj"] |= change
    metadata[KEY] = json.dumps(structure)
    container.save(container.load(file), file, metadata=metadata)
    with pytest.raises(ContainerError):
        if reader == "load_model":
            octavo.load_model(tmp_path / "small")
        else:
            unpack(Checkpoint.open(tmp_path / "small"))


def test_costs_of_alike_experts_are_one_row():
    model = octavo.quantize_model(mixture("qwen3-moe"), "int4:g32; **.experts.2.down_proj int8:g32", progress=False)
    costs = octavo.explain(octavo.pack_model(model))
    text = str(costs)
    rows = [line.split()[0] for line in text.splitlines() if "layers.0.mlp.experts" in line]
    name = "model.layers.0.mlp.experts"
    assert rows == [f"{name}.*.gate_up_proj", f"{name}.*.down_proj", f"{name}.2.down_proj"]
    assert "every expert of a mixture" in text and "every expert" not in str(octavo.explain(nn.Linear(4, 4)))
    assert sum(cost.path.startswith(name) for cost in costs.layers) == 8  # plain values have all
