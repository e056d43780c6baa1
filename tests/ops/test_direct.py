"""Packed layers call kernels past the dispatcher only where nothing would notice."""

import copy
import io
import pickle
import weakref

import octavo
import pytest
import torch
from octavo.errors import CalibrationError, DTypeError, ShapeError
from octavo.nn import PackedLinear
from octavo.nn import linear as layers
from octavo.ops._direct import is_direct, is_plain
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FORMATS = ("mxint8", "int4:g32", "uint4:g32", "mxfp4", "nvfp4", "nf4", "fixed8", "int8:channel", "binary", "e4m3")


def packed(text="mxint8", bias=True, k=64, n=48):
    torch.manual_seed(0)
    return PackedLinear.from_linear(torch.nn.Linear(k, n, bias), text)


def by_op(layer, x):
    """What the op gives for a layer without quantizers."""
    op, sizes = torch.ops.octavo.packed_linear_plain.default, (layer._text, layer._rows, layer._width)
    return op(x, *layer.parts, layer.bias, *sizes)


class Counted:
    """A known weight whose products are counted."""

    def __init__(self, known, calls):
        self.known, self.calls, self.is_still, self.rounding = known, calls, known.is_still, known.rounding

    def multiply(self, x, read):
        y = self.known.multiply(x, read)
        if y is not None:
            self.calls.append(1)
        return y


@pytest.fixture
def direct(monkeypatch):
    """Counts direct calls of kernels."""
    calls = []
    make = layers.known_weight

    def known_weight(*args):
        known = make(*args)
        return known and Counted(known, calls)

    monkeypatch.setattr(layers, "known_weight", known_weight)
    return calls


@pytest.mark.parametrize("text", FORMATS)
def test_a_direct_call_has_the_bits_of_the_op(text, direct):
    for bias in (True, False):
        layer = packed(text, bias)
        for x in (torch.randn(64), torch.randn(1, 64), torch.randn(2, 3, 64), torch.randn(0, 64), torch.randn(64, 5).T):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
                    with context():
                        y = layer(x.to(dtype))
                        assert torch.equal(y, by_op(layer, x.to(dtype))) and y.dtype == dtype
                        assert y.is_inference() == (context is torch.inference_mode)
    assert len(direct) == 2 * 3 * 3 * 3  # no rows, and rows that are not contiguous, take the op


@pytest.mark.parametrize("rule", ["int8", "int8:channel", "mxint8"])
def test_layers_with_rounded_inputs_are_called_directly(rule, direct):
    model = torch.nn.Sequential(torch.nn.Linear(64, 48))
    recipe = octavo.Recipe.parse(f"* weight=int8:channel input={rule}")
    layer = octavo.pack_model(octavo.quantize_model(model, recipe))[0]
    x = torch.randn(3, 64)
    with torch.no_grad():
        y = layer(x)
        assert direct == [1]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            assert torch.equal(layer(x), y)
    assert direct == [1]


RECIPES = {
    "integer": "* weight=int8:channel input=int8",
    "integer, a scale a row": "* weight=int4:channel input=int8:channel",
    "integer, int32 bias": "* weight=int8:channel input=int8@minmax bias=int32",
    "rounded": "* weight=int8:channel input=mxint8",
    "rounded, scales": "* weight=mxfp4 input=int8@minmax",
    "rounded, zeros": "* weight=uint4:g32 input=uint8@minmax",
    "rounded, a scale a channel": "* weight=nf4 input=int8:channel",
    "rounded, no scale": "* weight=e4m3 input=fixed8.4",
}


def rounded(recipe):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48))
    calibration = [torch.randn(8, 64)]
    quantized = octavo.quantize_model(model, octavo.Recipe.parse(recipe), calibration=calibration, progress=False)
    return octavo.pack_model(quantized)[0]


def by_rounding_op(layer, x):
    """What the op gives for a layer whose inputs are rounded."""
    quantizer, sizes = layer.input_quantizer, (layer._rows, layer._width)
    scales, zeros, levels = quantizer.given()
    if layer.is_integer:
        op, text = torch.ops.octavo.integer_linear_plain.default, quantizer.format.text
        bias = layer._held_bias()
        return op(x, layer.weight_codes, layer.weight_scales, bias, scales, layer._text, text, *sizes)
    op, rule = torch.ops.octavo.rounded_linear_plain.default, quantizer._rule
    inputs = scales, zeros, levels, layer._text, *sizes, quantizer.format.text, rule
    return op(x, *layer.parts, layer.bias, *inputs)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_rounded_products_have_the_bits_of_the_op(recipe, direct):
    layer = rounded(recipe)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((64,), (1, 64), (2, 3, 64), (7, 64)):
            x = torch.randn(shape).to(dtype)
            with torch.no_grad():
                y = layer(x)
                assert torch.equal(y, by_rounding_op(layer, x)) and y.dtype == dtype
    assert len(direct) == 12


def test_a_layer_rounds_inputs_as_its_quantizer_does_now(direct):
    layer, x = rounded("* weight=int8:channel input=int8@minmax"), torch.randn(3, 64)
    quantizer = layer.input_quantizer

    def scales():
        quantizer.set_scales(quantizer.scales * 2)

    def in_place():
        quantizer.scales.mul_(1.5)

    def other():
        layer.input_quantizer = rounded("* weight=int8:channel input=int8").input_quantizer

    with torch.no_grad():
        for change in (scales, in_place, other):
            layer(x)
            change()
            wanted = by_rounding_op(layer, x)
            for _ in range(3):
                assert torch.equal(layer(x), wanted), change.__name__
        layer.input_quantizer.enabled = False
        assert torch.equal(layer(x), by_op(layer, x))
        layer.input_quantizer.enabled = True
        assert torch.equal(layer(x), wanted)
    assert direct


def test_a_quantizer_without_scales_is_refused_though_it_had_some():
    layer, x = rounded("* weight=int8:channel input=int8@minmax"), torch.randn(3, 64)
    layer(x)
    layer.input_quantizer.clear_scales()
    for _ in range(2):
        with pytest.raises(CalibrationError, match="no scales yet"):
            layer(x)


def test_a_bias_that_learns_gets_its_gradient(direct):
    layer, x = packed(), torch.randn(2, 64)
    layer(x)
    layer.bias.requires_grad_()
    layer(x).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((48,), 2.0))
    with torch.no_grad():
        layer(x)
    assert len(direct) == 2


class SeesOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class SeesFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_and_profilers_see_the_op(direct):
    layer, x = packed(), torch.randn(2, 64)
    with torch.no_grad():
        for mode in (SeesOps(), SeesFunctions()):
            with mode:
                layer(x)
            assert any("octavo.packed_linear_plain" in name for name in mode.names), mode.names
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            layer(x)
    assert "octavo::packed_linear_plain" in {event.key for event in profile.key_averages()}
    assert not direct


def test_compilers_and_tracers_see_the_op(direct):
    layer, x = packed(), torch.randn(2, 64)
    wanted = by_op(layer, x)
    with torch.no_grad():
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), wanted)
        program = torch.export.export(layer, (x,))
        graph = make_fx(layer)(x)
        for text in (str(program.graph), str(graph.graph)):
            assert "octavo.packed_linear" in text
        traced = torch.jit.trace(layer, x, check_trace=False)  # the check calls the layer itself
        other = torch.randn(2, 64)
        assert torch.equal(traced(other), by_op(layer, other))
    assert torch.equal(program.module()(x), wanted)
    assert not direct


def test_transforms_and_derivatives_see_the_op(direct):
    layer, x = packed(), torch.randn(5, 64)
    dense = layer.packed_weight.decode()
    assert torch.func.vmap(layer)(x).shape == (5, 48)
    row = torch.randn(64)
    jacobian = torch.func.jacrev(layer)(row)
    torch.testing.assert_close(jacobian, dense)
    weights = {"bias": torch.randn(3, 48)}
    answers = torch.func.vmap(lambda held, row: torch.func.functional_call(layer, held, (row,)), (0, None))(
        weights, row
    )
    assert answers.shape == (3, 48)
    graded = x.clone().requires_grad_()
    layer(graded).sum().backward()
    torch.testing.assert_close(graded.grad, dense.sum(0).expand(5, -1))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        layer(forward_ad.make_dual(x, torch.ones_like(x)))
    assert not direct
    with torch.no_grad():
        layer(graded)
    assert direct == [1]


class Named(torch.Tensor):
    """A subclass without behaviour of its own."""


def test_only_plain_tensors_are_direct():
    x = torch.randn(4, 64)
    assert is_direct(x) and is_direct(x.T) and is_direct(x[1:]) and is_plain((x, None, torch.nn.Parameter(x)))
    with torch.inference_mode():
        made = torch.randn(4, 64)
        assert is_direct(made) and is_direct(x)
    assert is_direct(made)
    with torch.autocast("cpu"):
        assert is_direct(x)
    negative = torch._neg_view(x)
    others = [negative, x.to_sparse(), x.to_mkldnn(), x.to("meta"), x.as_subclass(Named), None, 3, [1.0]]
    with torch._subclasses.FakeTensorMode() as mode:
        assert not is_direct(x)
    fake = mode.from_tensor(x)
    for other in (*others, fake):
        assert not is_direct(other)
    for other in (negative, x.to("meta"), x.as_subclass(Named), fake):
        assert not is_plain((other,)) and not is_plain((None, other))
    assert not is_direct(x.clone().requires_grad_())


def test_operands_changed_in_place_are_refused_as_by_the_op():
    x = torch.randn(2, 64)

    def storage(layer):
        layer.weight_codes.untyped_storage().resize_(8)

    def shape(layer):
        layer.weight_scales.resize_(3)

    def dtype(layer):
        layer.weight_codes.data = layer.weight_codes.view(torch.int8)

    def view(layer):
        layer.weight_codes.data = layer.weight_codes.data[:7]

    def transposed(layer):
        layer.weight_codes.t_()

    def bias(layer):
        layer.bias.data = layer.bias.data[:7]

    def small_bias(layer):
        layer.bias.untyped_storage().resize_(4)

    for change in (storage, shape, dtype, view, transposed, bias, small_bias):
        layer = packed(n=64)
        layer(x)
        change(layer)
        for _ in range(3):
            with pytest.raises(ShapeError) as direct:
                layer(x)
            with pytest.raises(ShapeError) as called:
                by_op(layer, x)
            assert str(direct.value) == str(called.value), change.__name__


def test_a_layer_multiplies_with_what_it_holds_now(direct):
    """Bytes written in place, another weight, bias, device or dtype, a loaded state, a copy."""
    layer, x = packed(), torch.randn(2, 64)
    other = PackedLinear.from_linear(torch.nn.Linear(64, 48), "mxint8")

    def bytes_of_codes():
        layer.weight_codes.add_(1)

    def weight():
        layer.weight = other.packed_weight

    def bias():
        layer.bias = torch.nn.Parameter(torch.randn(48), requires_grad=False)

    def data():
        layer.bias.data = torch.randn(48)

    def state():
        layer.load_state_dict(packed().state_dict())

    def assigned():
        layer.load_state_dict(other.state_dict(), assign=True)

    def moved():
        layer.to("cpu").double().float()

    for change in (bytes_of_codes, weight, bias, data, state, assigned, moved):
        layer(x)
        change()
        wanted = by_op(layer, x)
        for _ in range(3):
            assert torch.equal(layer(x), wanted), change.__name__
        seen = len(direct)
        assert torch.equal(layer(x), wanted) and len(direct) == seen + 1, change.__name__


def test_copies_of_a_layer_are_layers_of_their_own():
    layer, x = packed(), torch.randn(2, 64)
    wanted = layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)):
        assert made._known is None
        made.weight_codes.zero_()
        assert torch.equal(made(x), made.bias.expand(2, -1)) and torch.equal(layer(x), wanted)
    assert torch.equal(copy.copy(layer)(x), wanted)


def test_a_layer_that_moves_leaves_its_memory():
    layer, x = packed(k=512, n=512), torch.randn(1, 512)
    layer(x)
    codes = weakref.ref(layer.weight_codes)
    layer.to("meta")
    assert codes() is None


def test_a_negative_bias_view_is_read_with_its_sign():
    weight = packed(bias=False).packed_weight
    bias = torch.randn(48)
    layer = PackedLinear(weight, torch._neg_view(bias))
    x = torch.randn(2, 64)
    assert torch.equal(layer(x), PackedLinear(weight, -bias)(x))


def test_inputs_that_do_not_fit_are_refused_as_by_the_op():
    layer = packed()
    for x, error in ((torch.randn(2, 63), ShapeError), (torch.randn(()), ShapeError), (torch.ones(2, 64).int(), DTypeError),
                     (torch.ones(2, 64, dtype=torch.complex64), DTypeError)):  # fmt: skip
        with pytest.raises(error) as direct:
            layer(x)
        with pytest.raises(error) as called:
            by_op(layer, x)
        assert str(direct.value) == str(called.value)
