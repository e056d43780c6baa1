"""Codes in words of 32 bits, as compressed-tensors packs them, and codes in rows of bytes.

Dense words are the code stream of FORMATS.md section 5. Sparse words, those of releases before 0.18, hold
``32 // bits`` codes each, and their highest bits are 0. Where ``bits`` divides 32 both are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo import _core
from octavo.interchange.compressed_tensors_layout import word_count

_CHUNK = 1 << 20  # codes that are unpacked at once, four bytes each


def rows_of_words(words: Tensor, count: int, bits: int, *, dense: bool) -> Tensor:
    """Return rows of words as code streams, uint8 ``[rows, ceil(count * bits / 8)]``; bits after the last code are 0.

    ``words``: int32, ``[rows, word_count]``.
    """
    if not dense and 32 % bits:
        return pack_codes(_sparse_codes(words, count, bits), bits)
    nbytes = -(-count * bits // 8)
    flat = words.reshape(-1).view(torch.uint8)
    stream = flat.view(len(words), 4 * words.shape[1])[:, :nbytes].contiguous()
    if count * bits % 8:
        stream[:, -1] &= (1 << count * bits % 8) - 1
    return stream


def words_of_rows(stream: Tensor, count: int, bits: int, *, dense: bool) -> Tensor:
    """Return code streams as rows of words: the inverse of :func:`rows_of_words`."""
    if not dense and 32 % bits:
        codes, each = unpack_codes(stream, count, bits), 32 // bits
        wide = torch.zeros(len(codes), word_count(count, bits, dense=False) * each, dtype=torch.int64)
        wide[:, :count] = codes
        shifts = bits * torch.arange(each)
        return (wide.unflatten(1, (-1, each)) << shifts).sum(2).to(torch.int32)
    padded = torch.zeros(len(stream), 4 * word_count(count, bits, dense=True), dtype=torch.uint8)
    padded[:, : stream.shape[1]] = stream
    return padded.view(torch.int32)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Return rows of codes, one an element, as code streams."""
    rows, count = codes.shape
    out = torch.empty(rows, -(-count * bits // 8), dtype=torch.uint8)
    step = max(_CHUNK // max(count, 1), 1)
    for first in range(0, rows if count else 0, step):
        wide = codes[first : first + step].to(torch.int32).contiguous()
        _core._pack(bits, len(wide), count, wide.data_ptr(), out[first : first + step].data_ptr())
    return out


def unpack_codes(stream: Tensor, count: int, bits: int) -> Tensor:
    """Return code streams as codes, uint8 ``[rows, count]``; up to 8 bits."""
    out = torch.empty(len(stream), count, dtype=torch.uint8)
    step = max(_CHUNK // max(count, 1), 1)
    for first in range(0, len(stream) if count else 0, step):
        rows = stream[first : first + step].contiguous()
        wide = torch.empty(len(rows), count, dtype=torch.int32)
        _core._unpack(bits, len(rows), count, rows.data_ptr(), wide.data_ptr())
        out[first : first + step] = wide
    return out


def flip_top_bits(stream: Tensor, count: int, bits: int) -> Tensor:
    """Return code streams with the highest bit of every code turned: offset codes as two's complement, and back."""
    if not stream.numel():
        return stream
    mask = pack_codes(torch.full((1, count), 1 << bits - 1, dtype=torch.uint8), bits)
    return stream ^ mask


def _sparse_codes(words: Tensor, count: int, bits: int) -> Tensor:
    each, most = 32 // bits, (1 << bits) - 1
    out = torch.empty(len(words), words.shape[1] * each, dtype=torch.uint8)
    shifts = bits * torch.arange(each, dtype=torch.int32)
    step = max(_CHUNK // max(out.shape[1], 1), 1)
    for first in range(0, len(words), step):
        codes = words[first : first + step].unsqueeze(2) >> shifts & most
        out[first : first + step] = codes.flatten(1)
    return out[:, :count]
