"""pack_model: whole models from simulated layers to packed ones, and what they take in memory."""

import copy
import gc

import octavo
import pytest
import torch
from helpers.models import tensor_bytes
from octavo import DTypeError, ModelError, NonFiniteError, lora
from octavo.nn import PackedEmbedding, PackedLayer, PackedLinear, QuantLinear
from torch import nn

SHARE = 0.27  # of fp32 bytes, at mxint8 with embeddings: 8.25 / 32 for matrices, biases and norms at full size


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.attention = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value", "out")})
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = (self.attention[name](x) for name in ("query", "key", "value"))
        x = x + self.attention["out"]((q @ k.transpose(-1, -2) / x.shape[-1] ** 0.5).softmax(-1) @ v)
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """Embeddings, blocks, and a head that is tied to the embeddings."""

    def __init__(self, words=203, width=64, inner=160, blocks=2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(blocks))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


IDS = torch.arange(35).view(5, 7)


def bert(**sizes):
    torch.manual_seed(0)
    return Bert(**sizes).eval()


def quantized(recipe="mxint8", model=None):
    return octavo.quantize_model(bert() if model is None else model, recipe, progress=False)


def floats_of(numels):
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return [t for t in tensors if t.is_floating_point() and t.numel() in numels]


@pytest.mark.parametrize("recipe", ["mxint8", "int4:g32", "mxint8; type:Linear int8:channel", "mxint6 input=mxint8"])
def test_a_packed_model_computes_what_was_simulated(recipe):
    recipe = recipe.replace("mxint6 input=mxint8", "mxint6; type:Linear mxint6 input=mxint8")
    recipe = recipe.replace("mxint8; type:Linear int8:channel", "int8:channel; type:Linear int8:channel input=int8")
    model = quantized(recipe)
    packed = octavo.pack_model(model)
    with torch.no_grad():
        expected = model(IDS)
        gap = (packed(IDS) - expected).abs().max()
    assert gap <= 1e-5 * expected.abs().max()
    assert not packed.training


def test_integer_models_agree_bit_for_bit():
    model = quantized("int8:channel; type:Linear int8:channel input=int8:channel")
    with torch.no_grad():
        assert torch.equal(octavo.pack_model(model)(IDS), model(IDS))


def test_calibrated_models_keep_their_scales():
    recipe = "int8:channel@mse; type:Linear int8:channel@mse input=int8@quantile:0.999"
    model = octavo.quantize_model(bert(), recipe, calibration=[IDS], progress=False)
    packed = octavo.pack_model(model)
    assert packed.head.input_quantizer.is_static
    with torch.no_grad():
        assert torch.equal(packed(IDS), model(IDS))


def test_the_model_given_stays_and_names_do_too():
    model = quantized()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    packed = octavo.pack_model(model)
    assert type(model.head) is QuantLinear and type(packed.head) is PackedLinear
    assert [name for name, _ in packed.named_modules()] == [
        name for name, _ in model.named_modules() if not name.endswith("quantizer")
    ]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_in_place_packs_the_model_itself():
    model = quantized()
    expected = model(IDS)
    assert octavo.pack_model(model, inplace=True) is model
    assert isinstance(model.embed, PackedEmbedding)
    assert (model(IDS) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_tied_weights_are_packed_once_and_shared():
    packed = octavo.pack_model(quantized())
    assert packed.head.weight_codes is packed.embed.weight_codes
    copied = copy.deepcopy(packed)
    assert copied.head.weight_codes is copied.embed.weight_codes


def test_one_module_at_two_places_stays_one():
    model = bert()
    model.blocks[1] = model.blocks[0]
    packed = octavo.pack_model(quantized(model=model))
    assert packed.blocks[1] is packed.blocks[0]


def test_layers_without_a_weight_format_stay():
    packed = octavo.pack_model(
        quantized("mxint8; name:head keep; name:embed keep; glob:**.up keep; glob:**.up input=int8")
    )
    assert type(packed.blocks[0].up) is QuantLinear and type(packed.head) is nn.Linear
    assert type(packed.blocks[0].down) is PackedLinear


def test_resident_bytes_are_at_most_27_percent_of_fp32():
    model = bert(words=3000, width=128, inner=512)
    packed = octavo.pack_model(quantized(model=model))
    assert tensor_bytes(packed) <= SHARE * tensor_bytes(model)


def test_no_dense_weight_lives_on():
    numels = {211 * 72, 72 * 72, 72 * 150}  # sizes that nothing else has
    model = quantized(model=bert(words=211, width=72, inner=150))
    packed = octavo.pack_model(model, inplace=True)
    del model
    packed(IDS)
    assert not floats_of(numels)
    assert not [t for t in packed.parameters() if t.numel() in numels]


def test_a_copy_is_made_without_dense_weights(monkeypatch):
    copied = []
    original = nn.Parameter.__deepcopy__
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", lambda p, memo: copied.append(p.numel()) or original(p, memo))
    octavo.pack_model(quantized(model=(model := bert())), inplace=False)
    copied.clear()
    simulated = quantized(model=model)
    copied.clear()
    octavo.pack_model(simulated)
    assert max(copied) <= 203


def test_hooks_and_modes_are_kept():
    model = quantized()
    seen = []
    model.head.register_forward_hook(lambda *_: seen.append("head"))
    packed = octavo.pack_model(model.train())
    packed(IDS)
    assert seen == ["head"] and packed.training


def test_what_cannot_be_packed_is_refused_by_name():
    with pytest.raises(ModelError, match=r"Bert: no simulated layer .*octavo.quantize_model makes them"):
        octavo.pack_model(bert())
    bad = quantized()
    bad.blocks[1].up.weight.data[0, 3] = torch.inf
    with pytest.raises(NonFiniteError, match=r"^blocks.1.up: "):
        octavo.pack_model(bad, inplace=True)
    assert not [m for m in bad.modules() if isinstance(m, PackedLayer)], "changed before it was checked"
    off = quantized()
    off.blocks[0].down.weight_quantizer.enabled = False
    with pytest.raises(ModelError, match=r"blocks.0.down: .*switched off"):
        octavo.pack_model(off)
    with pytest.raises(ModelError, match=r"blocks.0.attention.query: .*'lora'; fuse and commit"):
        octavo.pack_model(lora.insert(quantized(), rank=2))
    with pytest.raises(DTypeError, match=r"pack_model: model is None; accepted is a torch.nn.Module"):
        octavo.pack_model(None)


def test_tensors_that_a_packed_layer_could_not_hold_are_refused():
    model = quantized()
    model.blocks[1].up.register_buffer("steps", torch.zeros(3))
    model.blocks[1].up.gain = nn.Parameter(torch.ones(1))
    with pytest.raises(ModelError, match=r"^blocks.1.up: packing would drop its tensors gain, steps; keep it"):
        octavo.pack_model(model)


def test_packed_models_compile_without_a_break():
    torch._dynamo.reset()
    packed = octavo.pack_model(quantized("int8:channel; type:Linear int8:channel input=int8"))
    with torch.no_grad():
        assert torch.equal(torch.compile(packed, fullgraph=True, backend="aot_eager")(IDS), packed(IDS))
