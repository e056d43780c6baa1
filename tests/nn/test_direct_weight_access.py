"""Weights and biases that a model's own code reads, past the layer."""

import asyncio
import copy
import pickle

import octavo
import pytest
import torch
from helpers.models import linear, spec
from octavo import KernelError, ModelError
from octavo.nn import PackedLinear, QuantEmbedding, QuantLinear, QuantTransposedLinear, rounded_weights
from octavo.nn.direct_weight_access import LateTensor
from octavo.recipe.spec import INT32, LayerPlan, Spec
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint


class Reads(nn.Module):
    """``x W^T + b`` by reading W and b."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x @ self.layer.weight.t() + self.layer.bias


class Calls(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def quantized(**roles):
    roles = roles or {"weight": "int4:channel", "bias": "int8"}
    return QuantLinear.from_linear(linear(), LayerPlan(**{role: spec(text) for role, text in roles.items()}))


X = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("text", [str(fmt) for fmt in octavo.formats()])
def test_reading_gives_the_values_that_the_layer_multiplies(text):
    layer = quantized(weight=text, bias="int8")
    with torch.no_grad():
        assert torch.equal(
            Reads(layer)(X), X @ octavo.quantize(layer.weight, text).t() + octavo.quantize(layer.bias, "int8")
        )
        packed = PackedLinear.from_linear(layer)
        assert torch.equal(Reads(packed)(X), Reads(layer)(X))


def test_outside_a_forward_pass_it_is_the_parameter_or_the_packed_tensor():
    layer = quantized()
    assert layer.weight is layer._parameters["weight"] and isinstance(layer.bias, nn.Parameter)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    packed = PackedLinear.from_linear(layer)
    assert isinstance(packed.weight, octavo.PackedTensor) and packed.weight == packed.packed_weight
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.weight, layer.weight) and set(twin.state_dict()) == set(layer.state_dict())
    head = nn.Linear(96, 40)
    head.weight = layer.weight
    assert head.weight is layer.weight


def test_gradients_pass_as_they_do_through_the_layer():
    called, read = quantized(weight="int4:channel"), quantized(weight="int4:channel")
    for model in (Calls(called), Reads(read)):
        model(X).square().sum().backward()
    assert torch.allclose(called.weight.grad, read.weight.grad, rtol=1e-4)
    assert torch.equal(called.bias.grad, read.bias.grad) or torch.allclose(called.bias.grad, read.bias.grad, rtol=1e-5)


def test_checkpointed_passes_recompute_the_same():
    layer = quantized(weight="int4:channel")
    torch.utils.checkpoint.checkpoint(Reads(layer), X, use_reentrant=False).sum().backward()
    again = quantized(weight="int4:channel")
    Reads(again)(X).sum().backward()
    assert torch.equal(layer.weight.grad, again.weight.grad)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_checkpointed_functions_of_any_name_recompute_the_same(packed, reentrant):
    class Blocks(Reads):
        def block(self, x):
            return torch.tanh(x.sin() @ self.layer.weight.t() + self.layer.bias)

        def forward(self, x, again):
            return checkpoint(self.block, x, use_reentrant=reentrant) if again else self.block(x)

    gradients = []
    for again in (False, True):
        layer = quantized(weight="int4:channel")
        x = X.clone().requires_grad_()
        Blocks(PackedLinear.from_linear(layer) if packed else layer)(x, again).square().sum().backward()
        gradients.append((x.grad, None if packed else layer.weight.grad))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert packed or torch.equal(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", [
    lambda w: w.data.clamp_(-1, 1), lambda w: w.detach().mul_(2), lambda w: w.data.__setitem__(0, 0.0), lambda w: w.zero_(),
    lambda w: setattr(w, "data", torch.zeros(40, 96)), lambda w: w.data.copy_(torch.zeros(40, 96)), lambda w: nn.init.uniform_(w.data),
    lambda w: torch.add(w, w, out=w.data), lambda w: w.__imul__(2), lambda w: w.__setitem__(slice(None), 0.0),
])  # fmt: skip
def test_a_weight_that_is_written_to_in_a_forward_pass_is_refused_by_name(write, packed, graded):
    class Writes(nn.Module):
        def forward(self, layer):
            write(layer.weight)

    layer = QuantLinear.from_linear(linear(), LayerPlan(weight=spec("int8")), "head")
    layer = PackedLinear.from_linear(layer, what="head") if packed else layer
    with torch.set_grad_enabled(graded), pytest.raises(ModelError, match=r"^head: weight .*'name:head keep'"):
        Writes()(layer)


def test_replicas_hold_the_bias_as_a_plain_tensor():
    layer = PackedLinear.from_linear(quantized(weight="int4:channel"))
    replica = layer._replicate_for_data_parallel()  # what torch.nn.parallel.replicate does with each module
    replica._parameters = {}
    replica.bias = layer.bias.detach().clone()
    assert torch.equal(replica(X), layer(X)) and torch.equal(Reads(replica)(X), Reads(layer)(X))


def test_rows_of_a_table_are_read_rounded():
    table = QuantEmbedding.from_embedding(nn.Embedding(9, 32), LayerPlan(weight=spec("mxint4")))

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, ids):
            return functional.embedding(ids, self.table.weight)

    ids = torch.arange(9)
    with torch.no_grad():
        assert torch.equal(Head()(ids), table(ids))


def test_transposed_layers_keep_the_shape_that_is_read():
    transformers = pytest.importorskip("transformers")
    conv = transformers.pytorch_utils.Conv1D(40, 96)
    layer = QuantTransposedLinear.from_conv1d(conv, LayerPlan(weight=spec("int8:channel")))

    class Product(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            assert self.layer.weight.shape == (96, 40)
            return x @ self.layer.weight

    with torch.no_grad():
        expected = X @ octavo.quantize(conv.weight.t(), "int8:channel").t()
        assert torch.equal(Product(layer)(X), expected)
        assert torch.allclose(Product(PackedLinear.from_linear(layer))(X), expected, atol=1e-5)


def test_an_integer_bias_is_read_in_real_numbers():
    plan = LayerPlan(weight=spec("int8:channel"), input=spec("int8", "minmax"), bias=Spec(INT32))
    layer = QuantLinear.from_linear(linear(), plan).eval()
    layer.input_quantizer.set_scales(octavo.encode(X, "int8").scales)
    with torch.no_grad():
        packed = PackedLinear.from_linear(layer)
        assert packed.bias.dtype == torch.int32
        assert torch.allclose(Reads(packed)(X), Reads(layer)(X), atol=1e-6)


def test_reading_no_more_than_shape_and_dtype_computes_nothing(monkeypatch):
    seen = []

    class Asks(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            weight = self.layer.weight
            assert isinstance(weight, torch.Tensor) and weight.dtype == torch.float32 and weight.device == x.device
            assert weight.shape == (40, 96) and weight.size(0) == len(weight) == 40 and weight.numel() == 40 * 96
            seen.append(isinstance(weight, LateTensor) and weight._value is None)
            return x

    with torch.no_grad():
        Asks(quantized())(X)
    Asks(PackedLinear.from_linear(quantized()))(X)
    assert seen == [True, True]


@pytest.mark.parametrize("use", [
    lambda w: w + 1, lambda w: 1 - w, lambda w: w @ w.t(), lambda w: w[3], lambda w: -w, lambda w: w.float().sum(0),
    lambda w: torch.cat([w, w]), lambda w: torch.einsum("nk,mk->nm", w, w), lambda w: w.view(-1), lambda w: w == 0,
    lambda w: functional.layer_norm(w, (96,)), lambda w: w.data.clone(), lambda w: w.detach().clone(), lambda w: w.T, lambda w: w.to(torch.bfloat16),
    lambda w: torch.stack(list(w)), lambda w: torch.from_numpy(w.numpy()), lambda w: copy.deepcopy(w), lambda w: torch.empty(40, 96).copy_(w),
])  # fmt: skip
def test_a_weight_that_is_read_is_like_any_tensor(use):
    packed = PackedLinear.from_linear(quantized())

    class Uses(nn.Module):
        def forward(self, layer):
            return use(layer.weight)

    with torch.no_grad():
        found, expected = Uses()(packed), use(packed.packed_weight.decode())
    assert type(found) is type(expected) and torch.equal(found, expected)


def test_compiled_models_read_rounded_weights_without_a_break():
    with torch.no_grad():
        for layer in (quantized().eval(), PackedLinear.from_linear(quantized()).eval()):
            torch._dynamo.reset()
            model = Reads(layer)
            assert torch.allclose(torch.compile(model, fullgraph=True, backend="aot_eager")(X), model(X), atol=1e-6)


def test_methods_that_compute_compile_without_a_break():
    layer = quantized(weight="int4:channel")

    @rounded_weights()
    def product(x):
        return x @ layer.weight.t()

    with torch.no_grad():
        torch._dynamo.reset()
        assert torch.allclose(torch.compile(product, fullgraph=True, backend="eager")(X), product(X), atol=1e-6)


def test_strict_refuses_and_gives_the_rule():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Reads(linear())

        def forward(self, x):
            return self.inner(x)

    packed = octavo.pack_model(octavo.quantize_model(Two(), "mxint8", progress=False))
    with octavo.strict(), pytest.raises(KernelError, match=r"^inner.layer: .*'name:inner.layer keep'"):
        packed(X)


def test_methods_outside_a_forward_say_that_they_compute():
    class Own(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def plain(self, x):
            return x @ self.layer.weight.t()

        @rounded_weights()
        def generate(self, x):
            return self.plain(x)

    layer = quantized(weight="int4:channel")
    with torch.no_grad():
        expected = X @ octavo.quantize(layer.weight, "int4:channel").t()
        for model in (Own(layer), Own(PackedLinear.from_linear(layer))):
            assert torch.equal(model.generate(X), expected)
            with rounded_weights():
                assert torch.equal(model.plain(X), expected)
        assert torch.equal(Own(layer).plain(X), X @ layer.weight.t())


def test_generators_and_coroutines_read_rounded_weights_at_every_step():
    layer = quantized(weight="int4:channel")
    expected = octavo.quantize(layer.weight, "int4:channel")

    @rounded_weights()
    def stream():
        sent = yield layer.weight
        try:
            yield sent + layer.weight
        except ValueError:
            yield layer.weight

    @rounded_weights()
    async def once():
        await asyncio.sleep(0)
        return layer.weight

    @rounded_weights()
    async def later():
        for _ in range(2):
            yield await once()

    async def collected():
        return [await once(), *[weight async for weight in later()]]

    steps = stream()
    found = [next(steps), steps.send(0), steps.throw(ValueError("on purpose")), *asyncio.run(collected())]
    assert all(torch.equal(weight, expected) for weight in found)
    held = stream()
    next(held)
    assert layer.weight is layer._parameters["weight"]  # the consumer reads as before
    held.close()


def test_hooks_of_torch_that_move_the_weight_work_on():
    layer = prune.random_unstructured(quantized(weight="mxint8"), "weight", 0.5)
    expected = functional.linear(X, octavo.quantize(layer.weight_orig * layer.weight_mask, "mxint8"), layer.bias)
    assert torch.equal(layer(X), expected)
    prune.remove(layer, "weight")
    assert torch.equal(layer(X), expected)

    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    layer = quantized(weight="mxint8")
    expected = functional.linear(X, octavo.quantize(layer.weight / 2, "mxint8"), layer.bias)
    parametrize.register_parametrization(layer, "weight", Half())
    assert torch.equal(layer(X), expected)
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer(X), expected)


def test_functional_calls_use_the_tensors_they_are_given():
    layer = quantized(weight="mxint8")
    given = {"layer.weight": torch.randn(40, 96), "layer.bias": torch.zeros(40)}
    with torch.no_grad():
        found = torch.func.functional_call(Reads(layer), given, (X,))
        assert torch.equal(found, X @ octavo.quantize(given["layer.weight"], "mxint8").t() + 0)


def test_layers_without_a_weight_or_bias_say_so():
    table = QuantEmbedding.from_embedding(nn.Embedding(9, 32), LayerPlan(weight=spec("mxint4")))
    assert not hasattr(table, "bias") and getattr(table, "bias", None) is None
    layer = quantized()
    del layer.bias
    assert not hasattr(layer, "bias")
    layer.register_parameter("bias", None)
    assert layer.bias is None
    layer.bias = nn.Parameter(torch.zeros(40))
    assert isinstance(layer.bias, nn.Parameter)
