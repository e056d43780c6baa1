"""The codecs against the brute-force oracle: 0 differing bits, for every format, rule, dtype and SIMD level."""

import numpy as np
import octavo
import pytest
import torch
from helpers import oracle
from helpers.codecs import assert_same_parts, takes
from helpers.quick import spread
from helpers.simd import at_level, available_levels
from helpers.values import DTYPES, KINDS, assert_same_values, sample

SHAPES = [(5, 67), (3, 96), (2, 3, 33), (1, 1), (200,), ()]


def narrowed(x, dtype):
    """``x`` as a tensor of ``dtype``, and the float32 array of the values it then holds."""
    with np.errstate(over="ignore"):
        t = torch.from_numpy(np.array(x)).to(DTYPES[dtype])
    t = torch.where(torch.isinf(t), torch.finfo(t.dtype).max, t) if np.isfinite(x).all() else t
    return t, t.to(torch.float32).numpy()


def compare(x, text, rule, dtype, axis=-1):
    """At every SIMD level: the oracle takes longer than they do."""
    spec = oracle.parse(text)
    t, values = narrowed(x, dtype)
    wanted = oracle.encode(values, text, rule=rule, dtype=dtype, axis=axis)
    decoded = oracle.decode(wanted, text)
    for level in available_levels():
        with at_level(level):
            packed = octavo.encode(t, text, scale=rule, axis=axis)
            assert_same_parts(packed, wanted, spec)
            assert_same_values(octavo.decode(packed).float().numpy(), decoded)
            assert_same_values(octavo.quantize(t, text, scale=rule, axis=axis).float().numpy(), decoded)


@pytest.mark.parametrize("text", spread(oracle.EXAMPLES, 6))
def test_codes_scales_and_values_equal_the_oracle(text):
    rng = np.random.default_rng(list(text.encode()))
    for rule in oracle.rules(text):
        for kind in KINDS:
            for shape in SHAPES:
                if takes(text, shape):
                    compare(sample(rng, shape, kind), text, rule, "float32")


@pytest.mark.parametrize("text", spread(oracle.EXAMPLES))
def test_sixteen_bit_inputs_equal_the_oracle(text):
    for dtype in ("float16", "bfloat16"):
        rng = np.random.default_rng(list(text.encode()))
        for kind in KINDS:
            compare(sample(rng, (5, 67), kind), text, "floor", dtype)


@pytest.mark.parametrize("text", spread(oracle.EXAMPLES))
def test_every_axis_equals_the_oracle(text):
    rng = np.random.default_rng(list(text.encode()))
    for axis in (0, 1, -2, -1):
        compare(sample(rng, (7, 70, 5), "normal"), text, "floor", "float32", axis)
        compare(sample(rng, (7, 70, 5), "normal"), text, "floor", "bfloat16", axis)


@pytest.mark.parametrize(
    "text", ["binary:channel", "binary2:channel", "binary4", "int4:g32", "nf4", "nvfp4", "mxint8", "bfp8/16"]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_decoding_ends_for_scales_that_are_no_numbers(text, bad, simd):
    """Only a foreign file holds such scales."""
    packed = octavo.encode(torch.randn(2, 64), text)
    if packed.scales.is_floating_point():
        packed.scales.fill_(bad)
    else:
        packed.scales.fill_(255 if packed.format.scale_type == "e8m0" else 127)
    assert not torch.isfinite(octavo.decode(packed)).all()
