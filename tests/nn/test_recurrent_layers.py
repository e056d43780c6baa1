"""LSTM, GRU, RNN and their cells made of layers: the bits of torch, and the whole way of a model."""

import copy
from itertools import product

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn import PackedLinear, QuantLinear
from octavo.nn.rewriting import rewritten
from torch import nn
from torch.nn.utils.rnn import pack_sequence

KINDS = {
    "LSTM": (nn.LSTM, {}),
    "LSTM, projected": (nn.LSTM, {"proj_size": 5}),
    "GRU": (nn.GRU, {}),
    "RNN": (nn.RNN, {}),
    "RNN, relu": (nn.RNN, {"nonlinearity": "relu"}),
}
CELLS = {
    "LSTM": nn.LSTMCell(7, 16),
    "GRU": nn.GRUCell(7, 16, bias=False),
    "RNN": nn.RNNCell(7, 16),
    "RNN, relu": nn.RNNCell(7, 16, nonlinearity="relu"),
}


@pytest.fixture(autouse=True)
def without_onednn():
    """torch's own code is the reference: oneDNN sums in another order."""
    torch.manual_seed(0)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        yield


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return [value.data, value.batch_sizes]
    return [tensor for part in value for tensor in tensors(part)]


def same(found, expected):
    found, expected = tensors(found), tensors(expected)
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_compute_the_bits_of_torch(kind):
    cls, options = KINDS[kind]
    for layers, both, first, bias in product((1, 2), (False, True), (False, True), (False, True)):
        module = cls(7, 16, layers, bidirectional=both, batch_first=first, bias=bias, **options)
        made = rewritten(module)
        ragged = [torch.randn(length, 7) for length in (2, 5, 3)]
        for x in (torch.randn(5, 3, 7), torch.randn(4, 7), pack_sequence(ragged, enforce_sorted=False)):
            assert same(made(x), module(x))
            count = layers * (2 if both else 1)
            batch = [3] if not isinstance(x, torch.Tensor) else [] if x.ndim == 2 else [x.shape[0 if first else 1]]
            state = torch.randn(count, *batch, options.get("proj_size", 16))
            state = (state, torch.randn(count, *batch, 16)) if cls is nn.LSTM else state
            assert same(made(x, state), module(x, state))
    assert made.hidden_size == 16 and made.flatten_parameters() is None
    with pytest.raises(ValueError, match="expected input to be 2-D or 3-D, got 1-D"):
        made(torch.randn(7))


@pytest.mark.parametrize("kind", CELLS)
def test_cells_compute_the_bits_of_torch(kind):
    module = CELLS[kind]
    made = rewritten(module)
    for x in (torch.randn(3, 7), torch.randn(7)):
        state = module(x)
        assert same(made(x), state) and same(made(x, state), module(x, state))
    with pytest.raises(ValueError, match="expected input to be 1-D or 2-D, got 3-D"):
        made(torch.randn(1, 1, 7))


def test_dropout_falls_where_torch_lets_it_fall():
    module = nn.LSTM(7, 16, 3, dropout=0.5)
    made, x = rewritten(module), torch.randn(5, 3, 7)
    for training in (True, False):
        module.train(training), made.train(training)
        torch.manual_seed(1)
        expected = module(x)
        torch.manual_seed(1)
        assert same(made(x), expected)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(32, 32, 2, bidirectional=True, batch_first=True)
        self.step, self.head = nn.GRUCell(64, 32), nn.Linear(32, 8)

    def forward(self, x):
        y, _ = self.cell(x)
        return self.head(self.step(y.mean(1)))


def test_recurrent_layers_go_the_whole_way_of_a_model(tmp_path):
    model, x = Tagger().eval(), torch.randn(3, 6, 32)
    rounded = copy.deepcopy(model)
    for name, parameter in rounded.named_parameters():
        if parameter.ndim > 1:
            parameter.data = octavo.quantize(parameter.data, "int4:g32")
        assert name in model.state_dict()
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    coverage = octavo.quant.coverage(simulated)
    assert all(tensor.format for tensor in coverage.tensors if len(tensor.shape) > 1)
    assert type(simulated.cell.hh_l1_reverse) is QuantLinear
    packed = octavo.pack_model(simulated)
    assert type(packed.step.hh) is PackedLinear
    with torch.no_grad():
        assert torch.equal(simulated(x), rounded(x))
        torch.testing.assert_close(packed(x), simulated(x))
        for name, made in (("packed", packed), ("simulated", simulated)):
            octavo.save_model(made, tmp_path / name)
            assert torch.equal(octavo.load_model(tmp_path / name, Tagger)(x), made(x))
    plain = unpack(Checkpoint.open(tmp_path / "packed"))
    assert plain.keys() == model.state_dict().keys()
    assert all(torch.equal(plain[name], value) for name, value in rounded.state_dict().items())


def test_products_of_hidden_states_are_calibrated_and_solved():
    model, batches = Tagger().eval(), [torch.randn(4, 6, 32) for _ in range(4)]
    recipe = "int8@gptq input=int8@minmax"
    simulated = octavo.quantize_model(model, recipe, calibration=batches, progress=False)
    assert simulated.cell.hh_l0.is_integer and simulated.cell.hh_l0.input_quantizer.is_static
    x = torch.randn(3, 6, 32)
    with torch.no_grad():
        assert (simulated(x) - model(x)).norm() < 0.05 * model(x).norm()
        assert torch.equal(octavo.pack_model(simulated)(x), simulated(x))


def test_gradients_reach_the_weights():
    simulated = octavo.quantize_model(Tagger(), "int8", progress=False).train()
    simulated(torch.randn(3, 6, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in simulated.parameters())


def test_a_subclass_stays_as_it_is():
    class Own(nn.LSTM):
        """May compute something else."""

    assert rewritten(Own(7, 16)) is None
