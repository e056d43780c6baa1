"""Adapters of PEFT on packed and simulated layers: what they change, what they leave alone, what merging loses."""

import copy
import pickle

import octavo
import pytest
import torch
from helpers.models import packed, transformer
from torch import nn

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's: of ties, of names without a map

IDS = torch.tensor([[3, 17, 9, 4, 21, 40], [7, 7, 2, 30, 5, 1]])
# A model, and layers of it that int4 leaves with a norm of 0, by which DoRA divides.
KINDS = {"BertModel": "; **token_type* keep", "GPT2LMHeadModel": "", "LlamaForCausalLM": "", "MixtralForCausalLM": ""}


def model_of(kind, recipe="int4:g32"):
    """A packed model, always with the same weights."""
    more = {"num_local_experts": 2, "num_key_value_heads": 2} if kind.startswith("Mixtral") else {}
    return packed(transformer(kind, layers=1, **more), f"{recipe}{KINDS[kind]}")


def config_of(model, *, embeddings=True, **options):
    """A prepared configuration for every linear layer of a model, and its embeddings."""
    targets = octavo.peft.target_modules(model, embeddings=embeddings)
    return octavo.peft.prepare(peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": targets, **options}))


def output(model):
    with torch.no_grad():
        return model(input_ids=IDS)[0]


def trained(model, steps=2, rate=0.5):
    """The model after steps of plain gradient descent on its adapters."""
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(adapters, lr=rate)
    for _ in range(steps):
        y = model(input_ids=IDS)[0]
        (y * (torch.arange(y.numel()).view(y.shape) % 7 - 3.0)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def codes_of(model):
    return {name: tensor.clone() for name, tensor in model.named_buffers() if ".weight_" in name}


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_on_codes_that_stay_and_come_back_from_a_folder(kind, options, tmp_path):
    base = model_of(kind)
    before, codes = output(base), codes_of(base)
    model = peft.get_peft_model(base, config_of(base, **options))
    assert torch.equal(output(model), before)
    assert all("lora_" in name for name, parameter in model.named_parameters() if parameter.requires_grad)
    trained(model, rate=5.0 if kind == "BertModel" else 0.5).eval()
    after = output(model)
    assert not torch.allclose(after, before, atol=1e-3)
    with model.disable_adapter():
        assert torch.equal(output(model), before)
    now = codes_of(model.unload())
    assert now.keys() == codes.keys() and all(torch.equal(now[name], codes[name]) for name in codes)

    model = trained(peft.get_peft_model(model_of(kind), config_of(base, **options)), rate=0.5).eval()
    after = output(model)
    model.save_pretrained(tmp_path)
    config = octavo.peft.prepare(peft.LoraConfig.from_pretrained(tmp_path))
    assert torch.equal(output(peft.PeftModel.from_pretrained(model_of(kind), tmp_path, config=config)), after)
    assert not any("weight_codes" in name for name in octavo.load(tmp_path / "adapter_model.safetensors"))


def test_experts_have_adapters():
    model = model_of("MixtralForCausalLM")
    targets = octavo.peft.target_modules(model)
    assert "model.layers.0.mlp.experts.1.down_proj" in targets
    adapted = peft.get_peft_model(model, config_of(model))
    trained(adapted, steps=1)
    first = adapted.get_submodule("base_model.model.model.layers.0.mlp.experts.0.gate_up_proj")
    assert isinstance(first.get_base_layer(), octavo.nn.PackedLinear) and first.lora_B["default"].weight.any()


@pytest.mark.parametrize("layer", [nn.LSTM(16, 16, batch_first=True), nn.MultiheadAttention(16, 2, batch_first=True)])
def test_layers_of_recurrent_networks_and_attention_have_adapters(layer):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = copy.deepcopy(layer), nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.layer(*[x] * (3 if isinstance(layer, nn.MultiheadAttention) else 1))[0])

    base = packed(Network(), "int8:channel")
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    before = base(x)
    targets = octavo.peft.target_modules(base)
    assert len(targets) > 2
    model = peft.get_peft_model(base, octavo.peft.prepare(peft.LoraConfig(r=2, target_modules=targets)))
    after = model(x)
    assert torch.equal(after, before)
    after.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if "lora_B" in name}
    assert len(gradients) == len(targets) and all(grad is not None and grad.any() for grad in gradients.values())


def test_targets_are_linear_layers_without_the_head_by_the_paths_of_the_base():
    model = model_of("LlamaForCausalLM")
    plain = octavo.peft.target_modules(model)
    assert plain[0] == "model.layers.0.self_attn.q_proj" and len(plain) == 7
    assert octavo.peft.target_modules(model, head=True) == [*plain, "lm_head"]
    assert octavo.peft.target_modules(model, embeddings=True) == ["model.embed_tokens", *plain]
    adapted = peft.get_peft_model(model, config_of(model))
    assert octavo.peft.target_modules(adapted) == plain
    adapted.add_adapter("second", config_of(adapted))
    with pytest.raises(octavo.ModelError, match="all-linear"):
        octavo.peft.target_modules(nn.Sequential(nn.Linear(4, 4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adapters_on_a_base_of_half_precision_are_float32_unless_asked(dtype):
    base = packed(transformer("LlamaForCausalLM", layers=1).to(dtype), "int4:g32")
    model = peft.get_peft_model(copy.deepcopy(base), config_of(base))
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert output(trained(model)).dtype == dtype
    model = peft.get_peft_model(base, config_of(base), autocast_adapter_dtype=False)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {dtype}
    trained(model)


def test_of_several_adapters_the_chosen_ones_work(tmp_path):
    base = model_of("LlamaForCausalLM")
    plain = output(base)
    model = peft.get_peft_model(base, config_of(base, init_lora_weights=False))
    first = output(model)
    model.add_adapter("other", config_of(base, r=2, init_lora_weights=False))
    model.set_adapter("other")
    second = output(model)
    assert not torch.equal(first, second)
    model.set_adapter("default")
    assert torch.equal(output(model), first)
    mixed = model.eval()(input_ids=IDS, adapter_names=["__base__", "other"])[0]
    assert torch.allclose(mixed, torch.stack([plain[0], second[1]]), atol=1e-6)
    model.add_weighted_adapter(["default", "other"], [1.0, 1.0], "both", combination_type="cat")
    model.save_pretrained(tmp_path)
    model.delete_adapter("other")
    model.add_adapter("other", octavo.peft.prepare(peft.LoraConfig.from_pretrained(tmp_path / "other")))
    model.load_adapter(tmp_path / "other", "other")
    model.set_adapter("other")
    assert torch.equal(output(model), second)
    assert torch.equal(output(model.unload()), plain)


def test_copies_and_pickles_of_an_adapted_model_are_whole():
    base = model_of("LlamaForCausalLM")
    model = peft.get_peft_model(base, config_of(base, init_lora_weights=False)).eval()
    expected = output(model)
    assert torch.equal(output(copy.deepcopy(model)), expected)
    assert torch.equal(output(pickle.loads(pickle.dumps(model))), expected)


def test_gradients_pass_frozen_codes_under_gradient_checkpointing():
    """What peft.prepare_model_for_kbit_training does for other packages' layers."""
    base = model_of("LlamaForCausalLM")
    model = peft.get_peft_model(base, config_of(base, embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    model(input_ids=IDS)[0].square().mean().backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    model.train()(input_ids=IDS)[0].square().mean().backward()
    for name, grad in plain.items():
        assert torch.allclose(model.get_parameter(name).grad, grad, atol=1e-6), name


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
@pytest.mark.parametrize(("layer", "sizes"), [(nn.Conv1d, (9,)), (nn.Conv2d, (8, 9)), (nn.Conv3d, (4, 5, 6))])
def test_packed_convolutions_have_adapters(layer, sizes, options, tmp_path):
    torch.manual_seed(0)
    network, x = nn.Sequential(layer(8, 12, 3, padding=1), nn.ReLU(), nn.Flatten()), torch.randn(2, 8, *sizes)
    base = packed(network, "0 int8:channel")
    before, codes = base(x), {name: tensor.clone() for name, tensor in base.named_buffers()}
    config = octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=["0"], **options))
    model = peft.get_peft_model(base, config)
    assert torch.equal(model(x), before) or ("use_dora" in options and torch.allclose(model(x), before, atol=1e-5))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.eval()(x)
    assert not torch.allclose(after, before, atol=1e-3)
    model.save_pretrained(tmp_path)
    config = octavo.peft.prepare(peft.LoraConfig.from_pretrained(tmp_path))
    again = peft.PeftModel.from_pretrained(packed(network, "0 int8:channel"), tmp_path, config=config)
    assert torch.equal(again.eval()(x), after)
    assert all(torch.equal(tensor, codes[name]) for name, tensor in model.unload().named_buffers())
    with pytest.raises(octavo.ModelError, match=r"octavo\.peft\.merge"):
        copy.deepcopy(again).merge_and_unload()
    merged, report = octavo.peft.merge(again)
    assert torch.allclose(merged(x), after, atol=0.02 * float(after.abs().max())) and report.layers[0].lost < 1


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "loftq"])
def test_initialisations_that_rewrite_the_base_are_refused_on_codes(start):
    base, options = model_of("LlamaForCausalLM"), {}
    if start == "loftq":
        options = {"loftq_config": peft.LoftQConfig(loftq_bits=4)}
    with pytest.raises(octavo.ModelError, match=f"q_proj: init_lora_weights='{start}' rewrites"):
        peft.get_peft_model(base, config_of(base, embeddings=False, init_lora_weights=start, **options))


@pytest.mark.parametrize("start", ["gaussian", "orthogonal", "eva", True])
def test_other_initialisations_change_nothing_yet(start):
    base = model_of("LlamaForCausalLM")
    before = output(base)
    model = peft.get_peft_model(base, config_of(base, embeddings=False, init_lora_weights=start))
    assert start == "orthogonal" or torch.equal(output(model), before)


def test_norms_of_0_are_refused_where_dora_divides_by_them():
    model = transformer("BertModel", layers=1)
    with torch.no_grad():
        model.embeddings.token_type_embeddings.weight[:, 5] = 1e-6  # of two rows, rounded to 0 in int4
    base = packed(model, "int4:g32")
    with pytest.raises(octavo.ModelError, match=r"token_type_embeddings: use_dora=True divides .* \d+ of which are 0"):
        peft.get_peft_model(base, config_of(base, use_dora=True))


def test_other_things_than_configurations_of_lora_are_refused():
    for thing in ({"r": 4}, peft.IA3Config(), None):
        with pytest.raises(octavo.DTypeError, match=r"accepted is a peft\.LoraConfig"):
            octavo.peft.prepare(thing)


# --- merging -----------------------------------------------------------------------------------------------------------


def adapted(kind="LlamaForCausalLM", recipe="int4:g32", **options):
    base = model_of(kind, recipe)
    return peft.get_peft_model(base, config_of(base, init_lora_weights=False, **options)).eval()


def test_codes_are_not_merged_into_and_the_message_leads_to_what_does():
    model = adapted()
    expected = output(model)
    with pytest.raises(octavo.ModelError, match=r"octavo\.peft\.merge\(model\)") as refused:
        model.merge_and_unload()
    assert torch.equal(output(model), expected)
    with pytest.raises(octavo.ModelError):
        model.merge_adapter()
    line = next(part for part in str(refused.value).split("; ") if part.startswith("merged, report"))
    names = {"octavo": octavo, "model": model}
    exec(line.partition(" does")[0], names)
    assert type(names["merged"]).__name__ == "LlamaForCausalLM" and len(names["report"].layers) == 8


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_merged_weight_is_the_sum_rounded_once(kind):
    model = adapted(kind)
    layers = {path: layer for path, layer in model.get_base_model().named_modules() if hasattr(layer, "lora_A")}
    sums, deltas = {}, {}
    for path, layer in layers.items():
        old = layer.get_base_layer().packed_weight.decode(torch.float32).double()
        if "default" in layer.lora_A:
            delta = layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
        else:
            delta = (layer.lora_embedding_B["default"].double() @ layer.lora_embedding_A["default"].double()).T
        sums[path], deltas[path] = old + 2.0 * delta, 2.0 * delta  # alpha / r
    merged, report = octavo.peft.merge(model)
    assert [layer.path for layer in report.layers] == list(layers)
    for told in report.layers:
        weight = merged.get_submodule(told.path).packed_weight
        expected = octavo.encode(sums[told.path].float(), "int4:g32").decode().double()
        # A sum in another order may round to the next code now and then.
        assert (weight.decode().double() != expected).double().mean() < 0.01
        lost = (weight.decode().double() - sums[told.path]).norm() / deltas[told.path].norm()
        assert told.lost == pytest.approx(float(lost), rel=1e-3)
    assert not any("lora" in name for name, _ in merged.named_modules())


@pytest.mark.parametrize("options", [{"use_dora": True}, {"use_rslora": True}], ids=["dora", "rslora"])
def test_merging_in_a_fine_format_keeps_the_output(options):
    model = adapted(**options)
    if "use_dora" in options:
        trained(model, steps=1)
    expected = output(model)
    merged, report = octavo.peft.merge(model, "e5m10", samples={"input_ids": IDS})
    assert torch.allclose(output(merged), expected, atol=2e-3 * float(expected.abs().max()))
    assert report.output_change < 2e-3
    assert {str(layer.packed_weight.format) for layer in merged.modules() if hasattr(layer, "packed_weight")} == {
        "e5m10"
    }
    assert all(layer.codes_changed is None for layer in report.layers)


def test_rounding_a_small_update_into_codes_loses_it_and_the_report_says_so():
    model = trained(peft.get_peft_model(base := model_of("LlamaForCausalLM"), config_of(base)), rate=1e-3)
    _, report = octavo.peft.merge(model)
    assert all(layer.lost > 0.5 for layer in report.layers)


def test_a_table_and_a_head_that_shared_codes_part_where_one_was_adapted():
    model = adapted("GPT2LMHeadModel")
    expected = output(model)
    merged, _ = octavo.peft.merge(model, "e5m10")
    assert merged.config.tie_word_embeddings is False
    assert torch.allclose(output(merged), expected, atol=2e-3 * float(expected.abs().max()))


def test_only_the_named_adapters_are_merged():
    model = adapted()
    model.add_adapter("other", config_of(model, init_lora_weights=False))
    expected = output(model)
    with pytest.raises(octavo.ModelError, match="no adapter 'third'; the model has default, other"):
        octavo.peft.merge(model, adapters=["third"])
    merged, _ = octavo.peft.merge(model, "e5m10", adapters=["default"])
    assert torch.allclose(output(merged), expected, atol=2e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("bias", ["", " bias=int32"])
def test_a_bias_of_adapters_is_merged_in_the_steps_of_the_new_scales(bias):
    torch.manual_seed(0)
    float_model, batches = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32)), [torch.randn(32, 64)]
    recipe = f"0 int8:channel input=int8@minmax{bias}"
    base = packed(float_model, recipe, calibration=batches)
    config = octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=["0"], lora_bias=True, init_lora_weights=False))
    model = peft.get_peft_model(base, config).eval()
    nn.init.normal_(model.base_model.model[0].lora_B["default"].bias)
    expected = model(batches[0])
    merged, _ = octavo.peft.merge(model)
    assert torch.allclose(merged(batches[0]), expected, atol=0.02 * float(expected.abs().max()))


def test_a_nan_in_an_adapter_is_refused_by_its_path_and_the_model_stays():
    model = adapted()
    with torch.no_grad():
        model.base_model.model.model.layers[0].mlp.up_proj.lora_B["default"].weight[0, 0] = float("nan")
    codes = codes_of(model)
    with pytest.raises(octavo.NonFiniteError, match=r"merge: model\.layers\.0\.mlp\.up_proj: "):
        octavo.peft.merge(model)
    assert all(torch.equal(tensor, codes[name]) for name, tensor in codes_of(model).items())


def test_a_recipe_that_cannot_be_read_leaves_the_model_as_it_is():
    model = adapted()
    expected = output(model)
    with pytest.raises(octavo.FormatError, match="int4:g3q"):
        octavo.peft.merge(model, "int4:g3q")
    assert torch.equal(output(model), expected)


def test_models_without_adapters_are_refused():
    with pytest.raises(octavo.ModelError, match=r"peft\.get_peft_model inserts them"):
        octavo.peft.merge(model_of("LlamaForCausalLM"))
    with pytest.raises(octavo.ModelError, match="calibration is for a recipe"):
        octavo.peft.merge(adapted(), calibration=[IDS])


# --- simulated layers: adapt, then pack --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_simulated_model_is_adapted_then_packed_with_the_same_output(kind, options):
    base = octavo.quantize_model(transformer(kind, layers=1), "int4:g32", progress=False)
    before = output(base)
    model = peft.get_peft_model(base, config_of(base, **options))
    assert torch.equal(output(model), before)
    trained(model).eval()
    after = octavo.pack_model(model)
    assert torch.allclose(output(after), output(model), atol=1e-5)
    assert isinstance(after.get_base_model(), type(transformer(kind, layers=1)))
    merged, _ = octavo.peft.merge(after, "e5m10")
    assert torch.allclose(output(merged), output(model), atol=2e-3 * float(before.abs().max()))


@pytest.mark.parametrize("recipe", ["int4:g32", "int4:g32@mse"])
def test_merging_into_a_simulated_weight_rounds_the_sum_and_unmerging_gives_every_bit_back(recipe):
    base = octavo.quantize_model(transformer("GPT2LMHeadModel", layers=1), recipe, progress=False)
    plain = output(base)
    model = peft.get_peft_model(base, config_of(base, embeddings=False, init_lora_weights=False, r=8)).eval()
    expected = output(model)
    layer = model.base_model.model.transformer.h[0].attn.c_attn
    sum_ = layer.get_base_layer().weight.detach() + layer.get_delta_weight("default")
    model.merge_adapter()
    inner = layer.get_base_layer()
    assert torch.allclose(inner._weight().detach(), octavo.quantize(sum_.T.contiguous(), "int4:g32").T, atol=1e-6)
    assert not torch.equal(output(model), plain)
    model.unmerge_adapter()
    assert torch.equal(output(model), expected)
    model.merge_adapter()
    with model.disable_adapter():
        assert torch.equal(output(model), plain)
