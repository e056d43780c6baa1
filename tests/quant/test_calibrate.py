"""Calibrators: statistics that no order changes, and scales against brute force."""

import math

import octavo
import pytest
import torch
from helpers.models import spec
from helpers.values import normal
from hypothesis import given
from hypothesis import strategies as st
from octavo import CalibrationError, Format, FormatError, NonFiniteError
from octavo.graph.tensor_statistics import Statistics
from octavo.quant.activation_scales import activation_scales, quantize_to, range_of, scales_of
from octavo.quant.weight_scales import weight_scales

# A value of the histogram stands for those within half a bin, whose width is 2^-10 of its binade.
HISTOGRAM = 2**-10

SINGLE = ["int8", "int4", "int2", "uint8", "uint4", "uint12", "fixed8", "fixed4", "ufixed8", "binary", "ternary"]
GROUPED = ["int4", "int4:channel", "int4:g32", "int3:g20", "uint4:g32", "uint8:channel", "fixed6:channel", "fixed8", "nf4", "nf3/20", "binary2:channel", "ternary:channel"]  # fmt: skip


def heavy(*shape, seed=0):
    """Activations with outliers, as of a transformer."""
    return normal(*shape, seed=seed) * normal(*shape, seed=seed + 1).exp()


def seen_of(*tensors):
    seen = Statistics()
    for x in tensors:
        seen.add(x)
    return seen


def calibrated(text, method, x, argument=None):
    return activation_scales(spec(text, method, argument), seen_of(x), "x")


def error(text, parts, x):
    return float((quantize_to(x, Format(text), parts).double() - x).square().sum())


# --- statistics -------------------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    seed=st.integers(0, 99),
)
def test_statistics_do_not_depend_on_order_and_batches(values, cuts, seed):
    x = torch.tensor(values)
    shuffled = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    whole, parts = seen_of(x), seen_of(*shuffled.tensor_split(sorted(cuts)))
    assert (whole.low, whole.high, whole.count) == (parts.low, parts.high, parts.count)
    assert all(torch.equal(a, b) for a, b in zip(whole.histogram(), parts.histogram(), strict=True))


@given(values=st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=60))
def test_the_histogram_holds_every_value_within_its_stated_error(values):
    x = torch.tensor(values)
    seen = seen_of(x)
    middles, counts = seen.histogram()
    assert (seen.low, seen.high, seen.count) == (float(x.min()), float(x.max()), len(x)) and counts.sum() == len(x)
    stands_for = middles.repeat_interleave(counts).double()
    small = 2.0**-14 * float(x.abs().max()) + 2.0**-149  # middles are float32
    assert ((stands_for - x.double().sort().values).abs() <= HISTOGRAM * x.double().sort().values.abs() + small).all()


@pytest.mark.parametrize(("value", "told"), [(float("nan"), "NaN"), (float("inf"), "infinity"), (-float("inf"), "infinity")])  # fmt: skip
def test_what_is_not_finite_is_refused_by_name(value, told):
    with pytest.raises(NonFiniteError, match=f"head: input: {told} among 3"):
        Statistics().add(torch.tensor([1.0, value, 2.0]), "head: input")


# --- activations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SINGLE[:9])
@pytest.mark.parametrize("sign", [None, 1, -1])
def test_minmax_is_the_codecs_own_rule(text, sign):
    x = heavy(40, 64) if sign is None else sign * heavy(40, 64).abs()
    packed = octavo.encode(x, text)
    scales, zeros = calibrated(text, "minmax", x)
    assert torch.equal(scales, packed.scales)
    assert zeros is None or torch.equal(zeros, packed.zeros)


@pytest.mark.parametrize("share", [0.9, 0.999, 1.0])
def test_quantile_keeps_its_share_of_magnitudes(share):
    x = heavy(100, 64)
    low, high = range_of(Format("int8"), *calibrated("int8", "quantile", x, share))
    ranked = x.abs().flatten().sort().values
    wanted = float(ranked[math.ceil(share * len(ranked)) - 1])
    assert high == -low and high == pytest.approx(wanted, rel=HISTOGRAM)


def test_quantile_of_asymmetric_formats_cuts_both_ends_alike():
    x = normal(1000, 64) + 1
    low, high = range_of(Format("uint8"), *calibrated("uint8", "quantile", x, 0.98))
    step = (high - low) / 255
    assert low == pytest.approx(float(x.quantile(0.01)), abs=step)
    assert high == pytest.approx(float(x.quantile(0.99)), abs=step)


@pytest.mark.parametrize("text", SINGLE)
@pytest.mark.parametrize("positive", [False, True])
def test_mse_finds_what_a_fine_search_finds(text, positive):
    """Against 800 ranges; errors are those of the values, not of the histogram."""
    x = heavy(50, 64).abs() if positive else heavy(50, 64)
    found = error(text, calibrated(text, "mse", x), x)
    low, high = min(float(x.min()), 0.0), float(x.max())
    shares = [2 ** (-step / 100) for step in range(800)]
    best = min(error(text, scales_of(Format(text), (low * share, high * share)), x) for share in shares)
    assert found <= best * 1.01
    assert found <= error(text, calibrated(text, "minmax", x), x)


def test_kl_cuts_outliers_and_nothing_else():
    x = normal(200, 64)
    spoiled = x.clone()
    spoiled[0, 0] = 60.0
    assert range_of(Format("int8"), *calibrated("int8", "kl", spoiled))[1] < 0.3 * 60
    even = torch.linspace(-1, 1, 4096 * 4)
    assert range_of(Format("int8"), *calibrated("int8", "kl", even))[1] > 0.98


def test_kl_is_the_rule_of_its_source():
    """Written out with loops, for magnitudes: histogram, clip, quantize, expand, compare."""
    x = heavy(100, 64)
    width, half = 2 * float(x.abs().max()) / 4096, 2048
    values, counts = seen_of(x).histogram()
    masses = [0.0] * 4096
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        masses[min(max(math.floor(value / width) + half, 0), 4095)] += count
    best, chosen = math.inf, None
    for place in [*range(2048 - 16, 127, -16)]:
        end = place * width
        inside = [i for i in range(4096) if abs((i - half + 0.5) * width) <= end]
        kept = [masses[i] for i in inside]
        clipped = list(kept)
        clipped[0] += sum(masses[: inside[0]])
        clipped[-1] += sum(masses[inside[-1] + 1 :])
        codes = octavo.quantize(torch.tensor([(i - half + 0.5) * width for i in inside]), "int8", scales=scales_of(Format("int8"), (-end, end))[0])  # fmt: skip
        groups: dict[float, list[int]] = {}
        for position, code in enumerate(codes.tolist()):
            groups.setdefault(code, []).append(position)
        spread = [0.0] * len(kept)
        for members in groups.values():
            filled = [m for m in members if kept[m] > 0]
            for m in filled:
                spread[m] = sum(kept[n] for n in members) / len(filled)
        total, told = sum(spread), sum(clipped)
        divergence = sum(
            p / told * math.log((p / told) / max(q / total, 1e-9)) for p, q in zip(clipped, spread, strict=True) if p
        )
        if divergence < best:
            best, chosen = divergence, end
    assert range_of(Format("int8"), *calibrated("int8", "kl", x))[1] == pytest.approx(chosen, rel=1e-6)


@pytest.mark.parametrize("text", SINGLE)
def test_a_range_and_its_scales_are_the_same(text):
    fmt = Format(text)
    parts = scales_of(fmt, (-1.7, 3.1))
    again = scales_of(fmt, range_of(fmt, *parts))
    torch.testing.assert_close(again[0], parts[0], rtol=1e-6, atol=0)
    assert parts[1] is None or torch.equal(again[1], parts[1])


def test_zeros_give_a_scale_of_their_own():
    scales, _ = calibrated("int8", "mse", torch.zeros(4))
    assert torch.equal(scales, octavo.encode(torch.tensor([1.0]), "int8").scales)


def test_what_cannot_be_calibrated_says_what_can():
    for text in ("int8:channel", "mxint8", "e4m3", "binary2", "nf4"):
        with pytest.raises(FormatError, match=r"head: input: .* take intW, uintW or fixedW, or leave out @mse"):
            activation_scales(spec(text, "mse"), seen_of(normal(4)), "head: input")
    with pytest.raises(CalibrationError, match=r"head: input: .* never called"):
        activation_scales(spec("int8", "mse"), Statistics(), "head: input")


# --- weights ----------------------------------------------------------------------------------------------------------


def group_errors(text, x, parts):
    """Squared errors of groups, in float64, by a loop."""
    fmt = Format(text)
    rounded = torch.ops.octavo.quantize_plain.default(x, text, -1, "floor", *parts).double()
    squares = (rounded - x.double()).square()
    if fmt.granularity == "tensor":
        return squares.sum()[None]
    return torch.stack([part.sum() for row in squares for part in row.split(fmt.block or len(row))])


@pytest.mark.parametrize("text", GROUPED)
@given(seed=st.integers(0, 99), tails=st.booleans())
def test_mse_is_never_worse_than_minmax_in_any_group(text, seed, tails):
    x = (heavy if tails else normal)(6, 70, seed=seed)
    minmax = group_errors(text, x, weight_scales(spec(text, "minmax"), x, "w"))
    mse = group_errors(text, x, weight_scales(spec(text, "mse"), x, "w"))
    assert (mse <= minmax).all()


@pytest.mark.parametrize("text", ["int4:channel", "int3:g20", "nf4", "ternary:channel", "fixed6:channel"])
def test_mse_of_weights_is_near_what_a_fine_search_finds(text):
    x = heavy(8, 70)
    mse = weight_scales(spec(text, "mse"), x, "w")
    start = octavo.encode(x, text).scales
    shares = range(8) if start.dtype == torch.int8 else [2 ** (step / 40) for step in range(-120, 40)]
    tried = [(start + s if start.dtype == torch.int8 else (start.float() * s).to(start.dtype)) for s in shares]
    best = torch.stack([group_errors(text, x, (scales, None, None)) for scales in tried]).amin(0)
    assert group_errors(text, x, mse).sum() <= best.sum() * 1.03


@pytest.mark.parametrize("text", ["int4", "int4:channel", "int4:g32", "uint4:g32"])
def test_quantile_of_weights_is_the_rule_over_what_it_keeps(text):
    x, fmt = heavy(5, 70), Format(text)
    size = {"tensor": x.numel(), "channel": 70}.get(fmt.granularity, fmt.block)
    clipped = []
    for row in [x.flatten()] if fmt.granularity == "tensor" else x:
        for part in row.split(size):
            limit = part.abs().sort().values[math.ceil(0.9 * len(part)) - 1]
            clipped.append(part.clamp(-limit, limit))
    packed = octavo.encode(torch.cat(clipped).view_as(x), text)
    scales, zeros, _ = weight_scales(spec(text, "quantile", 0.9), x, "w")
    assert torch.equal(scales, packed.scales)
    assert zeros is None or torch.equal(zeros, packed.zeros)


def test_kl_of_a_weight_is_that_of_an_activation():
    x = heavy(20, 70)
    assert torch.equal(weight_scales(spec("int4", "kl"), x, "w")[0], calibrated("int4", "kl", x)[0])


def test_weights_that_cannot_be_calibrated_say_what_can():
    for text, method, told in (
        ("e4m3", "mse", "no scale to calibrate; leave out @mse"),
        ("mxint8", "mse", "'mxint8@ceil', 'mxint8@mse' as the rule"),
        ("int4:channel", "kl", "take @mse for channels and groups"),
    ):
        with pytest.raises(FormatError, match=f"head: weight: .*{told}"):
            weight_scales(spec(text, method), normal(4, 64), "head: weight")
