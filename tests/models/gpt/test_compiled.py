"""Models under torch.compile: one graph without a break, and the sums of eager mode."""

import pytest
import torch
from octavo.models import gpt
from octavo.models.gpt import GPT
from octavo.models.gpt.presets import PRESETS, preset


def sums(model, ids, targets):
    total, parts = model(ids, targets)
    return total, parts["nll"], parts["tokens"]


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("unscored", [0, 5])
def test_a_model_is_one_graph_and_scores_what_eager_mode_does(name, unscored):
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
