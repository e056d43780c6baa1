"""MultiheadAttention of torch made of layers: the outputs of torch, and the whole way of a model."""

import copy
from itertools import product

import octavo
import pytest
import torch
from octavo.nn.rewriting import rewritten
from torch import nn


def attention(bias=True, more=False, zero=False, first=False, other=False):
    torch.manual_seed(0)
    sizes = {"kdim": 24, "vdim": 40} if other else {}
    module = nn.MultiheadAttention(
        32, 4, bias=bias, add_bias_kv=more, add_zero_attn=zero, batch_first=first, **sizes
    )  # fmt: skip
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def inputs(first, other):
    """Queries, keys and values: of one tensor, of two, of three, and without a batch."""

    def sequence(length, width, batch=3):
        return torch.randn(batch, length, width) if first else torch.randn(length, batch, width)

    widths = (24, 40) if other else (32, 32)
    query, keys = sequence(5, 32), sequence(7, widths[0])
    yield query, keys, sequence(7, widths[1])
    yield torch.randn(5, 32), torch.randn(7, widths[0]), torch.randn(7, widths[1])
    if not other:
        yield query, query, query
        yield query, keys, keys


def masks(query, key, first):
    """Masks and paddings of the kinds that torch takes."""
    batched = query.ndim == 3
    length = key.shape[1 if first and batched else 0]
    hidden = torch.zeros((3, length) if batched else (length,), dtype=torch.bool)
    hidden[..., -1] = True
    yield None, None
    yield None, hidden
    yield torch.randn(5, length) > 1, hidden
    added = torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, float("-inf"))
    yield torch.randn(5, length), added
    yield torch.randn(12 if batched else 4, 5, length), None


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_layers_compute_what_torch_does(first, other):
    for bias, more, zero in product((False, True), repeat=3):
        module = attention(bias, more, zero, first, other)
        made = rewritten(module)
        for query, key, value in inputs(first, other):
            for (mask, padding), weights, mean in product(masks(query, key, first), (True, False), (True, False)):
                options = {
                    "attn_mask": mask, "key_padding_mask": padding, "need_weights": weights,
                    "average_attn_weights": mean,
                }  # fmt: skip
                expected, found = module(query, key, value, **options), made(query, key, value, **options)
                assert found[0].shape == expected[0].shape and (found[1] is None) == (expected[1] is None)
                torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_causal_hint_is_taken_and_needs_a_mask():
    module = attention()
    made, x = rewritten(module), torch.randn(5, 3, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for weights in (True, False):
        options = {"attn_mask": mask, "is_causal": True, "need_weights": weights}
        torch.testing.assert_close(made(x, x, x, **options), module(x, x, x, **options))
    with pytest.raises(RuntimeError, match="there is none"):
        made(x, x, x, is_causal=True)
    with pytest.raises(RuntimeError, match=r"attn_mask has shape \(4, 4\)"):
        made(x, x, x, attn_mask=torch.zeros(4, 4))
    with pytest.raises(RuntimeError, match=r"key_padding_mask has shape \(5, 3\)"):
        made(x, x, x, key_padding_mask=torch.zeros(5, 3))


def blocks():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(32, 8)).eval()


def test_torch_s_encoder_goes_the_whole_way(tmp_path):
    """Its fast path reads weights past the layers: it is left where one has a format."""
    model, x = blocks(), torch.randn(3, 6, 32)
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        if parameter.ndim > 1:
            parameter.data = octavo.quantize(parameter.data, "int4:g32")
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    assert all(tensor.format for tensor in octavo.quant.coverage(simulated).tensors if len(tensor.shape) > 1)
    packed = octavo.pack_model(simulated)
    with torch.no_grad():
        torch.testing.assert_close(simulated(x), rounded(x))
        torch.testing.assert_close(packed(x), simulated(x))
        hidden = torch.zeros(3, 6, dtype=torch.bool)
        hidden[0, 4:] = True
        masked = [network[0](x, src_key_padding_mask=hidden) for network in (packed, simulated)]
        torch.testing.assert_close(*masked)
        for name, made in (("packed", packed), ("simulated", simulated)):
            octavo.save_model(made, tmp_path / name)
            assert torch.equal(octavo.load_model(tmp_path / name, blocks)(x), made(x))


def test_a_rule_for_the_projection_alone_holds():
    simulated = octavo.quantize_model(blocks(), "glob:**.out_proj int2", progress=False)
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        assert not torch.allclose(simulated(x), blocks()(x), atol=1e-3)
    assert str(simulated[0].layers[0].self_attn.out_proj.weight_quantizer.spec.format) == "int2"
