"""Objectives: targets are what their definitions say, annealing ends at the plain loss, evaluation knows none of it."""

from collections import Counter, defaultdict

import pytest
import torch
from octavo.errors import ModelError
from octavo.lab.language.gpt import (
    ChainedModules,
    NextToken,
    ParallelHeads,
    PrefixTargets,
    RepeatedLogits,
    RowSmoothing,
    contracts,
)
from octavo.lab.language.gpt.counted_targets import compact_targets
from octavo.lab.language.gpt.multi_token import further_targets
from octavo.lab.language.gpt.next_token import IGNORED
from octavo.lab.language.gpt.next_token_counts import PrefixTable, bigram_table
from octavo.lab.language.techniques import technique, techniques

OBJECTIVES = techniques("objective")


def model_of(config, **more):
    name = {type(one.examples[0]): one for one in OBJECTIVES}[type(config)]
    return contracts.example_model(name, config, **more)


def test_further_targets_are_exact_shifts_and_end_at_documents_and_windows():
    targets = torch.tensor([[5, 6, 0, 7, 8, 9]])
    assert further_targets(targets, 0, 0).tolist() == [[5, 6, 0, 7, 8, 9]]
    assert further_targets(targets, 1, None).tolist() == [[6, 0, 7, 8, 9, IGNORED]]
    assert further_targets(targets, 1, 0).tolist() == [[6, IGNORED, IGNORED, 8, 9, IGNORED]]
    assert further_targets(targets, 2, 0).tolist() == [[IGNORED] * 3 + [9, IGNORED, IGNORED]]
    assert further_targets(targets, 6, 0).tolist() == [[IGNORED] * 6]
    assert further_targets(torch.tensor([[5, IGNORED, 7]]), 1, None).tolist() == [[IGNORED] * 3]


NOISY = {"r_drop", "token_dropout"}  # their plain loss is that of a pass with noise, of which evaluation has none


@pytest.mark.parametrize("one", OBJECTIVES, ids=lambda one: one.name)
def test_the_plain_loss_is_told_whatever_is_trained_on(one):
    model = contracts.example_model(one, one.examples[0]).train(one.name not in NOISY)
    ids, targets = contracts.example_batch()
    targets = targets.masked_fill(torch.rand(targets.shape) < 0.2, IGNORED)
    total, parts = model(ids, targets)
    real = targets != IGNORED
    assert int(parts["tokens"]) == int(real.sum()) and total.requires_grad
    if "bound" in parts:  # there is no exact loss to tell, and none is told
        assert "nll" not in parts and not parts["bound"].requires_grad
        return
    wanted = model.nll(ids, targets.clamp_min(0))[real].sum().item()
    assert parts["nll"].item() == pytest.approx(wanted, rel=1e-5) and not parts["nll"].requires_grad


@pytest.mark.parametrize("one", OBJECTIVES, ids=lambda one: one.name)
def test_evaluation_does_not_depend_on_the_objective(one):
    model = contracts.example_model(one, one.examples[0]).eval()
    ids, targets = contracts.example_batch()
    before = model.nll(ids, targets)
    with torch.no_grad():
        for parameter in model.objective.parameters():
            parameter.add_(1)
    model.objective.progress = 0.7
    assert torch.equal(model.nll(ids, targets), before)


def test_heads_one_after_another_have_the_gradients_of_the_naive_sum():
    model = model_of(ParallelHeads(ahead=3))
    ids, targets = contracts.example_batch()
    (model(ids, targets)[0] * 0.25).backward()
    given = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    x, context = model.trunk(ids)
    states = [x, *(block(x, context) for block in model.objective.blocks)]
    total = 0
    for further, state in enumerate(states):
        y = further_targets(targets, further, 0) if further else targets
        log_probs = model.head.log_probs(model.final_norm(state).flatten(0, 1))
        taken = log_probs.gather(1, y.flatten().clamp_min(0)[:, None])[:, 0]
        total = total - taken[y.flatten() != IGNORED].sum()
    (total * 0.25).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(given[name], parameter.grad, rtol=1e-4, atol=1e-5), name


def test_module_j_sees_tokens_up_to_t_plus_j_and_no_further():
    model = model_of(ChainedModules(ahead=3)).eval()
    ids, targets = contracts.example_batch(batch=1)
    at = 9

    def states(stream_end):
        changed = targets.clone()
        changed[:, stream_end:] = 1 + (changed[:, stream_end:] + 7) % 60
        inputs = torch.cat([ids[:, :1], changed[:, :-1]], 1)
        x, context = model.trunk(inputs)
        return [state[:, at] for state in model.objective.states(model, x, changed, context)]

    # targets[i] is token i + 1: with tokens from at + j + 1 on changed, module j must not notice, with at + j it must.
    plain = states(targets.shape[1])
    for module in (1, 2):
        assert torch.allclose(plain[module - 1], states(at + module)[module - 1], atol=1e-5)
        assert not torch.allclose(plain[module - 1], states(at + module - 1)[module - 1], atol=1e-3)


def test_repeated_logits_are_their_definition_and_end_plain():
    model = model_of(RepeatedLogits(weights=(1.0, 0.5, 0.25), until=0.5))
    ids, targets = contracts.example_batch()
    log_probs = model.log_probs(ids)
    wanted = 0.0
    for further, weight in enumerate((1.0, 0.5, 0.25)):
        for row in range(2):
            for t in range(targets.shape[1] - further):
                passed = targets[row, t : t + further + 1]
                if not further or bool((passed != 0).all()):
                    wanted -= weight * log_probs[row, t, targets[row, t + further]].item()
    assert model(ids, targets)[0].item() == pytest.approx(wanted, rel=1e-5)
    model.objective.progress = 0.25
    assert model.objective.weights == (1.0, 0.25, 0.125)
    model.objective.progress = 0.5
    total, parts = model(ids, targets)
    assert total.detach() == parts["nll"]


def test_bigrams_are_those_of_a_count_by_hand():
    stream = torch.randint(0, 20, (10_000,), generator=torch.Generator().manual_seed(0)).square() // 20
    ids, mass = bigram_table(stream, 20, 4, end_of_text=0)
    counts = defaultdict(Counter)
    for first, second in zip(stream.tolist(), stream[1:].tolist(), strict=False):
        if second != 0:
            counts[first][second] += 1
    for token in range(20):
        total = sum(counts[token].values())
        best = sorted(counts[token].items(), key=lambda pair: (-pair[1], pair[0]))[:4]
        assert [(i, pytest.approx(c / total)) for i, c in best] == [
            (i, m) for i, m in zip(ids[token].tolist(), mass[token].tolist(), strict=True) if m > 0
        ]


def test_prefixes_are_those_of_a_count_by_hand():
    stream = torch.randint(0, 5, (800,), generator=torch.Generator().manual_seed(0))
    table = PrefixTable(stream, 5, longest=3, largest=2, end_of_text=0)
    tokens, counts = stream.tolist(), defaultdict(Counter)
    for start in range(len(tokens)):
        for length in (1, 2, 3):
            piece = tokens[start : start + length + 1]
            if len(piece) == length + 1 and 0 not in piece[1:]:
                counts[tuple(piece[:-1])][piece[-1]] += 1
    frequent = {prefix: next_ for prefix, next_ in counts.items() if sum(next_.values()) >= 2}
    assert len(table.keys) == len(frequent)
    for prefix, next_ in frequent.items():
        row = int(table.rows(torch.tensor([prefix]))[0, -1])
        best = sorted(next_.items(), key=lambda pair: (-pair[1], pair[0]))[:2]
        found = zip(table.ids[row].tolist(), table.mass[row].tolist(), strict=True)
        assert [(i, pytest.approx(c / sum(next_.values()))) for i, c in best] == [pair for pair in found if pair[1] > 0]
    assert table.rows(torch.tensor([[1, 0, 1]]))[0, 2] == -1  # across a border


def test_the_compact_target_is_the_whole_distribution_on_average():
    y_all = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    top, mass = torch.tensor([[0, 1, 2]]).expand(6, -1), y_all[:3].expand(6, -1)
    weights, own = compact_targets(top, mass, torch.arange(6))
    expected = torch.zeros(6)
    for token, chance in enumerate(y_all):
        expected[:3] += chance * weights[token]
        expected[token] += chance * own[token]
    assert torch.allclose(expected, y_all, atol=1e-6)


def test_smoothing_is_its_definition_and_falls_to_nothing():
    model = model_of(RowSmoothing(strength=0.2, largest=4, until=0.5))
    ids, targets = contracts.example_batch()
    grid, (next_ids, mass) = model.embedding, model.objective.table
    rows = model.head.row_log_probs(model.hidden(ids).flatten(0, 1)).view(2, -1, grid.side)
    wanted = model.nll(ids, targets).sum().item()
    for row in range(2):
        for t in range(ids.shape[1]):
            q = torch.zeros(grid.side)
            q.index_add_(0, grid.cell_V[next_ids[ids[row, t]]] // grid.side, mass[ids[row, t]])
            q /= q.sum()
            own = rows[row, t, grid.cell_V[targets[row, t]] // grid.side]
            wanted += 0.2 * (own - (q[q > 0] * rows[row, t][q > 0]).sum()).item()
    assert model(ids, targets)[0].item() == pytest.approx(wanted, rel=1e-4)
    model.objective.progress = 0.25
    assert model.objective.strength == pytest.approx(0.1)
    model.objective.progress = 0.5
    total, parts = model(ids, targets)
    assert total.detach() == parts["nll"]


@pytest.mark.parametrize("config", [PrefixTargets(), RowSmoothing()])
def test_an_objective_without_its_counts_says_so(config):
    from octavo.lab.language.gpt import GPT

    name = {PrefixTargets: "prefix_targets", RowSmoothing: "row_smoothing"}[type(config)]
    model = GPT(contracts.example_config(technique("objective", name), config))
    with pytest.raises(ModelError, match="count"):
        model(*contracts.example_batch())


def test_smoothing_needs_rows():
    from dataclasses import replace

    from octavo.lab.language.gpt import GPT

    plain = contracts.example_config(technique("objective", "next_token"), NextToken())
    with pytest.raises(ModelError, match="GridSoftmax"):
        GPT(replace(plain, objective=RowSmoothing()))
