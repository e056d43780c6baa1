"""Layers whose class has a forward of its own: simulated, packed and loaded, they compute what that forward says."""

import copy
import pickle

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn import PackedEmbedding, PackedLinear, QuantEmbedding, QuantLinear
from octavo.nn.registry import kind_of
from torch import nn
from torch.nn import functional

IDS = torch.tensor([[5, 9, 2], [3, 3, 8]])


class Scaled(nn.Embedding):
    """A scaled table, as Gemma has."""

    def __init__(self):
        super().__init__(40, 64)
        self.register_buffer("factor", torch.tensor(3.0), persistent=False)

    def forward(self, ids):
        return self.factor * super().forward(ids)


class Positions(nn.Embedding):
    """A table of positions that makes its ids, as OPT has."""

    def __init__(self):
        self.offset = 2
        super().__init__(20, 64)

    def forward(self, mask, past=0):
        return super().forward(mask.long().cumsum(1) + past + self.offset)


class Reads(nn.Linear):
    """A product with the weight in the layer's own code, as Falcon has."""

    def __init__(self):
        super().__init__(64, 48)

    def forward(self, x):
        return functional.gelu(x @ self.weight.T + self.bias)


class Normed(nn.Embedding):
    """A table with a norm inside."""

    def __init__(self):
        super().__init__(40, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, ids):
        return self.norm(super().forward(ids))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.normed, self.positions, self.reads = Scaled(), Normed(), Positions(), Reads()

    def forward(self, ids):
        x = self.embed(ids) + self.normed(ids) + self.positions(torch.ones_like(ids), past=1)
        return self.reads(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


def test_simulated_layers_compute_the_class_s_own_forward_of_rounded_weights(model):
    rounded = copy.deepcopy(model)
    for layer in (rounded.embed, rounded.normed, rounded.positions, rounded.reads):
        layer.weight.data = octavo.quantize(layer.weight.data, "int4:g32")
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    assert torch.equal(simulated(IDS), rounded(IDS)) and not torch.equal(simulated(IDS), model(IDS))
    assert isinstance(simulated.embed, QuantEmbedding) and isinstance(simulated.embed, Scaled)
    assert isinstance(simulated.reads, QuantLinear) and type(simulated.reads).__name__ == "Reads"
    loss = simulated(IDS).square().mean()
    loss.backward()
    assert all(simulated.get_submodule(path).weight.grad is not None for path in ("embed", "positions", "reads"))


def test_packed_and_loaded_layers_compute_the_same(model, tmp_path):
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    packed = octavo.pack_model(simulated)
    with torch.no_grad():
        expected = simulated(IDS)
        torch.testing.assert_close(packed(IDS), expected)
        assert isinstance(packed.embed, PackedEmbedding) and isinstance(packed.reads, PackedLinear)
        assert kind_of(packed.embed) is None and packed.embed.packed_weight.shape == (40, 64)
        for made, name in ((packed, "packed"), (simulated, "simulated")):
            octavo.save_model(made, tmp_path / name)
            assert torch.equal(octavo.load_model(tmp_path / name, Model())(IDS), made(IDS))
            assert torch.equal(octavo.load_model(tmp_path / name, Model)(IDS), made(IDS))
            for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
                assert torch.equal(other(IDS), made(IDS))
    plain = unpack(Checkpoint.open(tmp_path / "packed"))
    assert plain.keys() == model.state_dict().keys()  # parts of a layer, too
    again = octavo.quantize_model(simulated, "int8", progress=False)
    assert str(again.positions.weight_quantizer.spec.format) == "int8"


def test_a_layer_that_reads_its_weight_has_no_roles_of_activations(model):
    plan = octavo.Recipe.parse("int8 output=int8").plan(model)
    assert plan["reads"].output is None and plan["embed"].output is not None
    with pytest.raises(octavo.FormatError, match=r"reads .Reads.*gives a format to its input, and there is none"):
        octavo.Recipe.parse("name:reads input=int8").plan(model)
    costs = {
        cost.path: cost.kernel
        for cost in octavo.explain(octavo.pack_model(octavo.quantize_model(model, "int8"))).layers
    }
    assert costs["reads"] == "decode + torch" and costs["embed"] == "gather"


def test_a_weight_of_another_class_and_a_taken_name_are_left(model):
    class Theirs(nn.Parameter):
        """As other packages have that quantize."""

    model.embed.register_buffer("scale", torch.ones(1))  # packed layers have an attribute of this name
    assert "embed" not in octavo.Recipe.parse("int8").plan(model)
    model.reads.weight = Theirs(model.reads.weight.data)
    assert "reads" not in octavo.Recipe.parse("int8").plan(model)


def test_falcon_s_linear_layers_are_linear_layers():
    module = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    torch.manual_seed(0)
    layer = module.FalconLinear(64, 32)
    model = octavo.quantize_model(nn.Sequential(layer), "int8 input=int8", progress=False).eval()
    assert type(model[0]) is QuantLinear and model[0].is_integer
    packed = octavo.pack_model(model)
    assert type(packed[0]) is PackedLinear and torch.equal(packed(torch.ones(2, 64)), model(torch.ones(2, 64)))
