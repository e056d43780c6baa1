"""Weights of FP8 with scales of square blocks: values are those of transformers, and of the definition, written here."""

import re

import octavo
import pytest
import torch
from helpers.packed_folders import attack, folder_of, same_bits, values_in, weight_of
from octavo.errors import ContainerError
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.fp8_folder import weights_of

SETTINGS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
DTYPES = ("float32", "bfloat16", "float16", "float8_e8m0fnu", "uint8")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def layer(shape, rng, block=(128, 128), kind="float32"):
    """Parts of random codes and scales, and the values."""
    codes = torch.randint(0, 256, shape, generator=rng)
    codes[codes & 127 == 127] = 0
    stored = codes.to(torch.uint8).view(torch.float8_e4m3fn)
    sizes = () if block is None else tuple(-(-size // one) for size, one in zip(shape, block, strict=True))
    if kind in ("float8_e8m0fnu", "uint8"):
        exponents = torch.randint(110, 125, sizes, generator=rng).to(torch.uint8)
        scales, numbers = exponents.view(getattr(torch, kind)), 2.0 ** (exponents.float() - 127)
    else:
        scales = ((torch.rand(sizes, generator=rng) + 0.01) / 1000).to(getattr(torch, kind))
        numbers = scales.float()
    step = numbers
    if block is not None:
        step = step.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
    return {"weight": stored, "weight_scale_inv": scales}, stored.float() * step


def settings(block=(128, 128), **more):
    return {**SETTINGS, "weight_block_size": None if block is None else list(block), **more}


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("block", [(128, 128), (64, 32), None])
def test_values_are_those_of_the_definition_and_of_transformers(block, kind):
    parts, values = layer((128, 256), generator(1), block, kind)
    weight = weight_of(weights_of, parts, settings(block))
    assert same_bits(weight.decode(), values)
    carried = weight.carry(torch.float32)
    if kind in ("float8_e8m0fnu", "uint8"):
        assert str(carried.format) == "mxfp8e4m3" and same_bits(carried.decode(), values)
    else:
        assert carried == "no format has E4M3 codes with scales that are no powers of two"
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    if kind != "float8_e8m0fnu":
        scales = parts["weight_scale_inv"].reshape((1, 1) if block is None else parts["weight_scale_inv"].shape)
        theirs = fp8.Fp8Dequantize(None)._dequantize_one(parts["weight"], scales, torch.float32)
        assert same_bits(weight.decode(), theirs)


def test_blocks_may_end_with_the_matrix():
    parts, values = layer((200, 300), generator(2))
    assert parts["weight_scale_inv"].shape == (2, 3)
    assert same_bits(weight_of(weights_of, parts, settings()).decode(), values)


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        ({}, {"fmt": "e5m2"}, "fmt is 'e5m2'; read are e4m3"),
        ({}, {"expert_dtype": "fp4"}, "expert_dtype is 'fp4'; read are fp8"),
        ({}, {"weight_block_size": [128]}, r"weight_block_size is \[128\]; read are two sizes"),
        ({}, {"weight_block_size": [128, 0]}, r"weight_block_size is \[128, 0\]"),
        ({}, {"weight_block_size": [64, 128]}, r"weight_scale_inv': float32 \[1, 2\]; expected is .*\[2, 2\]"),
        ({"weight_scale_inv": None}, {}, r"tensor 'a.b.weight': no weight_scale_inv is beside it"),
        ({"weight_scale_inv": torch.ones(1, 2).int()}, {}, r"tensor 'a.b.weight_scale_inv': int32"),
        ({"weight": torch.zeros(128, 256).half()}, {}, r"tensor 'a.b.weight': float16 with weight_scale_inv beside it"),
    ],
)
def test_other_tensors_and_fields_are_refused_by_name(change, fields, message):
    parts, _ = layer((128, 256), generator(3))
    parts = {part: value for part, value in {**parts, **change}.items() if value is not None}
    with pytest.raises(ContainerError, match=message):
        weight_of(weights_of, parts, settings(**fields))


def test_scales_that_no_format_has_are_decoded():
    parts, _ = layer((128, 128), generator(4), kind="uint8")
    parts["weight_scale_inv"][0, 0] = 255
    weight = weight_of(weights_of, parts, settings())
    assert re.match("row 0, group 0: scale nan", weight.carry(torch.float32)) and weight.decode().isnan().all()
    parts["weight_scale_inv"] = torch.full((1, 1), -0.5)
    assert "has a sign" in weight_of(weights_of, parts, settings()).carry(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", [(128, 128), None])
def test_folders_are_models(tmp_path, dtype, block):
    pytest.importorskip("transformers")

    def made(shape, rng):
        parts, values = layer(shape, rng, block)
        return {**parts, **({} if block else {"activation_scale": torch.tensor(0.5)})}, values

    values = folder_of(tmp_path, made, settings(block, activation_scheme="dynamic" if block else "static"), dtype)
    reader = reader_of(tmp_path)
    assert reader.kind == "a folder of FP8"
    with pytest.warns(octavo.OctavoWarning, match="14 of 21 tensors are decoded to"):
        mine = values_in(octavo.load_model(tmp_path))
    assert all(same_bits(mine[name].to(dtype), value.to(dtype)) for name, value in values.items())
    assert any("inputs of layers are not rounded" in note for note in reader.open(tmp_path).notes()) == (block is None)
    listed = {one.name: one.format for one in reader.contents(tmp_path)[0]}
    expected = "fp8 (blocks of 128 by 128)" if block else "fp8 (one scale)"
    assert listed["model.layers.0.mlp.up_proj.weight"] == expected


def test_powers_of_two_stay_packed(tmp_path):
    pytest.importorskip("transformers")
    values = folder_of(tmp_path, lambda shape, rng: layer(shape, rng, kind="uint8"), settings(scale_fmt="ue8m0"))
    model = octavo.load_model(tmp_path)
    assert str(model.model.layers[1].mlp.down_proj.weight.format) == "mxfp8e4m3"
    mine = values_in(model)
    assert all(same_bits(mine[name], value) for name, value in values.items())


def made(rng):
    block = rng.choice(((128, 128), (8, 32), None))
    return layer((8, 64), generator(rng.randrange(1 << 30)), block, rng.choice(DTYPES))[0], settings(block)


KEYS = ("weight_block_size", "fmt", "expert_dtype", "weight_scale_inv", "activation_scale")


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 80, 400, KEYS)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 81, 10_000, KEYS)


def test_check_says_what_is_read(tmp_path):
    from octavo.interchange.check.run_check import check_path

    folder_of(tmp_path, layer, SETTINGS)
    routes = {(one.verdict, one.how, one.layers) for one in check_path(tmp_path, reader="octavo").routes}
    assert ("decodes", "no format has E4M3 codes with scales that are no powers of two", 14) in routes
