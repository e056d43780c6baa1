"""Time to a loss: where a run reaches it, what it says where it does not, and the same answer after a kill."""

import json
import math
from dataclasses import replace

import pytest
from lab.language.language_worker import TINY, text_file, tokens
from octavo.cli.lab._until import until_of
from octavo.errors import CheckpointError, ConfigError, DataError, SettingError
from octavo.lab.language.bench_report import BenchReport
from octavo.lab.language.language_bench import BenchPlan, run_bench
from octavo.lab.language.language_config import Phase, Until
from octavo.lab.language.language_presets import BASE, preset
from octavo.lab.language.language_run import REPORT, train_language
from octavo.lab.language.language_task import LanguageTask
from octavo.lab.language.time_to_loss import (
    PUBLISHED,
    PUBLISHED_UPDATE,
    Estimate,
    TimeToLoss,
    Validated,
    extrapolated,
    published_loss,
)
from octavo.lab.language.time_to_loss_text import sentences, table_of
from octavo.train import read_metrics

TOKENS = 20 * 64


def run(folder, text, until, **changes):
    data, scale = tokens(text)
    config = replace(preset(BASE, scale), tokens=TOKENS, until=until, **changes)
    return train_language(config, data, folder, device="cpu", progress=False, checkpoint_every=3)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """The curve of a run that nothing ends, validated every second update."""
    folder = tmp_path_factory.mktemp("whole")
    report = run(folder, text, Until(loss=0.01, every=2 * 64))
    return report.time_to_loss


def places(timed):
    """Return what must not depend on where a run was stopped: everything but seconds."""
    points = [(one.step, one.tokens, one.nats) for one in timed.validations]
    reached = timed.reached and (timed.reached.step, timed.reached.tokens, timed.reached.nats)
    return points, reached, timed.in_a_row, timed.claim


def test_a_run_ends_at_the_first_validation_that_reaches_the_loss(tmp_path, text, whole):
    loss = whole.validations[5].nats
    first = next(place for place, one in enumerate(whole.validations) if one.nats <= loss)
    report = run(tmp_path / "a", text, Until(loss=loss, every=2 * 64))
    timed = report.time_to_loss
    assert report.result.reason == "reached" and report.result.step == whole.validations[first].step
    assert [one.nats for one in timed.validations] == [one.nats for one in whole.validations[: first + 1]]
    assert timed.reached == timed.validations[-1] and timed.reached.tokens == 64 * timed.reached.step
    assert timed.reached.nats == report.validation.nats and timed.in_a_row == 1 and not timed.claim
    assert 0 < timed.reached.training_s < timed.reached.clock_s
    record = json.loads((tmp_path / "a" / REPORT).read_text())["time_to_loss"]
    assert TimeToLoss.from_dict(record) == timed


def test_three_in_a_row_make_a_claim_from_the_first_of_them(tmp_path, text, whole):
    loss = whole.validations[5].nats
    timed = run(tmp_path / "a", text, Until(loss=loss, every=2 * 64, in_a_row=3)).time_to_loss
    assert timed.claim and timed.in_a_row == 3 and timed.reached == timed.validations[-3]
    assert all(one.nats <= loss for one in timed.validations[-3:])
    assert timed.validations[-4].nats > loss


def test_a_run_that_never_reaches_it_trains_to_its_end_and_says_so(whole):
    assert whole.reached is None and whole.validations[-1].tokens == TOKENS and len(whole.validations) == 10
    label, message = sentences(whole)[0]
    assert label == "loss 0.0100" and message.startswith("not reached") and "no estimate" in message


@pytest.mark.parametrize("loss", [None, 0.01], ids=["reached", "never"])
def test_a_run_that_was_killed_gives_the_same_answer(tmp_path, text, whole, loss, monkeypatch):
    """Between updates, in the validation that reaches the loss, and after it was written, before any checkpoint."""
    until = Until(loss=whole.validations[5].nats if loss is None else loss, every=2 * 64)
    wanted = run(tmp_path / "a", text, until).time_to_loss
    last = wanted.validations[-1].step
    batch, validate = LanguageTask.batch, LanguageTask.validate

    class Killed(BaseException):
        pass

    for moment in ("update", "validation", "after") if loss is None else ("after",):
        calls = []

        def dying_batch(task, step, *rest, moment=moment):
            if moment == "update" and step == last // 2:
                raise Killed
            return batch(task, step, *rest)

        def dying_validation(task, model, calls=calls, moment=moment, **options):
            calls.append(1)
            if moment == "validation" and len(calls) == last // 2:
                raise Killed
            if moment == "after" and options.get("last"):
                raise Killed
            return validate(task, model, **options)

        monkeypatch.setattr(LanguageTask, "batch", dying_batch)
        monkeypatch.setattr(LanguageTask, "validate", dying_validation)
        with pytest.raises(Killed):
            run(tmp_path / moment, text, until)
        monkeypatch.undo()
        assert places(run(tmp_path / moment, text, until).time_to_loss) == places(wanted)
        steps = [one["step"] for one in read_metrics(tmp_path / moment) if one["kind"] == "evaluation"]
        assert steps == sorted(set(steps)) and steps[-1] == last
    assert places(run(tmp_path / "a", text, until).time_to_loss) == places(wanted)
    with pytest.raises(CheckpointError, match="until"):
        run(tmp_path / "a", text, Until(loss=until.loss / 2, every=2 * 64))


def test_runs_without_a_loss_keep_their_identity():
    config = preset(BASE, TINY)
    assert "until" not in config.as_dict()
    assert replace(config, until=Until(loss=3)).as_dict()["until"] == {"loss": 3, "every": None, "in_a_row": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"loss": 0}, "until is 0"), ({"loss": math.nan}, "until is nan"), ({"loss": 3.0, "every": 0}, "every of until"),
     ({"loss": 3.0, "in_a_row": 0}, "in_a_row of until")],
)  # fmt: skip
def test_what_is_no_loss_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Until(**fields)


# --- what a run says of a longer one ----------------------------------------------------------------------------------


def curve(slope, *, cooled=0.1, count=40):
    """Return validations on a line over ln(tokens), lower by ``cooled`` after the cool-down."""
    points = []
    for place in range(1, count + 1):
        share = place / count
        nats = 5 - slope * math.log(share) - (cooled if share == 1 else 0)
        points.append(Validated(place, round(1e6 * share), 100 * share, 120 * share, nats))
    return points


def test_a_longer_run_is_estimated_by_the_slope_before_the_cool_down():
    config = replace(preset(BASE, TINY), tokens=10**6, cooldown=0.2)
    points = curve(0.2)
    last = points[-1].nats
    estimate = extrapolated(points, config, last - 0.1)
    assert isinstance(estimate, Estimate) and estimate.slope == pytest.approx(0.2)
    assert estimate.tokens == pytest.approx(1e6 * math.exp(0.1 / 0.2), rel=1e-6)
    assert estimate.training_s == pytest.approx(100 * math.exp(0.1 / 0.2))
    assert 0.4e6 <= estimate.begin < estimate.end <= 0.8e6


def test_what_a_curve_does_not_tell_is_not_estimated():
    config = replace(preset(BASE, TINY), tokens=10**6, cooldown=0.2)
    points = curve(0.2)
    assert "10 times" in extrapolated(points, config, points[-1].nats - 1)
    assert "did not fall" in extrapolated(curve(-0.2), config, 4)
    assert "fewer than three" in extrapolated(points[-2:], config, 4)
    assert "no validation" in extrapolated([], config, 4)
    assert "falls throughout" in extrapolated(points, replace(config, schedule="one_cycle"), 4)
    grown = (Phase(share=0.5, context=8, batch=8), Phase(share=0.5, context=16, batch=4))
    assert "length" in extrapolated(points, replace(config, phases=grown), 4)


def test_the_benchmark_s_curve_stands_beside_a_run_on_its_ids():
    update, nats = PUBLISHED[3]
    assert published_loss(update * PUBLISHED_UPDATE) == pytest.approx(nats)
    between = published_loss(2000 * PUBLISHED_UPDATE)
    assert PUBLISHED[3][1] < between < PUBLISHED[2][1] and published_loss(10**6) is None
    point = Validated(update, update * PUBLISHED_UPDATE, 9000.0, 9100.0, 3.6)
    timed = TimeToLoss(3.3821, None, 0, False, None, "it is an example", (point,), True)
    header, rows = table_of(timed)
    assert header[-2:] == (">baseline's loss", ">baseline's time") and rows[0][-2:] == ("3.650", "2.61 h")
    assert "5.40 h" in sentences(timed)[1][1] and "do not compare" not in sentences(timed)[1][1]
    assert "do not compare" in sentences(replace(timed, compares=False))[1][1]
    assert len(table_of(replace(timed, compares=False))[0]) == 5


# --- the bench --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("micro_scale")
def test_a_bench_until_a_loss_reports_tokens_and_seconds(tmp_path):
    book = text_file(tmp_path)
    plan = BenchPlan(
        scale="micro", arms=(BASE, "muon"), seeds=1, tokens=12 * 64, device="cpu", until=Until(loss=5.6, every=64)
    )
    lines = run_bench(plan, book, tmp_path / "b")
    assert all(line["time_to_loss"]["loss"] == 5.6 for line in lines)
    report = BenchReport(lines)
    assert report.budgets == [] and [state for _, state in report.facts()] == ["not measured"] * 4
    (times,) = report.as_dict()["times"]
    for line in lines:
        row = next(one for one in times["arms"] if one["arm"] == line["arm"])
        ends = [nats for _, nats in line["curve"]]
        reached = line["time_to_loss"]["reached"]
        assert row["reached"] == (reached is not None) == (min(ends) <= 5.6)
        assert row["tokens"] == (reached and reached["tokens"])
    assert "Time to a loss of 5.6000" in report.markdown()
    assert run_bench(plan, book, tmp_path / "b") == lines
    with pytest.raises(DataError, match="another until"):
        run_bench(replace(plan, until=None), book, tmp_path / "b")
    with pytest.raises(ConfigError, match="bound"):
        run_bench(replace(plan, arms=("masked_diffusion",)), book, tmp_path / "c")


@pytest.mark.parametrize("option", ["every", "in_a_row"])
def test_options_of_until_are_refused_by_their_names(option):
    numbers = {"every": None, "in_a_row": None, option: 0}
    with pytest.raises(SettingError, match=r"^--(validate-every|in-a-row) is 0; accepted are whole numbers"):
        until_of(3.0, **numbers)
