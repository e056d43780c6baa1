"""Divergences part by part are those of the whole, and references of 16 bits are close."""

import errno
import os

import pytest
import torch
from octavo.data import kept_trees
from octavo.search import measure_sensitivity, output_divergence
from octavo.search.output_divergence import Reader
from torch import nn
from torch.nn.functional import kl_div, normalize

CHANNELS = 700


def scores(rows, seed):
    return 3 * torch.randn(rows, CHANNELS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("kind", ["kl", "cosine", "mse"])
def test_parts_give_the_bits_of_the_whole(kind, rows, monkeypatch):
    reader, float_model, changed = Reader(kind), scores(rows, 0), scores(rows, 1)
    parts = reader.each(reader.reference(float_model), changed), reader.sum(reader.reference(float_model), changed)
    monkeypatch.setattr(output_divergence, "_ROWS", 1 << 20)
    whole = reader.each(reader.reference(float_model), changed), reader.sum(reader.reference(float_model), changed)
    assert torch.equal(parts[0], whole[0]) and parts[1] == whole[1]
    plain = {
        "kl": lambda: kl_div(changed.log_softmax(-1), float_model.log_softmax(-1), log_target=True, reduction="sum"),
        "cosine": lambda: (1 - (normalize(changed, dim=-1) * normalize(float_model, dim=-1)).sum(-1)).sum(),
        "mse": lambda: ((changed - float_model).square().sum(-1) / float_model.square().sum(-1)).sum(),
    }[kind]()
    assert parts[1] == pytest.approx(float(plain), rel=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
def test_a_reference_of_16_bits_tells_nearly_the_same(noise):
    reader, float_model = Reader("kl"), scores(256, 0)
    changed = float_model + noise * scores(256, 1)
    narrow = reader.reference(float_model, narrow=True)
    assert narrow[0].dtype == torch.float16
    exact = reader.sum(reader.reference(float_model), changed) / 256
    assert reader.sum(narrow, changed) / 256 == pytest.approx(exact, rel=0.01, abs=1e-6)
    assert (reader.each(narrow, float_model) >= -1e-6).all()


@pytest.mark.parametrize("score", [-1e5, -1e9, torch.finfo(torch.float32).min])
def test_excluded_tokens_count_as_nothing_in_16_bits(score):
    reader, float_model = Reader("kl"), scores(256, 0)
    changed = float_model + 0.3 * scores(256, 1)
    float_model[:, :7] = changed[:, :7] = score
    exact = reader.sum(reader.reference(float_model), changed)
    assert reader.sum(reader.reference(float_model, narrow=True), changed) == pytest.approx(exact, rel=0.01)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space is reserved where the system can")
def test_squares_of_gradients_refuse_a_full_disk_before_they_begin(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("octavo.search.fisher_scores.MOST_HELD", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="set TMPDIR to a folder with more space"):
        measure_sensitivity(
            nn.Sequential(nn.Linear(32, 8)), [torch.randn(4, 32)], ["int8"], method="fisher", progress=False
        )


@pytest.mark.parametrize("method", ["divergence", "fisher"])
def test_sensitivity_from_files_ranks_as_from_memory(method, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 32), *(nn.Linear(32, 32) for _ in range(3)), nn.Linear(32, 40)).eval()
    batches = [torch.randint(50, (4, 16)) for _ in range(3)]

    def measured():
        return measure_sensitivity(
            model, batches, ["int8:channel", "int4:g32", "int2:g32"], method=method, divergence="kl", progress=False
        ).loss

    memory = measured()
    monkeypatch.setattr(kept_trees, "MOST_HELD", 0)
    monkeypatch.setattr("octavo.search.fisher_scores.MOST_HELD", 0)
    monkeypatch.setattr("octavo.search.output_divergence._LARGE", 0)
    torch.testing.assert_close(torch.tensor(measured()), torch.tensor(memory), rtol=0.02, atol=1e-6)
