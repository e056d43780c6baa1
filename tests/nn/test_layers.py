"""Quantized layers: float arithmetic over rounded operands, and the integer path against whole numbers."""

import copy
import pickle

import octavo
import pytest
import torch
from helpers.models import linear, plan, spec
from helpers.quick import spread
from helpers.values import normal
from octavo import DTypeError, FormatError
from octavo.nn import QuantConv1d, QuantConv2d, QuantEmbedding, QuantLinear
from octavo.recipe.spec import LayerPlan, Spec
from torch import nn
from torch.nn import functional

FORMATS = [str(fmt) for fmt in octavo.formats()]


# layer, what makes the quantized one, input
def cases():
    torch.manual_seed(0)
    yield nn.Linear(40, 12), QuantLinear.from_linear, normal(3, 5, 40)
    yield nn.Conv1d(6, 8, 3, padding=1, groups=2), QuantConv1d.from_conv, normal(2, 6, 9)
    yield (
        nn.Conv2d(6, 8, (3, 2), stride=2, padding_mode="circular", padding=1),
        QuantConv2d.from_conv,
        normal(2, 6, 7, 8),
    )


CASES = [pytest.param(*case, id=type(case[0]).__name__) for case in cases()]


# --- float ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "make", "x"), CASES)
@pytest.mark.parametrize("text", spread(FORMATS))
def test_training_is_the_float_layer_over_rounded_operands(layer, make, x, text):
    quantized = make(layer, plan(weight=text, input="mxint8", bias="fixed16.8", output="bf16")).train()
    rounded = copy.deepcopy(layer)
    with torch.no_grad():
        flat = octavo.quantize(layer.weight.flatten(1), text)
        rounded.weight.copy_(flat.view_as(layer.weight))
        rounded.bias.copy_(octavo.quantize(layer.bias, "fixed16.8"))
    channels = -1 if isinstance(layer, nn.Linear) else 1
    expected = octavo.quantize(rounded(octavo.quantize(x, "mxint8", axis=channels)), "bf16")
    assert torch.equal(quantized(x), expected)


@pytest.mark.parametrize(("layer", "make", "x"), CASES)
def test_an_empty_plan_changes_no_bit(layer, make, x):
    assert torch.equal(make(layer, LayerPlan())(x), layer(x))


@pytest.mark.parametrize("text", spread(FORMATS))
def test_gradients_pass_straight_through_every_format(text):
    layer = linear(40, 12)
    quantized = QuantLinear.from_linear(layer, plan(weight=text, input=text))
    x = normal(7, 40).requires_grad_()
    quantized(x).square().sum().backward()
    with torch.no_grad():
        y = quantized(x)
    expected = 2 * y.T @ octavo.quantize(x.detach(), text)
    inside = torch.ones_like(layer.weight).requires_grad_()
    probe = layer.weight.detach().clone().requires_grad_()
    octavo.quantize(probe, text).backward(inside.detach())
    torch.testing.assert_close(layer.weight.grad, expected * probe.grad, rtol=1e-4, atol=1e-4)
    assert x.grad is not None


# --- integers ---------------------------------------------------------------------------------------------------------


def whole(packed):
    """Codes as int64, out of their bits."""
    width = packed.format.width
    bits = packed.unpack().long()
    return bits - ((bits >> (width - 1)) << width)


def integer_linear(layer, x, weight, input):
    """The arithmetic of an integer layer, written out: int64 sums, then one float32 rounding an operation."""
    w, a = octavo.encode(layer.weight.detach().float(), weight), octavo.encode(x.float(), input)
    sums = whole(a) @ whole(w).T
    steps = a.scales * w.scales.flatten()
    return sums.float() * steps, steps, sums


@pytest.mark.parametrize("weight", ["int8:channel", "int8", "int4:channel", "int2:channel", "int5"])
@pytest.mark.parametrize("input", ["int8", "int8:channel", "int4", "int3:channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_computes_what_an_integer_kernel_does(weight, input, dtype):
    layer = linear(k=300, n=17).to(dtype)
    quantized = QuantLinear.from_linear(layer, plan(weight=weight, input=input)).eval()
    assert quantized.is_integer
    x = normal(2, 9, 300).to(dtype)
    products, _, _ = integer_linear(layer, x, weight, input)
    expected = (products + layer.bias.detach().float()).to(dtype)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert torch.equal(quantized(x), expected)


@pytest.mark.parametrize(("layer", "make", "x"), CASES)
def test_integer_and_float_path_differ_by_float_rounding_only(layer, make, x):
    quantized = make(layer, plan(weight="int8:channel", input="int8"))
    torch.testing.assert_close(quantized.eval()(x), quantized.train()(x), rtol=1e-5, atol=1e-5)
    assert quantized.is_integer


@pytest.mark.parametrize(("layer", "make", "x"), CASES)
def test_gradients_in_evaluation_are_those_of_training(layer, make, x):
    quantized = make(layer, plan(weight="int8:channel", input="int8"))
    grads = []
    for training in (True, False):
        probe = x.clone().requires_grad_()
        layer.weight.grad = None
        quantized.train(training)(probe).sum().backward()
        grads.append((probe.grad, layer.weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("weight", "input"),
    [
        ("int8:g32", "int8"),
        ("int9:channel", "int8"),
        ("int8", "int8:g8"),
        ("uint8", "int8"),
        ("int8", "mxint8"),
        ("int8", None),
    ],
)
def test_scales_that_do_not_factor_out_take_the_float_path(weight, input):
    quantized = QuantLinear.from_linear(linear(40, 12), plan(weight=weight, input=input))
    assert not quantized.is_integer
    assert torch.equal(quantized.eval()(normal(3, 40)), quantized.train()(normal(3, 40)))


def test_zeros_take_the_integer_path():
    layer = linear(40, 12)
    with torch.no_grad():
        layer.weight[3] = 0
    quantized = QuantLinear.from_linear(layer, plan(weight="int4:channel", input="int4:channel")).eval()
    x = normal(3, 40)
    x[1] = 0
    y = quantized(x)
    assert torch.equal(y[1], layer.bias) and torch.equal(y[:, 3], layer.bias[3].expand(3))
    assert quantized(x[:0]).shape == (0, 12)


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", spread(FORMATS))
@pytest.mark.parametrize("static", [False, True])
def test_an_embedding_returns_rows_of_the_encoded_table(text, static):
    torch.manual_seed(0)
    table = nn.Embedding(30, 70, padding_idx=0)
    quantized = QuantEmbedding.from_embedding(table, plan(weight=text))
    packed = quantized.weight_quantizer.encode(table.weight)
    if static and packed.format.scale_type is not None:
        quantized.weight_quantizer.set_scales(packed.scales, packed.zeros, packed.levels)
    for ids in (torch.tensor([[3, 0, 29], [3, 3, 7]]), torch.tensor(5), torch.empty(0, dtype=torch.int64)):
        assert torch.equal(quantized(ids), packed.decode()[ids])
    quantized(torch.tensor([0, 4])).sum().backward()
    assert not table.weight.grad[0].any() and table.weight.grad[4].any()


def test_an_embedding_has_no_input_and_no_bias():
    with pytest.raises(FormatError, match="tok: a Embedding has no input"):
        QuantEmbedding.from_embedding(nn.Embedding(3, 4), plan(input="int8"), "tok")


# --- modules ----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 24)
        self.hidden = nn.Linear(24, 24)
        self.head = nn.Linear(24, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(functional.gelu(self.hidden(self.embed(ids))))


def tied(weight="mxint8", input="mxint8"):
    model = Tied()
    model.embed = QuantEmbedding.from_embedding(model.embed, plan(weight=weight))
    model.hidden = QuantLinear.from_linear(model.hidden, plan(weight=weight, input=input))
    model.head = QuantLinear.from_linear(model.head, plan(weight=weight, input=input))
    return model


def test_parameters_are_shared_and_ties_stay_tied():
    model = tied()
    assert model.head.weight is model.embed.weight
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in Tied().named_parameters()]
    assert model.state_dict().keys() == Tied().state_dict().keys()
    model.load_state_dict(Tied().state_dict())
    Tied().load_state_dict(model.state_dict())
    assert copy.deepcopy(model).head.weight.data_ptr() != model.head.weight.data_ptr()


def test_hooks_and_modes_are_kept():
    seen = []
    layer = linear(40, 12).eval()
    layer.register_forward_hook(lambda *_: seen.append("after"))
    layer.register_forward_pre_hook(lambda *_: seen.append("before"))
    quantized = QuantLinear.from_linear(layer, plan(weight="int8"))
    assert not quantized.training
    quantized(normal(1, 40))
    assert seen == ["before", "after"]
    quantized.register_forward_hook(lambda *_: seen.append("new"))
    layer(normal(1, 40))
    assert seen[2:] == ["before", "after"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("input", ["mxint8", "int8", "int6:channel"])
def test_a_model_compiles_without_graph_breaks(training, input):
    torch._dynamo.reset()
    model = tied("int8:channel", input).train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = []
    for function in (model, compiled):
        model.zero_grad()
        y = function(torch.arange(10).view(2, 5))
        y.square().sum().backward()
        results.append([y, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_pickles_and_copies_compute_alike():
    model = tied("int4:g8", "int8:channel")
    ids = torch.arange(11)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(ids), model(ids))
        assert other.head.weight is other.embed.weight


def test_autocast_and_half_precision_keep_their_dtypes():
    model = tied("int4:g8", "mxint8")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.arange(11))
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
    assert model.hidden.weight.grad.dtype == torch.float32
    assert model.to(torch.bfloat16)(torch.arange(11)).dtype == torch.bfloat16


def test_layers_are_made_on_the_meta_device():
    with torch.device("meta"):
        made = QuantLinear(40, 12, plan=plan(weight="mxint8", input="int8"))
        QuantConv2d(3, 4, 3, plan=plan(weight="mxint8"))
        QuantEmbedding(3, 4, plan=plan(weight="mxint8"))
    assert made.weight.is_meta
    made.load_state_dict(linear(40, 12).state_dict(), assign=True)
    assert torch.equal(made(normal(2, 40)), QuantLinear.from_linear(linear(40, 12), made.plan)(normal(2, 40)))


# --- int32 bias -------------------------------------------------------------------------------------------------------


def int32_layer(layer, x, weight="int8:channel"):
    from octavo.recipe.spec import INT32

    made = QuantLinear.from_linear(
        layer, LayerPlan(weight=spec(weight), input=spec("int8", "minmax"), bias=Spec(INT32)), "fc"
    )
    made.input_quantizer.set_scales(octavo.encode(x, "int8").scales)
    return made


def test_a_bias_in_int32_is_added_to_the_sums():
    layer, x = linear(300, 17), normal(9, 300)
    made = int32_layer(layer, x)
    _, steps, sums = integer_linear(layer, x, "int8:channel", "int8")
    bias = (layer.bias.detach().double() / steps.double()).round().long()
    assert torch.equal(made.eval()(x), (sums + bias).float() * steps)
    assert (made.train()(x) - made.eval()(x)).abs().max() < 1e-4
    made(x).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((17,), 9.0))


def test_a_bias_in_int32_needs_integer_operands_with_fixed_scales():
    from octavo.recipe.spec import INT32

    for weight, input, told in (
        (spec("mxint8"), spec("int8", "minmax"), "must be intW of 2 to 8 bits"),
        (spec("int8"), None, "must be intW of 2 to 8 bits"),
        (spec("int8"), spec("int8"), "needs an input scale that is fixed"),
    ):
        with pytest.raises(FormatError, match=f"fc: bias int32 .*{told}"):
            QuantLinear.from_linear(linear(40, 12), LayerPlan(weight=weight, input=input, bias=Spec(INT32)), "fc")
    with pytest.raises(FormatError, match="'int32' is for a bias only"):
        QuantLinear.from_linear(linear(40, 12), LayerPlan(weight=Spec(INT32)), "fc")


# --- errors -----------------------------------------------------------------------------------------------------------


def test_layers_that_compute_something_else_are_refused():
    class Branched(nn.Linear):
        def __init__(self):
            super().__init__(3, 4)
            self.more = nn.Linear(3, 4)

        def forward(self, x):
            return self.more(x) + super().forward(x)

    with pytest.raises(DTypeError, match="fc is a Branched; accepted is a plain Linear"):
        QuantLinear.from_linear(Branched(), plan(weight="int8"), "fc")
    with pytest.raises(DTypeError, match="accepted is a plain Conv1d"):
        QuantConv1d.from_conv(nn.Conv2d(1, 1, 1), plan(weight="int8"))
    with pytest.raises(DTypeError, match="parametrisation"):
        QuantLinear.from_linear(nn.utils.parametrizations.weight_norm(linear(40, 12)), plan(weight="int8"), "fc")
    with pytest.raises(DTypeError, match="not there yet"):
        QuantLinear.from_linear(nn.LazyLinear(3), plan(weight="int8"), "fc")
