"""octavo.evaluate: numbers against oracles that are written out here, and what it refuses."""

import math

import numpy as np
import octavo
import pytest
import torch
from octavo.data import Sentences
from octavo.errors import CalibrationError, DataError, DTypeError, ModelError, NonFiniteError, SettingError
from octavo.train import ValLoss, exact_nll
from octavo.train.intervals import weighted_mean, wilson
from octavo.train.measurement import Measurement
from torch import nn

VOCABULARY = 11


class Causal(nn.Module):
    """Scores of the next token from a decayed sum of embeddings: position t sees 0 to t."""

    def __init__(self, sees=0):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.out = nn.Linear(8, VOCABULARY)
        self.drop = nn.Dropout(0.5)
        self.sees = sees

    def forward(self, ids):
        x, state = self.embedding(ids), 0
        states = []
        for position in range(ids.shape[1]):
            state = 0.5 * state + x[:, min(position + self.sees, ids.shape[1] - 1)]
            states.append(state)
        return self.out(self.drop(torch.stack(states, 1)))


IDS = torch.randint(VOCABULARY, (50,), generator=torch.Generator().manual_seed(1))


def by_hand(model, ids, context, stride):
    """The loss of each target, one call a token, in Python's floats."""
    losses, done, first = [], 0, 0
    while done < len(ids) - 1:
        end = min(first + context, len(ids) - 1)
        for target in range(done + 1, end + 1):
            scores = model(ids[None, first:target])[0, -1].double().tolist()
            top = max(scores)
            total = math.fsum(math.exp(score - top) for score in scores)
            losses.append(top + math.log(total) - scores[int(ids[target])])
        done, first = end, first + stride
    return losses


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 3), (49, 49), (200, 200), (1, 1), (7, 6)])
@torch.no_grad()
def test_every_token_is_predicted_once_from_its_window(context, stride):
    model = Causal().eval()
    expected = by_hand(model, IDS, context, stride)
    assert len(expected) == 49
    found = exact_nll(model, IDS, context=context, stride=stride, batch_size=3)
    assert found.tokens == 49 and sum(found.window_tokens) == 49
    assert found.nats == pytest.approx(math.fsum(expected) / 49, abs=1e-6)  # float32 scores in products of other sizes
    measured = octavo.evaluate(model, IDS, context=context, stride=stride)
    assert measured.value == pytest.approx(math.exp(found.nats), rel=1e-12)
    assert measured.setup["context"] == context and measured.setup["stride"] == stride
    assert measured.checked["cuts"] > 0 and 0 < measured.checked["batches"] <= 40


def test_modes_and_random_numbers_stay():
    model = Causal().train()
    state = torch.get_rng_state()
    first = exact_nll(model, IDS, context=8)
    assert model.training and torch.equal(torch.get_rng_state(), state)
    assert exact_nll(model, IDS.tolist(), context=8).nats == first.nats  # dropout is off


def test_a_model_that_sees_the_future_is_refused():
    with pytest.raises(ModelError, match="sees the future"):
        exact_nll(Causal(sees=1), IDS, context=8)
    assert exact_nll(Causal(sees=1), IDS, context=8, leaks="report").guard > 0.001
    assert exact_nll(Causal(), IDS, context=8).guard == 0


def test_nobody_else_makes_a_loss_and_other_windows_do_not_compare():
    with pytest.raises(DataError, match="exact_nll alone"):
        ValLoss(1.0, None, 5, 8, 8, None, "x", (1.0,), (5,))
    model = Causal()
    plain = exact_nll(model, IDS, context=8)
    assert plain.minus(exact_nll(model, IDS, context=8)) == 0
    for other in (exact_nll(model, IDS, context=9), exact_nll(model, IDS[:-1], context=8)):
        with pytest.raises(DataError, match="do not compare"):
            plain.minus(other)


def test_scores_need_not_be_normalized():
    class Shifted(Causal):
        def forward(self, ids):
            return super().forward(ids) + 1e3

    assert exact_nll(Shifted(), IDS, context=8).nats == pytest.approx(
        exact_nll(Causal(), IDS, context=8).nats, abs=1e-4
    )


@pytest.mark.parametrize(
    ("ids", "options", "reason"),
    [
        (IDS[:1], {}, "1 tokens"),
        ([], {}, "0 tokens"),
        (IDS, {"stride": 9}, "stride 9"),
        (IDS, {"stride": 0}, "stride is 0"),
        (IDS, {"stride": 2.0}, r"stride is 2\.0"),
        (IDS, {"context": 0}, "context is 0"),
        (IDS, {"context": True}, "context is True"),
        (IDS, {"context": "8"}, "context is '8'"),
        (IDS, {"tokens": -5}, "tokens is -5"),
        (IDS, {"tokens": 0}, "tokens is 0"),
        (IDS, {"tokens": 1.5}, r"tokens is 1\.5"),
        (IDS, {"batch_size": 0}, "batch_size is 0"),
        (IDS, {"guard_calls": 0}, "guard_calls is 0"),
        (IDS, {"leaks": "ignore"}, "leaks is 'ignore'; accepted are 'refuse', 'report'"),
        (IDS.float(), {}, "whole numbers.*float32"),
        (IDS > 3, {}, "whole numbers.*bool"),
        (IDS.to(torch.complex64), {}, "whole numbers.*complex64"),
        (IDS.float().numpy(), {}, "whole numbers.*float32"),
        ((IDS + 0.5).tolist(), {}, "whole numbers.*float64"),
        ((IDS > 3).numpy(), {}, "whole numbers.*bool"),
        (IDS.numpy().astype(complex), {}, "whole numbers.*complex128"),
        ([1, 2, None], {}, "whole numbers.*object"),
        ([1, 2**70], {}, "whole numbers.*object"),
        (np.array([1, 2**63], np.uint64), {}, "whole numbers.*9223372036854775808"),
        ([[1, 2], [3]], {}, "whole numbers"),
        (IDS[None], {}, r"shape \(1, 50\)"),
        ([1, 2, -1, 3], {}, "-1 at position 2"),
        (b"text", {}, "whole numbers"),
        (IDS + VOCABULARY, {}, r"id up to \d+"),
        ("text", {}, "octavo.evaluate takes texts"),
    ],
    ids=str,
)
def test_streams_that_make_no_windows_are_refused(ids, options, reason):
    with pytest.raises(octavo.OctavoError, match=reason):
        exact_nll(Causal(), ids, **{"context": 8, **options})


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint64])
def test_whole_numbers_of_any_kind_are_ids(dtype):
    wanted = exact_nll(Causal(), IDS, context=8).nats
    assert exact_nll(Causal(), IDS.numpy().astype(dtype), context=8).nats == wanted
    assert exact_nll(Causal(), IDS.to(torch.uint8), context=8).nats == wanted


def test_windows_and_ids_beyond_the_tables_of_a_model_are_refused_before_work_starts():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 13, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    assert exact_nll(gpt2, IDS[:17], context=99).tokens == 16  # no window is longer than 16
    with pytest.raises(DataError, match=r"windows of 17 tokens.*has 16 positions; give context=16"):
        exact_nll(gpt2, IDS, context=17)
    with pytest.raises(DataError, match="id 13 is beyond the 13 ids of GPT2LMHeadModel"):
        exact_nll(gpt2, [*IDS.tolist(), 13], context=8)


def test_scores_that_are_none_are_refused():
    with pytest.raises(ModelError, match="scores of the next token"):
        exact_nll(nn.Sequential(nn.Embedding(VOCABULARY, 3), nn.Flatten()), IDS, context=8)
    broken = Causal()
    with torch.no_grad():
        broken.out.bias[0] = math.nan
    with pytest.raises(NonFiniteError):
        exact_nll(broken, IDS, context=8, leaks="report")


# --- classifiers ----------------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Class 1 where token 1 occurs: a classifier whose answers are known."""

    def forward(self, input_ids, attention_mask):
        seen = ((input_ids == 1) & attention_mask.bool()).any(1).float()
        return torch.stack([1 - seen, seen], -1)


def tokenizer(texts, *, max_length, **_):
    rows = [[int(word) for word in text.split()][:max_length] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])  # padded with what would be counted
    return {"input_ids": ids, "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])}


def test_accuracy_is_counted_text_by_text():
    texts = ["1 2", "2 2 2", "1", "3 3 3 3 1", "4"] * 9
    labels = [1, 0, 0, 1, 0] * 9
    found = octavo.evaluate(Words(), Sentences(tuple(texts), tuple(labels)), tokenizer=tokenizer)
    assert found.value == 36 / 45 and found.count == 45 and found.metric == "accuracy"
    assert found.values == (1.0, 1.0, 0.0, 1.0, 1.0) * 9  # in the order of the texts, not of the batches
    assert (found.low, found.high) == wilson(36, 45)
    pairs = octavo.evaluate(Words(), list(zip(texts, labels, strict=True)), tokenizer=tokenizer)
    assert pairs == found
    cut = octavo.evaluate(Words(), Sentences(tuple(texts), tuple(labels)), tokenizer=tokenizer, max_tokens=4)
    assert cut.value == 27 / 45  # the fifth word of "3 3 3 3 1" is not read
    assert cut.difference(found).mean == pytest.approx(-9 / 45)


def test_labels_beyond_the_classes_and_other_models_are_refused():
    with pytest.raises(DataError, match="label 5; Words has the classes 0 to 1"):
        octavo.evaluate(Words(), [("1", 5)], tokenizer=tokenizer)
    with pytest.raises(DataError, match="label 3 of labels -1; accepted are 0 to"):
        octavo.evaluate(Words(), [("1", 1), ("2", 0), ("3", -1)], tokenizer=tokenizer)
    with pytest.raises(ModelError, match="need a classifier"):
        octavo.evaluate(nn.Embedding(3, 3), [("1", 1)], tokenizer=lambda texts, **_: {"input": torch.tensor([[1]])})
    with pytest.raises(CalibrationError, match=r"batch 0.*no argument 'colour'"):
        octavo.evaluate(Words(), [("1", 1)], tokenizer=lambda texts, **_: {"colour": torch.tensor([[1]])})
    with pytest.raises(DataError, match="give tokenizer="):
        octavo.evaluate(Words(), [("1", 1)])
    with pytest.raises(DTypeError, match=r"torch\.nn\.Module"):
        octavo.evaluate("gpt2", [("1", 1)])
    with pytest.raises(DataError, match="accepted are a text"):
        octavo.evaluate(Words(), [torch.zeros(2, 2)])


# --- agreement ------------------------------------------------------------------------------------------------------


def test_a_model_agrees_with_itself_and_kl_is_that_of_its_definition():
    torch.manual_seed(2)
    a, b = nn.Linear(6, 4), nn.Linear(6, 4)
    batches = [torch.randn(5, 6), torch.randn(3, 6)]
    same = octavo.evaluate(a, batches, against=a)
    assert same.value == 0 and same.details["top1"] == 1 and same.goal == "min"
    found = octavo.evaluate(b, batches, against=a)
    x = torch.cat(batches)
    p, q = a(x).double().softmax(-1), b(x).double().softmax(-1)
    expected = [math.fsum(pi * math.log(pi / qi) for pi, qi in zip(*rows, strict=True)) for rows in zip(p.tolist(), q.tolist(), strict=True)]  # fmt: skip
    assert found.values == pytest.approx(expected, rel=1e-5) and found.count == 8
    assert found.details["top1"] == (p.argmax(-1) == q.argmax(-1)).double().mean().item()


def test_models_that_give_other_things_are_refused():
    with pytest.raises(ModelError, match="same outputs"):
        octavo.evaluate(nn.Linear(6, 3), [torch.randn(2, 6)], against=nn.Linear(6, 4))
    with pytest.raises(CalibrationError, match=r"batch 1, .*float32\[2, 5\]"):
        octavo.evaluate(nn.Linear(6, 3), [torch.randn(2, 6), torch.randn(2, 5)], against=nn.Linear(6, 3))


def test_data_loaders_with_labels_are_taken():
    data = torch.utils.data.TensorDataset(torch.randn(9, 6), torch.arange(9))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Linear(6, 3)
    assert octavo.evaluate(model, loader, against=model).value == 0


# --- intervals ------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_textbook():
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for (right, count), expected in {
        (81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611), (1, 29): (0.0061, 0.1718),
    }.items():  # fmt: skip
        assert wilson(right, count) == pytest.approx(expected, abs=5e-5)
    assert weighted_mean([1.0, 3.0], [1.0, 1.0]) == pytest.approx(weighted_mean([1.0, 3.0]))
    assert weighted_mean([1.0, 3.0], [3.0, 1.0])[0] == 1.5


def test_measurements_survive_storage():
    found = octavo.evaluate(Causal(), IDS, context=8)
    assert Measurement.restored(found.stored()) == found
    with pytest.raises(DataError):
        Measurement.restored({"metric": "x"})


@pytest.mark.parametrize(
    "windows", [{"context": 8}, {"stride": 4}, {"tokens": 9}, {"leaks": "report"}, {"guard_calls": 9}]
)
def test_windows_are_of_a_perplexity_alone(windows):
    """Where no perplexity is measured a window would say nothing: it is refused by name."""
    model = nn.Linear(2, 2)
    with pytest.raises(SettingError, match=next(iter(windows))):
        octavo.evaluate(model, [torch.zeros(1, 2)], against=model, **windows)
    with pytest.raises(SettingError, match=next(iter(windows))):
        octavo.evaluate(model, [("good", 1)], tokenizer=str.split, **windows)
