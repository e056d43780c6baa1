"""The bench: verdicts that noise does not make, runs that go on, arms and budgets that say what they are."""

import json
import random
import statistics

import pytest
from lab.language.language_worker import TINY, text_file, tokens
from octavo.errors import ConfigError, DataError, SettingError
from octavo.lab.language import language_bench
from octavo.lab.language.bench_arms import Budget, arm, arms
from octavo.lab.language.bench_report import BenchReport
from octavo.lab.language.bench_speed import measure_speeds
from octavo.lab.language.bench_verdict import compare, reaches
from octavo.lab.language.language_bench import BenchPlan, flops_per_token, read_lines, run_bench, run_speeds
from octavo.lab.language.language_presets import BASE, PRESETS
from octavo.lab.language.language_run import validation_record

pytestmark = pytest.mark.usefixtures("micro_scale")


def plan(*names, **changes):
    return BenchPlan(**{"scale": "micro", "arms": (BASE, *names), "seeds": 1, "tokens": 192, "device": "cpu"} | changes)


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spread", "most"), [(1, 0.01), (0.2, 0.02), (5, 0.02)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_noise_alone_seldom_makes_a_claim(seeds, spread, most):
    """Arms without any effect are claimed better or worse at most once in a hundred, or twice with unlike spreads."""
    draw = random.Random(seeds)
    claims = sum(
        compare(
            [draw.gauss(0, 0.004 * spread) for _ in range(seeds)], [draw.gauss(0, 0.004) for _ in range(seeds)]
        ).verdict
        in ("better", "worse")
        for _ in range(20000)
    )
    assert claims / 20000 <= most


def test_an_effect_of_many_sigmas_is_found():
    draw = random.Random(1)
    found = [
        compare([draw.gauss(-0.04, 0.004) for _ in range(3)], [draw.gauss(0, 0.004) for _ in range(3)]).verdict
        for _ in range(200)
    ]
    assert found.count("better") > 190 and "worse" not in found


def test_the_error_is_that_of_two_means():
    one, other = [3.1, 3.2, 3.15], [3.0, 3.05, 3.1]
    wanted = ((statistics.variance(one) + statistics.variance(other)) / 2 * (1 / 3 + 1 / 3)) ** 0.5
    found = compare(one, other)
    assert found.difference == pytest.approx(0.1) and found.error == pytest.approx(wanted)
    assert found.needed == pytest.approx(4.604 * wanted) and found.verdict == "even"


def test_few_seeds_claim_nothing():
    assert compare([1.0], [3.0, 3.1, 3.2]).verdict == compare([1.0], [2.0]).verdict == "seeds"
    assert compare([1.0, 1.1], [3.0, 3.1, 3.2]).verdict == "seeds"
    assert compare([1.0, 1.0, 1.0], [3.0, 3.0, 3.0]).verdict == "no spread"  # enough of them, and no noise to judge by
    assert compare([3.0, 3.0, 3.0], [3.0, 3.0, 3.0]).verdict == "even"
    assert compare([1.0, 1.0, 1.0], [3.0, 3.0, 3.1]).verdict == "better"
    assert reaches([2.99, 3.0, 3.01], [3.0, 3.01, 2.995]).verdict == "better"


@pytest.mark.parametrize("batch", ["0", "2.5", "-1", "nan"])
def test_a_batch_that_is_no_whole_number_is_refused_by_name(batch):
    with pytest.raises(SettingError, match=f"batch is '{batch}'; accepted"):
        arm(f"muon@batch={batch}", TINY)


# --- arms, budgets ----------------------------------------------------------------------------------------------------


def test_an_arm_is_a_preset_with_fields_that_differ():
    assert arms("muon, modern@muon=0.03,cooldown=0.5") == [BASE, "muon", "modern@muon=0.03,cooldown=0.5"]
    changed = arm("nocap_baseline@learning_rate=0.01,batch=2,warmup=0.1", TINY)
    assert changed.optimizer.learning_rate == 0.01 and changed.phases[0].batch == 2 and changed.warmup == 0.1
    assert arm("muon", TINY) == PRESETS["muon"].make(TINY)
    for wrong in ("muon@learning_rate=1", "nocap_baseline@depth=2", "nocap_baseline@batch=x", "moun"):
        with pytest.raises(SettingError, match="accepted"):
            arm(wrong, TINY)
    with pytest.raises(SettingError, match="once"):
        arms("muon,muon")


def test_a_budget_is_a_share_of_tokens_or_of_time():
    assert [str(Budget.parse(text)) for text in ("tokens", "0.5time", "1tokens")] == ["tokens", "0.5time", "tokens"]
    assert [(one.kind, one.share, str(one)) for one in map(Budget.parse, ("5.4h", "2.50h"))] == [
        ("hours", 5.4, "5.4h"), ("hours", 2.5, "2.5h")
    ]  # fmt: skip
    for wrong in ("", "h", "0h", "5.4hours", "0tokens", "time2", ".time", "seconds"):
        with pytest.raises(SettingError, match="budget"):
            Budget.parse(wrong)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bench_goes_on_where_it_stopped_and_takes_more_arms(tmp_path, monkeypatch):
    made, wanted = [], language_bench.train_language
    monkeypatch.setattr(language_bench, "train_language", lambda *a, **k: made.append(1) or wanted(*a, **k))
    text = text_file(tmp_path)
    first = run_bench(plan("muon", seeds=2), text, tmp_path / "b")
    assert [(line["arm"], line["seed"]) for line in first] == [(BASE, 0), ("muon", 0), (BASE, 1), ("muon", 1)]
    results = tmp_path / "b" / language_bench.RESULTS
    whole = results.read_text()
    results.write_text(whole[: whole.rstrip("\n").rfind("\n") + 30])  # killed while it wrote the last line
    again = run_bench(plan("muon", "nce", seeds=2), text, tmp_path / "b")
    assert len(made) == 4 + 1 + 2 and len(again) == 6
    same = next(line for line in again if (line["arm"], line["seed"]) == ("muon", 1))
    assert same["validation"] == first[-1]["validation"] and read_lines(tmp_path / "b") == again
    assert not any((tmp_path / "b" / "runs").iterdir())
    with pytest.raises(DataError, match="tokens"):
        run_bench(plan("muon", tokens=256), text, tmp_path / "b")


@pytest.mark.slow
def test_budgets_of_time_give_each_arm_the_tokens_of_the_same_seconds(tmp_path):
    (tmp_path / "b").mkdir()
    speeds = {BASE: 1000.0, "muon": 500.0, "modern": 2000.0}
    (tmp_path / "b" / language_bench.SPEEDS).write_text(json.dumps(speeds))
    lines = run_bench(
        plan("muon", "modern", budgets=("time", "0.5time"), tokens=1280), text_file(tmp_path), tmp_path / "b"
    )
    trained = {(line["arm"], line["budget"]): line["tokens"] for line in lines}
    hours = run_bench(plan("muon", budgets=("0.0005h",), tokens=1280), text_file(tmp_path), tmp_path / "b")[-2:]
    assert [(line["arm"], line["tokens"]) for line in hours] == [(BASE, 1792), ("muon", 896)]  # whole updates of 64
    for name, speed in speeds.items():
        assert trained[name, "time"] == 1280 * speed / 1000 and trained[name, "0.5time"] == 640 * speed / 1000


def test_speeds_are_measured_in_turns(tmp_path):
    data, scale = tokens(tmp_path)
    configs = {name: PRESETS[name].make(scale) for name in (BASE, "length_curriculum")}
    found = measure_speeds(configs, data, "cpu", rounds=2)
    assert found.keys() == configs.keys() and all(one.tokens_per_s > 0 and one.first_s > 0 for one in found.values())


@pytest.mark.slow
def test_speeds_alone_are_what_budgets_of_time_go_by(tmp_path):
    """Without a run; and an arm whose speed is known needs no run of the baseline in its folder."""
    text = text_file(tmp_path)
    found = run_speeds(plan("muon", tokens=1280), text, tmp_path / "b")
    known = json.loads((tmp_path / "b" / language_bench.SPEEDS).read_text())
    assert known == {name: speed.tokens_per_s for name, (speed, _) in found.items()} and not read_lines(tmp_path / "b")
    assert all(flops == found[BASE][1] > 0 for _, flops in found.values())
    known["muon"] = known[BASE] / 2
    (tmp_path / "b" / language_bench.SPEEDS).write_text(json.dumps(known))
    (line,) = run_bench(plan(arms=("muon",), budgets=("time",), tokens=1280), text, tmp_path / "b")
    assert line["tokens"] == 640


def test_tables_that_are_only_looked_up_cost_no_products():
    scale = TINY.__class__(**{**TINY.__dict__, "end_of_text": 0})
    flops = {name: flops_per_token(PRESETS[name].make(scale)) for name in (BASE, "modern", "modern_skips")}
    config = PRESETS[BASE].make(scale)
    width, layers = scale.width, scale.layers
    multiplied = scale.vocabulary * width + layers * 12 * width * width
    assert flops[BASE] == 6 * multiplied + 12 * layers * width * config.context
    assert flops["modern"] < flops["modern_skips"] < 1.1 * flops["modern"]


def test_every_arm_is_built_before_the_first_is_trained(tmp_path):
    with pytest.raises(SettingError, match="preset"):
        run_bench(plan("moun"), tmp_path / "none", tmp_path / "b")
    with pytest.raises((SettingError, ConfigError)):
        run_bench(plan("nocap_baseline@precision=fp7"), tmp_path / "none", tmp_path / "b")
    assert not (tmp_path / "b").exists()


# --- the report -------------------------------------------------------------------------------------------------------


def lines(losses, budget="tokens", hash="h"):
    validation = {"tokens": 128, "context": 16, "stride": 16, "guard": 0.0, "bits_per_byte": None, "source_hash": hash}
    facts = {"parameters": 10, "tokens": 640, "steps": 10, "tokens_per_s": 5.0, "torch": "2", "curve": [[64, 3.0]]}
    facts |= {"seconds": {"train_s": 1.0}, "machine": {"machine": "x", "threads": 1}}
    return [
        {"arm": name, "budget": budget, "seed": seed, "validation": {"nats": nats, **validation}, **facts}
        for name, values in losses.items()
        for seed, nats in enumerate(values)
    ]


def test_the_report_tells_differences_verdicts_and_whether_the_scale_is_sound(tmp_path):
    base = [3.0, 3.002, 2.998]
    shifted = {"muon": -0.3, "large_batch": 0.2, "modern_block": -0.1, "nce": 0.001}
    found = {BASE: base, "tuned_baseline": [value - 0.05 for value in base]}
    found |= {name: [value + by for value in base] for name, by in shifted.items()}
    report = BenchReport(lines(found) + lines({"muon": [2.9, 2.901, 2.902]}, "0.77tokens"))
    rows = {row[0]: row for row in report.rows("tokens")}
    assert rows["muon"][7] == "better" and rows["large_batch"][7] == "worse" and rows["nce"][7] == "even"
    assert report.arms("tokens")[0] == "muon" and rows["muon"][8] == "-0.2500"
    assert [state for _, state in report.facts()] == ["holds", "holds", "holds", "fails"]
    for file in report.save(tmp_path):
        assert file.stat().st_size
    assert json.loads((tmp_path / "report.json").read_text())["curves"]["muon"] == [[64, 3.0]]


def test_losses_of_other_tokens_do_not_get_into_one_report():
    with pytest.raises(DataError, match="compare"):
        BenchReport(lines({BASE: [3.0]}) + lines({"muon": [2.0]}, hash="other"))
    with pytest.raises(TypeError, match="ValLoss"):
        validation_record(3.0)
