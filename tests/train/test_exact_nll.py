"""A model that gives its own losses is believed once it has shown that they are its probabilities' own."""

import octavo
import pytest
import torch
from lab.language.gpt.mixer_parts import SmoothedHead
from octavo.errors import ContractError, DataError, ModelError, NonFiniteError
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, GridSoftmax, GridTable, RowSmoothing, contracts
from octavo.lab.language.gpt.attention_mixer import AttentionMixer
from octavo.lab.language.gpt.softmax_head import SoftmaxHead
from octavo.lab.language.techniques import techniques
from octavo.train import exact_nll
from torch import nn

STREAM = torch.randint(1, contracts.VOCABULARY, (101,), generator=torch.Generator().manual_seed(0))


class Bare(nn.Module):
    """Another model's scores alone, normalized by the evaluator."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, ids):
        return self.inner(ids)


@pytest.mark.parametrize("one", techniques("head"), ids=lambda one: one.name)
@pytest.mark.parametrize("stride", [20, 7])
def test_own_losses_are_those_of_the_scores(one, stride):
    model = contracts.example_model(one, one.examples[0])
    own = exact_nll(model, STREAM, context=20, stride=stride)
    wanted = exact_nll(Bare(model), STREAM, context=20, stride=stride)
    assert own.nats == pytest.approx(wanted.nats, abs=1e-5) and own.tokens == wanted.tokens == 100
    assert own.source_hash == wanted.source_hash and abs(own.guard) < 1e-4


def small(head=None, mixer=None):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=contracts.VOCABULARY, width=32, pattern="aa", mixers={"a": Attention(heads=4)}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.head.__class__ = head or SoftmaxHead
    for block in model.blocks:
        block.mixer.__class__ = mixer or AttentionMixer
    return model


class Unnormalised(SoftmaxHead):
    def log_probs(self, h_ND):
        return nn.functional.logsigmoid(self.scores(h_ND))


class SeesTheFuture(AttentionMixer):
    def forward(self, x_BTD, context):
        return self.out(torch.fft.irfft(torch.fft.rfft(x_BTD, dim=1).abs(), n=x_BTD.shape[1], dim=1))


def test_a_smoothed_loss_an_unnormalised_head_and_a_leak_are_refused_by_name():
    assert exact_nll(small(), STREAM, context=20).tokens == 100
    with pytest.raises(ContractError, match=r"^one loss: .* smoothing"):
        exact_nll(small(head=SmoothedHead), STREAM, context=20)
    with pytest.raises(ContractError, match=r"^normalization: "):
        exact_nll(small(head=Unnormalised), STREAM, context=20)
    with pytest.raises(ModelError, match="sees the future"):
        exact_nll(small(mixer=SeesTheFuture), STREAM, context=20)
    with pytest.raises(DataError, match="id 61 is beyond the 61"):
        exact_nll(small(), torch.tensor([1, 2, 61]), context=20)


def test_targets_of_training_do_not_reach_evaluation():
    """Row smoothing moves what is trained on; the measured loss is the same at any strength."""
    found = []
    for strength in (0.0, 0.9):
        torch.manual_seed(0)
        model = GPT(GPTConfig(
            vocabulary=contracts.VOCABULARY, width=32, pattern="a", mixers={"a": Attention(heads=4)},
            embedding=GridTable(), head=GridSoftmax(), objective=RowSmoothing(strength=strength, largest=4),
        ))  # fmt: skip
        model.objective.count(STREAM)
        trained = model(STREAM[None, :-1], STREAM[None, 1:])[0].item()
        found.append((trained, exact_nll(model, STREAM, context=100)))
    assert found[0][0] != found[1][0] and found[1][1].minus(found[0][1]) == 0


def test_scores_that_are_not_finite_name_the_weight():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 8)

        def forward(self, ids):
            return self.table(ids)

    model = Broken()
    with torch.no_grad():
        model.table.weight[:] = torch.nan
    with pytest.raises(NonFiniteError, match=r"'table\.weight' of the Broken holds NaN"):
        exact_nll(model, torch.arange(40) % 8, context=8)


def test_a_packed_table_tells_its_vocabulary():
    from octavo.train.exact_nll import _together
    from octavo.train.token_windows import vocabulary_of

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(40_000, 32), nn.Linear(32, 40_000)

        def get_input_embeddings(self):
            return self.table

        def forward(self, ids):
            return self.head(self.table(ids))

    packed = octavo.pack_model(octavo.quantize_model(Decoder(), "int4:g32", progress=False))
    assert vocabulary_of(Decoder()) == vocabulary_of(packed) == 40_000
    assert _together(packed, 512) == 2 and _together(packed, 16) == 8
    with pytest.raises(DataError, match="40000"):
        exact_nll(packed, torch.tensor([1, 2, 40_000]), context=2)
