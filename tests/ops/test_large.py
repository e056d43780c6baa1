"""Results too large for the caches are written past them, and fresh ones lie in huge pages: the bits are the same."""

import octavo
import pytest
import torch
from helpers.quick import spread
from helpers.simd import at_level, available_levels
from octavo import _core

ops = torch.ops.octavo
STREAMED = 8 << 20
"""Elements from which the core writes float32 past the caches."""


@pytest.fixture(scope="module")
def values():
    """Rows of an odd length: groups begin at addresses of every kind."""
    return torch.randn(3, STREAMED // 3 + 5, generator=torch.Generator().manual_seed(0))


def results(x, text):
    packed = octavo.encode(x, text)
    yield packed.codes, packed.scales
    yield octavo.quantize(x, text), octavo.decode(packed)
    yield octavo.quantize(x, text, out=torch.empty_like(x)), octavo.decode(packed, out=torch.empty_like(x))
    yield (ops.quantize_backward(x, x, text)[0],)


@pytest.mark.parametrize("text", spread(["mxfp4", "mxint8", "nvfp4", "int4:g32", "fixed8"]))
def test_large_results_have_the_bits_of_scalar_code(values, text):
    with at_level("scalar"):
        wanted = list(results(values, text))
    for level in available_levels()[1:]:
        with at_level(level):
            for found, reference in zip(results(values, text), wanted, strict=True):
                assert all(map(torch.equal, found, reference)), level


@pytest.mark.parametrize("rule", ["floor", "ceil", "mse"])
@pytest.mark.parametrize("text", ["nvfp4", "mxint8", "mxfp4", "mxfp8e4m3", "bfp8/16"])
def test_sixteen_blocks_at_a_time_have_the_bits_of_scalar_code(text, rule):
    """Whole batches of blocks and parts of them, of magnitudes far apart, some of zeros, ties and values at the ends."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 1000, generator=generator) * torch.exp2(torch.randint(-60, 60, (40, 1), generator=generator))
    x[8:16] = torch.exp2(torch.randint(-9, 9, (8, 1000), generator=generator)) * 1.5  # halfway between codes
    x[16:20] *= torch.exp2(torch.randint(-20, 20, (4, 1000), generator=generator))
    x[20, :500], x[21, ::2], x[22], x[23, 7] = 0, 1e-41, 3e-39, 3.4e38
    for rows in (x, x[:8], x[8:20].contiguous(), x[20:24].contiguous()):  # nvfp4 has a scale of them all
        with at_level("scalar"):
            packed = octavo.encode(rows, text, scale=rule)
            wanted = packed.codes, packed.scales, octavo.quantize(rows, text, scale=rule)
        for level in available_levels()[1:]:
            with at_level(level):
                packed = octavo.encode(rows, text, scale=rule)
                found = packed.codes, packed.scales, octavo.quantize(rows, text, scale=rule)
            assert all(map(torch.equal, found, wanted)), level


@pytest.mark.parametrize("text", ["fixed8", "ufixed8"])
@pytest.mark.parametrize("places", [(), (0,), (-1,), (100_000, 40_000, 20), (30_000, 60_000, -1)])
def test_one_scale_fits_a_tensor_wherever_its_largest_values_lie(text, places):
    """Codes are written while values are read for the first time, with a scale that later ones may prove wrong."""
    x = torch.rand(131_077, generator=torch.Generator().manual_seed(5))
    for i, place in enumerate(places):
        x[place] = 3.0 * 8**i
    infinite = torch.where(torch.arange(len(x)) == 77_777, torch.inf, x)
    wanted, before = octavo.quantize(x, text), _core.num_threads()
    try:
        for threads in (1, 2, 3):
            _core.set_num_threads(threads)
            assert torch.equal(octavo.decode(octavo.encode(x, text)), wanted), threads
            with pytest.raises(octavo.NonFiniteError, match="77777"):
                octavo.encode(infinite, text)
    finally:
        _core.set_num_threads(before)


def test_large_outputs_at_any_address_have_the_same_bits(values):
    x = values[:1]
    packed = octavo.encode(torch.cat([x, x, x, x], 1), "mxint8")
    wanted = octavo.decode(packed)
    storage = torch.full((wanted.numel() + 16,), 7.0)
    for offset in (0, 1, 8, 15):
        out = storage[offset : offset + wanted.numel()].view(wanted.shape)
        assert torch.equal(octavo.decode(packed, out=out), wanted)
        assert (storage[:offset] == 7).all() and (storage[offset + wanted.numel() :] == 7).all()
        storage.fill_(7)


def test_advice_about_memory_changes_nothing_in_it():
    x = torch.arange(3 << 20)
    _core._huge_pages(x.data_ptr(), x.nbytes)
    assert torch.equal(x, torch.arange(3 << 20))
    assert _core._huge_pages(0, 1 << 30) is False and _core._huge_pages(x.data_ptr(), 100) is False
