"""Reptile: at rate 1 it is training, with one inner step it is a smaller rate, and it adapts to a sine in five steps."""

import copy
import math

import pytest
import torch
from octavo.errors import ConfigError
from octavo.train.reptile import reptile, with_reptile
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def steps(model, optimizer, count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.rand(16, 1, generator=draw)
        optimizer.zero_grad()
        (model(x) - x.sin()).square().mean().backward()
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_rate_one_is_training_to_the_bit(kind):
    plain, outer = net(), net()
    wanted = steps(plain, kind(plain.parameters(), lr=0.01), 11)
    assert torch.equal(steps(outer, reptile(kind(outer.parameters(), lr=0.01), every=3, rate=1.0), 11), wanted)


def test_one_inner_step_is_sgd_with_the_rate_times_as_much():
    plain, outer = net(), net()
    wanted = steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1 * 0.25), 20)
    found = steps(outer, reptile(torch.optim.SGD(outer.parameters(), lr=0.1), every=1, rate=0.25), 20)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_weights_move_back_after_every_few_updates_alone():
    plain, outer = net(), net()
    first = torch.cat([one.detach().flatten() for one in net().parameters()])
    inner = steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 4)
    optimizer = reptile(torch.optim.SGD(outer.parameters(), lr=0.1), every=4, rate=0.5)
    assert torch.allclose(steps(outer, optimizer, 4), (first + inner) / 2, atol=1e-6)


def test_a_run_goes_on_between_two_outer_steps():
    """C7: outer weights and the count of inner updates are in the optimizer's state."""
    whole = net()
    wanted = steps(whole, reptile(torch.optim.AdamW(whole.parameters(), lr=0.01), every=4, rate=0.5), 6)
    part = net()
    optimizer = reptile(torch.optim.AdamW(part.parameters(), lr=0.01), every=4, rate=0.5)
    draw = torch.Generator().manual_seed(0)
    for at in range(6):
        if at == 2:
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer = reptile(torch.optim.AdamW(part.parameters(), lr=0.01), every=4, rate=0.5)
            optimizer.load_state_dict(kept)
        x = torch.rand(16, 1, generator=draw)
        optimizer.zero_grad()
        (part(x) - x.sin()).square().mean().backward()
        optimizer.step()
    assert torch.equal(torch.cat([one.detach().flatten() for one in part.parameters()]), wanted)


def sine_loss(model, task, draw, count=10):
    size, phase = task
    x = torch.rand(count, 1, generator=draw) * 10 - 5
    return (model(x) - size * torch.sin(x + phase)).square().mean()


@pytest.mark.slow
def test_a_sine_is_learned_in_five_steps_after_many_others():
    """Nichol et al. 2018, section 6.1, in small: five steps of gradient descent from meta-trained weights fit a new sine."""
    draw = torch.Generator().manual_seed(0)

    def task(draw=draw):
        size, phase = torch.rand(2, generator=draw).tolist()
        return 0.1 + 4.9 * size, 2 * math.pi * phase

    def adapted(model):
        errors, draw = [], torch.Generator().manual_seed(1)  # the same new sines before and after
        for _ in range(16):
            fit, own = copy.deepcopy(model), task(draw)
            inner = torch.optim.SGD(fit.parameters(), lr=0.02)
            for _ in range(5):
                inner.zero_grad()
                sine_loss(fit, own, draw).backward()
                inner.step()
            errors.append(sine_loss(fit, own, draw, 100).item())
        return sum(errors) / len(errors)

    model = net()
    before = adapted(model)
    optimizer = reptile(torch.optim.SGD(model.parameters(), lr=0.02), every=5, rate=0.25)
    for _ in range(1200):
        own = task()
        for _ in range(5):
            optimizer.zero_grad()
            sine_loss(model, own, draw).backward()
            optimizer.step()
    assert adapted(model) < 0.7 * before


def test_wrong_numbers_are_refused():
    for wrong in ({"every": 0, "rate": 0.5}, {"every": 3, "rate": 0}, {"every": 3, "rate": 1.5}):
        with pytest.raises(ConfigError, match="every is"):
            with_reptile(lambda model, config: None, **wrong)
