"""Experts of gpt-oss have the values that transformers decodes."""

import pytest
import torch
from helpers.packed_folders import attack, same_bits, weight_of
from octavo.errors import ContainerError
from octavo.interchange.gpt_oss_folder import weights_of
from octavo.interchange.layer_packing import read_packing

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SETTINGS = {"quant_method": "mxfp4"}


def layer(shape, rng):
    """Blocks and scales of experts, and the values as the float model has them."""
    experts, rows, columns = shape
    codes = torch.randint(0, 16, shape, generator=rng)
    exponents = torch.randint(100, 150, (experts, rows, columns // 32), generator=rng)
    blocks = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8).unflatten(2, (-1, 16))
    values = torch.cat([E2M1, -E2M1])[codes] * (2.0 ** (exponents.float() - 127)).repeat_interleave(32, 2)
    return {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": exponents.to(torch.uint8)}, values.mT.bfloat16()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_values_are_those_of_the_definition_and_of_transformers():
    parts, values = layer((3, 16, 64), generator(1))
    weight = weight_of(weights_of, parts, SETTINGS, "a.b.gate_up_proj")
    assert weight.shape == (3, 64, 16) and same_bits(weight.decode(), values.contiguous())
    assert weight.carry(torch.bfloat16) == "the model has one tensor of all experts, which no packed layer multiplies"
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    blocks, scales = parts.values()
    assert same_bits(weight.decode(), mxfp4.convert_moe_packed_tensors(blocks, scales))


def test_every_scale_code_has_the_values_of_transformers():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    parts, _ = layer((1, 256, 32), generator(2))
    parts["gate_up_proj_scales"] = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1)
    weight = weight_of(weights_of, parts, SETTINGS, "a.b.gate_up_proj")
    assert same_bits(weight.decode(), mxfp4.convert_moe_packed_tensors(*parts.values()))


def test_other_tensors_are_refused_by_name():
    parts, _ = layer((3, 16, 64), generator(3))
    for change, message in (
        (
            {"gate_up_proj_scales": parts["gate_up_proj_scales"][:2]},
            r"gate_up_proj_scales': uint8 .*; expected is uint8",
        ),
        (
            {"gate_up_proj_blocks": parts["gate_up_proj_blocks"][0]},
            r"gate_up_proj_blocks': shape .*; read are \[experts",
        ),
    ):
        with pytest.raises(ContainerError, match=message):
            weight_of(weights_of, {**parts, **change}, SETTINGS)
    with pytest.raises(ContainerError, match=r"gate_up_proj_blocks': no scales is beside it"):
        read_packing(weights_of, {"a.gate_up_proj_blocks": parts["gate_up_proj_blocks"]}, SETTINGS, "x/config.json")


def test_folders_are_models(tmp_path):
    transformers = pytest.importorskip("transformers")
    import octavo
    from helpers.checkpoints import write
    from octavo.interchange.check.run_check import check_path
    from octavo.interchange.conversion import as_folder
    from octavo.interchange.foreign_readers import reader_of

    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=64,
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config).bfloat16()
    tensors, values = {name: value.clone() for name, value in model.state_dict().items()}, {}
    for number, name in enumerate(["gate_up_proj", "down_proj"]):
        path = f"model.layers.0.mlp.experts.{name}"
        experts, columns, rows = tensors.pop(path).shape
        parts, values[path] = layer((experts, rows, columns), generator(number))
        tensors |= {f"{path}_{part.rpartition('_')[2]}": value for part, value in parts.items()}
    fields = {**config.to_dict(), "architectures": ["GptOssForCausalLM"], "dtype": "bfloat16"}
    write(tmp_path, tensors, {**fields, "quantization_config": SETTINGS})
    assert reader_of(tmp_path).kind == "a folder of gpt-oss"
    mine = octavo.load_model(tmp_path)
    for name, value in values.items():
        path, _, kind = name.rpartition(".")
        for number, expert in enumerate(value):
            layer_ = mine.get_submodule(f"{path}.{number}.{kind}")
            assert str(layer_.weight.format) == "mxfp4" and same_bits(layer_.weight.decode(), expert.t())
            assert same_bits(layer_.bias.detach(), model.state_dict()[f"{name}_bias"][number])
    with as_folder(reader_of(tmp_path).open(tmp_path), packed=False) as (folder, _):
        state = octavo.load_model(folder).state_dict()
    assert all(same_bits(state[name], value.contiguous()) for name, value in values.items())
    assert len(reader_of(tmp_path).contents(tmp_path)[0]) == len(state)
    ids = torch.arange(8).unsqueeze(0)
    model.load_state_dict(state)
    with torch.no_grad():
        assert (mine.float()(ids).logits - model.float()(ids).logits).abs().max() < 1e-2
    routes = {(one.verdict, one.how, one.layers) for one in check_path(tmp_path, reader="octavo").routes}
    assert ("takes", "stays packed as mxfp4", 2) in routes


def test_experts_whose_scales_mxfp4_has_not_are_decoded():
    parts, values = layer((2, 16, 64), generator(4))
    parts["gate_up_proj_scales"][1, 3, 1] = 253
    first, second = weight_of(weights_of, parts, SETTINGS, "a.b.gate_up_proj").matrices()
    assert same_bits(first.carry(torch.bfloat16).decode(), values[0].t()) and same_bits(first.decode(), values[0].t())
    assert second.carry(torch.bfloat16) == "scale code 253; up to 252 gpt-oss and mxfp4 mean the same"


def made(rng):
    return layer((2, 8, 64), generator(rng.randrange(1 << 30)))[0], SETTINGS


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 60, 400)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 61, 10_000)
