"""Weights of AWQ are carried code by code; values are those of AutoAWQ's definition, written here apart."""

import octavo
import pytest
import torch
from helpers.packed_folders import attack, folder_of, same_bits, values_in, weight_of
from octavo.errors import ContainerError
from octavo.interchange.awq_folder import weights_of
from octavo.interchange.foreign_readers import reader_of

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def settings(group=64, **more):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", **more}


def words(codes):
    """Rows of codes as AutoAWQ packs them: eight to a word, in the order of its kernels."""
    eight = codes.reshape(len(codes), -1, 8)
    whole = sum(eight[:, :, place] << 4 * nibble for nibble, place in enumerate(ORDER))
    return torch.where(whole >> 31 > 0, whole - (1 << 32), whole).to(torch.int32)


def layer(shape, rng, group=64, dtype=torch.float16):
    rows, columns = shape
    size = columns if group == -1 else group
    groups = -(-columns // size)
    codes, zeros = (torch.randint(0, 16, (rows, count), generator=rng) for count in (columns, groups))
    scales = ((torch.rand(rows, groups, generator=rng) + 0.01) / 64).to(dtype)
    index = torch.arange(columns) // size
    values = (codes - zeros[:, index]).to(dtype) * scales[:, index]
    return {"qweight": words(codes.t()), "qzeros": words(zeros.t()), "scales": scales.t().contiguous()}, values


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("group", [32, 128, -1])
def test_values_are_those_of_the_definition(group, dtype):
    parts, values = layer((64, 128), generator(1), group, dtype)
    weight = weight_of(weights_of, parts, settings(group))
    carried = weight.carry(dtype)
    assert weight.dtype == dtype and same_bits(weight.decode(), values)
    if group != -1 and dtype == torch.float32:
        assert "scales of groups are float16 here" in carried
        return
    assert str(carried.format) == f"uint4{':channel' if group == -1 else f':g{group}'}"
    assert same_bits(carried.decode(), values)
    assert torch.equal(carried.scales.float(), parts["scales"].t().float())


def test_groups_may_end_with_the_row():
    parts, values = layer((32, 96), generator(2))
    assert same_bits(weight_of(weights_of, parts, settings()).carry(torch.float16).decode(), values)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"version": "gemv"}, "version is 'gemv'; read are gemm"),
        ({"version": "MARLIN"}, "version is 'MARLIN'; read are gemm"),
        ({"checkpoint_format": "gemv_fast"}, "checkpoint_format is 'gemv_fast'"),
        ({"backend": "llm-awq"}, "backend is 'llm-awq'"),
        ({"bits": 8}, "bits is 8; read are 4"),
        ({"group_size": 32}, "tensor 'a.b.scales': 2 groups; 128 columns by group_size 32"),
        ({"group_size": 0}, "tensor 'a.b.scales': 2 groups; 128 columns by group_size 0"),
    ],
)
def test_other_fields_are_refused_by_name(fields, told):
    parts, _ = layer((32, 128), generator(3))
    with pytest.raises(ContainerError, match=told):
        weight_of(weights_of, parts, settings(**fields))


def test_words_of_other_kernels_are_refused_by_their_sizes():
    parts, _ = layer((32, 128), generator(4))
    parts["qweight"] = parts["qweight"].reshape(16, 32)
    with pytest.raises(ContainerError, match=r"tensor 'a.b.scales': 32 rows; qweight has 32 words of eight"):
        weight_of(weights_of, parts, settings())


@pytest.mark.parametrize("beside", [None, "quant_config.json"])
def test_folders_are_models(tmp_path, beside):
    pytest.importorskip("transformers")
    entry = settings() if beside is None else {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    values = folder_of(tmp_path, layer, entry, torch.float16, beside=beside)
    assert reader_of(tmp_path).kind == "a folder of AWQ"
    model = octavo.load_model(tmp_path)
    mine = values_in(model)
    assert str(model.model.layers[1].mlp.down_proj.weight.format) == "uint4:g64" and len(values) == 14
    assert all(same_bits(mine[name], value) for name, value in values.items())


def made(rng):
    group = rng.choice((32, 64, -1))
    return layer((32, 64), generator(rng.randrange(1 << 30)), group)[0], settings(group)


KEYS = ("checkpoint_format", "format", "backend", "w_bit", "q_group_size")


def test_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 20, 400, KEYS)


@pytest.mark.slow
def test_ten_thousand_damaged_weights_are_refused_by_name_or_read():
    attack(weights_of, made, 21, 10_000, KEYS)


@pytest.mark.slow
def test_a_million_values_are_those_of_the_definition():
    parts, values = layer((1024, 1024), generator(5), 128)
    weight = weight_of(weights_of, parts, settings(128))
    assert same_bits(weight.decode(), values) and same_bits(weight.carry(torch.float16).decode(), values)
