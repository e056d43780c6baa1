"""Weights of GPTQ are carried code by code; values are those of AutoGPTQ's definition, written here apart."""

import json
import re

import octavo
import pytest
import torch
from helpers.packed_folders import attack, folder_of, same_bits, values_in, weight_of
from octavo.errors import ContainerError
from octavo.interchange.conversion import as_folder
from octavo.interchange.foreign_readers import reader_of
from octavo.interchange.gptq_folder import weights_of

BITS, WORD = (2, 3, 4, 8), 0xFFFFFFFF


def settings(bits=4, group=32, v2=False, **more):
    return {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, "desc_act": False,
        "checkpoint_format": "gptq_v2" if v2 else "gptq", **more,
    }  # fmt: skip


def signed(words):
    return torch.tensor(words, dtype=torch.int64).sub(1 << 32).where(torch.tensor(words) >> 31 > 0, torch.tensor(words))


def pack_down(codes, bits):
    """Words down the rows of a matrix of codes, as AutoGPTQ's ``pack`` makes them, one code after the other."""
    rows, columns = codes.shape
    words = [[0] * columns for _ in range(rows * bits // 32)]
    for column, line in enumerate(codes.t().tolist()):
        if bits != 3:
            for row, code in enumerate(line):
                words[row * bits // 32][column] |= code << row * bits % 32
            continue
        for start in range(0, rows, 32):  # ten codes and two bits, one bit and ten codes and one bit, two bits and ten
            word, part = start // 32 * 3, line[start : start + 32]
            first = sum(code << 3 * i for i, code in enumerate(part[:10])) | part[10] << 30
            second = part[10] >> 2 & 1 | sum(code << 3 * i + 1 for i, code in enumerate(part[11:21])) | part[21] << 31
            third = part[21] >> 1 & 3 | sum(code << 3 * i + 2 for i, code in enumerate(part[22:]))
            for place, value in enumerate((first, second, third)):
                words[word + place][column] = value & WORD
    return signed(words).reshape(rows * bits // 32, columns).to(torch.int32)


def layer(shape, rng, bits=4, group=32, v2=False, order=None, low=0, dtype=torch.float16, zeros=None):
    """Parts of random codes, scales and zero points from ``low``, and the values."""
    rows, columns = shape
    size = columns if group == -1 else group
    groups = -(-columns // size)
    codes = torch.randint(0, 1 << bits, shape, generator=rng)
    least, most = (0, 1 << bits) if v2 else (1, (1 << bits) + 1)
    if zeros is None:
        zeros = torch.randint(least + low, most - (0 if v2 else 1), (rows, groups), generator=rng)
    scales = ((torch.rand(rows, groups, generator=rng) + 0.01) / 64).to(dtype)
    index = torch.arange(columns) // size if order is None else order
    values = (codes - zeros[:, index]).to(dtype) * scales[:, index]
    stored = zeros - (0 if v2 else 1)
    parts = {
        "qweight": pack_down(codes.t(), bits), "qzeros": pack_down(stored, bits).t().contiguous(),
        "scales": scales.t().contiguous(), "g_idx": index.to(torch.int32),
    }  # fmt: skip
    return parts, values


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("bits", BITS)
def test_values_are_those_of_the_definition(bits, group, v2):
    parts, values = layer((64, 128), generator(bits), bits, group, v2)
    weight = weight_of(weights_of, parts, settings(bits, group, v2))
    carried = weight.carry(torch.float16)
    assert str(carried.format) == f"uint{bits}{':channel' if group == -1 else f':g{group}'}"
    assert weight.dtype == torch.float16 and same_bits(weight.decode(), values)
    assert same_bits(carried.decode(), values)
    exact = (values.double() / values.double()).nan_to_num() * weight.carry(torch.float32).decode().double()
    assert torch.equal(exact.half(), values)
    del parts["g_idx"]
    assert same_bits(weight_of(weights_of, parts, settings(bits, group, v2)).decode(), values)


@pytest.mark.parametrize("bits", BITS)
def test_codes_and_scales_are_carried(bits):
    parts, _ = layer((32, 96), generator(1), bits)
    carried = weight_of(weights_of, parts, settings(bits)).carry(torch.float32)
    assert torch.equal(carried.scales, parts["scales"].t())
    stream = parts["qweight"].t().contiguous().view(torch.uint8)
    assert torch.equal(carried.codes, stream[:, : 96 * bits // 8])


@pytest.mark.parametrize("bits", BITS)
def test_zero_points_of_the_next_power_of_two_need_a_bit_more(bits):
    zeros = torch.full((32, 4), 1 << bits)
    zeros[:16] = torch.randint(1, (1 << bits) + 1, (16, 4), generator=generator(2))
    parts, values = layer((32, 128), generator(2), bits, zeros=zeros)
    carried = weight_of(weights_of, parts, settings(bits)).carry(torch.float16)
    assert str(carried.format) == f"int{bits + 1}:g32" and same_bits(carried.decode(), values)


def test_columns_in_groups_by_activation_are_decoded():
    order = torch.randperm(128, generator=generator(3)) // 32
    parts, values = layer((32, 128), generator(3), order=order)
    weight = weight_of(weights_of, parts, settings(desc_act=True))
    assert weight.carry(torch.float16) == "g_idx has groups of other columns than those beside each other"
    assert same_bits(weight.decode(), values)
    parts, values = layer((32, 128), generator(3))
    assert str(weight_of(weights_of, parts, settings(desc_act=True)).carry(torch.float16).format) == "uint4:g32"


def test_groups_may_end_with_the_row():
    parts, values = layer((32, 96), generator(4), group=64)
    weight = weight_of(weights_of, parts, settings(group=64))
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(torch.float16).decode(), values)


def test_layers_have_bits_and_groups_of_their_own_where_the_settings_are_dynamic():
    parts, values = layer((32, 128), generator(5), 8, 64)
    weight = weight_of(weights_of, parts, settings(4, 32, dynamic={"+:.*": {"bits": 8, "group_size": 64}}))
    assert str(weight.carry(torch.float16).format) == "uint8:g64" and same_bits(weight.decode(), values)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda scales: scales.neg(), "row 0, group 0: scale -.*, which has a sign"),
        (lambda scales: scales * float("inf"), "row 0, group 0: scale inf"),
        (lambda scales: scales.float() + 1e-7, r"scales of groups are float16 here, and among these are others"),
    ],
)
def test_what_no_format_holds_is_told(change, told):
    parts, _ = layer((32, 64), generator(6))
    parts["scales"] = change(parts["scales"])
    weight = weight_of(weights_of, parts, settings())
    assert re.match(told, weight.carry(torch.float32))
    assert weight.decode().dtype == parts["scales"].dtype


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("bits", BITS)
def test_symmetric_weights_of_the_other_version_are_refused(bits, v2, tmp_path):
    zeros = torch.full((64, 4), 1 << bits - 1)
    parts, _ = layer((64, 128), generator(7), bits, 32, v2, zeros=zeros)
    weight_of(weights_of, parts, settings(bits, 32, v2, sym=True)).carry(torch.float32)
    with pytest.raises(ContainerError, match=r"tensor 'a.b.qzeros': all are .* where sym is true; version"):
        weight_of(weights_of, parts, settings(bits, 32, not v2, sym=True)).carry(torch.float32)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; read are gptq, gptq_v2"),
        ({"is_marlin_format": True}, "is_marlin_format is true"),
        ({"pack_dtype": "int64"}, "pack_dtype is 'int64'"),
        ({"bits": 5}, "bits is 5; read are 2, 3, 4, 8"),
        ({"bits": "4"}, "bits is '4'; accepted is a whole number"),
        ({"bits": 8}, "tensor 'a.b.qzeros': 4 words of 32 zero points; expected are those of 8 bits"),
        ({"group_size": 16}, "tensor 'a.b.scales': 4 groups; 128 columns by group_size 16"),
        ({"group_size": -1}, "tensor 'a.b.scales': 4 groups; by group_size -1 there is 1"),
        ({"sym": "yes"}, "sym is 'yes'; accepted are true and false"),
    ],
)
def test_other_fields_are_refused_by_name(fields, told):
    parts, _ = layer((32, 128), generator(8))
    with pytest.raises(ContainerError, match=told):
        weight_of(weights_of, parts, settings(**fields))


def test_tensors_of_other_sizes_are_refused_by_name():
    parts, _ = layer((32, 128), generator(9))
    for name, value, told in (
        ("qweight", parts["qweight"].long(), "tensor 'a.b.qweight': int64"),
        ("scales", parts["scales"][:, :5], "tensor 'a.b.scales': float16 .*expected is"),
        ("g_idx", parts["g_idx"][:4], "tensor 'a.b.g_idx'"),
        ("qzeros", None, "tensor 'a.b.qweight': no qzeros is beside it"),
    ):
        other = {key: one for key, one in {**parts, name: value}.items() if one is not None}
        with pytest.raises(ContainerError, match=told):
            weight_of(weights_of, other, settings())
    parts["g_idx"] = parts["g_idx"] + 1
    with pytest.raises(ContainerError, match=r"tensor 'a.b.g_idx': groups 1 to 4; there are 4"):
        weight_of(weights_of, parts, settings()).carry(torch.float32)


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("beside", "shards"), [(None, 1), ("quantize_config.json", 3)])
def test_folders_are_models(tmp_path, dtype, beside, shards):
    pytest.importorskip("transformers")
    entry = settings(3, 64)
    entry = {key: entry[key] for key in entry if not beside or key != "quant_method"}
    values = folder_of(tmp_path / "in", lambda shape, rng: layer(shape, rng, 3, 64), entry, dtype, shards, beside)
    assert reader_of(tmp_path / "in").kind == "a folder of GPTQ"
    model = octavo.load_model(tmp_path / "in")
    mine = values_in(model)
    assert str(model.model.layers[1].mlp.down_proj.weight.format) == "uint3:g64" and len(values) == 14
    assert all(same_bits(mine[name].half(), value) for name, value in values.items())
    listed = {one.name: one for one in reader_of(tmp_path / "in").contents(tmp_path / "in")[0]}
    assert listed["model.layers.0.mlp.up_proj.weight"].format == "gptq (v1, 3-bit, groups of 64)"
    with as_folder(reader_of(tmp_path / "in").open(tmp_path / "in"), packed=True) as (folder, notes):
        assert notes == [] and reader_of(folder) is None and not (folder / "quantize_config.json").exists()
        assert all(same_bits(one, mine[name]) for name, one in values_in(octavo.load_model(folder)).items())


def test_experts_are_packed_layers(tmp_path):
    pytest.importorskip("transformers")
    from helpers.compressed_models import mixture_of

    expected = mixture_of(tmp_path / "in", layer, settings())
    model = octavo.load_model(tmp_path / "in")
    packed = [one for one in model.modules() if type(one).__name__ == "PackedLinear"]
    assert len(packed) == 6 and {str(one.weight.format) for one in packed} == {"uint4:g32"}
    with as_folder(reader_of(tmp_path / "in").open(tmp_path / "in"), packed=False) as (folder, _):
        plain = octavo.load_model(folder).state_dict()
    assert all(torch.equal(plain[name], value) for name, value in expected.state_dict().items())


def test_layers_stored_transposed_are_refused():
    parts, _ = layer((64, 64), generator(10))
    from octavo.interchange.layer_packing import read_packing

    packing = read_packing(weights_of, {f"a.b.{part}": value for part, value in parts.items()}, settings(), "x/y")
    with pytest.raises(ContainerError, match=r"tensor 'a.b.*': of a Conv1D layer; read are Linear layers"):
        packing.settle({"a.b.weight": ("a.b.weight", "Conv1D", "Module")})


def test_the_advice_to_check_gives_the_true_version(tmp_path):
    pytest.importorskip("transformers")
    from octavo.interchange.check.repair import write_repaired
    from octavo.interchange.check.run_check import check_path

    def symmetric(shape, rng):
        return layer(shape, rng, zeros=torch.full((shape[0], shape[1] // 32), 8), v2=True)

    folder_of(tmp_path / "in", symmetric, settings(sym=True))
    with pytest.raises(ContainerError, match=r"octavo check .*in --fix OUT writes the folder with its true"):
        octavo.load_model(tmp_path / "in")
    write_repaired(tmp_path / "in", tmp_path / "out", check_path(tmp_path / "in").findings)
    entry = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert entry["checkpoint_format"] == "gptq_v2" and octavo.load_model(tmp_path / "out")


def made(rng):
    bits, group = rng.choice(BITS), rng.choice((32, 64, -1))
    parts, _ = layer((32, 64), generator(rng.randrange(1 << 30)), bits, group, rng.random() < 0.5)
    return parts, settings(bits, group)


KEYS = ("checkpoint_format", "dynamic", "is_marlin_format", "pack_dtype", "format", "g_idx")


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 10, 400, KEYS)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 11, 10_000, KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("bits", BITS)
def test_a_million_values_are_those_of_the_definition(bits):
    parts, values = layer((1024, 1024), generator(12), bits, 128)
    weight = weight_of(weights_of, parts, settings(bits, 128))
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(torch.float16).decode(), values)


def test_check_says_what_is_read(tmp_path):
    from octavo.interchange.check.run_check import check_path

    order = torch.arange(128) % 4

    def mixed(shape, rng):
        return layer(shape, rng, order=order if shape == (128, 128) else None)

    folder_of(tmp_path, mixed, settings(desc_act=True))
    routes = {(one.verdict, one.how, one.layers) for one in check_path(tmp_path, reader="octavo").routes}
    assert ("takes", "stays packed as uint4:g32", 6) in routes
    assert ("decodes", "g_idx has groups of other columns than those beside each other", 8) in routes
