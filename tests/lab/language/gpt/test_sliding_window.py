"""A text read on with a sliding window: equal to one pass under a banded mask, each position computed once."""

from dataclasses import replace

import pytest
import torch
from lab.language.language_worker import TINY, run, text_file
from octavo.errors import ContractError, DataError, ModelError, SettingError
from octavo.lab.language.bench_arms import arm, check_run
from octavo.lab.language.bench_report import BenchReport
from octavo.lab.language.gpt import (
    GPT,
    Attention,
    BiasedAttention,
    GatedConvolution,
    GatedRecurrence,
    GPTConfig,
    LatentAttention,
    modern_skips,
)
from octavo.lab.language.gpt.sliding_window import check_sliding, sliding_nll
from octavo.lab.language.language_bench import BenchPlan, run_bench
from octavo.lab.language.language_presets import BASE
from octavo.train import exact_nll

SIZES = {"vocabulary": 61, "width": 32, "end_of_text": 0}
BANDED = 1e-6
"""Largest difference of mean losses, in nats, from a pass over the text: float32 sums in another order."""


def config(mixer, **fields):
    mixers = mixer if isinstance(mixer, dict) else {"a": mixer}
    return GPTConfig(**{**SIZES, "pattern": "".join(mixers) * (3 - len(mixers)), "mixers": mixers, **fields})


MODELS = {
    "attention": config(Attention(heads=4)),
    "grouped, own window": config(Attention(heads=4, kv_heads=2, window=9, rotary="half", qk_norm=True)),
    "documents": config(Attention(heads=4), keep_documents=True),
    "alibi": config(BiasedAttention(heads=4)),
    "buckets": config(BiasedAttention(heads=4, distance="buckets", buckets=6, farthest=12), keep_documents=True),
    "latents": config(LatentAttention(heads=2, head_size=8, rotary_size=4, rank=12), keep_documents=True),
    "latents, window": config(LatentAttention(heads=2, head_size=8, rotary_size=0, rank=12, window=7)),
    "skips, smear, pairs, values": modern_skips(vocabulary=61, width=32, layers=4, heads=2, end_of_text=0),
    "hybrid": config({"g": GatedConvolution(), "r": GatedRecurrence()}, keep_documents=True),
}


def text(length, seed=0):
    ids = torch.randint(1, 61, (length,), generator=torch.Generator().manual_seed(seed))
    ids[torch.arange(0, length, 23)] = 0
    return ids


def model_of(config):
    torch.manual_seed(0)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.5 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stride", [5, 24])
@torch.no_grad()
def test_it_is_one_pass_over_the_text_under_a_banded_mask(name, stride):
    """Over more than four contexts, so that positions begin to count anew."""
    model, ids = model_of(MODELS[name]), text(170)
    hidden = model.hidden(ids[None, :-1], window=24)[0]
    wanted = float(model.head.nll(hidden, ids[1:]).double().mean())
    loss = sliding_nll(model, ids, context=24, stride=stride)
    assert abs(loss.nats - wanted) <= BANDED and loss.checked < 1e-4 and loss.tokens == 169
    assert (loss.context, loss.stride) == (24, stride)


@torch.no_grad()
def test_a_stride_computes_its_own_positions_and_keeps_a_context_of_rows():
    model, ids, seen = model_of(MODELS["attention"]), text(400), []
    mixer = model.blocks[0].mixer
    read_on = mixer.read_on

    def counted(x, rows, *rest):
        mixed, after = read_on(x, rows, *rest)
        seen.append((x.shape[1], after["key"].shape[2]))
        return mixed, after

    mixer.read_on = counted
    sliding_nll(model, ids, context=64, stride=16)
    assert sum(count for count, _ in seen) == 399 and max(kept for _, kept in seen) == 63


def test_a_window_that_holds_the_whole_text_is_the_exact_loss_and_any_other_is_not():
    model, ids = model_of(MODELS["attention"]), text(100)
    whole = exact_nll(model, ids, context=99)
    assert abs(sliding_nll(model, ids, context=99, stride=33).nats - whole.nats) < BANDED
    strided = exact_nll(model, ids, context=24, stride=8)
    assert abs(sliding_nll(model, ids, context=24, stride=8).nats - strided.nats) > 1e-4
    assert sliding_nll(model, ids, context=24, stride=8).source_hash != strided.source_hash


def test_losses_that_are_not_those_of_the_banded_mask_are_refused():
    model = model_of(MODELS["attention"])
    mixer = model.blocks[1].mixer
    read_on = mixer.read_on
    mixer.read_on = lambda x, rows, context, most, back: read_on(x, rows, context, most // 2, back)
    with pytest.raises((ContractError, RuntimeError)):
        sliding_nll(model, text(200), context=24, stride=8)


@pytest.mark.parametrize(
    ("name", "message"),
    [("spectral", "LagKernel reads more"), ("afno", "AFNO reads more"), ("moe_8_context", "all earlier positions"),
     ("masked_diffusion", "bound"), ("pooled_mean", "PooledAttention"), ("retro", "Retrieval"),
     ("sparse_experts", "SparseMixers")],
)  # fmt: skip
def test_models_that_cannot_read_on_are_refused_before_they_are_trained(name, message):
    with pytest.raises(ModelError, match=message):
        check_run(arm(name, replace(TINY, end_of_text=0)), sliding=4)
    with pytest.raises(SettingError, match="stride is 17"):
        check_run(arm(BASE, TINY), sliding=17)


def test_learned_absolute_positions_are_refused():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 61, "n_positions": 32, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with pytest.raises(ModelError, match="32 learned absolute positions"):
        check_sliding(model)


def test_numbers_that_make_no_window_are_refused():
    model = model_of(MODELS["attention"])
    for options in ({"context": 8, "stride": 9}, {"context": 0}, {"context": 8, "stride": 0}):
        with pytest.raises(DataError):
            sliding_nll(model, text(50), **options)


@pytest.mark.usefixtures("micro_scale")
def test_it_stands_beside_the_exact_loss_with_the_difference(tmp_path):
    report = run(tmp_path / "r", text=tmp_path / "t", length=128, sliding=4)
    record = report.as_dict()
    assert record["sliding_window"]["difference"] == report.sliding.nats - report.validation.nats
    assert "no claim" in dict(report.results())["sliding window"]
    plan = BenchPlan(scale="micro", arms=(BASE,), seeds=1, tokens=128, device="cpu", sliding=4)
    lines = run_bench(plan, text_file(tmp_path), tmp_path / "b")
    bench = BenchReport(lines)
    assert bench.losses(BASE, "tokens") == [lines[0]["validation"]["nats"]]
    assert "sliding window" in bench.rows("tokens")[0][3] and any("sliding" in note for note in bench.notes())
    plain = run_bench(replace(plan, sliding=None), text_file(tmp_path), tmp_path / "c")
    assert plain[0]["config_sha256"] == lines[0]["config_sha256"] and "sliding_window" not in plain[0]
