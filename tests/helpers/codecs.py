"""Scales for the codecs, and the parts of a packed tensor against those of the oracle."""

import numpy as np
import torch
from octavo import _core
from octavo.tensors.packed_tensor import part_shapes

from helpers import oracle


def takes(text, shape):
    return shape or oracle.parse(text).scope not in ("block", "group", "channel")


def own_scales(packed):
    """What makes ``quantize`` and ``encode`` use the scales of a PackedTensor."""
    if packed.format.scale_type is None:
        return {}
    parts = {"scales": packed.scales}
    if packed.format.core.has_zeros:
        parts["zeros"] = packed.unpack_zeros()
    if packed.format.core.has_levels:
        parts["levels"] = packed.levels
    return parts


def random_scales(text, shape, rng, axis=-1):
    """Scales of moderate size in storage form, zeros and levels, as keywords; empty for formats without scales."""
    spec = oracle.parse(text)
    _, wanted, _ = part_shapes(_core.Format(text), tuple(shape), axis)
    if spec.scale == "none":
        return {}
    if spec.scale == "F":
        parts = {"scales": rng.integers(-6, 10, wanted, dtype=np.int8)}
    elif spec.scale == "e8m0":
        parts = {"scales": rng.integers(115, 140, wanted, dtype=np.uint8)}
    elif spec.scale == "e4m3":
        parts = {"scales": rng.integers(1, 127, wanted, dtype=np.uint8), "levels": np.float32([0.37])}
    else:
        parts = {"scales": np.exp2(rng.uniform(-4, 4, wanted)).astype(spec.scale)}
    if spec.family == "uint":
        parts["zeros"] = rng.integers(0, 2**spec.width, wanted, dtype=np.int32)
    return {name: torch.from_numpy(part) for name, part in parts.items()}


def assert_same_parts(packed, wanted, spec):
    """Codes, scales, zeros and levels, bit for bit, and the packed bytes."""
    codes = packed.unpack().numpy().astype(np.int64) & (2**spec.width - 1)
    np.testing.assert_array_equal(codes.reshape(wanted.codes.shape), wanted.codes)
    if wanted.scales is not None:
        assert packed.scales.numpy().dtype == wanted.scales.dtype
        np.testing.assert_array_equal(packed.scales.numpy(), wanted.scales)
    if wanted.zeros is not None:
        np.testing.assert_array_equal(packed.unpack_zeros().numpy(), wanted.zeros)
    if wanted.levels is not None:
        np.testing.assert_array_equal(packed.levels.numpy(), wanted.levels)
    rows = wanted.codes.reshape(wanted.codes.shape or (1,))
    np.testing.assert_array_equal(packed.codes.numpy(), oracle.pack_bits(rows, spec.width).reshape(packed.codes.shape))
