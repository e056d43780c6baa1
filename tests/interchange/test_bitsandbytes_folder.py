"""Weights of bitsandbytes: values are those of the package, and of its definition, written here apart."""

import json
import re

import octavo
import pytest
import torch
from helpers.packed_folders import attack, folder_of, same_bits, values_in, weight_of
from octavo.errors import ContainerError
from octavo.interchange.bitsandbytes_folder import weights_of
from octavo.interchange.foreign_readers import reader_of

NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
)  # fmt: skip
FP4 = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3]) / 12
TABLES = {"nf4": NF4, "fp4": FP4}
SETTINGS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STATE = "weight.quant_state.bitsandbytes__"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def state(**fields):
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def layer(shape, rng, kind="nf4", block=64, nested=False, dtype="float32", halves=False):
    """Parts of random codes and maxima, and the values."""
    rows, columns = shape
    count = rows * columns
    codes = torch.randint(0, 16, (count,), generator=rng)
    blocks = -(-count // block)
    absmax = (torch.rand(blocks, generator=rng) + 0.01) / 16
    absmax = absmax.half().float() if halves else absmax
    fields = {"quant_type": kind, "blocksize": block, "dtype": dtype, "shape": list(shape)}
    parts = {}
    stored = absmax
    if nested:
        stored = torch.randint(0, 256, (blocks,), generator=rng).to(torch.uint8)
        outer, table = torch.rand(-(-blocks // 256), generator=rng) / 16, torch.rand(256, generator=rng) - 0.2
        absmax = table[stored.int()] * outer.repeat_interleave(256)[:blocks] + torch.tensor(0.07)
        parts = {"weight.nested_absmax": outer, "weight.nested_quant_map": table}
        fields |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.07}
    parts = {
        "weight": (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).unsqueeze(1), "weight.absmax": stored,
        "weight.quant_map": TABLES[kind], f"{STATE}{kind}": state(**fields), **parts,
    }  # fmt: skip
    values = TABLES[kind][codes] * absmax.repeat_interleave(block)[:count]
    return parts, values.to(getattr(torch, dtype)).reshape(shape)


def int8(shape, rng):
    codes = torch.randint(-127, 128, shape, generator=rng).to(torch.int8)
    maxima = torch.rand(shape[0], generator=rng) + 0.01
    return {"weight": codes, "SCB": maxima}, codes.float() * maxima[:, None] * 7.874015718698502e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize(("kind", "block"), [("nf4", 64), ("nf4", 128), ("fp4", 64)])
def test_values_are_those_of_the_definition(kind, block, nested, dtype):
    parts, values = layer((32, 256), generator(1), kind, block, nested, dtype)
    weight = weight_of(weights_of, parts, SETTINGS)
    assert same_bits(weight.decode(), values)
    reason = weight.carry(weight.dtype)
    expected = (
        "block 0: a scale that is no float16" if kind == "nf4" else "no format has the table of bitsandbytes' fp4"
    )
    assert re.match(expected, reason)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block", [32, 64, 128])
def test_maxima_of_float16_are_carried(block, dtype):
    parts, values = layer((32, 256), generator(2), block=block, dtype=dtype, halves=True)
    weight = weight_of(weights_of, parts, SETTINGS)
    carried = weight.carry(weight.dtype)
    assert str(carried.format) == ("nf4" if block == 64 else f"nf4/{block}")
    assert same_bits(carried.decode(), values) and same_bits(weight.decode(), values)


def test_blocks_that_go_on_in_the_next_row_are_decoded():
    parts, values = layer((32, 96), generator(3), halves=True)
    weight = weight_of(weights_of, parts, SETTINGS)
    assert weight.carry(torch.float32) == "blocks of 64 go on in the next row; 96 columns are no multiple"
    assert same_bits(weight.decode(), values)


def test_8_bits_are_decoded():
    parts, values = int8((16, 64), generator(4))
    weight = weight_of(weights_of, parts, SETTINGS)
    assert same_bits(weight.decode(), values)
    assert "rounds each product" in weight.carry(torch.float32)


def peer_weight(shape, rng, kind, nested, dtype, block=64):
    """The tensors that the package stores of a random matrix, and what it decodes them to."""
    peer = pytest.importorskip("bitsandbytes")
    matrix = torch.randn(shape, generator=rng).to(dtype)
    data, found = peer.functional.quantize_4bit(matrix, blocksize=block, quant_type=kind, compress_statistics=nested)
    parts = {"weight": data, **{f"weight.{name}": value for name, value in found.as_dict(packed=True).items()}}
    return parts, peer.functional.dequantize_4bit(data, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_values_are_those_of_the_package(kind, nested, dtype):
    parts, values = peer_weight((96, 128), generator(5), kind, nested, dtype)
    assert same_bits(weight_of(weights_of, parts, SETTINGS).decode(), values)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
def test_a_million_values_are_those_of_the_package(kind, nested):
    parts, values = peer_weight((1024, 1024), generator(6), kind, nested, torch.bfloat16)
    assert same_bits(weight_of(weights_of, parts, SETTINGS).decode(), values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight.absmax": None}, r"tensor 'a.b.weight': uint8, no weight.absmax is beside it"),
        ({f"{STATE}nf4": None}, r"tensor 'a.b.weight.absmax': no weight.quant_state.* is beside it"),
        ({f"{STATE}nf4": state(shape=[8, 64], blocksize=63, dtype="float32")}, "blocksize is 63; read are 32"),
        ({f"{STATE}nf4": state(shape=[8], blocksize=64, dtype="float32")}, r"shape is \[8\]; read are matrices"),
        ({f"{STATE}nf4": state(shape=[8, 64], blocksize=64, dtype="int8")}, "dtype is 'int8'; read are float32"),
        ({f"{STATE}nf4": torch.tensor([255, 1], dtype=torch.uint8)}, "no UTF-8; accepted is JSON"),
        ({f"{STATE}nf4": state(shape=[8, 640], blocksize=64, dtype="float32")}, "accepted are 2560 bytes"),
        ({"weight.absmax": torch.ones(3)}, r"tensor 'a.b.weight.absmax': float32 \[3\]; expected is .*\[8\]"),
    ],
)
def test_other_tensors_are_refused_by_name(change, message):
    parts, _ = layer((8, 64), generator(7))
    parts = {part: value for part, value in {**parts, **change}.items() if value is not None}
    with pytest.raises(ContainerError, match=message):
        weight_of(weights_of, parts, SETTINGS)
    parts, _ = layer((8, 64), generator(7))
    parts["weight.quant_map"] = NF4 + 1e-3
    with pytest.raises(ContainerError, match=r"tensor 'a.b.weight.quant_map': its values are not those of nf4"):
        weight_of(weights_of, parts, SETTINGS).decode()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folders_are_models(tmp_path, dtype):
    pytest.importorskip("transformers")

    def mixed(shape, rng):
        return layer(shape, rng, dtype=dtype, halves=shape == (128, 128), nested=shape == (256, 128))

    values = folder_of(tmp_path, mixed, SETTINGS, getattr(torch, dtype))
    assert reader_of(tmp_path).kind == "a folder of bitsandbytes"
    with pytest.warns(octavo.OctavoWarning, match=f"6 of 21 tensors are decoded to {dtype}: .*that is no float16"):
        model = octavo.load_model(tmp_path)
    mine = values_in(model)
    assert str(model.model.layers[1].self_attn.q_proj.weight.format) == "nf4" and len(values) == 14
    assert all(same_bits(mine[name], value) for name, value in values.items())


def test_folders_of_8_bits_are_models(tmp_path):
    pytest.importorskip("transformers")
    values = folder_of(tmp_path, int8, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    with pytest.warns(octavo.OctavoWarning, match="14 of 21 tensors are decoded to float32: 14 of bitsandbytes int8"):
        mine = values_in(octavo.load_model(tmp_path))
    assert all(same_bits(mine[name], value) for name, value in values.items())


def test_models_that_transformers_quantized_and_saved_have_its_values(tmp_path):
    transformers = pytest.importorskip("transformers")
    peer = pytest.importorskip("bitsandbytes")
    from helpers.checkpoints import base, write

    write(tmp_path / "float", *base())
    packing = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "float", quantization_config=packing, dtype=torch.bfloat16, device_map="cpu"
    )
    theirs.save_pretrained(tmp_path / "packed")
    with pytest.warns(octavo.OctavoWarning, match="14 of 21 tensors are decoded to bfloat16"):
        mine = values_in(octavo.load_model(tmp_path / "packed"))
    packed = {name: layer_.weight for name, layer_ in theirs.named_modules() if "proj" in name.rpartition(".")[2]}
    for name, weight in packed.items():
        value = peer.functional.dequantize_4bit(weight.data, weight.quant_state)
        assert same_bits(mine[f"{name}.weight"], value), name
    assert len(packed) == 14


def made(rng):
    seed = generator(rng.randrange(1 << 30))
    if rng.random() < 0.2:
        return int8((8, 64), seed)[0], SETTINGS
    return layer((8, 64), seed, rng.choice(("nf4", "fp4")), nested=rng.random() < 0.5, halves=True)[0], SETTINGS


KEYS = ("SCB", "weight.absmax", "weight.nested_absmax", f"{STATE}nf4")


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 40, 400, KEYS)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 41, 10_000, KEYS)
