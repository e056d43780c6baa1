"""Layers whose weight torch normalizes: the direction takes a format, lengths stay, and float models read both again."""

import copy
import pickle

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.rewriting import rewritten
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

KINDS = {
    "Linear": (lambda: nn.Linear(64, 32), {}, (3, 64)),
    "Conv1d": (lambda: nn.Conv1d(16, 32, 3, groups=2), {"dim": 2}, (2, 16, 9)),
    "Conv2d": (lambda: nn.Conv2d(16, 32, 3, bias=False), {}, (2, 16, 9, 9)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(16, 32, 4, 2, 1), {"dim": 0}, (2, 16, 9)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_normalized_layer_goes_the_whole_way(kind, tmp_path):
    make, options, shape = KINDS[kind]

    def model():
        torch.manual_seed(0)
        return nn.Sequential(weight_norm(make(), **options)).eval()

    x, plain = torch.randn(shape), model()
    made = rewritten(plain[0])
    assert torch.equal(made(x), plain[0](x)) and made.layer.weight.shape == plain[0].weight.shape
    simulated = octavo.quantize_model(plain, "int4:g32", progress=False)
    packed = octavo.pack_model(simulated)
    with torch.no_grad():
        assert not torch.equal(simulated(x), plain(x))
        torch.testing.assert_close(packed(x), simulated(x))
        for name, form in (("packed", packed), ("simulated", simulated)):
            octavo.save_model(form, tmp_path / name)
            assert torch.equal(octavo.load_model(tmp_path / name, model)(x), form(x))
            assert torch.equal(pickle.loads(pickle.dumps(form))(x), form(x))
        state = unpack(Checkpoint.open(tmp_path / "packed"))
        assert state.keys() == plain.state_dict().keys()
        again = copy.deepcopy(plain)
        again.load_state_dict(state)
        assert torch.equal(again(x), simulated(x))
        assert torch.equal(
            state["0.parametrizations.weight.original0"], plain.state_dict()["0.parametrizations.weight.original0"]
        )


def test_another_parametrization_is_refused_with_the_way_out():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))
    with pytest.raises(octavo.DTypeError, match="remove_parametrizations"):
        octavo.quantize_model(model, "int8", progress=False)
    assert rewritten(model[0]) is None
