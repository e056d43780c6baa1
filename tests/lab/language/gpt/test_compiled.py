"""Models under torch.compile: one graph without a break, and the sums of eager mode."""

from types import SimpleNamespace

import pytest
import torch
from helpers.quick import spread
from hypothesis import given
from hypothesis import strategies as some
from octavo.lab.language import gpt
from octavo.lab.language.gpt import GPT, gpu_code, rotary_positions
from octavo.lab.language.gpt.presets import PRESETS, preset
from octavo.lab.language.gpt.softmax_head import padded_nll
from torch.nn import functional


def sums(model, ids, targets):
    total, parts = model(ids, targets)
    return total, parts["nll"], parts["tokens"]


@pytest.mark.parametrize("name", spread(sorted(PRESETS)))
@pytest.mark.parametrize("unscored", [0, 5])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_model_is_one_graph_and_scores_what_eager_mode_does(name, unscored, on_gpu, monkeypatch):
    monkeypatch.setattr(gpu_code, "compiled", lambda x: on_gpu and torch.compiler.is_compiling())
    torch.compiler.reset()  # compiled code does not see that the function is another
    torch.manual_seed(0)
    model = GPT(preset(name, vocabulary=97, width=32, layers=2, heads=2, end_of_text=0)).train()
    ids, targets = torch.randint(97, (2, 2, 16))
    targets[0, :unscored] = -1
    wanted, nll, tokens = sums(model, ids, targets)
    compiled = torch.compile(sums, backend="eager", fullgraph=True, dynamic=False)
    found = compiled(model, ids, targets)
    torch.testing.assert_close(found, (wanted, nll, tokens))
    assert int(tokens) == 32 - unscored
    gradients = [torch.autograd.grad(total, list(model.parameters())) for total in (wanted, found[0])]
    torch.testing.assert_close(*gradients)


def test_a_sampled_loss_leaves_out_what_is_not_scored():
    torch.manual_seed(0)
    model = GPT(gpt.GPTConfig(
        vocabulary=97, width=32, pattern="a", mixers={"a": gpt.Attention(heads=2)}, head=gpt.NoiseContrastive(samples=9),
    )).train()  # fmt: skip
    ids, targets = torch.randint(97, (2, 2, 16))
    targets[1, 3:] = -1
    model.head.drawn()  # makes the table that draws are made by
    compiled = torch.compile(sums, backend="eager", dynamic=False)
    torch.manual_seed(1)
    wanted = sums(model, ids, targets)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(model, ids, targets), wanted)


@given(some.integers(1, 9), some.integers(1, 70), some.integers(0, 9), some.floats(-80, 80), some.integers(0, 2**31))
def test_the_loss_of_padded_scores_is_the_cross_entropy_of_the_others(rows, vocabulary, padding, middle, seed):
    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, vocabulary + padding, generator=draws, dtype=torch.float64) * 20 + middle
    scores[:, vocabulary:] = 1e30
    targets = torch.randint(vocabulary, (rows,), generator=draws)
    weights = torch.randn(rows, generator=draws, dtype=torch.float64)
    found, wanted = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    losses = padded_nll(found, targets, vocabulary)
    plain = functional.cross_entropy(wanted[:, :vocabulary], targets, reduction="none")
    torch.testing.assert_close(losses, plain)
    torch.testing.assert_close(*(torch.autograd.grad((loss * weights).sum(), of)[0]
                                 for loss, of in ((losses, found), (plain, wanted))))  # fmt: skip


def test_the_operation_of_rotary_positions_is_the_function():
    positions, turns = torch.arange(7), rotary_positions.frequencies(6, "half", 1e4, torch.device("cpu"))
    torch.library.opcheck(torch.ops.octavo_lab.rotary_table, (positions, turns))
    x = torch.randn(2, 3, 7, 6)
    cosine, sine = torch.ops.octavo_lab.rotary_table(positions, turns)
    first, second = x.chunk(2, -1)
    wanted = torch.cat([first * cosine + second * sine, second * cosine - first * sine], -1)
    assert torch.equal(rotary_positions.apply_rotary(x, positions, turns), wanted)


@pytest.mark.parametrize(
    "head", [gpt.NegativeSampling(samples=9), gpt.NoiseContrastive(samples=9), gpt.Softmax(cap=3.0)]
)
def test_heads_with_scores_of_their_own_give_their_loss_where_a_gpu_has_another_form(head, monkeypatch):
    monkeypatch.setattr(gpu_code, "compiled", lambda x: torch.compiler.is_compiling())
    torch.compiler.reset()
    torch.manual_seed(0)
    model = GPT(gpt.GPTConfig(vocabulary=97, width=32, pattern="a", mixers={"a": gpt.Attention(heads=2)}, head=head))
    model.count(torch.randint(30, (5000,)))
    ids, targets = torch.randint(97, (2, 2, 16))
    compiled = torch.compile(model.nll, backend="eager", dynamic=False)
    torch.testing.assert_close(compiled(ids, targets), model.nll(ids, targets))


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e30])
def test_scores_with_a_common_offset_lose_no_digits(offset):
    scores = torch.randn(64, 97) + offset
    targets = torch.randint(97, (64,))
    plain = functional.cross_entropy(scores, targets, reduction="none")
    torch.testing.assert_close(padded_nll(scores, targets, 97), plain)


@pytest.mark.parametrize("exporting", [False, True])
def test_only_what_is_compiled_and_not_exported_has_the_form_for_a_gpu(exporting, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: exporting, raising=False)
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    assert not gpu_code.compiled(on_gpu)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert gpu_code.compiled(on_gpu) is not exporting
    assert not gpu_code.compiled(torch.zeros(1))
