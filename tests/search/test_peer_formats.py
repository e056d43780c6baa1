"""Formats of ggml against its documented formulas, block by block, and what a compression does with peers."""

import math
import sys

import numpy as np
import octavo
import pytest
import torch
from octavo.errors import ConfigError, ShapeError
from octavo.search import ggml
from octavo.search.peer_formats import peers
from octavo.search.peers import nearest, peer_bytes, peer_model
from torch import nn

F = np.float32


def matrix(rows=6, columns=512, seed=0):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-3, 1, rows)[:, None]
    x[1, :64] = 0
    x[2, :32] = 0.25
    return x


def half(value):
    return F(np.float16(value))


def by_formula(block, name):
    """One block of 32 values, one after the other, as ggml's reference loops do."""
    x = [F(value) for value in block]
    if name in ("q4_0", "q5_0"):
        levels = {"q4_0": 8, "q5_0": 16}[name]
        largest = F(0)
        for value in x:
            if abs(value) > abs(largest):
                largest = value
        scale = largest / F(-levels)
        inverse = F(1) / scale if scale else F(0)
        codes = [min(2 * levels - 1, int(value * inverse + F(levels + 0.5))) for value in x]
        return [F(code - levels) * half(scale) for code in codes]
    if name in ("q4_1", "q5_1"):
        most, least = {"q4_1": 15, "q5_1": 31}[name], min(x)
        scale = (max(x) - least) / F(most)
        inverse = F(1) / scale if scale else F(0)
        codes = [min(most, int((value - least) * inverse + F(0.5))) for value in x]
        return [F(code) * half(scale) + half(least) for code in codes]
    scale = F(max(abs(value) for value in x)) / F(127)
    inverse = F(1) / scale if scale else F(0)
    rounded = [value * inverse for value in x]
    return [F(math.copysign(math.floor(abs(value) + F(0.5)), value)) * half(scale) for value in rounded]


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_values_are_those_of_the_formula(name):
    x = matrix(columns=64)
    expected = [by_formula(block, name) for block in x.reshape(-1, 32).numpy()]
    assert np.array_equal(ggml.rounded(x, name).reshape(-1, 32).numpy(), np.array(expected, dtype=F))


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_values_are_those_of_its_own_package(name):
    gguf = pytest.importorskip("gguf")
    x = matrix()
    kind = gguf.GGMLQuantizationType[name.upper()]
    packed = gguf.quants.quantize(x.numpy(), kind)
    assert packed.nbytes == ggml.nbytes((6, 512), name)
    assert np.array_equal(gguf.quants.dequantize(packed, kind), ggml.rounded(x, name).numpy())


@pytest.mark.parametrize("name, groups", [("q6_K", 16), ("q5_K", 8), ("q4_K", 8)])
def test_k_formats_hold_few_values_a_group_and_lose_less_than_one_scale(name, groups):
    x = matrix()
    values = ggml.rounded(x, name)
    levels = {"q6_K": 64, "q5_K": 32, "q4_K": 16}[name]
    for block in values.reshape(-1, 256 // groups):
        assert len(block.unique()) <= levels
    assert torch.isfinite(values).all() and (values[1, :64].abs() <= 1e-6).all()
    plain = {"q6_K": "q5_0", "q5_K": "q5_0", "q4_K": "q4_0"}[name]  # as many bytes or fewer, for the last two
    assert (values - x).square().sum() < (ggml.rounded(x, plain) - x).square().sum()


def test_rows_that_a_block_does_not_divide_take_a_smaller_one():
    x = matrix(columns=384)
    assert torch.equal(ggml.rounded(x, "q4_K"), ggml.rounded(x, "q5_0"))
    assert ggml.nbytes((6, 384), "q6_K") == ggml.nbytes((6, 384), "q8_0") == 6 * 12 * 34
    assert ggml.nbytes((6, 40), "q4_0") is None
    with pytest.raises(ShapeError, match="multiples of 32"):
        ggml.rounded(matrix(columns=40), "q4_0")
    with pytest.raises(ShapeError, match="q8_0"):
        ggml.nbytes((1, 32), "q9_9")


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 40), nn.ReLU(), nn.Linear(40, 8))


def test_bytes_are_those_of_blocks_and_float16_where_no_block_fits():
    model, names = net(), ["0.weight", "2.weight", "4.weight"]
    q4_0 = next(peer for peer in peers(["ggml"])[0] if peer.name == "q4_0")
    rest = sum(layer.bias.nbytes for layer in (model[0], model[2], model[4]))
    assert peer_bytes(model, q4_0, names) == rest + (64 * 96 + 96 * 40) * 18 // 32 + 2 * 40 * 8
    made = peer_model(model, q4_0, names)
    assert torch.equal(made[0].weight, ggml.rounded(model[0].weight, "q4_0"))
    assert torch.equal(made[4].weight, model[4].weight.half().float())
    assert torch.equal(model[0].weight, net()[0].weight)


def test_peers_are_next_to_the_bytes_that_are_asked_for():
    model, names = net(), ["0.weight", "2.weight"]
    found = peers(["ggml"])[0]
    sizes = {peer.name: peer_bytes(model, peer, names) for peer in found}
    below, above = nearest(model, found, sizes["q4_1"], names)
    assert (below[0].name, below[1]) == ("q4_1", sizes["q4_1"])
    assert above[1] == min(size for size in sizes.values() if size > sizes["q4_1"])
    assert [peer.name for peer, _ in nearest(model, found, 1, names)] == ["q4_0"]


def test_a_compression_shows_peers_beside_its_own():
    batches = [torch.randn(8, 64, generator=torch.Generator().manual_seed(place)) for place in range(6)]
    found = octavo.compress_model(
        net(), 7.2, data=batches, formats=["mxint8", "int4:g32"], peers=peers(["ggml"])[0], progress=False
    )
    row = next(row for row in found.report["metrics"] if row["split"] == "validation")
    assert [label.partition(",")[0] for label in row["others"] if label.startswith("ggml")]
    points = [point for point in found.report["front"]["points"] if point["series"] == "peer"]
    assert points and all(point["measured"]["value"] >= 0 and not point.get("chosen") for point in points)
    assert found.found.chosen in found.found.trials


def test_a_library_that_is_absent_is_told(monkeypatch):
    from importlib import metadata

    from octavo.search import peer_formats

    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(peer_formats, "version", version)
    found, notes = peers()
    assert {peer.library for peer in found} == {"ggml"} and "torchao is not installed" in notes[0]
    with pytest.raises(ConfigError, match="ggml, torchao"):
        peers(["tflite"])


@pytest.mark.skipif("torchao" not in sys.modules and not __import__("importlib.util").util.find_spec("torchao"),
                    reason="needs torchao")  # fmt: skip
def test_values_of_torchao_are_its_own():
    found, _ = peers(["torchao"])
    x = matrix()
    losses = [float((peer.rounded(x) - x).square().sum()) for peer in found]
    assert losses == sorted(losses) and found[0].nbytes((6, 512)) == 6 * 16 * 34
