"""Weights of ModelOpt are carried code by code; values are those of its definition, written here apart."""

import re

import octavo
import pytest
import torch
from helpers.packed_folders import attack, folder_of, same_bits, values_in, weight_of
from octavo.errors import ContainerError
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.modelopt_folder import weights_of

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def nvfp4(shape, rng):
    rows, columns = shape
    codes = torch.randint(0, 16, shape, generator=rng)
    scales = torch.randint(0, 127, (rows, columns // 16), generator=rng).to(torch.uint8).view(torch.float8_e4m3fn)
    factor = (torch.rand((), generator=rng) + 0.01) / 1000
    step = (scales.float() * factor).repeat_interleave(16, 1)
    parts = {
        "weight": (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), "weight_scale": scales,
        "weight_scale_2": factor,
    }  # fmt: skip
    return parts, torch.cat([E2M1, -E2M1])[codes] * step


def fp8(shape, rng, size=(), scales=None):
    codes = torch.randint(0, 256, shape, generator=rng)
    codes[codes & 127 == 127] = 0
    stored = codes.to(torch.uint8).view(torch.float8_e4m3fn)
    step = (torch.rand(size, generator=rng) + 0.01) / 1000 if scales is None else scales
    return {"weight": stored, "weight_scale": step}, stored.float() * (step.reshape(-1, 1) if size else step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_of_nvfp4_are_those_of_the_definition(dtype):
    parts, values = nvfp4((64, 128), generator(1))
    weight = weight_of(weights_of, parts, NVFP4)
    carried = weight.carry(dtype)
    assert same_bits(weight.decode(), values)
    assert str(carried.format) == "nvfp4" and same_bits(carried.decode(), values.to(dtype))
    assert torch.equal(carried.codes, parts["weight"]) and carried.levels == parts["weight_scale_2"]
    assert torch.equal(carried.scales, parts["weight_scale"].view(torch.uint8))


@pytest.mark.parametrize("size", [(), (1,), (64,), (64, 1)])
def test_values_of_fp8_are_those_of_the_definition(size):
    parts, values = fp8((64, 128), generator(2), size)
    weight = weight_of(weights_of, parts, FP8)
    assert same_bits(weight.decode(), values)
    assert weight.carry(torch.float32) == "no format has E4M3 codes with scales that are no powers of two"
    parts["weight_scale"] = torch.full_like(parts["weight_scale"], 0.25)
    carried = weight_of(weights_of, parts, FP8).carry(torch.float32)
    assert str(carried.format) == "mxfp8e4m3" and same_bits(carried.decode(), parts["weight"].float() / 4)
    parts["weight_scale"] = torch.ones_like(parts["weight_scale"])
    carried = weight_of(weights_of, parts, FP8).carry(torch.float32)
    assert str(carried.format) == "e4m3" and same_bits(carried.decode(), parts["weight"].float())


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("weight_scale", torch.full((8, 4), 127, dtype=torch.uint8).view(torch.float8_e4m3fn), "row 0, block 0: scale"),
        ("weight_scale", torch.full((8, 4), 130, dtype=torch.uint8).view(torch.float8_e4m3fn), "scale code 130"),
        ("weight_scale_2", torch.tensor(float("inf")), "a factor of inf"),
        ("weight_scale_2", torch.tensor(-1.0), r"a factor of -1\.0"),
        ("weight_scale_2", torch.tensor(1e4), "values beyond those of float16"),
    ],
)
def test_numbers_that_no_format_holds_are_decoded(part, value, message):
    parts, _ = nvfp4((8, 64), generator(3))
    parts[part] = value
    weight = weight_of(weights_of, parts, NVFP4)
    reason = weight.carry(torch.float16)
    assert isinstance(reason, str) and re.search(message, reason)
    assert weight.decode().shape == (8, 64)


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        ({}, {"quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'; read are nvfp4"),
        ({"pre_quant_scale": torch.ones(64)}, {}, r"tensor 'a.b.pre_quant_scale': inputs that are multiplied"),
        ({"weight_scale_2": None}, {}, r"tensor 'a.b.weight': no weight_scale_2 is beside it"),
        ({"weight": torch.zeros(8, 64)}, {}, r"tensor 'a.b.weight': float32 with weight_scale beside it"),
        ({"weight": torch.zeros(8, 2, 16, dtype=torch.uint8)}, {}, r"tensor 'a.b.weight': shape \[8, 2, 16\]"),
        ({"weight_scale": torch.zeros(8, 2).to(torch.float8_e4m3fn)}, {}, r"expected is float8_e4m3fn \[8, 4\]"),
    ],
)
def test_other_tensors_and_fields_are_refused_by_name(change, fields, message):
    parts, _ = nvfp4((8, 64), generator(4))
    parts = {part: value for part, value in {**parts, **change}.items() if value is not None}
    with pytest.raises(ContainerError, match=message):
        weight_of(weights_of, parts, {**NVFP4, **fields})


HF = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}


@pytest.mark.parametrize("beside", [None, "hf_quant_config.json"])
def test_folders_are_models(tmp_path, beside):
    pytest.importorskip("transformers")

    def layer(shape, rng):
        parts, values = nvfp4(shape, rng)
        return {**parts, "input_scale": torch.tensor(0.5)}, values

    values = folder_of(tmp_path, layer, HF if beside else NVFP4, torch.bfloat16, beside=beside)
    reader = reader_of(tmp_path)
    assert reader.kind == "a folder of ModelOpt"
    model, opened = octavo.load_model(tmp_path), reader.open(tmp_path)
    mine = values_in(model)
    assert str(model.model.layers[1].mlp.down_proj.weight.format) == "nvfp4" and len(values) == 14
    assert all(same_bits(mine[name], value.bfloat16()) for name, value in values.items())
    notes = [*opened.notes(), ""]
    assert notes[0] == "inputs of layers are not rounded; the folder has scales to round them"
    assert ("keys and values are not rounded" in notes[1]) == (beside is not None)


def test_folders_of_fp8_are_models(tmp_path):
    pytest.importorskip("transformers")
    values = folder_of(tmp_path, fp8, FP8)
    with pytest.warns(octavo.OctavoWarning, match="14 of 21 tensors are decoded to float32: 14 of modelopt FP8"):
        mine = values_in(octavo.load_model(tmp_path))
    assert all(same_bits(mine[name], value) for name, value in values.items())


def made(rng):
    kind = rng.choice((nvfp4, fp8))
    return kind((16, 64), generator(rng.randrange(1 << 30)))[0], NVFP4 if kind is nvfp4 else FP8


KEYS = ("pre_quant_scale", "weight_scale", "weight_scale_2", "input_scale", "kv_cache_quant_algo")


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 30, 400, KEYS)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 31, 10_000, KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nvfp4, fp8])
def test_a_million_values_are_those_of_the_definition(kind):
    parts, values = kind((1024, 1024), generator(5))
    weight = weight_of(weights_of, parts, NVFP4 if kind is nvfp4 else FP8)
    assert same_bits(weight.decode(), values)
    if kind is nvfp4:
        assert same_bits(weight.carry(torch.float32).decode(), values)
