"""Test-time training on neighbours: every token is scored before it is trained on, and weights are as before after it."""

import pytest
import torch
from lab.language.gpt.test_retrieval import END, VOCABULARY, filled, text
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, GridSoftmax, GridTable, GridTogether
from octavo.lab.language.gpt.adapted_model import AdaptedModel
from octavo.lab.language.gpt.next_token import Batch
from octavo.train import exact_nll


def adapted(rate=0.05):
    torch.manual_seed(0)
    model = GPT(GPTConfig(
        vocabulary=VOCABULARY, width=32, pattern="a", mixers={"a": Attention(heads=4)}, end_of_text=END,
    )).eval()  # fmt: skip
    return AdaptedModel(model, filled(text()), rate=rate)


def test_each_token_is_scored_before_it_is_trained_on():
    """What a step trains on is of the store, and the text itself enters a search only after it was scored."""
    model, ids = adapted(), text(1, 33, seed=5)[None, :32]
    events, stored = [], {tuple(row.tolist()) for row in model.store.tokens_SC}
    search = model.store.neighbours
    model.store.neighbours = lambda seen, count: events.append(("searched", seen.shape[1])) or search(seen, count)
    model.watch = lambda tokens: events.append(("trained", {tuple(row.tolist()) for row in tokens}))
    scored = model.model.head.nll
    model.model.head.nll = lambda h, y: events.append(("scored", len(y))) or scored(h, y)
    model.nll(ids, text(1, 33, seed=6)[None, :32])
    seen = 0
    for what, told in events:
        if what == "trained":
            assert told <= stored
        elif what == "searched":
            assert told == seen
        elif told == 8:
            seen += 8
    assert [what for what, _ in events].count("trained") == 3 and seen == 32


def test_losses_do_not_see_what_comes_later():
    model, ids, targets = adapted(), text(1, 33, seed=5)[None, :32], text(1, 33, seed=6)[None, :32]
    before = model.nll(ids, targets)
    for cut in (8, 9, 16, 31):
        changed = ids.clone()
        changed[:, cut:] = torch.randint(1, VOCABULARY, (1, 32 - cut))
        assert torch.equal(model.nll(changed, targets)[:, :cut], before[:, :cut])
    own = model.log_probs(ids)
    assert torch.allclose(-own.gather(-1, targets[..., None])[..., 0], before, atol=1e-5)


@pytest.mark.slow
def test_the_exact_loss_is_that_of_weights_that_follow_and_leaves_them_as_they_were():
    model, stream = adapted(), text(seed=4)[:97]
    weights = [one.clone() for one in model.model.parameters()]
    found, plain = exact_nll(model, stream, context=32), exact_nll(model.model, stream, context=32)
    assert found.source_hash == plain.source_hash and found.nats != plain.nats
    assert all(torch.equal(one, before) for one, before in zip(model.model.parameters(), weights, strict=True))
    assert exact_nll(adapted(rate=0.0), stream, context=32).nats == pytest.approx(plain.nats, abs=1e-6)


def test_what_is_reported_with_training_targets_is_no_loss():
    """The artefact: rows smoothed by bigrams make validation look better than the likelihood where bigrams predict."""
    torch.manual_seed(0)
    stream = torch.randint(1, VOCABULARY, (400,)).repeat(4)
    model = GPT(GPTConfig(
        vocabulary=VOCABULARY, width=16, pattern="a", mixers={"a": Attention(heads=2)}, embedding=GridTable(),
        head=GridSoftmax(), objective=GridTogether(strength=0.5, largest=50), end_of_text=END,
    )).eval()  # fmt: skip
    model.count(stream)
    ids, targets = stream[None, :64], stream[None, 1:65]
    true = float(model.nll(ids, targets).sum().detach())
    assert float(model.objective.reported(model, ids, targets)) != pytest.approx(true, abs=1e-3)
    _, parts = model.objective.loss(model, Batch(ids, targets))
    assert float(parts["nll"]) == pytest.approx(true, rel=1e-5)
    model.objective.progress = 1.0
    assert "further" not in model.objective.loss(model, Batch(ids, targets))[1]
