"""Tensors to test with, always the same for the same arguments, and what equal means."""

import math

import numpy as np
import torch

KINDS = ["normal", "wide", "grid", "powers", "tiny", "huge", "sparse"]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of a normal distribution, drawn in float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sample(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Finite float32 values of one kind: where formats round, tie, carry, saturate and underflow."""
    n = int(np.prod(shape))
    if kind == "normal":
        x = rng.standard_normal(n)
    elif kind == "wide":  # every binade of float32, subnormals included
        x = rng.uniform(1, 2, n) * np.exp2(rng.uniform(-149, 127, n)) * rng.choice([-1, 1], n)
    elif kind == "grid":  # multiples of a power of two: exact values and ties
        x = rng.integers(-600, 600, n) * np.exp2(rng.integers(-6, 1))
    elif kind == "powers":
        x = np.exp2(rng.integers(-20, 20, n)) * rng.choice([-1.5, -1.0, -0.75, 0.75, 1.0, 1.5, 1.9999999], n)
    elif kind == "tiny":
        x = rng.integers(-40, 40, n) * 2.0**-149
    elif kind == "huge":
        x = rng.uniform(-1, 1, n) * 3.4e38
    elif kind == "sparse":
        x = rng.standard_normal(n) * (rng.random(n) < 0.1)
    else:
        raise ValueError(kind)
    return x.astype(np.float32).reshape(shape)


def random_tensor(rng, shape, kind, dtype="float32"):
    """A tensor of finite values of one of KINDS, ``bits`` (any bit pattern), or ``specials`` (some NaN and infinities)."""
    if kind == "bits":
        bits = rng.integers(0, 2**32, shape, dtype=np.uint32)
        if dtype == "float32":
            return torch.from_numpy(bits.view(np.float32))
        return torch.from_numpy((bits >> 16).astype(np.uint16).view(np.int16)).view(DTYPES[dtype])
    x = sample(rng, shape, "normal" if kind == "specials" else kind)
    x = torch.from_numpy(x).to(DTYPES[dtype])
    largest = torch.finfo(x.dtype).max
    x = x.clamp(-largest, largest)
    if kind == "specials":
        mark = torch.from_numpy(rng.random(shape))
        for at, special in ((0.97, math.nan), (0.94, math.inf), (0.91, -math.inf)):
            x[(mark > at) & (mark < at + 0.03)] = special
    return x


def assert_same_bits(got, wanted):
    """Every bit, the sign of zero included; NaN is NaN, whatever its payload."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    bits = torch.int32 if got.dtype == torch.float32 else torch.int16
    nan = torch.isnan(wanted).ravel()
    assert torch.equal(torch.isnan(got).ravel(), nan)
    got, wanted = got.contiguous().view(bits), wanted.contiguous().view(bits)
    wrong = torch.nonzero((got.ravel() != wanted.ravel()) & ~nan).ravel()
    assert wrong.numel() == 0, f"{wrong.numel()} differ, first at {wrong[0]}"


def assert_same_values(got, wanted):
    """Equal bits, except that the sign of a zero carries no meaning."""
    got, wanted = np.asarray(got, np.float32) + 0.0, np.asarray(wanted, np.float32) + 0.0
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    ok = ~np.isnan(wanted)
    np.testing.assert_array_equal(got[ok].view(np.uint32), wanted[ok].view(np.uint32))
