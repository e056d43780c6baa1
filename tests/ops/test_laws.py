"""The laws of FORMATS.md section 2, for every format: what is measured is what is stored and run, whatever runs it."""

import functools
import hashlib
import itertools
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import octavo
import pytest
import torch
from helpers import oracle
from helpers.codecs import assert_same_parts, own_scales, random_scales, takes
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.simd import at_level, available_levels
from helpers.values import DTYPES, KINDS, assert_same_bits, assert_same_values, random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo import NonFiniteError, PackedTensor, _core
from octavo.tensors.packed_tensor import SCALE_DTYPES, part_shapes

# Signalling NaN among the inputs: adding 0 to one, as assert_same_values does, is an invalid operation.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in add")

few = settings(max_examples=max(settings.default.max_examples // 5, 1))
THREADS = (1, 2, 3, 4)
CHUNK = 16_384  # elements that one unit of work or partial sum covers
LONG_ROW = 262_144  # elements of a row above which its scale is found by several threads


# ------------------------------------------------------------------------------------------------------------- helpers


LEVELS = available_levels()


@contextmanager
def with_threads(count):
    before = _core.num_threads()
    _core.set_num_threads(count)
    try:
        yield
    finally:
        _core.set_num_threads(before)


@dataclass
class Case:
    """A tensor to be: shape, values and dtype."""

    shape: tuple[int, ...]
    kind: str
    dtype: str
    seed: int

    def rng(self):
        return np.random.default_rng(self.seed)

    def tensor(self):
        return random_tensor(self.rng(), self.shape, self.kind, self.dtype)


shapes = st.one_of(
    st.tuples(st.integers(1, 200)),
    st.tuples(st.integers(1, 9), st.integers(1, 130)),
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40)),
)


def cases(kinds=KINDS, dtypes=tuple(DTYPES)):
    return st.builds(
        Case,
        shape=shapes,
        kind=st.sampled_from(kinds),
        dtype=st.sampled_from(dtypes),
        seed=st.integers(0, 2**32 - 1),
    )


ANY_KIND = [*KINDS, "bits", "specials"]
float32_cases = cases(dtypes=("float32",))


def rule_of(text, case):
    """One of the format's scale rules."""
    accepted = oracle.rules(text)
    return accepted[case.seed % len(accepted)]


def one_group(text, limit=96):
    """Length of a row that has one scale."""
    spec = oracle.parse(text)
    return min(spec.block, limit) if spec.scope == "block" else limit


def listed_values(text, scales=None, zeros=None, levels=None):
    """Values that the first group can represent, as float64, ascending."""
    spec = oracle.parse(text)
    if spec.family == "binary" and spec.scale != "none":
        sums = oracle.signed_sums(oracle._binary_levels(spec, scales))
        return np.unique(sums.reshape(-1, 2**spec.width)[0].astype(float))
    zero = 0 if zeros is None else zeros.ravel()[0]
    scaled = (oracle.grid(text)[1] - zero) * oracle.scale_values(spec, scales, levels).ravel()[0]
    return scaled + oracle.offset_values(spec, scales).ravel()[0]


# ----------------------------------------------------------------------------------------------- the codec's own laws


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=cases(ANY_KIND))
def test_quantize_equals_decode_of_encode(text, case):
    x, rule = case.tensor(), rule_of(text, case)
    axis = case.seed % len(case.shape)
    packed = octavo.encode(x, text, axis=axis, scale=rule, nonfinite="saturate")
    decoded = octavo.decode(packed)
    assert torch.isfinite(decoded).all()
    wanted = torch.where(torch.isnan(x), x, decoded)
    assert_same_bits(octavo.quantize(x, text, axis=axis, scale=rule), wanted)


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=cases(ANY_KIND))
def test_nonfinite_inputs_equal_the_oracle(text, case):
    """NaN takes no part in a scale and stays in place; infinities count as the dtype's largest value."""
    x, rule, spec = case.tensor(), rule_of(text, case), oracle.parse(text)
    values = x.float().numpy()
    for policy in ("saturate", "nan"):
        if policy == "nan" and not oracle.has_nan(spec):
            with pytest.raises(octavo.FormatError, match="cannot store NaN"):
                octavo.encode(x, text, nonfinite="nan")
            continue
        wanted = oracle.encode(values, text, rule=rule, dtype=case.dtype, nonfinite=policy)
        packed = octavo.encode(x, text, scale=rule, nonfinite=policy)
        assert_same_parts(packed, wanted, spec)
        assert_same_values(octavo.decode(packed).float().numpy(), oracle.decode(wanted, text))
    q = octavo.quantize(x, text, scale=rule)
    assert_same_values(q.float().numpy(), oracle.quantize(values, text, rule=rule, dtype=case.dtype))


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=float32_cases)
def test_quantize_is_idempotent_at_given_scales(text, case):
    rule = rule_of(text, case)
    packed = octavo.encode(case.tensor(), text, scale=rule)
    q = octavo.decode(packed)
    again = octavo.encode(q, text, **own_scales(packed))
    assert_same_bits(octavo.decode(again), q)
    assert_same_bits(octavo.quantize(q, text, **own_scales(packed)), q)


@pytest.mark.parametrize(
    "text",
    [t for t in EXAMPLES if oracle.parse(t).scale in ("none", "F", "e8m0") and oracle.parse(t).family != "binary"],
)
@few
@given(case=float32_cases)
def test_quantize_is_idempotent_at_chosen_scales(text, case):
    """Section 6 names fixed, MX, bfp, bm and blog; formats without scales have no choice."""
    rule = rule_of(text, case)
    q = octavo.quantize(case.tensor(), text, scale=rule)
    assert_same_bits(octavo.quantize(q, text, scale=rule), q)


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=cases())
def test_quantize_is_monotone(text, case):
    n, rule = one_group(text), rule_of(text, case)
    x, _ = random_tensor(case.rng(), (3, n), case.kind, case.dtype).sort(dim=-1)
    for row in x:  # one tensor has one scale here
        q = octavo.quantize(row, text, scale=rule).float().numpy()
        assert np.all(np.diff(q) >= 0)


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).width <= 16]))
def test_representable_values_are_kept(text):
    """values() times a scale, which may round to float32, gives the same bits back."""
    spec, rng = oracle.parse(text), np.random.default_rng(1)
    count = len(oracle.grid(text)[1])
    n = one_group(text, count)
    shape = (-(-count // n), n)
    for _ in range(4):
        parts = random_scales(text, shape, rng)
        if "scales" in parts:
            first = parts["scales"].view(-1, spec.levels)[0]
            parts["scales"][:] = first if spec.levels > 1 else first[0]
        if "zeros" in parts:
            parts["zeros"][:] = parts["zeros"].ravel()[0].clone()
        stored = {name: part.numpy() for name, part in parts.items()}
        values = oracle.to_float32(listed_values(text, **stored))
        x = np.full(shape, values[0], np.float32)
        x.flat[: len(values)] = values
        assert_same_values(octavo.quantize(torch.from_numpy(x), text, **parts).numpy(), x)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_values_beyond_the_range_saturate(text):
    spec, rng = oracle.parse(text), np.random.default_rng(2)
    n = one_group(text, 64)
    x = np.resize(np.float32([oracle.F32_MAX, -oracle.F32_MAX, np.inf, -np.inf]), n)
    parts = random_scales(text, (n,), rng)
    stored = {name: part.numpy() for name, part in parts.items()}
    if spec.width <= 16:
        lowest, *_, highest = listed_values(text, **stored)
    else:
        scale = oracle.scale_values(spec, stored.get("scales"), None).ravel()[0]
        lowest, highest = (bound * scale for bound in oracle._bounds(spec))
    wanted = oracle.to_float32(np.where(x > 0, highest, lowest))
    if highest >= oracle.F32_MAX:  # wider than float32: nothing saturates
        wanted = oracle.quantize(x, text)
    assert_same_values(octavo.quantize(torch.from_numpy(x), text, **parts).numpy(), wanted)


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).width <= 16]))
@few
@given(seed=st.integers(0, 2**32 - 1))
def test_error_is_at_most_half_a_step_inside_the_range(text, seed):
    rng = np.random.default_rng(seed)
    n = one_group(text)
    parts = random_scales(text, (n,), rng)
    values = listed_values(text, **{name: part.numpy() for name, part in parts.items()})
    low, high = max(values[0], -3e38), min(values[-1], 3e38)
    small = np.sort(np.abs(values[values != 0]))[: max(len(values) // 4, 1)][-1]
    x = np.where(rng.random(n) < 0.5, rng.uniform(low, high, n), rng.uniform(-small, small, n))
    x = np.clip(x, low, high).astype(np.float32)
    inside = (x >= low) & (x <= high)
    q = octavo.quantize(torch.from_numpy(x), text, **parts).numpy()
    above = np.clip(np.searchsorted(values, x.astype(float)), 1, len(values) - 1) if len(values) > 1 else None
    half = (values[above] - values[above - 1]) / 2 if len(values) > 1 else np.zeros(n)
    error = np.abs(x.astype(float) - q)
    rounding = np.spacing(np.abs(q)).astype(float) / 2  # the decoded value itself is rounded to float32
    assert np.all((error <= half + rounding)[inside])


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).scope in ("block", "channel")]))
@few
@given(case=cases(["normal", "wide", "powers"], ("float32", "bfloat16")))
def test_groups_look_only_inside_themselves(text, case):
    """Whatever happens to one group leaves all others as they are. nvfp4's tensor scale is kept by one large element."""
    spec, rng, rule = oracle.parse(text), case.rng(), rule_of(text, case)
    block = spec.block if spec.scope == "block" else 20
    shape = (4, min(3 * block, 300) - block // 2)
    x = random_tensor(rng, shape, case.kind, case.dtype)
    x[0, 0] = torch.finfo(x.dtype).max
    before = octavo.quantize(x, text, scale=rule)
    row = int(rng.integers(1, 4))
    column = int(rng.integers(0, shape[1])) // block * block if spec.scope == "block" else 0
    group = (row, slice(column, column + block if spec.scope == "block" else None))
    changed = x.clone()
    changed[group] = random_tensor(rng, tuple(changed[group].shape), "wide", case.dtype)
    after = octavo.quantize(changed, text, scale=rule)
    others = torch.ones(shape, dtype=torch.bool)
    others[group] = False
    assert_same_bits(after[others], before[others])


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_every_code_and_scale_is_read_as_the_oracle_reads_it(text):
    """Also codes and scales that no encoder writes: NaN blocks, negative zeros, -128 of int8; padding bits are ignored."""
    spec, rng = oracle.parse(text), np.random.default_rng(list(text.encode()))
    for shape in ((5, 67), (3, 129), (2, 3, 40), (1, 1)):
        codes, scales, zeros = part_shapes(_core.Format(text), shape, -1)
        parts = [torch.from_numpy(rng.integers(0, 256, codes, dtype=np.uint8))]
        kind = SCALE_DTYPES[_core.Format(text).scale_type]
        if kind.is_floating_point:
            stored = np.exp2(rng.uniform(-24 if kind == torch.float16 else -140, 15, scales)) * rng.choice(
                [0, 1], scales, p=[0.1, 0.9]
            )
            parts.append(torch.from_numpy(stored).to(kind))
        else:
            edges = rng.choice([0, 1, 127, 254, 255], scales)
            stored = np.where(rng.random(scales) < 0.5, edges, rng.integers(0, 256, scales))
            parts.append(torch.from_numpy(stored.astype(np.uint8)).view(kind))
        parts.append(torch.from_numpy(rng.integers(0, 256, zeros, dtype=np.uint8)))
        parts.append(torch.tensor([0.7] if spec.family == "nvfp4" else []))
        for dtype, logical in DTYPES.items():
            packed = PackedTensor(octavo.Format(text), *parts, shape=shape, dtype=logical)
            unpacked = oracle.unpack_bits(parts[0].numpy(), spec.width, shape[-1])
            zero = packed.unpack_zeros()
            wanted = oracle.decode(
                oracle.Encoded(
                    unpacked,
                    None if spec.scale == "none" else parts[1].numpy(),
                    None if zero is None else zero.numpy(),
                    parts[3].numpy() if spec.family == "nvfp4" else None,
                    shape,
                    len(shape) - 1,
                    dtype,
                ),
                text,
            )
            for level in LEVELS:
                with at_level(level):
                    assert_same_values(octavo.decode(packed).float().numpy(), wanted)


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=cases())
def test_axis_moves_the_tensor_and_nothing_else(text, case):
    x, rule = case.tensor(), rule_of(text, case)
    for axis in range(-x.ndim, x.ndim):
        moved = x.movedim(axis, -1).contiguous()
        plain, along = octavo.encode(moved, text, scale=rule), octavo.encode(x, text, axis=axis, scale=rule)
        for a, b in zip(along.parts, plain.parts, strict=True):
            assert torch.equal(a, b)
        assert_same_bits(octavo.decode(along), octavo.decode(plain).movedim(-1, axis))
        q = octavo.quantize(x, text, axis=axis, scale=rule)
        assert_same_bits(q, octavo.quantize(moved, text, scale=rule).movedim(-1, axis))


# -------------------------------------------------------------------------------------------------- what must not matter


def results(x, text, rule, **options):
    """Everything that the codecs give for one input."""
    packed = octavo.encode(x, text, scale=rule, nonfinite="saturate", **options)
    return packed, octavo.decode(packed), octavo.quantize(x, text, scale=rule, **options)


def assert_same_results(got, wanted):
    assert got[0] == wanted[0]
    assert_same_bits(got[1], wanted[1])
    assert_same_bits(got[2], wanted[2])


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(case=cases(ANY_KIND))
def test_results_do_not_depend_on_simd_level(text, case):
    x, rule = case.tensor(), rule_of(text, case)
    with at_level("scalar"):
        wanted = results(x, text, rule)
    for level in LEVELS[1:]:
        with at_level(level):
            packed, decoded, q = results(x, text, rule)
            assert packed == wanted[0]
            assert_same_bits(decoded, wanted[1])
            assert_same_bits(q, wanted[2])


@functools.cache
def inputs_of_several_units():
    rng = np.random.default_rng(9)
    return (
        (random_tensor(rng, (3, 20_011), "wide"), -1),
        (random_tensor(rng, (50_021,), "specials"), -1),
        (random_tensor(rng, (700, 67), "normal", "bfloat16"), 0),
    )


def digests(text):
    """Hashes of everything that the codecs give for tensors of several units of work."""
    found = []
    for x, axis in inputs_of_several_units():
        rule = oracle.rules(text)[-1] if axis == 0 else "floor"
        packed, decoded, q = results(x, text, rule, axis=axis)
        grad = torch.ops.octavo.quantize_backward(x, x, text, axis)[0]
        for part in (*packed.parts, decoded, q, grad):
            found.append(hashlib.sha256(part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest())
    return found


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_results_do_not_depend_on_thread_count(text):
    found = []
    for count in THREADS:
        with with_threads(count):
            found.append(digests(text))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_results_do_not_depend_on_alignment(text):
    rng = np.random.default_rng(3)
    for dtype in DTYPES:
        x = random_tensor(rng, (5, 61), "specials", dtype)
        wanted = results(x, text, "floor")
        for offset in range(1, 6):
            storage = torch.zeros(x.numel() + 8, dtype=x.dtype)
            storage[offset : offset + x.numel()] = x.ravel()
            shifted = storage[offset : offset + x.numel()].view(x.shape)
            assert shifted.data_ptr() % 64 != 0
            assert_same_results(results(shifted, text, "floor"), wanted)
            out = storage.clone()[8 - offset : 8 - offset + x.numel()].view(x.shape)
            assert octavo.quantize(shifted, text, out=out) is out
            assert_same_bits(out, wanted[2])
            assert_same_bits(octavo.decode(wanted[0], out=out), wanted[1])


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_results_do_not_depend_on_strides(text):
    x = random_tensor(np.random.default_rng(4), (6, 40), "normal")
    columns = torch.zeros(40, 6).copy_(x.T).T
    stepped = torch.zeros(12, 120)[::2, ::3].copy_(x)
    backwards = torch.flip(x, [0])
    wanted = results(x, text, "floor")
    for same in (columns, stepped):
        assert not same.is_contiguous()
        assert_same_results(results(same, text, "floor"), wanted)
    assert_same_results(results(torch.flip(backwards, [0]), text, "floor"), wanted)
    spread = x[:1].expand(3, 40)
    assert_same_results(results(spread, text, "floor"), results(spread.clone(), text, "floor"))


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_results_do_not_depend_on_flushing_of_subnormals(text):
    x = torch.cat([random_tensor(np.random.default_rng(5), (3, 40), kind) for kind in ("tiny", "wide", "normal")])

    def everything():
        return [results(x.to(dtype), text, rule) for dtype in DTYPES.values() for rule in oracle.rules(text)]

    for level in LEVELS:
        with at_level(level):
            wanted = everything()
            assert torch.set_flush_denormal(True)
            try:
                got = everything()
            finally:
                torch.set_flush_denormal(False)
        for a, b in zip(got, wanted, strict=True):
            assert_same_results(a, b)


def test_a_callers_flushing_of_subnormals_is_left_as_it_was():
    tiny = torch.tensor([2.0**-140])
    assert torch.set_flush_denormal(True)
    try:
        octavo.quantize(torch.randn(100_000), "mxint8")
        assert (tiny * 1.0).item() == 0
    finally:
        torch.set_flush_denormal(False)
    octavo.quantize(torch.randn(100_000), "mxint8")
    assert (tiny * 1.0).item() != 0


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_in_place_and_out_equal_a_fresh_result(text):
    rng = np.random.default_rng(6)
    for shape, axis, rules in (
        ((7, 45), -1, oracle.rules(text)),
        ((7, 45), 0, oracle.rules(text)),
        ((40, 450), -1, ["floor"]),
    ):
        x = random_tensor(rng, shape, "specials")
        for rule in rules:
            wanted = results(x, text, rule, axis=axis)
            kept = x.clone()
            out = torch.full_like(x, 7.0)
            octavo.quantize(x, text, axis=axis, scale=rule, out=out)
            assert_same_bits(out, wanted[2])
            assert_same_bits(x, kept)
            octavo.quantize(kept, text, axis=axis, scale=rule, out=kept)
            assert_same_bits(kept, wanted[2])
            target = octavo.encode(torch.ones_like(x), text, axis=axis, scale=rule)
            assert octavo.encode(x, text, axis=axis, scale=rule, nonfinite="saturate", out=target) is target
            assert target == wanted[0]


# ------------------------------------------------------------------------------------------------- errors and policies


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_encode_names_the_first_nonfinite_value_in_memory_order(text):
    rng = np.random.default_rng(7)
    for dtype, level in itertools.product(DTYPES, LEVELS):
        for shape in ((9, 50), (3, 5, 30)):
            x = random_tensor(rng, shape, "normal", dtype)
            places = rng.choice(x.numel(), 4, replace=False)
            x.view(-1)[torch.from_numpy(places)] = torch.tensor(
                [math.nan, math.inf, -math.inf, math.nan], dtype=x.dtype
            )
            for axis in range(len(shape)):
                with at_level(level), pytest.raises(NonFiniteError) as caught:
                    octavo.encode(x, text, axis=axis)
                position = int(re.search(r"flat position (\d+)", str(caught.value)).group(1))
                assert position == places.min(), axis
                assert str(octavo.Format(text)) in str(caught.value) and "nonfinite=" in str(caught.value)


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("text", ["mxint8", "int8", "int4:channel", "e4m3", "fixed8", "binary", "nvfp4"])
def test_the_first_nonfinite_value_of_a_large_tensor_is_named(text, count):
    x = torch.randn(5, 40_000)
    x[1, 39_999] = math.inf
    x[4, 3] = math.nan
    x[2, 0] = math.nan
    for axis in (0, 1):
        with with_threads(count), pytest.raises(NonFiniteError, match="flat position 79999"):
            octavo.encode(x, text, axis=axis)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_nan_changes_nothing_but_its_own_position(text):
    """Against the same tensor with that element absent, where the scale is not a mean over the count."""
    spec = oracle.parse(text)
    x = random_tensor(np.random.default_rng(8), (4, 32), "normal")
    x[2, 5] = math.nan
    q = octavo.quantize(x, text)
    assert torch.isnan(q).nonzero().tolist() == [[2, 5]]
    if spec.family not in ("binary", "ternary"):
        without = x.clone()
        without[2, 5] = 0
        wanted = octavo.quantize(without, text)
        wanted[2, 5] = math.nan
        assert_same_bits(q, wanted)


# ------------------------------------------------------------------------------------------------------ shapes and sizes


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_odd_shapes_keep_their_shape(text):
    odd = [(), (0,), (1,), (3, 0), (0, 5), (2, 0, 3), (1, 1, 1), (5, 1), (1, 7), (2, 1, 3, 1, 2)]
    for shape, dtype in itertools.product(odd, DTYPES.values()):
        x = torch.ones(shape, dtype=dtype)
        if not takes(text, shape):
            with pytest.raises(octavo.ShapeError, match="needs at least 1 dimension"):
                octavo.encode(x, text)
            with pytest.raises(octavo.ShapeError, match="needs at least 1 dimension"):
                octavo.quantize(x, text)
            continue
        for axis in range(-1, max(len(shape), 1)):
            packed = octavo.encode(x, text, axis=axis)
            decoded, q = octavo.decode(packed), octavo.quantize(x, text, axis=axis)
            assert decoded.shape == q.shape == x.shape and decoded.dtype == q.dtype == x.dtype
            assert_same_bits(q, decoded)
            assert packed.shape == shape and packed.numel() == x.numel()


@pytest.mark.parametrize("text", spread(EXAMPLES))
@few
@given(shape=st.one_of(shapes, st.tuples(st.integers(0, 5), st.integers(0, 700))), axis=st.integers(-1, 0))
def test_bits_are_bytes(text, shape, axis):
    """Bytes are bits per element times elements over 8, plus: rows padded to bytes, and nvfp4's tensor scale."""
    fmt, spec = octavo.Format(text), oracle.parse(text)
    packed = octavo.encode(torch.zeros(shape), text, axis=axis)
    assert packed.nbytes == fmt.nbytes(shape, axis) == sum(part.nbytes for part in packed.parts)
    n = math.prod(shape)
    if n == 0:
        return
    length = n if spec.scope == "tensor" else shape[axis]
    stated = round(oracle.bits_per_element(text, length) * n) / 8  # a whole number of bits
    assert fmt.bits_per_element(length) == oracle.bits_per_element(text, length)
    assert packed.bits_per_element == 8 * packed.nbytes / n
    rows = n // shape[axis]
    padding = rows * (2 if spec.family == "uint" else 1)  # less than a byte each for codes and zero points
    levels = 4 if spec.family == "nvfp4" else 0
    assert stated <= packed.nbytes - levels < stated + padding
    if spec.width * shape[axis] % 8 == 0 and spec.family != "uint":
        assert packed.nbytes - levels == stated


# ---------------------------------------------------------------------------------------------------------- large tensors


def compare_large(x, text, rule):
    spec = oracle.parse(text)
    wanted = oracle.encode(x.float().numpy(), text, rule=rule, dtype=str(x.dtype).removeprefix("torch."))
    packed = octavo.encode(x, text, scale=rule)
    assert_same_parts(packed, wanted, spec)
    decoded = oracle.decode(wanted, text)
    assert_same_values(octavo.decode(packed).float().numpy(), decoded)
    assert_same_values(octavo.quantize(x, text, scale=rule).float().numpy(), decoded)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_tensors_of_several_chunks_equal_the_oracle(text):
    rng = np.random.default_rng(list(text.encode()))
    compare_large(random_tensor(rng, (2 * CHUNK + 77,), "normal"), text, oracle.rules(text)[0])
    compare_large(random_tensor(rng, (3, CHUNK + 5), "wide", "bfloat16"), text, oracle.rules(text)[-1])


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).scope == "channel"]))
def test_rows_longer_than_one_thread_takes_equal_the_oracle(text):
    rng = np.random.default_rng(list(text.encode()))
    compare_large(random_tensor(rng, (2, LONG_ROW + 4_321), "normal"), text, "floor")
