"""Packed layers: the outputs of simulated ones, from codes alone."""

import copy
import gc
import pickle

import octavo
import pytest
import torch
from helpers.models import linear, plan, spec
from helpers.quick import spread
from helpers.values import normal
from octavo import DTypeError, Format, FormatError, KernelError, ModelError, NonFiniteError
from octavo.nn import (
    PackedConv1d,
    PackedConv2d,
    PackedEmbedding,
    PackedLinear,
    QuantConv1d,
    QuantConv2d,
    QuantEmbedding,
    QuantLinear,
)
from octavo.recipe.spec import INT32, Spec
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

FORMATS = [str(fmt) for fmt in octavo.formats()]
ORDER = 1e-5  # of float32 sums of some hundred products in another order, relative to the largest output


def assert_close(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert (a - b).abs().max() <= ORDER * b.abs().max()


# --- the same outputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", spread(FORMATS))
@pytest.mark.parametrize("k", [96, 37])
def test_a_packed_layer_is_the_simulated_one(text, k):
    simulated = QuantLinear.from_linear(linear(k), plan(weight=text, output="bf16", bias="fixed16.8")).eval()
    packed = PackedLinear.from_linear(simulated)
    assert packed.weight == octavo.encode(simulated.weight.detach(), text)
    for shape in ((), (1,), (2, 5)):
        x = normal(*shape, k)
        expected = functional.linear(x, packed.weight.decode(), packed.bias)
        packed.output_quantizer.enabled = False
        assert_close(packed(x), expected)
        packed.output_quantizer.enabled = True
        assert torch.equal(packed(x), octavo.quantize(packed(x), "bf16"))
    assert torch.equal(packed.bias, octavo.quantize(simulated.bias.detach(), "fixed16.8"))


@pytest.mark.parametrize("x_format", ["mxint8", "int8", "uint8", "e4m3"])
def test_inputs_are_rounded_as_in_simulation(x_format):
    simulated = QuantLinear.from_linear(linear(), plan(weight="mxint6", input=x_format)).eval()
    packed, x = PackedLinear.from_linear(simulated), normal(7, 96)
    assert not packed.is_integer
    assert_close(packed(x), simulated(x).detach())


@pytest.mark.parametrize("x_format", ["int8:g32", "mxint8", "int8:channel", "mxint4", "mxfp4", "int8@minmax"])
@pytest.mark.parametrize("weight", ["int4:g32", "uint4:g32", "mxint8", "nvfp4"])
def test_a_recipe_for_inputs_is_computed_from_codes_as_in_simulation(weight, x_format):
    """From the recipe to the packed layer; one with a name for its kernel where codes are multiplied."""
    x = normal(3, 512)
    made = octavo.quantize_model(
        nn.Sequential(linear(512, 70)),
        f"{weight} input={x_format}",
        calibration=[x] if "@" in x_format else None,
        progress=False,
    ).eval()
    packed = octavo.pack_model(made)
    assert not packed[0].is_integer
    with torch.no_grad():
        for rows in (x, x[:1], x[0], normal(20, 512, seed=1)):
            assert_close(packed(rows), made(rows))


BIASES = ["float", "fixed16.8", None]


@pytest.mark.parametrize("weight", ["int8:channel", "int8", "int5:channel", "int2"])
@pytest.mark.parametrize(
    ("x_format", "bias", "static"),
    [
        *((x_format, bias, False) for x_format in ("int8", "int4", "int8:channel") for bias in BIASES),
        *((x_format, bias, True) for x_format in ("int8", "int4") for bias in [*BIASES, "int32"]),
    ],
)
def test_integer_layers_agree_bit_for_bit(weight, x_format, bias, static):
    x = normal(9, 96)
    given = spec(x_format, "minmax" if static else None)
    more = {"int32": {"bias": Spec(INT32)}, "fixed16.8": {"bias": spec("fixed16.8")}}.get(bias, {})
    simulated = QuantLinear.from_linear(linear(bias=bias is not None), plan(weight=weight, input=given, **more)).eval()
    if static:
        simulated.input_quantizer.set_scales(octavo.encode(x, x_format).scales)
    packed = PackedLinear.from_linear(simulated)
    assert packed.is_integer and simulated.is_integer
    with torch.no_grad():
        for rows in (x, x[:1], x[0], 3 * x):
            assert torch.equal(packed(rows), simulated(rows))
    if bias == "int32":
        assert packed.bias.dtype == torch.int32


@pytest.mark.parametrize("text", spread(FORMATS))
def test_rows_of_a_table_are_those_of_the_simulated_table(text):
    torch.manual_seed(0)
    simulated = QuantEmbedding.from_embedding(nn.Embedding(23, 40, padding_idx=0), plan(weight=text))
    packed = PackedEmbedding.from_embedding(simulated)
    for ids in (torch.tensor([[0, 22, 5], [5, 5, 1]]), torch.tensor(3), torch.empty(0, dtype=torch.int64)):
        assert torch.equal(packed(ids), simulated(ids))
    assert packed.padding_idx == 0


CONVS = [
    (nn.Conv1d, QuantConv1d, PackedConv1d, {"kernel_size": 3, "padding": 1, "groups": 2}, (2, 6, 9)),
    (nn.Conv1d, QuantConv1d, PackedConv1d, {"kernel_size": 3, "padding": "same", "dilation": 2}, (6, 9)),
    (nn.Conv2d, QuantConv2d, PackedConv2d, {"kernel_size": (3, 2), "stride": 2, "padding": 1}, (2, 6, 7, 8)),
    (nn.Conv2d, QuantConv2d, PackedConv2d, {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, (2, 6, 7, 8)),
]


@pytest.mark.parametrize(("kind", "simulate", "pack", "options", "shape"), CONVS)
@pytest.mark.parametrize(
    ("weight", "x_format", "exact"),
    [("mxint8", "mxint8", False), ("nf4", None, False), ("int8:channel", "int8", True), ("int3", "int5", True)],
)
def test_packed_convolutions_are_the_simulated_ones(kind, simulate, pack, options, shape, weight, x_format, exact):
    torch.manual_seed(0)
    given = {"weight": weight} | ({"input": x_format} if x_format else {})
    simulated = simulate.from_conv(kind(6, 8, **options), plan(**given)).eval()
    packed, x = pack.from_conv(simulated), normal(*shape)
    with torch.no_grad():
        assert packed.is_integer == exact == simulated.is_integer
        assert torch.equal(packed(x), simulated(x)) if exact else not assert_close(packed(x), simulated(x))


def test_float_layers_are_packed_in_a_format():
    x = normal(3, 96)
    packed = PackedLinear.from_linear(linear(), Spec(Format("mxint8"), scale="ceil"))
    assert packed.weight == octavo.encode(linear().weight.detach(), "mxint8", scale="ceil")
    assert_close(packed(x), functional.linear(x, packed.weight.decode(), packed.bias))
    assert PackedEmbedding.from_embedding(nn.Embedding(5, 8), Format("int4:g8")).weight.shape == (5, 8)
    assert PackedConv2d.from_conv(nn.Conv2d(3, 4, 3), "mxint4").weight.shape == (4, 27)


def test_learned_scales_are_frozen():
    simulated = QuantLinear.from_linear(linear(), plan(weight="int4:channel", input="int8")).eval()
    x = normal(5, 96)
    simulated.weight_quantizer.set_scales(octavo.encode(simulated.weight.detach(), "int4:channel").scales)
    simulated.input_quantizer.set_scales(octavo.encode(x, "int8").scales)
    for quantizer in (simulated.weight_quantizer, simulated.input_quantizer):
        quantizer.learn()
        quantizer.scales.data *= -0.7
    packed = PackedLinear.from_linear(simulated)
    assert not [name for name, p in packed.named_parameters() if p.requires_grad]
    with torch.no_grad():
        assert torch.equal(packed(x), simulated(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_in_and_out(dtype):
    packed, x = PackedLinear.from_linear(linear(), "mxint8").to(dtype), normal(4, 96).to(dtype)
    y = packed(x)
    expected = functional.linear(x.float(), packed.weight.decode(torch.float32), packed.bias.float())
    assert y.dtype == dtype
    assert (y.float() - expected).abs().max() <= 2**-7 * expected.abs().max()
    assert PackedEmbedding.from_embedding(nn.Embedding(5, 8), "mxint8").to(dtype)(torch.tensor(3)).dtype == dtype


def test_gradients_reach_the_input_and_never_the_codes():
    packed = PackedLinear.from_linear(linear(), "mxint4")
    x = normal(3, 96).requires_grad_()
    packed(x).square().sum().backward()
    y = packed(x.detach())
    expected = 2 * y @ packed.weight.decode()
    assert (x.grad - expected).abs().max() <= ORDER * expected.abs().max()
    assert not any(buffer.requires_grad for buffer in packed.buffers())


def test_encoder_layers_of_torch_call_their_packed_layers():
    """They have a fast path that reads weights without calling layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    packed = copy.deepcopy(layer)
    packed.linear1 = PackedLinear.from_linear(layer.linear1, "mxint8")
    packed.linear2 = PackedLinear.from_linear(layer.linear2, "mxint8")
    for linear_layer in (layer.linear1, layer.linear2):
        linear_layer.weight.data = octavo.quantize(linear_layer.weight.data, "mxint8")
    x = normal(2, 5, 32)
    with torch.no_grad():
        assert torch.allclose(packed(x), layer(x), atol=1e-5)


# --- what is held -------------------------------------------------------------------------------------------------------


def test_codes_scales_and_bias_are_all_that_is_held():
    n, k = 64, 171
    layer = linear(k, n)
    packed = PackedLinear.from_linear(QuantLinear.from_linear(layer, plan(weight="mxint8", input="mxint8")))
    held = sum(t.nbytes for t in [*packed.parameters(), *packed.buffers()])
    assert held == octavo.Format("mxint8").nbytes((n, k)) + 4 * n + len("mxint8")  # the format, by its name


def floats_of(numel):
    """Float tensors of this many elements that live in this process."""
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Parameter)  # not the fake ones of a capture, whose sizes may be unknown
    tensors = [thing for thing in gc.get_objects() if type(thing) in kinds]
    return [t for t in tensors if t.is_floating_point() and t.numel() == numel]


def test_no_dense_weight_lives_on():
    layer = linear(171, 67)  # a size that nothing else has
    packed = PackedLinear.from_linear(QuantLinear.from_linear(layer, plan(weight="mxint8", input="mxint8")))
    assert floats_of(171 * 67)
    del layer
    packed(normal(3, 171))
    assert not floats_of(171 * 67)


@pytest.mark.parametrize(
    "text", ["mxint8", "int4:g32", "uint4:g32", "nvfp4", "int8:channel", "fixed8", "binary2:channel"]
)
def test_codes_and_scales_keep_their_dtypes(text):
    packed = PackedLinear.from_linear(linear(), text)
    before = packed.weight
    for move in (lambda m: m.half(), lambda m: m.double().float(), lambda m: m.to(torch.bfloat16)):
        moved = move(copy.deepcopy(packed))
        assert moved.weight.to(dtype=torch.float32) == before
    assert moved.weight.dtype == moved.bias.dtype == torch.bfloat16
    assert copy.deepcopy(packed).to("meta").weight.device.type == "meta"


def test_copies_and_pickles_compute_alike():
    layer = QuantLinear.from_linear(linear(), plan(weight="int4:channel", input="int8:channel")).eval()
    packed, x = PackedLinear.from_linear(layer), normal(3, 96)
    packed.register_forward_hook(_halve)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert torch.equal(twin(x), packed(x))
        assert twin.weight == packed.weight


def _halve(module, args, y):
    return y / 2


def test_state_dicts_go_round():
    a, b = (PackedLinear.from_linear(nn.Linear(96, 40), "int4:g32") for _ in range(2))
    parts = {"weight_codes", "weight_scales", "weight_format"}
    assert set(a.state_dict()) == {*parts, "bias"} and set(dict(a.named_buffers())) == parts
    b.load_state_dict(a.state_dict())
    assert b.weight == a.weight
    b.load_state_dict({name: value.clone() for name, value in a.state_dict().items()}, assign=True)
    assert torch.equal(b(normal(3, 96)), a(normal(3, 96)))


@pytest.mark.parametrize("text", ["e4m3", "int4:g32", "uint4:g32", "nvfp4"])
def test_parts_that_a_format_lacks_are_no_buffers_and_old_state_dicts_have_them(text):
    layer, twin = (PackedLinear.from_linear(linear(k=96, n=48), text) for _ in range(2))
    nn.init.zeros_(twin.bias)
    core = layer.format.core
    there = {"weight_codes": True, "weight_scales": core.scale_type is not None}
    there |= {"weight_zeros": core.has_zeros, "weight_levels": core.has_levels, "weight_format": True}
    assert {name for name, _ in layer.named_buffers()} == {name for name, is_there in there.items() if is_there}
    assert all(tensor.numel() for tensor in layer.state_dict().values())
    old = layer.state_dict() | {name: getattr(layer, name) for name in there}  # as version 0.1 wrote it
    x = normal(3, 96)
    assert str(twin.load_state_dict(old)) == "<All keys matched successfully>" and torch.equal(twin(x), layer(x))
    for name in there:
        if not there[name]:
            with pytest.raises(RuntimeError, match=f"Unexpected key.*{name}"):
                twin.load_state_dict(old | {name: torch.ones(3)})
    # A pickle of that version: all parts are buffers.
    twin.__setstate__({**vars(layer), "_buffers": {name: getattr(layer, name) for name in there}})
    assert dict(twin.named_buffers()).keys() == dict(layer.named_buffers()).keys() and torch.equal(twin(x), layer(x))


def test_parts_that_a_format_lacks_follow_the_codes():
    """Other packages move the buffers of a layer one after another."""
    layer = PackedLinear.from_linear(linear(), "int4:g32")
    assert layer.to("meta").weight_zeros.is_meta
    for name, buffer in [*layer.named_buffers()]:
        layer._buffers[name] = torch.zeros_like(buffer, device="cpu")
    assert all(part.device.type == "cpu" for part in layer.parts) and not layer.weight_zeros.is_meta
    halved = PackedLinear.from_linear(linear(), "nvfp4").half()
    assert halved.weight_levels.dtype == torch.float32 and halved.weight_zeros.dtype == torch.uint8


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.tensor(9), torch.zeros(1, 2, dtype=torch.uint8)])
def test_a_format_that_is_no_text_is_not_loaded(wrong):
    layer = PackedLinear.from_linear(linear(), "mxint8")
    with pytest.raises(RuntimeError, match=r"weight: codes of 'a torch\.\w+ tensor of shape"):
        layer.load_state_dict(layer.state_dict() | {"weight_format": wrong})


def test_codes_of_another_format_are_not_loaded():
    a, b = (PackedLinear.from_linear(linear(), text) for text in ("mxint8", "mxfp8e4m3"))
    before = a.weight.decode()
    with pytest.raises(RuntimeError, match="weight: codes of 'mxfp8e4m3', but the layer holds 'mxint8'"):
        a.load_state_dict(b.state_dict())
    assert torch.equal(a.weight.decode(), before)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (PackedLinear.from_linear(linear(), "mxint8"), normal(3, 96)),
        (PackedLinear.from_linear(QuantLinear.from_linear(linear(), plan(weight="int8", input="int8"))), normal(3, 96)),
        (
            PackedLinear.from_linear(QuantLinear.from_linear(linear(), plan(weight="nf4", input="mxint8"))),
            normal(3, 96),
        ),
        (PackedEmbedding.from_embedding(nn.Embedding(9, 32), "mxint8"), torch.arange(9)),
        (PackedConv2d.from_conv(nn.Conv2d(3, 4, 3), "mxint8"), normal(1, 3, 5, 5)),
        (
            PackedConv1d.from_conv(QuantConv1d.from_conv(nn.Conv1d(3, 4, 3), plan(weight="int8", input="int8"))),
            normal(1, 3, 5),
        ),
    ],
    ids=["linear", "integer", "rounded input", "embedding", "conv2d", "integer conv1d"],
)
def test_packed_layers_compile_without_a_break(layer, x):
    torch._dynamo.reset()
    compiled = torch.compile(layer.eval(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))
    if x.is_floating_point() and x.ndim == 2:
        assert torch.equal(compiled(x[:2]), layer(x[:2]))


# --- errors -------------------------------------------------------------------------------------------------------------


def test_other_devices_are_refused_at_the_call():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x, ids = torch.empty(3, 96, device="cuda"), torch.zeros(3, dtype=torch.int64, device="cuda")
        codes = torch.zeros(40, 96, dtype=torch.uint8, device="cuda")
    layer = PackedLinear.from_linear(linear(), "mxint8")
    with pytest.raises(DTypeError, match=r"PackedLinear: its input is on cuda:0, its weight on cpu; move one"):
        layer(x)
    layer.weight_codes = codes
    with pytest.raises(DTypeError, match=r"PackedLinear: its input is on cpu, its weight on cuda:0"):
        layer(normal(3, 96))
    with pytest.raises(DTypeError, match=r"PackedEmbedding: its input is on cuda"):
        PackedEmbedding.from_embedding(nn.Embedding(5, 8), "mxint8")(ids)


def each_kind():
    """A packed layer of every kind, and an input of it."""
    integer = QuantLinear.from_linear(linear(), plan(weight="int8", input="int8"))
    return (
        (PackedLinear.from_linear(linear(), "mxint8"), normal(3, 96)),
        (PackedLinear.from_linear(integer), normal(3, 96)),
        (PackedConv2d.from_conv(nn.Conv2d(3, 4, 3), "mxint8"), normal(1, 3, 5, 5)),
        (PackedEmbedding.from_embedding(nn.Embedding(9, 32), "mxint8"), torch.arange(9)),
    )


def test_weights_without_values_are_refused_at_the_call():
    for layer, x in each_kind():
        with pytest.raises(
            DTypeError, match=r"its weight is on meta, without values, and the input on cpu; load_model"
        ):
            layer.to("meta")(x)
        assert layer(x.to("meta")).is_meta


def test_what_is_no_tensor_is_refused_at_the_call():
    for layer, x in each_kind():
        for wrong in (None, x.numpy()):
            with pytest.raises(DTypeError, match=rf"its input is a {type(wrong).__name__}; accepted are tensors"):
                layer(wrong)


def test_forward_mode_is_refused():
    for layer, x in each_kind()[:3]:
        with pytest.raises(NotImplementedError, match="forward-mode derivatives are not defined"):
            torch.func.jvp(layer, (x,), (x,))
        with torch.autograd.forward_ad.dual_level():
            layer(x)
            with pytest.raises(NotImplementedError, match="use reverse mode"):
                layer(torch.autograd.forward_ad.make_dual(x, x))


def test_inputs_are_named_as_in_torch():
    simulated = QuantEmbedding.from_embedding(nn.Embedding(9, 32), plan(weight="mxint8")), torch.arange(9)
    for layer, x in (*each_kind(), (QuantLinear.from_linear(linear(), plan(weight="int8")), normal(3, 96)), simulated):
        assert torch.equal(layer(input=x), layer(x))


def test_convolutions_have_no_kernel():
    packed, x = PackedConv2d.from_conv(nn.Conv2d(3, 4, 3), "mxint8"), normal(1, 3, 5, 5)
    with octavo.strict(), pytest.raises(KernelError, match="no kernel for packed convolutions"):
        packed(x)
    with octavo.strict(), octavo.strict(False):
        packed(x)


def test_what_cannot_be_packed_is_refused():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    off = QuantLinear.from_linear(linear(), plan(weight="int8"))
    off.weight_quantizer.enabled = False
    bad = linear()
    bad.weight.data[3, 4] = torch.nan
    for make, error, message in (
        (
            lambda: PackedLinear.from_linear(nn.Conv2d(1, 1, 1), "int8"),
            ModelError,
            "is a Conv2d; PackedLinear replaces",
        ),
        (lambda: PackedLinear.from_linear(Doubled(3, 4), "int8", "fc"), ModelError, "fc is a Doubled with a forward"),
        (lambda: PackedLinear.from_linear(linear(), None, "fc"), ModelError, "fc: a float layer needs a format"),
        (lambda: PackedLinear.from_linear(off, "int8", "fc"), ModelError, "fc: a quantized layer has its own format"),
        (lambda: PackedLinear.from_linear(off, what="fc"), ModelError, "fc: its weight has its quantizer switched off"),
        (lambda: PackedLinear.from_linear(linear(), spec("int8", "mse")), ModelError, "asks for calibration"),
        (
            lambda: PackedLinear.from_linear(linear(), "int8@mse", "fc"),
            ModelError,
            "fc: 'int8@mse' asks for calibration",
        ),
        (lambda: PackedLinear.from_linear(linear(), "keep"), FormatError, "'keep'"),
        (lambda: PackedLinear.from_linear(linear(), "int32", "fc"), FormatError, "fc: 'int32' is a format of biases"),
        (lambda: PackedLinear.from_linear(bad, "int8", "fc"), NonFiniteError, "nan|NaN"),
        (lambda: PackedEmbedding.from_embedding(nn.Embedding(3, 4, max_norm=1.0), "int8"), ModelError, "max_norm"),
        (lambda: PackedLinear(octavo.encode(normal(3, 4), "int8", axis=0)), ModelError, "along its last axis"),
        (lambda: PackedLinear(octavo.encode(normal(3, 4), "int8"), normal(4)), ModelError, "bias has shape"),
        (
            lambda: PackedLinear(octavo.encode(normal(3, 4), "int8"), torch.zeros(3, dtype=torch.int32)),
            ModelError,
            "int32 bias needs integer",
        ),
    ):
        with pytest.raises(error, match=message):
            make()


def test_a_weight_that_a_hook_computes_is_not_packed():
    layer = prune.l1_unstructured(linear(), "weight", 0.5)
    with pytest.raises(ModelError, match=r"a hook computes its weight .* torch\.nn\.utils\.prune\.remove"):
        PackedLinear.from_linear(layer, "mxint8")
    assert PackedLinear.from_linear(prune.remove(layer, "weight"), "mxint8").weight.shape == (40, 96)


def test_functions_of_torch_say_what_to_do_with_a_packed_weight():
    packed = PackedLinear.from_linear(linear(), "mxint8")
    with pytest.raises(DTypeError, match=r"linear takes no PackedTensor; decode\(\) it, or call the layer"):
        functional.linear(normal(3, 96), packed.weight)
