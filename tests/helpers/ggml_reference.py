"""Values of ggml's blocks by their definition, one element after the other: slow, and readable beside ggml's text.

Every operation is rounded to float32, from left to right.
"""

import struct

import numpy as np

F = np.float32
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _half(data, at):
    return F(struct.unpack_from("<e", data, at)[0])


def _int8(byte):
    return byte - 256 if byte > 127 else byte


def _e2m1(code):
    return F(-E2M1[code & 7] if code & 8 else E2M1[code])


def _e4m3(byte):
    exponent, fraction = byte >> 3 & 15, byte & 7
    if byte == 0x7F:
        return F(0)
    return F(fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def _nibble(qs, i):
    return qs[i % 16] >> 4 * (i // 16) & 15


def _five(qh, qs, i):
    return _nibble(qs, i) | (int.from_bytes(qh, "little") >> i & 1) << 4


def _places(i):
    return i // 128, i % 128 // 32, i % 32


def _two(qs, i):
    n, j, l = _places(i)  # noqa: E741 - ggml's names
    return qs[32 * n + l] >> 2 * j & 3


def _q2_k(b, i):
    scale = b[i // 16]
    return (_half(b, 80) * F(scale & 15)) * F(_two(b[16:80], i)) - _half(b, 82) * F(scale >> 4)


def _q3_k(b, i):
    (n, j, l), k, s = _places(i), i // 16, b[96:108]  # noqa: E741
    scale = (s[k % 8] >> 4 * (k // 8) & 15) | (s[8 + k % 4] >> 2 * (k // 4) & 3) << 4
    code = _two(b[32:96], i) - (0 if b[l] >> (4 * n + j) & 1 else 4)
    return (_half(b, 108) * F(scale - 32)) * F(code)


def _k(b, i, code):
    k, s = i // 32, b[4:16]
    if k < 4:
        scale, least = s[k] & 63, s[k + 4] & 63
    else:
        scale, least = s[k + 4] & 15 | s[k - 4] >> 6 << 4, s[k + 4] >> 4 | s[k] >> 6 << 4
    return (_half(b, 0) * F(scale)) * F(code) - _half(b, 2) * F(least)


def _q4_k(b, i, qs=16):
    k = i // 32
    return _k(b, i, b[qs + 32 * (k // 2) + i % 32] >> 4 * (k % 2) & 15)


def _q5_k(b, i):
    k = i // 32
    low = b[48 + 32 * (k // 2) + i % 32] >> 4 * (k % 2) & 15
    return _k(b, i, low + 16 * (b[16 + i % 32] >> k & 1))


def _q6_k(b, i):
    n, j, l = _places(i)  # noqa: E741
    low = b[64 * n + 32 * (j & 1) + l] >> 4 * (j >> 1) & 15
    code = low | (b[128 + 32 * n + l] >> 2 * j & 3) << 4
    return (_half(b, 208) * F(_int8(b[192 + i // 16]))) * F(code - 32)


def _tq1_0(b, i):
    if i < 160:
        byte, digit = b[i % 32], i // 32
    elif i < 240:
        byte, digit = b[32 + (i - 160) % 16], (i - 160) // 16
    else:
        byte, digit = b[48 + (i - 240) % 4], (i - 240) // 4
    return _half(b, 52) * F(((byte * 3**digit) % 256 * 3 >> 8) - 1)


def _nvfp4(b, i):
    part = i // 16
    return _e4m3(b[part]) * _e2m1(b[4 + 8 * part + i % 8] >> 4 * (i % 16 // 8) & 15)


def _mxfp4(b, i):
    return F(2) * _e2m1(_nibble(b[1:], i)) * F(2.0 ** (b[0] - 128))


VALUES = {
    "F32": lambda b, i: F(struct.unpack("<f", b)[0]),
    "F16": lambda b, i: _half(b, 0),
    "BF16": lambda b, i: F(struct.unpack("<f", b"\0\0" + b)[0]),
    "Q4_0": lambda b, i: F(_nibble(b[2:], i) - 8) * _half(b, 0),
    "Q4_1": lambda b, i: F(_nibble(b[4:], i)) * _half(b, 0) + _half(b, 2),
    "Q5_0": lambda b, i: F(_five(b[2:6], b[6:], i) - 16) * _half(b, 0),
    "Q5_1": lambda b, i: F(_five(b[4:8], b[8:], i)) * _half(b, 0) + _half(b, 2),
    "Q8_0": lambda b, i: F(_int8(b[2 + i])) * _half(b, 0),
    "IQ4_NL": lambda b, i: _half(b, 0) * F(IQ4[_nibble(b[2:], i)]),
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "TQ1_0": _tq1_0,
    "TQ2_0": lambda b, i: _half(b, 64) * F(_two(b[:64], i) - 1),
    "Q1_0": lambda b, i: _half(b, 0) if b[2 + i // 8] >> i % 8 & 1 else -_half(b, 0),
    "Q2_0": lambda b, i: F((b[2 + i // 4] >> 2 * (i % 4) & 3) - 1) * _half(b, 0),
}
"""Element ``i`` of a block, by the names of types."""


def decoded(blocks, kind):
    """The values of uint8 blocks ``[n, bytes]`` as float32 ``[n, elements]``."""
    with np.errstate(all="ignore"):
        return np.array([[VALUES[kind.name](bytes(b), i) for i in range(kind.elements)] for b in blocks], np.float32)
