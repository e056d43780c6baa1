"""The baseline is the benchmark's: its number of parameters, and the losses of an independent float64 definition."""

import math

import pytest
import torch
from lab.language.gpt.reference import reference_logits, reference_losses
from octavo.errors import DTypeError, RangeError, SettingError, ShapeError
from octavo.lab.language.gpt import GPT, GPTConfig, modern, modern_skips, nocap_baseline, preset

# float32 sums against float64 ones, grown over 20 updates.
LOSSES = 1e-4
SMALL = dict(vocabulary=257, width=64, layers=3, heads=4, end_of_text=256)


def batches(vocabulary, updates, batch, length):
    generator = torch.Generator().manual_seed(5)
    streams = torch.randint(0, vocabulary, (updates, batch, length + 1), generator=generator)
    return [(stream[:, :-1], stream[:, 1:]) for stream in streams]


def trained_losses(model, data, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for update, (ids, targets) in enumerate(data):
        optimizer.param_groups[0]["lr"] = rate * (update + 1) / 256
        total, parts = model(ids, targets)
        assert total.dtype == torch.float32 and total.detach() == parts["nll"] and parts["tokens"] == targets.numel()
        optimizer.zero_grad()
        (total / targets.numel()).backward()
        optimizer.step()
        losses.append(total.item() / targets.numel())
    return losses


def test_the_baseline_has_the_parameters_of_the_benchmark():
    with torch.device("meta"):
        model = GPT(nocap_baseline())
    assert sum(parameter.numel() for parameter in model.parameters()) == 123_532_032
    assert model.embedding.table.weight.numel() / 123_532_032 == pytest.approx(0.312, abs=5e-4)
    assert nocap_baseline().stream.mixer_scale == pytest.approx(0.2041, abs=5e-5)


def test_logits_are_the_reference_s():
    torch.manual_seed(0)
    model = GPT(nocap_baseline(**SMALL)).double()
    ids = batches(257, 1, 2, 64)[0][0]
    wanted = reference_logits(dict(model.named_parameters()), ids, 4, 3).log_softmax(-1)
    assert torch.allclose(model(ids).double(), wanted, atol=1e-5)


def test_the_first_twenty_losses_are_the_reference_s():
    torch.manual_seed(0)
    model, data = GPT(nocap_baseline(**SMALL)), batches(257, 20, 2, 64)
    wanted = reference_losses(dict(model.named_parameters()), data, 4, 3, rate=0.0018)
    assert trained_losses(model, data, rate=0.0018) == pytest.approx(wanted, abs=LOSSES)
    assert wanted[0] == pytest.approx(math.log(257), abs=0.3)


@pytest.mark.slow
def test_the_first_twenty_losses_are_the_reference_s_at_full_size():
    torch.manual_seed(0)
    model, data = GPT(nocap_baseline()), batches(50257, 20, 2, 64)
    wanted = reference_losses(dict(model.named_parameters()), data, 12, 12, rate=0.0018)
    assert trained_losses(model, data, rate=0.0018) == pytest.approx(wanted, abs=LOSSES)


@pytest.mark.parametrize("make", [nocap_baseline, modern, modern_skips])
def test_a_configuration_is_the_same_after_it_was_written_down(make):
    made = make(**SMALL)
    assert GPTConfig.from_dict(made.as_dict()) == made and preset(make.__name__, **SMALL) == made


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pattern": "ab"}, "'b'"),
        ({"pattern": ""}, "pattern"),
        ({"vocabulary": 1}, "vocabulary"),
        ({"head": {"name": "softmaxx"}}, "softmaxx"),
        ({"head": {"name": "softmax", "tide": True}}, "tide"),
        ({"stream": {"gain": True}}, "gain"),
        ({"keep_documents": True}, "end_of_text"),
        ({"mixers": {"a": {"name": "attention", "heads": 4, "kv_heads": 3}}}, "kv_heads"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(change, told):
    written = {**nocap_baseline(**{**SMALL, "end_of_text": None}).as_dict(), **change}
    with pytest.raises(SettingError, match=told):
        GPTConfig.from_dict(written)


def test_wrong_ids_are_refused():
    model = GPT(nocap_baseline(**SMALL))
    with pytest.raises(RangeError, match="257"):
        model(torch.tensor([[1, 257]]))
    with pytest.raises(RangeError, match="-1"):
        model(torch.tensor([[1, -1]]))
    with pytest.raises(DTypeError, match="float32"):
        model(torch.ones(1, 2))
    with pytest.raises(ShapeError):
        model(torch.tensor([1, 2]))
    with pytest.raises(ShapeError):
        model(torch.tensor([[1, 2]]), torch.tensor([[1]]))
    with pytest.raises(SettingError, match="heads"):
        GPT(nocap_baseline(**{**SMALL, "heads": 5}))
