"""Masked diffusion: a bound that is one, blocks in order, and sampling that leaves visible tokens alone."""

import itertools
import math

import pytest
import torch
from octavo.errors import DataError, ModelError, SettingError
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, MaskedDiffusion, TokenTable, contracts
from octavo.lab.language.gpt.diffusion_sampling import continued, unmask
from octavo.train import Bound, ValLoss, exact_nll, likelihood_bound
from torch import nn


def model_of(block=0, vocabulary=7, seed=0):
    torch.manual_seed(seed)
    model = GPT(GPTConfig(
        vocabulary=vocabulary, width=16, pattern="aa", mixers={"a": Attention(heads=2)},
        objective=MaskedDiffusion(block=block),
    )).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


class Fixed(nn.Module):
    """A head that predicts one distribution, whatever it reads."""

    def __init__(self, log_probs_V):
        super().__init__()
        self.log_probs_V = log_probs_V

    def log_probs(self, h_ND):
        return self.log_probs_V.expand(len(h_ND), -1)

    def nll(self, h_ND, y_N):
        return -self.log_probs_V[y_N]


def with_head(head, block=0):
    model = model_of(block)
    model.head = head
    return model


@pytest.mark.parametrize("block", [0, 1, 4])
def test_a_uniform_predictor_has_the_bound_log_v(block):
    model = with_head(Fixed(torch.full((7,), -math.log(7))), block)
    found = likelihood_bound(model, torch.randint(0, 7, (60,)), context=10, draws=2)
    assert found.nats == pytest.approx(math.log(7), abs=1e-6) and found.error < 1e-6


@pytest.mark.parametrize("block", [0, 3])
def test_an_independent_predictor_has_its_entropy_within_the_error(block):
    probs = torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02])
    stream = torch.multinomial(probs, 2001, replacement=True, generator=torch.Generator().manual_seed(0))
    exact = float(-probs.log()[stream[1:]].mean())
    found = likelihood_bound(with_head(Fixed(probs.log()), block), stream, context=20, draws=8)
    assert 0 < found.error < 0.05 and abs(found.nats - exact) < 4 * found.error
    assert found.tokens == 2000


def test_hidden_tokens_have_the_weights_of_the_integral():
    """Summed with their weights, hidden tokens are all tokens in the mean, of every block and where some are unscored."""
    objective, targets = model_of(4).objective, torch.zeros(6, 10, dtype=torch.long)
    targets[:, 7] = -1
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([objective.drawn(targets, generator) for _ in range(3000)])
    assert not drawn[..., 7].any()
    mean = drawn.mean((0, 1))
    assert torch.allclose(mean[targets[0] == 0], torch.ones(9), atol=0.06)
    for block in (slice(0, 4), slice(4, 8), slice(8, 10)):
        sums = drawn[..., block].sum(-1)
        assert torch.allclose(sums, (targets[0, block] == 0).sum().float().expand_as(sums), atol=1e-5)


def chain():
    first, moves = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.5, 0.4, 0.1]])
    return first, moves


class ExactDenoiser:
    """Stands for a model and its objective on a toy language: conditionals of a Markov chain by enumeration."""

    def __init__(self, length):
        first, moves = chain()
        self.texts = torch.tensor(list(itertools.product(range(3), repeat=length)))
        logs = first.log()[self.texts[:, 0]]
        for at in range(1, length):
            logs = logs + moves.log()[self.texts[:, at - 1], self.texts[:, at]]
        self.probs = logs.exp()

    def __call__(self, ids_BT, masked_BT):
        rows = []
        for ids, masked in zip(ids_BT, masked_BT, strict=True):
            fits = ((self.texts == ids) | masked).all(1) * self.probs
            rows.append(torch.stack([torch.stack([fits[self.texts[:, at] == v].sum() for v in range(3)])
                                     for at in range(len(ids))]) / fits.sum())  # fmt: skip
        return torch.stack(rows).log()


@pytest.mark.slow
def test_sampling_one_token_a_step_has_the_marginals_of_a_toy_chain():
    """With the exact conditionals and many steps the samples are those of the chain: first token, pairs, and last."""
    denoise, count = ExactDenoiser(3), 1500
    hidden = torch.ones(count, 3, dtype=torch.bool)
    found = unmask(
        denoise, torch.zeros(count, 3, dtype=torch.long), hidden, steps=24, generator=torch.Generator().manual_seed(0)
    )
    first, moves = chain()
    pairs = torch.zeros(3, 3).index_put_((found[:, 0], found[:, 1]), torch.ones(count), accumulate=True) / count
    assert torch.allclose(pairs, first[:, None] * moves, atol=0.05)
    last = torch.bincount(found[:, 2], minlength=3) / count
    assert torch.allclose(last, first @ moves @ moves, atol=0.05)


def test_visible_tokens_are_copied():
    denoise = ExactDenoiser(4)
    given = torch.tensor([[1, 2, 0, 1]])
    hidden = torch.tensor([[False, True, True, False]])
    for seed in range(5):
        found = unmask(denoise, given, hidden, steps=3, generator=torch.Generator().manual_seed(seed))
        assert found[0, 0] == 1 and found[0, 3] == 1
    model, prompt = model_of(3), torch.tensor([0, 5, 2, 6, 1])
    whole = continued(model, prompt, 7, steps=2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(whole[:5], prompt) and len(whole) == 12
    with pytest.raises(SettingError, match="steps"):
        unmask(denoise, given, hidden, steps=0)
    with pytest.raises(SettingError, match="prompt"):
        continued(model, prompt[:0], 3)


def test_a_bound_stands_above_the_exact_loss_on_a_toy_language():
    """Of a model so small that its likelihood can be summed over all orders of revealing one token a step.

    The bound is minus the mean over orders of the log-likelihood; the exact loss minus the log of the mean likelihood.
    """
    model, ids = model_of(vocabulary=4, seed=3), torch.tensor([[0]])
    targets = torch.tensor([[2, 1, 3, 1]])
    logs = []
    for order in itertools.permutations(range(4)):
        masked, total = torch.ones(1, 4, dtype=torch.bool), 0.0
        for at in order:
            states = model.objective.hidden(model, ids, targets, masked)
            total = total + model.head.log_probs(states[0, at : at + 1])[0, targets[0, at]].item()
            masked[0, at] = False
        logs.append(total)
    exact = -(torch.tensor(logs).double().logsumexp(0).item() - math.log(len(logs)))
    mean = -sum(logs) / len(logs)
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat([ids[:, :1].expand(1, 4)] * 4000)
    drawn = model.objective.bound(model, rows, targets.expand(4000, 4), generator).detach()
    error = float(drawn.std()) / 4000**0.5
    assert mean > exact + 1e-3
    assert abs(float(drawn.mean()) - mean) < 4 * error and float(drawn.mean()) > exact


def test_blocks_of_one_token_are_the_autoregressive_order():
    """The bound is then exact: no draw moves it, and it is the chain rule over tokens that see only what is before."""
    model, stream = model_of(1), torch.randint(0, 7, (41,), generator=torch.Generator().manual_seed(1))
    one, other = (likelihood_bound(model, stream, context=8, draws=2, seed=seed) for seed in (0, 1))
    assert one.nats == pytest.approx(other.nats, abs=1e-6) and one.error < 1e-6
    ids, targets = stream[None, :8], stream[None, 1:9]
    total = 0.0
    for at in range(8):
        alone = targets[:, : at + 1]
        hidden = torch.zeros_like(alone, dtype=torch.bool)
        hidden[:, at] = True
        states = model.objective.hidden(model, ids[:, :1], alone, hidden, since=at)
        total -= model.head.log_probs(states[0])[0, targets[0, at]].item()
    assert model.objective.bound(model, ids, targets).item() == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("block", [0, 4])
def test_predictions_see_neither_hidden_tokens_nor_later_blocks(block):
    model, stream = model_of(block), torch.randint(0, 7, (13,), generator=torch.Generator().manual_seed(2))
    first, targets = stream[None, :1], stream[None, 1:]
    masked = torch.arange(12)[None] % 3 == 1
    before = model.objective.hidden(model, first, targets, masked)
    size = block or 12
    for start in range(0, 12, size):
        later = targets.clone()
        later[:, start + size :] = (later[:, start + size :] + 1) % 7
        own = masked & (torch.arange(12) >= start) & (torch.arange(12) < start + size)
        later[own] = (later[own] + 3) % 7
        moved = model.objective.hidden(model, first, later, masked) - before
        assert float(moved[:, : start + size].abs().max()) < contracts.CAUSAL
        visible = targets.clone()
        visible[:, start] = (visible[:, start] + 1) % 7  # position start is never hidden in this pattern
        assert masked[0, start] or (model.objective.hidden(model, first, visible, masked) - before).abs().max() > 1e-4


def test_a_bound_is_no_loss():
    model, stream = model_of(), torch.randint(0, 7, (30,))
    with pytest.raises(ModelError, match=r"has no exact loss; .*likelihood_bound"):
        exact_nll(model, stream, context=8)
    plain = GPT(GPTConfig(vocabulary=7, width=16, pattern="a", mixers={"a": Attention(heads=2)}))
    with pytest.raises(ModelError, match="exact_nll"):
        likelihood_bound(plain, stream, context=8)
    found = likelihood_bound(model, stream, context=8)
    assert not isinstance(found, ValLoss) and not hasattr(found, "minus")
    loss = exact_nll(plain, stream, context=8)
    assert loss.source_hash != found.source_hash
    with pytest.raises(DataError, match="likelihood_bound alone"):
        Bound(1.0, 0.1, 8, 8, 2, 0.0, "x")


class Peeks(type(model_of().objective)):
    """A defect: what is hidden is not hidden."""

    def hidden(self, model, first_B1, ids_BT, masked_BT, *, since=0):
        return super().hidden(model, first_B1, ids_BT, torch.zeros_like(masked_BT), since=since)


def test_a_model_that_sees_what_it_predicts_is_refused():
    model = model_of()
    model.objective.__class__ = Peeks
    with pytest.raises(ModelError, match="hidden tokens"):
        likelihood_bound(model, torch.randint(0, 7, (30,)), context=8)


@pytest.mark.parametrize(
    "changes",
    [{"embedding": TokenTable(smear=True)}, {"mixers": {"a": Attention(heads=2, window=3)}},
     {"keep_documents": True, "end_of_text": 0}],
)  # fmt: skip
def test_parts_that_cannot_be_shown_both_sides_are_refused(changes):
    base = dict(vocabulary=7, width=16, pattern="a", mixers={"a": Attention(heads=2)}, objective=MaskedDiffusion())
    with pytest.raises(ModelError, match="masked diffusion"):
        GPT(GPTConfig(**{**base, **changes}))
