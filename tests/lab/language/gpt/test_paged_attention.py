"""Attention over pages: its definition against torch's own attention, and what Python hands to the kernel of a GPU."""

import ctypes
import math

import octavo
import pytest
import torch
from octavo import DTypeError, ShapeError, _core
from octavo.errors import FormatError, RangeError
from octavo.lab.language.gpt import paged_attention as module
from octavo.lab.language.gpt.paged_attention import PAGE, Pages, paged_attention, plain_paged_attention
from octavo.lab.language.gpt.paged_cache import PagedCache
from torch.nn.functional import scaled_dot_product_attention

LENGTHS = (1, 63, 64, 65, 200, 0)


def cached(heads=2, size=16, values=0, dtype=torch.float32, format=None, lengths=LENGTHS, page=PAGE):
    """A cache of random rows of these lengths, whose pages lie in another order, and the rows as they were written."""
    torch.manual_seed(0)
    cache = PagedCache([(heads, size, values)], 20, page=page, dtype=dtype, format=format)
    sequences = [cache.join() for _ in lengths]
    for position in range(0, max(lengths), page):  # in turns
        for sequence, length in zip(sequences, lengths, strict=True):
            cache.grow(sequence, max(0, min(page, length - position)))
    rows = []
    for sequence, length in zip(sequences, lengths, strict=True):
        key, value = torch.randn(2, heads, length, size).to(dtype)
        if length:
            cache.write(sequence, 0, 0, key, None if values else value)
        rows.append((key, key[..., :values] if values else value))
    return cache, sequences, rows


def expected(query, rows, scale, window):
    """Attention of each sequence by torch's own operation; zeros for one without rows."""
    results = []
    for one, (key, value) in zip(query, rows, strict=True):
        if window:
            key, value = key[:, -window:], value[:, -window:]
        group = query.shape[1] // len(key)
        key, value = (part.repeat_interleave(group, 0) for part in (key, value))
        mixed = scaled_dot_product_attention(one[:, None], key, value, scale=scale)[:, 0]
        results.append(mixed if key.shape[1] else torch.zeros(query.shape[1], value.shape[-1]))
    return torch.stack(results)


@pytest.mark.parametrize(("heads", "values"), [(2, 0), (1, 0), (1, 12)])
@pytest.mark.parametrize("window", [0, 1, 70])
def test_the_definition_is_attention(heads, values, window):
    cache, sequences, rows = cached(heads, values=values)
    query = torch.randn(len(rows), 6, 16)
    found = paged_attention(query, *cache.pages(0), *cache.tables(sequences), scale=0.3, window=window)
    assert torch.allclose(found, expected(query, rows, 0.3, window), atol=1e-5)
    wide = Pages(cache.pages(0)[0].rows.double(), 16)
    exact = plain_paged_attention(query.double(), wide, 4, *cache.tables(sequences), scale=0.3)
    assert exact.dtype == torch.float64 and exact.shape == (len(rows), 6, 4)


def test_rows_behind_a_sequence_count_for_nothing():
    cache, sequences, _ = cached()
    query = torch.randn(len(sequences), 6, 16)
    wanted = paged_attention(query, *cache.pages(0), *cache.tables(sequences), scale=0.3)
    for sequence, length in zip(sequences, LENGTHS, strict=True):
        for pages in cache.pages(0):
            if length % PAGE:
                pages.rows[cache._tables[sequence][-1], :, length % PAGE :] = math.nan
    found = paged_attention(query, *cache.pages(0), *cache.tables(sequences), scale=0.3)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("format", ["mxint8", "int8:g32", "mxfp4", "mxfp8e4m3"])
@pytest.mark.parametrize("values", [0, 32])
def test_packed_pages_are_decoded(format, values):
    cache, sequences, rows = cached(1, 48, values, format=format)
    query = torch.randn(len(rows), 3, 48)
    found = paged_attention(query, *cache.pages(0), *cache.tables(sequences), scale=0.1)
    rounded = [octavo.quantize(key, format) if key.numel() else key for key, _ in rows]
    own = [octavo.quantize(value, format) if value.numel() else value for _, value in rows]
    pairs = [(key, key[..., :values] if values else value) for key, value in zip(rounded, own, strict=True)]
    assert torch.allclose(found, expected(query, pairs, 0.1, 0), atol=1e-5)
    key, value = cache.rows(sequences[4:5], 0)
    assert torch.equal(key[0], pairs[4][0]) and torch.equal(value[0], pairs[4][1])
    bits = sum(part.numel() * part.itemsize for part in cache._pools[0]) * 8 / (20 * PAGE * 48 * (1 if values else 2))
    assert bits < 10


@pytest.mark.parametrize("format", ["int8:channel", "uint4:g32", "nvfp4", "int8"])
def test_formats_whose_rows_are_not_apart_are_refused(format):
    with pytest.raises(FormatError, match="packs no cache; accepted are formats with a scale for each block"):
        PagedCache([(1, 32)], 2, format=format)


def test_values_that_are_missing_are_refused():
    cache, (sequence, *_), _ = cached()
    with pytest.raises(RangeError, match="layer 0 has values of its own"):
        cache.write(sequence, 0, 0, torch.zeros(2, 1, 16))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"query": torch.ones(2, 3, 8)}, ShapeError, "with K a divisor of H"),
        ({"query": torch.ones(2, 4, 9)}, ShapeError, "accepted are"),
        ({"query": torch.ones(3, 4, 8)}, ShapeError, "for 3 sequences"),
        ({"query": torch.ones(2, 4, 8).half()}, DTypeError, "query is torch.float16, pages hold torch.float32"),
        ({"tables": torch.zeros(2, 3)}, DTypeError, "tables are torch.float32; accepted is int32"),
        ({"tables": torch.zeros(2, 0, dtype=torch.int32)}, ShapeError, "accepted are"),
        ({"values": 9}, ShapeError, "values are 9 numbers of 8"),
        ({"values": Pages(torch.ones(5, 2, 32, 8), 8)}, ShapeError, "equal pages, heads and formats"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error, text):
    keys = Pages(torch.ones(5, 2, PAGE, 8), 8)
    operands = {
        "query": torch.ones(2, 4, 8), "keys": keys, "values": keys, "tables": torch.zeros(2, 3, dtype=torch.int32),
        "lengths": torch.ones(2, dtype=torch.int32),
    } | changes  # fmt: skip
    with pytest.raises(error, match=text):
        paged_attention(*operands.values(), scale=1.0)


def test_the_operation_is_one_of_torch():
    cache, sequences, _ = cached()
    keys, values = cache.pages(0)
    operands = (torch.randn(len(LENGTHS), 4, 16), keys.rows, None, values.rows, None, *cache.tables(sequences), "", 16)
    torch.library.opcheck(torch.ops.octavo_lab.paged_attention.default, (*operands, 0.25, 0))
    packed, sequences, _ = cached(1, 32, 8, format="mxint8")
    keys, _ = packed.pages(0)
    operands = (torch.randn(len(LENGTHS), 4, 32), keys.rows, keys.scales, None, None, *packed.tables(sequences))
    torch.library.opcheck(torch.ops.octavo_lab.paged_attention.default, (*operands, "mxint8", 8, 0.25, 5))


class Kernel:
    """Takes what the boundary to a device takes, and computes it on the processor by the definition."""

    def __init__(self):
        self.shapes = []

    def __getattr__(self, name):
        return getattr(_core, name)

    def _cuda_attention_scratch(self, number, sizes, format):
        assert number == 0
        return 24 if sizes[3] % 8 == 0 and sizes[8] else None

    def _cuda_attention(self, on, sizes, format, query, pages, places, out, scale, scratch):
        assert on == (0, 5) and scratch
        self.shapes.append((sizes, format and str(format)))
        sequences, heads, key_heads, depth, values, latent, longest, window, code = sizes
        dtype = {1: torch.float16, 2: torch.bfloat16}[code]
        assert bool(pages[2]) == (not latent) and bool(pages[1]) == (format is not None)

        def rows(address, scales, size):
            if format is None:
                return Pages(torch_at(address, (20, key_heads, PAGE, size), dtype), size)
            codes = torch_at(address, (20, key_heads, PAGE, size), torch.uint8)
            return Pages(codes, size, str(format), torch_at(scales, (20, key_heads, PAGE, -(-size // 32)), torch.uint8))

        keys = rows(*pages[:2], depth)
        mixed = plain_paged_attention(
            torch_at(query, (sequences, heads, depth), dtype), keys, values if latent else rows(*pages[2:], values),
            torch_at(places[0], (sequences, longest), torch.int32), torch_at(places[1], (sequences,), torch.int32),
            scale=scale, window=window,
        )  # fmt: skip
        torch_at(out, (sequences, heads, values), dtype).copy_(mixed)


def torch_at(address, shape, dtype):
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


@pytest.mark.parametrize("format", [None, "mxint8"])
@pytest.mark.parametrize(("values", "heads"), [(0, 2), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_device_gets_the_same_call(monkeypatch, format, values, heads, dtype):
    """The definition stands in for the kernel, so that all of Python's part for a GPU runs."""
    kernel = Kernel()
    monkeypatch.setattr(module, "_core", kernel)
    monkeypatch.setattr(module, "place", lambda device: (0, 5))
    module._scratch.cache_clear()
    cache, sequences, _ = cached(heads, 16, values, dtype, format)
    keys, own = cache.pages(0)
    query = torch.randn(len(LENGTHS), 4, 16).to(dtype)
    parts = (None, None) if values else (own.rows, own.scales)
    operands = (query, keys.rows, keys.scales, *parts, *cache.tables(sequences), format or "", values or 16, 0.25, 70)
    found, wanted = module._cuda(*operands), module._plain(*operands)
    assert torch.equal(found, wanted) and found.dtype == dtype
    code = {torch.float16: 1, torch.bfloat16: 2}[dtype]
    assert kernel.shapes == [((6, 4, heads, 16, values or 16, bool(values), 4, 70, code), format)]
    # What no kernel takes is the definition.
    small = PagedCache([(1, 16)], 4, page=8, dtype=dtype)
    sequence = small.join()
    small.grow(sequence)
    keys, own = small.pages(0)
    operands = (query[:1], keys.rows, None, own.rows, None, *small.tables([sequence]), "", 16, 0.25, 0)
    assert torch.equal(module._cuda(*operands), module._plain(*operands)) and len(kernel.shapes) == 1
    module._scratch.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("format", [None, "mxint8", "int8:g32", "mxfp4"])
@pytest.mark.parametrize(("values", "heads", "size"), [(0, 2, 64), (128, 1, 160), (512, 1, 576)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 70])
def test_a_gpu_computes_the_definition(format, values, heads, size, dtype, window):
    cache, sequences, _ = cached(heads, size, values, dtype, format)
    query = torch.randn(len(LENGTHS), 12, size).to(dtype)
    keys, own = cache.pages(0)
    parts = (None, None) if values else (own.rows, own.scales)
    operands = (query, keys.rows, keys.scales, *parts, *cache.tables(sequences))
    rest = (format or "", values or size, size**-0.5, window)
    there = [None if part is None else part.cuda() for part in operands]
    found = torch.ops.octavo_lab.paged_attention(*there, *rest).cpu().float()
    wanted = torch.ops.octavo_lab.paged_attention(*operands, *rest).float()
    assert (found - wanted).abs().max() < (3e-3 if dtype == torch.float16 else 2e-2) * wanted.abs().max()
