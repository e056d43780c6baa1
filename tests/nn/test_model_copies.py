"""Copies of models: what they share, what is their own, and what cannot be copied."""

import threading

import octavo
import pytest
import torch
from octavo import DTypeError
from octavo.data.batches import tensors_in
from octavo.nn.model_copies import deep_copy, shared_copy
from torch import nn
from torch.nn.utils import parametrizations, weight_norm


class Holding(nn.Module):
    """Holds what Python does not copy, alone, in containers and in objects, beside what it does."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.lock, self.stream = threading.Lock(), (number for number in range(3))
        self.options = {"lock": threading.Lock(), "list": [1, 2], "layer": self.layer}
        self.cache = Cache()
        self.register_forward_hook(Hook(self.lock))

    def forward(self, x):
        with self.lock:
            return self.layer(x)


class Cache:
    def __init__(self):
        self.lock, self.held = threading.Lock(), [1]


class Hook:
    def __init__(self, lock):
        self.lock, self.calls = lock, 0

    def __call__(self, module, args, output):
        self.calls += 1


class Refusing(nn.Module):
    def __deepcopy__(self, memo):
        raise ValueError("one of a kind")


def weight_normed():
    return weight_norm(nn.Linear(8, 8))


def parametrized():
    return parametrizations.weight_norm(nn.Linear(8, 8))


def tied():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    return model


def lstm():
    return nn.LSTM(8, 8, num_layers=2)


def attention():
    return nn.TransformerEncoderLayer(8, 2, 16)


def batchnorm():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


MODELS = [weight_normed, parametrized, tied, lstm, attention, batchnorm]


@pytest.mark.parametrize("make", MODELS)
def test_a_shared_copy_gives_the_same_over_the_same_memory_and_is_not_seen(make):
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(3, 8)
    wanted = model(x)
    made = shared_copy(model)
    given = made(x)
    assert all(map(torch.equal, tensors_in(wanted), tensors_in(given)))
    mine, theirs = (dict(one.named_parameters(remove_duplicate=False)) for one in (model, made))
    assert mine.keys() == theirs.keys()
    for name, parameter in mine.items():
        other = theirs[name]
        assert other is not parameter and other.data_ptr() == parameter.data_ptr()
        assert (type(other), other.requires_grad) == (type(parameter), parameter.requires_grad)
    assert len(set(map(id, mine.values()))) == len(set(map(id, theirs.values())))  # ties
    assert not {id(module) for module in model.modules()} & {id(module) for module in made.modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made.train()
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.requires_grad_(False)
        parameter.data = parameter.data + 1
    for buffer in made.buffers():
        buffer.add_(1)
    for module in made.modules():
        module.register_forward_hook(lambda *_: None)
    assert not any(module.training or module._forward_hooks for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("copied", [deep_copy, shared_copy])
def test_what_python_does_not_copy_is_shared_and_everything_around_it_copied(copied):
    model = Holding()
    made = copied(model)
    assert made.lock is model.lock and made.stream is model.stream
    assert made.options["lock"] is model.options["lock"]
    assert made.options["list"] == [1, 2] and made.options["list"] is not model.options["list"]
    assert made.options["layer"] is made.layer and made.layer is not model.layer
    assert made.cache is not model.cache and made.cache.held is not model.cache.held
    made(torch.ones(1, 4))
    assert [hook.calls for hook in model._forward_hooks.values()] == [0]
    made.register_forward_hook(lambda *_: None)
    assert len(model._forward_hooks) == 1


def test_models_that_hold_locks_are_quantized_measured_and_compressed():
    model, data = Holding(), [torch.randn(4, 4) for _ in range(3)]
    octavo.quantize_model(model, "int8@mse input=int8@mse", calibration=data, progress=False)
    octavo.search.measure_sensitivity(model, data, ["int8"], progress=False)
    found = octavo.compress_model(model, max_loss=9.0, data=data, formats=["int8"], progress=False)
    assert found.model(data[0]).shape == (4, 4)


@pytest.mark.parametrize("copied", [deep_copy, shared_copy])
def test_a_class_that_refuses_is_named(copied):
    with pytest.raises(DTypeError, match=r"Sequential cannot be copied.*one of a kind.*__deepcopy__"):
        copied(nn.Sequential(nn.Linear(2, 2), Refusing()))
    with pytest.raises(DTypeError, match=r"torch\.nn\.Module, got a str"):
        copied("model")


def test_codes_are_shared_and_weights_under_masks_are_not():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    packed = octavo.pack_model(octavo.quantize_model(model, "int8", progress=False))
    made = shared_copy(packed)
    assert made[0].weight_codes.data_ptr() == packed[0].weight_codes.data_ptr()
    pruned = octavo.prune_model(model, 0.5, targets=["0"], progress=False)
    made = shared_copy(pruned)
    assert made[0].weight.data_ptr() != pruned[0].weight.data_ptr()
    assert made[1].weight.data_ptr() == pruned[1].weight.data_ptr()
