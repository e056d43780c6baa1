"""``octavo lab study attention --kinds``: counted work and bytes, one line a timing, forms that agree before they are timed."""

import json

import pytest
import torch
from octavo.errors import ContractError, SettingError
from octavo.lab.studies import attention_costs
from octavo.lab.studies.attention_cost_tables import growth
from octavo.lab.studies.attention_costs import KINDS, PHASES, AttentionCosts, attentions

SMALL = AttentionCosts(contexts=(33, 70), heads=4, head_size=8, kv_heads=2, rank=12, rotary=4, page=16, runs=1)
CPU = torch.device("cpu")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_every_kind_is_the_explicit_softmax_on_its_numbers(kind, phase, batch, monkeypatch):
    """Against float64: keys and values are read off the calls' own tensors."""
    from dataclasses import replace

    costs = replace(SMALL, batch=batch)
    calls = attentions(costs, kind, 33, phase, CPU)
    assert kind in calls and all(call().shape == calls[kind]().shape for call in calls.values())
    results = [call() for call in calls.values()]
    assert all(torch.allclose(one, results[0], atol=1e-5) for one in results)
    monkeypatch.setattr(attention_costs, "causal_product", explicit)
    monkeypatch.setattr(attention_costs, "step_product", explicit)
    monkeypatch.setattr("octavo.lab.language.gpt.latent_attention.causal_product", explicit)
    monkeypatch.setattr("octavo.lab.language.gpt.latent_attention.step_product", explicit)
    assert torch.allclose(attentions(costs, kind, 33, phase, CPU)[kind](), results[0], atol=1e-5)


def explicit(query, key, value, *around, scale=None, **_):
    """Attention as books write it, causal for a prompt."""
    key, value = (part.double().repeat_interleave(query.shape[1] // part.shape[1], 1) for part in (key, value))
    scores = query.double() @ key.mT * (scale or query.shape[-1] ** -0.5)
    if query.shape[2] > 1:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return (scores.softmax(-1) @ value).to(query.dtype)


def test_work_and_bytes_are_counted_pair_by_pair():
    tokens = 33
    pairs = sum(1 for at in range(tokens) for to in range(at + 1)) * 4
    assert SMALL.flops("mha", tokens, "prompt") == pairs * 2 * (8 + 8)
    assert SMALL.flops("gqa", tokens, "decode") == tokens * 4 * 2 * (8 + 8)
    widened = 2 * tokens * 12 * (2 * 4 * 8)
    assert SMALL.flops("mla", tokens, "prompt") == pairs * 2 * (8 + 4 + 8) + widened
    assert SMALL.flops("mla_absorbed", tokens, "decode") == tokens * 4 * 2 * (12 + 4 + 12) + 2 * 2 * 4 * 8 * 12
    held = {kind: SMALL.nbytes(kind, tokens, "decode") for kind in KINDS}
    assert held == {
        "mha": tokens * 2 * 32 * 4, "gqa": tokens * 2 * 16 * 4, "mla": tokens * 16 * 4,
        "mla_absorbed": tokens * 16 * 4, "paged": tokens * 2 * 32 * 4,
        "gqa_pages": tokens * 2 * 16 * 4, "mla_pages": tokens * 16 * 4,
    }  # fmt: skip
    for phase, whole in (("prompt", "mla"), ("decode", "mla_absorbed")):
        assert SMALL.flops("mla_pages", tokens, phase) == SMALL.flops(whole, tokens, phase)
    # At most a page more than is needed.
    assert SMALL.cache_bytes("paged", tokens) == 48 * 2 * 32 * 4 and SMALL.cache_bytes("gqa", tokens) == held["gqa"]


def test_a_form_that_differs_is_refused_before_it_is_timed(monkeypatch, tmp_path):
    from octavo.search.journal import Journal

    whole = attention_costs.step_product
    monkeypatch.setattr(attention_costs, "step_product", lambda *a, **k: 1.1 * whole(*a, **k))
    with Journal(tmp_path) as journal, pytest.raises(ContractError, match=r"explicit differs from gqa .* 33"):
        AttentionCosts(contexts=(33,), kinds=("gqa",), phases=("decode",), runs=1).run(journal, CPU, lambda *a: None)


ARGS = ("--contexts", "33,70", "--heads", 4, "--head-size", 8, "--kv-heads", 2, "--rank", 12, "--rotary", 4,
        "--page", 16, "--device", "cpu")  # fmt: skip


def test_a_bench_is_a_line_a_timing_and_goes_on(octavo, tmp_path):
    out = tmp_path / "bench"
    first = json.loads(octavo("bench", "attention", *ARGS, "--runs", 1, "-o", out, "--json").stdout)  # its old name
    assert [(row["kind"], row["context"]) for row in first["rows"]] == [(k, n) for k in KINDS for n in (33, 70)]
    for row in first["rows"]:
        assert all(row[f"{phase}_{name}"] > 0 for phase in PHASES for name in ("s", "tflops", "gb_s", "peak_bytes"))
    lines = (out / "study.jsonl").read_text().splitlines()
    assert len(lines) == 1 + len(KINDS) * 2 * 2
    shown = octavo("lab", "study", "attention", "--kinds", "all", *ARGS, "--rounds", 2, "-o", out).output
    again = (out / "study.jsonl").read_text().splitlines()
    assert again[: len(lines)] == lines and len(again) == 2 * len(lines)
    assert "mla_absorbed: a token's time grows" in " ".join(shown.split()) and "GB/s" in shown


def test_a_missing_picture_is_told(octavo, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = octavo("study", "attention", *ARGS, "--runs", 1, "--kinds", "mha", "-o", tmp_path / "b").output
    assert "matplotlib is not installed" in told and not list((tmp_path / "b").glob("*.png"))


def test_a_picture_is_drawn(octavo, tmp_path):
    pytest.importorskip("matplotlib")
    command = ("study", "attention", *ARGS, "--runs", 2, "--kinds", "mha,gqa", "-o", tmp_path / "b")
    octavo(*command)
    files = {"attention.png", "attention.svg", "results.csv", "results.json", "study.jsonl"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == files
    lines = (tmp_path / "b" / "study.jsonl").read_bytes()
    octavo(*command, "--plot")
    assert {path.name for path in (tmp_path / "b").iterdir()} == files | {"attention-runs.png", "attention-runs.svg"}
    assert (tmp_path / "b" / "study.jsonl").read_bytes() == lines, "a picture measures nothing"


def test_rates_of_runs_are_work_over_their_own_seconds(tmp_path):
    from octavo.search.journal import Journal

    costs = AttentionCosts(contexts=(33,), kinds=("gqa",), runs=3)
    with Journal(tmp_path) as journal:
        (row,) = costs.run(journal, CPU, lambda *a: None)
        rates = costs.rates(journal, CPU)
    assert [(rate["phase"], rate["run"]) for rate in rates] == [(phase, run) for phase in PHASES for run in range(3)]
    for phase in PHASES:
        own = [rate for rate in rates if rate["phase"] == phase]
        middle = sorted(rate["tflops"] for rate in own)[1]
        assert middle == pytest.approx(row[f"{phase}_tflops"])
        assert all(r["gb_s"] / r["tflops"] == pytest.approx(own[0]["gb_s"] / own[0]["tflops"]) for r in own)


def test_the_dominant_kernel_of_each_phase_is_named(octavo, tmp_path):
    command = ("study", "attention", *ARGS, "--runs", 1, "--kinds", "mha", "--profile", "-o", tmp_path / "b")
    found = json.loads(octavo(*command, "--json").stdout)
    for row in found["rows"]:
        assert "scaled_dot_product" in row["prompt_kernel"] and 0 < row["prompt_kernel_share"] <= 1
    again = octavo(*command)
    assert "share" in again.stdout and "USDT" not in again.output
    assert len((tmp_path / "b" / "study.jsonl").read_text().splitlines()) == 1 + 4 + 4


def test_the_pair_and_the_kinds_are_not_mixed(octavo, tmp_path):
    for given, message in (
        (("--kinds", "mha,naive"), "naive and fused are compared with each other"),
        (("--rank", 3), "--rank is of --kinds mha"),
        (("--plot",), "--plot is of --kinds mha"),
        (("--kinds", "mha", "--causal"), "--causal is of --kinds naive,fused"),
        (("--kinds", "mha", "--dtypes", "float32,float16"), "accepted is one"),
    ):
        shown = octavo("study", "attention", *given, "-o", tmp_path / "b", code=2).output
        assert message in " ".join(shown.split()) and not (tmp_path / "b").exists()


def test_growth_is_from_the_shortest_to_the_longest_context():
    rows = [{"kind": "gqa", "context": n, "decode_s": n * 1e-6 + 1e-3, "cache_bytes": 8 * n} for n in (1000, 4000)]
    assert growth(rows) == [("gqa", pytest.approx(5 / 2), 4.0)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--contexts", "16,x"), "'x' is no length"),
        (("--contexts", "0"), "--contexts is 0"),
        (("--kinds", "mha,mqa"), "'mqa'; accepted are mha, gqa"),
        (("--phases", "train"), "accepted are prompt, decode"),
        (("--kv-heads", "5"), "--kv-heads is 5; accepted are divisors of --heads, 12"),
        (("--dtype", "int8"), "accepted are float32, bfloat16, float16"),
        (("--runs", "0"), "--runs is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_work(octavo, tmp_path, given, told):
    if "--kinds" not in given:
        given = ("--kinds", "all", *given)
    shown = octavo("study", "attention", *given, "-o", tmp_path / "b", code=2).output
    assert told in " ".join(shown.split()) and not (tmp_path / "b").exists()


def test_rotary_is_even():
    with pytest.raises(SettingError, match="rotary is 3"):
        AttentionCosts(rotary=3)
