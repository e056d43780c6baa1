"""Quantizer: what it simulates is what it encodes, and its scales go wherever the model goes."""

import copy
import pickle

import octavo
import pytest
import torch
from helpers.quick import spread
from helpers.values import KINDS, normal, sample
from hypothesis import given
from hypothesis import strategies as st
from octavo import CalibrationError, DTypeError, Format, FormatError, NonFiniteError, ShapeError
from octavo.nn import Quantizer
from octavo.recipe.spec import Calibration, Spec

FORMATS = [str(fmt) for fmt in octavo.formats()]
WITH_SCALES = [text for text in FORMATS if Format(text).scale_type is not None]


def quantizer(text, calibration=None, **options):
    chosen = None if calibration is None else Calibration(calibration)
    return Quantizer(Spec(Format(text), chosen), **options)


def fixed(text, x, **options):
    """A quantizer whose scales are those of ``x``."""
    made = quantizer(text, **options)
    packed = made.encode(x)
    made.set_scales(packed.scales, packed.zeros, packed.levels)
    return made


@pytest.mark.parametrize("text", spread(FORMATS))
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 99), axis=st.sampled_from([-1, -2]))
def test_what_is_simulated_is_what_is_encoded(text, kind, seed, axis):
    import numpy as np

    x = torch.from_numpy(sample(np.random.default_rng(seed), (3, 4, 40), kind))
    for made in (quantizer(text, axis=axis), *([fixed(text, x, axis=axis)] if text in WITH_SCALES else [])):
        assert torch.equal(made(x), made.encode(x).decode())
        assert torch.equal(made(x), octavo.quantize(x, text, axis=axis))


@pytest.mark.parametrize("text", WITH_SCALES)
def test_a_state_dict_carries_scales_and_the_format_they_belong_to(text):
    x = normal(6, 96)
    made = fixed(text, x)
    other = quantizer("int3")
    result = other.load_state_dict(made.state_dict())
    assert not result.missing_keys
    assert other.format == Format(text)
    assert torch.equal(other(2 * x), made(2 * x))


def test_a_state_dict_without_scales_loads_and_changes_nothing():
    made = fixed("int8", normal(4, 8))
    before = made.scales.clone()
    made.load_state_dict({})
    assert torch.equal(made.scales, before)
    assert quantizer("int8").load_state_dict({}) is not None


def test_a_key_that_is_no_part_is_refused():
    with pytest.raises(RuntimeError, match="Unexpected"):
        quantizer("int8").load_state_dict({"colour": torch.zeros(1)})


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.tensor(9), torch.tensor([999]), "int8"])
def test_a_format_that_is_no_text_is_refused(wrong):
    made = fixed("int8", normal(4, 8))
    with pytest.raises(RuntimeError, match=r"scales: .*(a torch\.\w+ tensor of shape|a str)"):
        made.load_state_dict(made.state_dict() | {"format": wrong})


@pytest.mark.parametrize("text", WITH_SCALES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_keep_their_dtype_where_the_model_goes_to_half(text, dtype):
    x = normal(6, 96)
    made = fixed(text, x)
    before = made(x)
    made.to(dtype)
    assert torch.equal(made(x), before)
    assert made(x.to(dtype)).dtype == dtype


@pytest.mark.parametrize("text", WITH_SCALES)
def test_copies_and_pickles_round_alike(text):
    x = normal(6, 96)
    made = fixed(text, x)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other(x), made(x))
        assert other.scales.data_ptr() != made.scales.data_ptr()


def test_integer_zeros_and_packed_zeros_are_the_same():
    x = normal(6, 96).abs()
    made = quantizer("uint4:g32")
    packed = made.encode(x)
    made.set_scales(packed.scales, packed.unpack_zeros())
    assert torch.equal(made.zeros, packed.zeros)


def test_a_switched_off_quantizer_returns_its_input():
    made = quantizer("int2")
    made.enabled = False
    x = normal(3, 4)
    assert made(x) is x


@pytest.mark.parametrize("text", ["int4", "int4:channel", "int4:g32", "fixed6", "fixed6:channel"])
def test_learned_scales_encode_what_they_simulate(text):
    x = normal(6, 70)
    made = fixed(text, x)
    made.learn()
    with torch.no_grad():
        made.scales.mul_(0.77)
    packed = made.encode(x)
    assert torch.equal(made(x), packed.decode())
    assert torch.equal(made(x), octavo.quantize(x, text, scales=packed.scales))


# --- learned scales ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["int4", "int4:channel", "int4:g32", "fixed6", "fixed6:channel"])
def test_learned_scales_get_the_gradient_of_lsq(text):
    """Against autograd through the straight-through formulas of Esser et al. (2020), in float64."""
    x = normal(6, 64)
    made = fixed(text, x)
    made.learn()
    with torch.no_grad():
        made.scales.copy_(made.scales * 0.9 if text.startswith("int") else made.scales + 0.0)
    weight = normal(6, 64, seed=1)
    (made(x) * weight).sum().backward()

    fmt = made.format
    low, high = fmt.range
    given = made.scales.detach()
    if fmt.scale_type == "float16":
        given = given.half()
    given = given.double().requires_grad_()
    steps = given if text.startswith("int") else torch.exp2(-given.round() + (given.round() - given))
    n = {"tensor": x.numel(), "channel": 64, "block": 32}[fmt.granularity]
    factor = 1 / (n * high) ** 0.5
    steps = steps * factor + (steps - steps * factor).detach()  # its value, with a scaled gradient
    groups = x.double().view(1, -1) if fmt.granularity == "tensor" else x.double().view(-1, n)
    scaled = groups / steps.reshape(-1, 1)
    clipped = scaled.clamp(low, high)
    codes = clipped + (clipped.round() - clipped).detach()
    ((codes * steps.reshape(-1, 1)).view_as(x) * weight).sum().backward()
    torch.testing.assert_close(made.scales.grad.double(), given.grad.flatten(), rtol=1e-4, atol=1e-6)


def test_learned_scales_are_saved_loaded_and_moved_as_they_are():
    x = normal(6, 64)
    made = fixed("int4:g32", x)
    made.learn()
    with torch.no_grad():
        made.scales.mul_(1.0001)  # not a float16 any more
    other = quantizer("int4:g32", "lsq")
    other.load_state_dict(made.state_dict())
    assert other.is_learned and torch.equal(other.scales, made.scales)
    made.to(torch.bfloat16)
    assert torch.equal(made.scales, other.scales) and made.is_learned


def test_a_learned_scale_that_crosses_zero_keeps_the_signs_of_its_codes():
    made = quantizer("int4")
    made.set_scales(torch.tensor([0.5]))
    made.learn()
    x = normal(3, 8)
    before = made(x).detach()
    with torch.no_grad():
        made.scales.neg_()
    assert torch.equal(made(x), before)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda q, x: q(x), lambda q, x: q.encode(x)])
def test_scales_that_were_never_calibrated_are_missed(call):
    with pytest.raises(CalibrationError, match=r"encoder\.0: input: 'int8@minmax' has no scales yet"):
        call(quantizer("int8", "minmax", what="encoder.0: input"), normal(2, 3))


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(FormatError, match="has no scales to set"):
        quantizer("e4m3").set_scales(torch.ones(1))
    with pytest.raises(ShapeError, match="needs zeros"):
        quantizer("uint8").set_scales(torch.ones(1))
    with pytest.raises(ShapeError, match="has no zeros"):
        quantizer("int8").set_scales(torch.ones(1), torch.ones(1))
    with pytest.raises(ShapeError, match=r"accepted are 0\.\.15"):
        quantizer("uint4").set_scales(torch.ones(1), torch.tensor([16]))
    with pytest.raises(DTypeError, match=r"accepted is torch\.uint8"):
        quantizer("mxint8").set_scales(torch.ones(2, 3))
    with pytest.raises(FormatError, match="cannot learn"):
        fixed("uint8", normal(2, 3)).learn()
    with pytest.raises(FormatError, match="from a start"):
        quantizer("int8").learn()


def test_an_error_of_the_codec_names_the_tensor():
    with pytest.raises(NonFiniteError, match=r"^head: input: "):
        quantizer("int8", what="head: input").encode(torch.tensor([1.0, float("nan")]))
