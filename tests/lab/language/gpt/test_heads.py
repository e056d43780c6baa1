"""Heads beyond the softmax: exact distributions, sampled losses at their optima, and the grid of words."""

import itertools
import math

import numpy as np
import pytest
import torch
from lab.language.gpt.mixer_parts import initialized
from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt import (
    GPT,
    AdaptiveSoftmax,
    GPTConfig,
    GridSoftmax,
    GridTable,
    NegativeSampling,
    NoiseContrastive,
    SampledSoftmax,
)
from octavo.lab.language.gpt.adaptive_head import AdaptiveHead
from octavo.lab.language.gpt.contracts import example_model
from octavo.lab.language.gpt.sampled_heads import (
    AliasSampler,
    NegativeSamplingHead,
    NoiseContrastiveHead,
    SampledSoftmaxHead,
)
from octavo.lab.language.gpt.softmax_head import Softmax, SoftmaxHead
from octavo.lab.language.gpt.word_grid import GridEmbedding
from octavo.lab.language.gpt.word_placement import PlacementCosts, assignment
from octavo.lab.language.techniques import technique
from torch import nn

VOCABULARY, WIDTH = 31, 16


def head_of(kind, config, width=WIDTH, vocabulary=VOCABULARY):
    return initialized(kind, config, vocabulary, width)


def test_adaptive_softmax_is_torch_s_with_ids_in_the_order_of_frequency():
    head = head_of(AdaptiveHead, AdaptiveSoftmax(cutoffs=(5, 12), divisor=2.0))
    stream = torch.cat([torch.arange(VOCABULARY).repeat_interleave(torch.arange(VOCABULARY) + 1)])
    head.count(stream)
    assert torch.equal(head.rank_V, torch.arange(VOCABULARY).flip(0))  # the last id is the most frequent
    h, y = torch.randn(VOCABULARY, WIDTH), torch.arange(VOCABULARY)
    assert torch.equal(head.nll(h, y), -head.clusters(h, head.rank_V).output)
    assert torch.allclose(head.log_probs(h).diagonal(), -head.nll(h, y), atol=1e-6)
    head.arrange(torch.arange(VOCABULARY))
    assert torch.equal(head.rank_V, torch.arange(VOCABULARY))
    with pytest.raises(ModelError, match="each of 31"):
        head.arrange(torch.zeros(VOCABULARY, dtype=torch.int64))
    with pytest.raises(SettingError, match="below the vocabulary, 31"):
        head_of(AdaptiveHead, AdaptiveSoftmax(cutoffs=(5, 31)))


def test_adaptive_softmax_with_the_right_cluster_scores_is_the_full_softmax():
    head = head_of(AdaptiveHead, AdaptiveSoftmax(cutoffs=(5, 12), divisor=1.0))
    h, full = torch.randn(1, WIDTH), torch.randn(VOCABULARY, WIDTH)
    with torch.no_grad():
        head.clusters.head.weight[:5] = full[:5]
        for place, (first, last) in enumerate([(5, 12), (12, VOCABULARY)]):
            head.clusters.tail[place][0].weight.copy_(torch.eye(WIDTH))
            head.clusters.tail[place][1].weight.copy_(full[first:last])
            total = (full[first:last] @ h[0]).logsumexp(0)
            head.clusters.head.weight[5 + place] = h[0] * total / h[0].square().sum()
    assert torch.allclose(head.log_probs(h), (h @ full.T).log_softmax(-1), atol=1e-5)


def zipf():
    p = 1 / torch.arange(1, VOCABULARY + 1).double()
    return p / p.sum()


def optimum(head, kind, p, q):
    """The scores at which the expected loss over all targets and noise has no slope: found by bisection."""
    k = head.samples
    shift = (k * q).log() if kind is NoiseContrastiveHead else torch.zeros_like(q)
    low, high = torch.full_like(p, -40), torch.full_like(p, 40)
    for _ in range(100):
        scores = (low + high) / 2
        hit = torch.sigmoid(scores - shift)
        rises = k * q * hit > p * (1 - hit)
        low, high = torch.where(rises, low, scores), torch.where(rises, scores, high)
    return scores


@pytest.mark.parametrize("kind", [NoiseContrastiveHead, NegativeSamplingHead])
def test_the_optimum_of_a_sampled_loss_is_the_entropy_after_the_right_correction(kind):
    """Negative sampling is off by log q, which its distribution puts back; the wrong correction costs over 0.3 nats."""
    config = (NoiseContrastive if kind is NoiseContrastiveHead else NegativeSampling)(samples=5, tied=False)
    head, p = head_of(kind, config, width=VOCABULARY), zipf()
    q = p**0.75 / (p**0.75).sum()
    head.noise_V.copy_(q.float())
    scores = optimum(head, kind, p, q)
    with torch.no_grad():
        head.project.weight.copy_((scores[:, None] - head.start).expand(-1, VOCABULARY) / VOCABULARY)
    h = torch.ones(1, VOCABULARY)
    entropy = -(p * p.log()).sum().item()
    loss = -(p * head.log_probs(h)[0].double()).sum().item()
    assert loss == pytest.approx(entropy, abs=1e-4)
    plain = -(p * scores.log_softmax(0)).sum().item()
    assert (plain - entropy > 0.3) == (kind is NegativeSamplingHead)
    if kind is NoiseContrastiveHead:
        assert head.log_partition(h).item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("kind", [NoiseContrastiveHead, NegativeSamplingHead])
def test_a_sampled_loss_is_its_definition(kind):
    config = (NoiseContrastive if kind is NoiseContrastiveHead else NegativeSampling)(samples=7, tied=False)
    head = head_of(kind, config)
    head.count(torch.randint(0, VOCABULARY, (500,)))
    h, y = torch.randn(4, WIDTH), torch.tensor([3, 0, 30, 3])
    torch.manual_seed(1)
    given = head.surrogate(h, y)
    torch.manual_seed(1)
    noise, scores = head.drawn(), h @ head.project.weight.T + head.start
    if kind is NoiseContrastiveHead:
        scores = scores - (7 * head.noise_V).log()
    wanted = -scores.gather(1, y[:, None])[:, 0].sigmoid().log() - (1 - scores[:, noise].sigmoid()).log().sum(1)
    assert torch.allclose(given, wanted, atol=1e-4)


def test_the_gradient_of_nce_tends_to_that_of_the_softmax_as_draws_grow():
    """Where scores are log-probabilities; the expectation over the noise is exact: each token as often as expected."""
    distance = {}
    for times in (1, 32):
        head = head_of(NoiseContrastiveHead, NoiseContrastive(samples=1, tied=False))
        expected_V = times * torch.arange(1, VOCABULARY + 1)
        head.noise_V.copy_(expected_V / expected_V.sum())
        head.samples = int(expected_V.sum())
        head.drawn = lambda often_V=expected_V: torch.arange(VOCABULARY).repeat_interleave(often_V)
        h, y = torch.randn(1, WIDTH), torch.tensor([3])
        assert head.log_partition(0 * h).item() == pytest.approx(0, abs=1e-5)  # at the start all tokens are even
        with torch.no_grad():
            head.project.weight.sub_(head.log_partition(h) * h / h.square().sum())
        exact, sampled = (
            torch.autograd.grad(loss(h, y).sum(), head.project.weight)[0] for loss in (head.nll, head.surrogate)
        )
        distance[times] = float((sampled - exact).norm() / exact.norm())
    assert 16 * distance[32] < distance[1] < 0.05


STATES, DRAWS = 64, 32


def trained(kind, config, start=None):
    """The exact loss of a head and a table of states after training on draws from a chain, nats a token."""
    chain_SS = (
        1.5 * torch.randn(STATES, STATES, generator=torch.Generator().manual_seed(0)) - torch.arange(STATES) / 16
    ).softmax(1)
    often_S = torch.linalg.matrix_power(chain_SS, 64)[0]
    head = head_of(kind, config, vocabulary=STATES)
    head.start = getattr(head, "start", 0.0) if start is None else start
    table = nn.Parameter(torch.randn(STATES, WIDTH))
    if hasattr(head, "count"):
        head.count(often_S.multinomial(10_000, replacement=True))
    steps = 60
    optimizer = torch.optim.AdamW([table, *head.parameters()], lr=0.03)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.03 * (1 - step / steps)
        x = often_S.multinomial(128, replacement=True)
        y = chain_SS[x].multinomial(1)[:, 0]
        optimizer.zero_grad()
        getattr(head, "surrogate", head.nll)(nn.functional.rms_norm(table, (WIDTH,))[x], y).mean().backward()
        optimizer.step()
    losses_SS = -head.log_probs(nn.functional.rms_norm(table, (WIDTH,)))
    return (often_S[:, None] * chain_SS * losses_SS).sum().item()


def test_training_on_few_draws_comes_near_the_softmax_and_needs_scores_that_begin_at_the_optimum_s_size():
    """Without it NCE ends above the even distribution: it trains the size of scores, at the cost of all else."""
    exact = trained(SoftmaxHead, Softmax(tied=False))
    few = {"samples": DRAWS, "tied": False}
    assert trained(NegativeSamplingHead, NegativeSampling(**few)) < exact + 0.15
    assert trained(NoiseContrastiveHead, NoiseContrastive(**few)) < exact + 0.5
    assert trained(NoiseContrastiveHead, NoiseContrastive(**few), start=0.0) > math.log(STATES)


def test_sampled_softmax_with_all_tokens_is_the_softmax_and_its_bias_shrinks_with_samples():
    h, y = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3)), torch.arange(64) % VOCABULARY
    bias = {}
    for samples in (2, 8, 400, 1000):
        head = head_of(SampledSoftmaxHead, SampledSoftmax(samples=samples, tied=False))
        exact = torch.autograd.grad(head.nll(h, y).mean(), head.project.weight)[0]
        if samples >= VOCABULARY:
            assert torch.equal(head.surrogate(h, y), head.nll(h, y))
            continue
        torch.manual_seed(2)
        drawn = sum(torch.autograd.grad(head.surrogate(h, y).mean(), head.project.weight)[0] for _ in range(300)) / 300
        bias[samples] = float((drawn - exact).norm() / exact.norm())
    assert bias[8] < bias[2] / 2


def test_a_drawn_target_is_left_out_of_its_own_row():
    head = head_of(SampledSoftmaxHead, SampledSoftmax(samples=VOCABULARY - 1, tied=False))
    head.noise_V.copy_(torch.full((VOCABULARY,), 1e-6).index_fill(0, torch.tensor([4]), 1.0))
    loss = head.surrogate(torch.randn(3, WIDTH), torch.tensor([4, 4, 4]))
    assert torch.equal(loss, torch.zeros(3))  # every draw is the target: nothing is left to tell it from


def test_alias_draws_have_the_frequencies_that_were_asked_for():
    chances = torch.tensor([0.5, 0.0, 0.25, 0.2, 0.05])
    torch.manual_seed(0)
    drawn = AliasSampler(chances).draw(40_000).bincount(minlength=5).double()
    assert drawn[1] == 0
    expected = chances.double() * 40_000
    statistic = ((drawn - expected).square() / expected.clamp_min(1e-9))[expected > 0].sum()
    assert statistic < 16.3  # chi-square, 3 degrees of freedom, 0.1 %


def grid_model(vocabulary=VOCABULARY, residual=0):
    torch.manual_seed(0)
    return GPT(GPTConfig(
        vocabulary=vocabulary, width=24, pattern="a", mixers={"a": technique("mixer", "attention").examples[0]},
        embedding=GridTable(residual=residual), head=GridSoftmax(),
    ))  # fmt: skip


@pytest.mark.parametrize("vocabulary", [9, 10, 31, 50])
def test_a_grid_head_is_the_product_of_row_and_column_wherever_words_stand(vocabulary):
    model = grid_model(vocabulary)
    side = math.ceil(math.sqrt(vocabulary))
    assert model.embedding.side == side
    model.embedding.place(torch.randperm(side * side, generator=torch.Generator().manual_seed(1))[:vocabulary])
    h = torch.randn(5, 24)
    log_probs = model.head.log_probs(h)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(5), atol=1e-5)
    for word in range(vocabulary):
        assert torch.allclose(model.head.nll(h, torch.full((5,), word)), -log_probs[:, word], atol=1e-5)


def test_a_grid_has_the_weights_of_its_formula():
    """Not one D x 256 matrix a token: 2 sqrt(V) D in, as much out, and one MLP."""
    model = GPT(GPTConfig(
        vocabulary=1000, width=24, pattern="a", mixers={"a": technique("mixer", "attention").examples[0]},
        embedding=GridTable(), head=GridSoftmax(factor=2.0),
    ))  # fmt: skip
    count = lambda part: sum(parameter.numel() for parameter in part.parameters())  # noqa: E731
    assert count(model.embedding) == 2 * 32 * 24 and count(model.head) == 2 * 32 * 24 + 2 * 24 * 48


def test_a_matching_is_the_cheapest_of_all():
    generator = np.random.default_rng(0)
    for rows, columns in [(1, 1), (4, 4), (5, 6), (6, 7)]:
        cost = generator.normal(size=(rows, columns))
        found = assignment(cost)
        best = min(sum(cost[i, c] for i, c in enumerate(some)) for some in itertools.permutations(range(columns), rows))
        assert len(set(found)) == rows and cost[np.arange(rows), found].sum() == pytest.approx(best)


@pytest.mark.parametrize("vocabulary", [9, 20, 64])
@pytest.mark.parametrize("exact", [0, 1024])
def test_reallocation_never_costs_more_and_finds_planted_cells(vocabulary, exact):
    side = math.isqrt(vocabulary - 1) + 1
    generator = torch.Generator().manual_seed(vocabulary)
    planted = torch.randperm(side * side, generator=generator)[:vocabulary]
    costs = PlacementCosts(vocabulary, side)
    costs.rows = torch.rand(vocabulary, side, generator=generator) + 3
    costs.columns = torch.rand(vocabulary, side, generator=generator) + 3
    costs.rows.scatter_(1, (planted // side)[:, None], 0.0)
    costs.columns.scatter_(1, (planted % side)[:, None], 0.0)
    assert torch.equal(costs.best(torch.arange(vocabulary), exact=exact), planted)
    noisy = PlacementCosts(vocabulary, side)
    noisy.rows, noisy.columns = torch.rand(vocabulary, side), torch.rand(vocabulary, side)
    before = noisy.best(torch.arange(vocabulary))
    found = noisy.best(before, exact=exact)
    assert len(found.unique()) == vocabulary and noisy.total(found) <= noisy.total(before)


def test_costs_are_those_of_the_head_and_words_move_as_one():
    model = grid_model()
    h, y = torch.randn(50, 24), torch.randint(0, VOCABULARY, (50,))
    costs = PlacementCosts(VOCABULARY, model.embedding.side)
    costs.add(model.head, h, y)
    assert costs.total(model.embedding.cell_V) == pytest.approx(model.head.nll(h, y).sum().item(), rel=1e-5)
    moved = costs.best(model.embedding.cell_V)
    model.embedding.place(moved)
    assert torch.equal(model.embedding.cell_V, moved)
    with pytest.raises(ModelError, match="31 words"):
        model.embedding.place(torch.zeros(VOCABULARY, dtype=torch.int64))
    again = grid_model()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.embedding.cell_V, moved)


def test_a_grid_needs_both_of_its_parts():
    with pytest.raises(ModelError, match="TokenEmbedding has no grid"):
        GPT(GPTConfig(vocabulary=9, width=24, pattern="a", mixers={"a": technique("mixer", "attention").examples[0]}, head=GridSoftmax()))  # fmt: skip
    with pytest.raises(ModelError, match="GridEmbedding has no table"):
        GPT(GPTConfig(vocabulary=9, width=24, pattern="a", mixers={"a": technique("mixer", "attention").examples[0]}, embedding=GridTable()))  # fmt: skip
    assert isinstance(GridEmbedding(GridTable(), 9, 4, 9), nn.Module)


def test_a_sampled_head_gives_the_exact_loss_beside_the_sampled_one():
    one = technique("head", "noise_contrastive")
    model = example_model(one, one.examples[0])
    ids, targets = torch.randint(1, 61, (2, 9)), torch.randint(1, 61, (2, 9))
    total, parts = model(ids, targets)
    assert parts["nll"].item() == pytest.approx(model.nll(ids, targets).sum().item(), rel=1e-5)
    assert total.item() != pytest.approx(parts["nll"].item(), rel=1e-2)
