"""Products of activations: against plain torch, and through the attention interface of transformers."""

import copy
import pickle

import octavo
import pytest
import torch
from helpers.models import plan, transformer
from helpers.values import normal
from octavo import DTypeError, FormatError
from octavo.nn import QuantAttention, QuantMatmul, attention, quantized_matmul
from torch import nn
from torch.nn import functional


@pytest.mark.parametrize("text", [str(fmt) for fmt in octavo.formats()])
def test_both_operands_are_rounded_along_the_contraction(text):
    a, b = normal(2, 5, 40), normal(2, 40, 7, seed=1)
    right = octavo.quantize(b.transpose(1, 2).contiguous(), text).transpose(1, 2)
    expected = octavo.quantize(a, text) @ right
    torch.testing.assert_close(quantized_matmul(a, b, text), expected)
    torch.testing.assert_close(QuantMatmul(plan(input=text))(a, b), expected)
    rounded = QuantMatmul(plan(input=text, output="bf16"))(a, b)
    assert torch.equal(rounded, octavo.quantize(QuantMatmul(plan(input=text))(a, b), "bf16"))


def test_operands_may_have_formats_of_their_own():
    a, b = normal(5, 40), normal(40, 7, seed=1)
    expected = octavo.quantize(a, "int8") @ octavo.quantize(b, "mxint4", axis=0)
    assert torch.equal(quantized_matmul(a, b, "int8", "mxint4"), expected)


def test_gradients_reach_both_operands():
    a, b = normal(5, 40).requires_grad_(), normal(40, 7, seed=1).requires_grad_()
    QuantMatmul(plan(input="int8"))(a, b).sum().backward()
    torch.testing.assert_close(a.grad, octavo.quantize(b.detach(), "int8", axis=0).sum(1).expand(5, 40))
    torch.testing.assert_close(b.grad, octavo.quantize(a.detach(), "int8").sum(0)[:, None].expand(40, 7))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "added"])
def test_without_formats_it_is_attention(causal, masked):
    q, k, v = normal(2, 3, 6, 16), normal(2, 3, 6, 16, seed=1), normal(2, 3, 6, 16, seed=2)
    mask = None if masked is None else torch.ones(2, 1, 6, 6, dtype=torch.bool)
    if masked:
        mask[0, ..., 4:] = False
    given = torch.where(mask, 0.0, -1e30) if masked == "added" else mask
    lower = torch.ones(6, 6, dtype=torch.bool).tril()
    seen = (lower if causal else torch.ones_like(lower)) & (mask if masked else True)
    expected = functional.scaled_dot_product_attention(q, k, v, seen.expand(2, 1, 6, 6))
    y, probabilities = QuantAttention()(q, k, v, given, causal=causal)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 3, 6))


def test_queries_after_a_cache_see_every_key_before_them():
    q, k, v = normal(1, 2, 16), normal(1, 5, 16, seed=1), normal(1, 5, 16, seed=2)
    whole = torch.cat([normal(1, 3, 16, seed=3), q], 1)
    last, _ = QuantAttention()(q, k, v, causal=True)
    torch.testing.assert_close(last, QuantAttention()(whole, k, v, causal=True)[0][:, 3:])


def test_the_four_operands_of_attention_are_rounded():
    q, k, v = normal(2, 6, 40), normal(2, 6, 40, seed=1), normal(2, 6, 40, seed=2)
    y, probabilities = QuantAttention(plan(input="mxint4"))(q, k, v)
    scores = octavo.quantize(q, "mxint4") @ octavo.quantize(k, "mxint4").transpose(1, 2) * 40**-0.5
    torch.testing.assert_close(probabilities, scores.softmax(-1))
    expected = octavo.quantize(probabilities, "mxint4") @ octavo.quantize(v, "mxint4", axis=1)
    torch.testing.assert_close(y, expected)


def test_products_have_no_weight():
    for module, name in ((QuantMatmul, "QuantMatmul"), (QuantAttention, "QuantAttention")):
        with pytest.raises(FormatError, match=f"{name} has no weight to hold 'int8'"):
            module(plan(weight="int8"))


def test_a_recipe_reaches_products_and_calibrates_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.product = QuantAttention(), QuantMatmul()

        def forward(self, x):
            return self.product(self.attend(x, x, x)[0], x.transpose(1, 2))

    x = normal(4, 6, 16)
    model = Model().eval()
    quantized = octavo.quantize_model(
        model, "type:QuantAttention input=int8@mse; product input=uint8@minmax output=int8@minmax", calibration=[x]
    )
    found = dict(quantized.named_modules())
    statics = [path for path, module in found.items() if getattr(module, "is_static", False)]
    assert statics == [
        *("attend.scores.a_quantizer", "attend.scores.b_quantizer"),
        *("attend.values.a_quantizer", "attend.values.b_quantizer"),
        *("product.a_quantizer", "product.b_quantizer", "product.output_quantizer"),
    ]
    assert not any("quantizer" in path for path, _ in model.named_modules())
    assert 0 < (quantized(x) - model(x)).abs().max() < 0.3
    torch._dynamo.reset()
    assert torch.equal(torch.compile(quantized, fullgraph=True, backend="aot_eager")(x), quantized(x))


# --- transformers -----------------------------------------------------------------------------------------------------


def batch():
    mask = torch.ones(4, 12, dtype=torch.int64)
    mask[:2, 9:] = 0
    return {
        "input_ids": torch.randint(1, 50, (4, 12), generator=torch.Generator().manual_seed(0)),
        "attention_mask": mask,
    }


BERT, LLAMA = "BertForSequenceClassification", "LlamaForCausalLM"
SIZES = {BERT: {"heads": 4}, LLAMA: {"heads": 4, "num_key_value_heads": 2}}
RECIPE = "int8:channel; type:Linear input=int8@mse; type:QuantAttention input=int8@mse; last:Linear keep"


@pytest.mark.parametrize("kind", SIZES)
def test_attached_attention_is_that_of_the_model(kind):
    model = transformer(kind, **SIZES[kind])
    attached = attention.attach(copy.deepcopy(model))
    with torch.no_grad():
        torch.testing.assert_close(attached(**batch()).logits[2:], model(**batch()).logits[2:], rtol=1e-5, atol=1e-6)
    assert attached.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("kind", SIZES)
def test_models_of_transformers_are_quantized_whole(kind):
    model = transformer(kind, **SIZES[kind])
    quantized = octavo.quantize_model(attention.attach(copy.deepcopy(model)), RECIPE, calibration=[batch()])
    with torch.no_grad():
        y, exact = quantized(**batch()).logits, model(**batch()).logits
        assert 0 < (y - exact).square().mean() < 2e-3 * exact.square().mean()
        assert torch.equal(pickle.loads(pickle.dumps(quantized))(**batch()).logits, y)
        torch._dynamo.reset()
        if kind is BERT:
            assert torch.equal(torch.compile(quantized, fullgraph=True, backend="aot_eager")(**batch()).logits, y)
    scores = next(m for m in quantized.modules() if isinstance(m, QuantAttention)).scores
    assert scores.a_quantizer.is_static and scores.b_quantizer.is_static


def test_conv1d_of_transformers_is_a_linear_layer():
    pytest.importorskip("transformers")
    from octavo.nn import QuantLinear, QuantTransposedLinear
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer, linear, x = Conv1D(12, 40), nn.Linear(40, 12), normal(2, 3, 40)
    linear.weight.data, linear.bias = layer.weight.data.t().contiguous(), layer.bias
    for given in (plan(weight="mxint4", input="mxint8"), plan(weight="int8:channel", input="int8:channel")):
        quantized = QuantTransposedLinear.from_conv1d(layer, given)
        for training in (True, False):
            expected = QuantLinear.from_linear(linear, given).train(training)(x)
            torch.testing.assert_close(quantized.train(training)(x), expected, rtol=1e-6, atol=1e-7)
        assert quantized.weight is layer.weight


def test_a_model_without_the_interface_is_refused():
    with pytest.raises(DTypeError, match="Linear has no attention behind"):
        attention.attach(nn.Linear(3, 3))
