"""The loop of a search: nothing is built twice, what is known costs nothing, and a killed search ends as a whole one."""

import math

import pytest
from octavo.errors import ModelError, NonFiniteError, SettingError
from octavo.lab.architectures.space import Axis, Space

optuna = pytest.importorskip("optuna")

from octavo.lab.architectures import search_loop  # noqa: E402
from octavo.lab.architectures.objectives import Objective  # noqa: E402
from octavo.lab.architectures.samplers import SAMPLERS, Sampler  # noqa: E402
from octavo.lab.architectures.search_loop import ENOUGH, EXHAUSTED, run_search  # noqa: E402
from octavo.lab.architectures.stopping import Stopping  # noqa: E402
from octavo.lab.architectures.trial_storage import NAME, open_storage  # noqa: E402

SPACE = Space(
    (
        Axis("layers", (1, 2, 3)),
        Axis("kind", ("linear", "identity")),
        Axis("rank", (1, 2, 3, 4), when=lambda point: point["kind"] == "linear"),
        Axis("width", (1, 2)),
    ),
    dict,
)
POINTS = 3 * (4 + 1) * 2


def value(point):
    return point["layers"] + point.get("rank", 2.5) - abs(point["width"] - 2)


class Built:
    """An evaluation that counts what it builds."""

    def __init__(self, after=math.inf):
        self.identities, self.after = [], after

    def __call__(self, build):
        if len(self.identities) == self.after:
            raise KeyboardInterrupt
        self.identities.append(build.identity)
        return {"accuracy": value(build.point), "bytes": 10 * build.point["layers"]}


def memory():
    return optuna.storages.InMemoryStorage()


def search(storage, built, **given):
    return run_search(SPACE, built, **{"storage": storage, "name": "study", "trials": 12, **given})


def order(found):
    return [(trial.identity, trial.values, trial.ended) for trial in found.trials]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_identity_is_built_twice_and_an_exhausted_space_ends_the_search(sampler):
    built, storage = Built(), memory()
    first = search(storage, built, sampler=Sampler(sampler, seed=1))
    assert first.reason == ENOUGH and len(first.trials) == len(built.identities) == 12
    whole = search(storage, built, sampler=Sampler(sampler, seed=1), trials=None)
    assert whole.reason == EXHAUSTED and order(whole)[:12] == order(first)
    assert len(built.identities) == len(set(built.identities)) == len(whole.trials) == POINTS
    assert search(storage, built, sampler=Sampler(sampler, seed=1), trials=None).reason == EXHAUSTED
    assert len(built.identities) == POINTS
    assert whole.best().values[0] == 7


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_no_identity_is_built_twice_in_10000_trials(sampler):
    large = Space(
        [Axis(f"axis{number}", tuple(range(5))) for number in range(6)],
        lambda point: {"sum": sorted(point.values()), **point},
    )
    built = []
    run_search(
        large, lambda build: built.append(build.identity) or {"accuracy": 0.0},
        storage=memory(), name="study", sampler=sampler, trials=10_000,
    )  # fmt: skip
    assert len(built) == len(set(built)) == 10_000


def test_points_that_build_one_model_are_built_once():
    halves = Space((Axis("a", tuple(range(6))),), lambda point: {"half": point["a"] // 2})
    for sampler in SAMPLERS:
        built = []
        found = run_search(
            halves, lambda build, built=built: built.append(build.spec["half"]) or {"accuracy": 1.0},
            storage=memory(), name="study", sampler=sampler,
        )  # fmt: skip
        assert sorted(built) == [0, 1, 2] and found.reason == EXHAUSTED


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_search_that_was_stopped_ends_as_one_that_was_not(sampler, tmp_path):
    whole = search(tmp_path / "whole", Built(), sampler=sampler, trials=20)
    built = Built(after=7)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "cut", built, sampler=sampler, trials=20)
    built.after = math.inf
    assert order(search(tmp_path / "cut", built, sampler=sampler, trials=20)) == order(whole)
    assert len(built.identities) == len(set(built.identities)) == 20


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    first = search(tmp_path, Built())
    with open(tmp_path / NAME, "ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x')
    built = Built()
    assert order(search(tmp_path, built)) == order(first) and not built.identities
    assert len(search(tmp_path, built, trials=13).trials) == 13
    assert len(open_storage(tmp_path).get_all_studies()) == 1


def test_what_another_study_built_is_found_and_costs_no_build():
    storage, built = memory(), Built()
    search(storage, built, name="all", sampler="grid", trials=None)
    found = search(storage, built, name="other", builds=1, trials=None)
    assert len(found.trials) == len(built.identities) == POINTS
    assert {trial.found for trial in found.trials} == {"all"}
    least = search(storage, built, name="bytes", objectives="bytes min", trials=5)
    assert [trial.values for trial in least.trials] == [(trial.facts["bytes"],) for trial in least.trials]
    search(storage, built, name="elsewhere", context={"data": "other"}, trials=3)
    assert len(built.identities) == POINTS + 3


def test_the_sampler_goes_on_from_its_own_trials():
    """NSGA-II remembers generations: a search in two parts equals one in one part."""
    given = {"sampler": Sampler("nsga2", 3, {"population_size": 4}), "objectives": ["accuracy", "bytes min"]}
    storage = memory()
    for trials in (7, 13, 20):
        parts = search(storage, Built(), trials=trials, **given)
    whole = search(memory(), Built(), trials=20, **given)
    assert order(parts) == order(whole)
    front = whole.front()
    assert front and all(
        not (o.values[0] > f.values[0] and o.values[1] <= f.values[1]) for o in whole.trials for f in front
    )


def test_after_20_known_points_a_random_unseen_one_is_taken(monkeypatch):
    asks = []
    monkeypatch.setattr(
        search_loop.Asker,
        "ask",
        lambda self, number: asks.append(number) or ({"layers": 1, "kind": "identity", "width": 1}, {}),
    )
    found = search(memory(), Built(), trials=3)
    assert len({trial.identity for trial in found.trials}) == 3
    assert len(asks) == 1 + 2 * search_loop.REPEATS


def test_a_study_of_another_thing_is_refused():
    storage = memory()
    search(storage, Built(), sampler="random", trials=1)
    for changes, told in (
        ({"sampler": "tpe"}, "sampler"),
        ({"context": {"seed": 1}}, "context"),
        ({"objectives": "bytes min"}, "objectives"),
    ):
        with pytest.raises(SettingError, match=f"begun with {told}"):
            search(storage, Built(), **{"sampler": "random", "trials": 1, **changes})


def test_axes_without_effect_stop_a_search_before_it_begins():
    deaf = Space(SPACE.axes, lambda point: {"layers": point["layers"]})
    with pytest.raises(SettingError, match="'kind'"):
        run_search(deaf, lambda build: pytest.fail("built"), storage=memory(), name="study")
    allowed = run_search(
        deaf, lambda build: {"accuracy": 0.0}, storage=memory(), name="study", allow_noop=["kind", "rank", "width"]
    )
    assert len(allowed.trials) == 3


def test_metrics_are_numbers_and_none_is_missing():
    for facts, error in (
        ({"loss": 1.0}, ModelError),
        ({"accuracy": "high"}, ModelError),
        ({"accuracy": math.nan}, NonFiniteError),
    ):
        storage = memory()
        with pytest.raises(error, match="accuracy"):
            search(storage, lambda build, facts=facts: facts)
        assert len(search(storage, Built(), trials=2).trials) == 2  # the point is tried again


def test_training_that_diverges_is_a_trial_that_failed():
    def evaluate(build):
        if build.point["layers"] == 2:
            raise NonFiniteError("loss is nan")
        return {"accuracy": value(build.point)}

    storage = memory()
    found = search(storage, evaluate, sampler="grid", trials=None)
    assert len(found.trials) == POINTS
    assert all((trial.ended == "failed") == (trial.point["layers"] == 2) for trial in found.trials)
    assert found.best().values[0] == 7
    assert search(storage, lambda build: pytest.fail("built twice"), sampler="grid", trials=None).reason == EXHAUSTED


@pytest.mark.parametrize("rule", ["median", "asha"])
def test_bad_trials_are_stopped_early_and_never_win(rule):
    steps = []

    def evaluate(build):
        for step in range(1, 9):
            build.report(step, value(build.point) * step)
            steps.append(step)
        return {"accuracy": value(build.point) * 8}

    stopping = Stopping(rule, after=2)
    storage = memory()
    found = search(storage, evaluate, sampler="random", trials=20, stopping=stopping)
    stopped = [trial for trial in found.trials if trial.ended == "stopped"]
    assert stopped and len(steps) < 20 * 8
    assert found.best().ended == "finished" and found.best().steps
    count = len(steps)
    search(storage, evaluate, sampler="random", trials=20, stopping=stopping)
    assert len(steps) == count
    with pytest.raises(SettingError, match="one objective"):
        search(memory(), evaluate, objectives=["accuracy", "bytes min"], stopping=stopping)


def test_the_best_so_far_never_gets_worse():
    for goal in ("max", "min"):
        found = search(memory(), Built(), objectives=Objective("accuracy", goal), sampler="random")
        curve = found.best_so_far()
        assert curve == [(max if goal == "max" else min)(t.values[0] for t in found.trials[: n + 1]) for n in range(12)]
        assert found.best().values[0] == curve[-1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"builds": -1}, "builds is -1"),
        ({"sampler": "annealing"}, "accepted are grid, random, tpe, nsga2"),
        ({"objectives": []}, "one at least"),
        ({"objectives": "accuracy up"}, "accepted are max, min"),
        ({"lease_s": 0.1}, "lease_s is 0.1; accepted are 1 to"),
        ({"storage": "mysql://localhost"}, "postgresql://"),
    ],
)
def test_what_cannot_work_is_refused(given, told):
    with pytest.raises(SettingError, match=told):
        search(given.pop("storage", None) or memory(), Built(), **given)


def test_options_are_those_of_the_sampler():
    Sampler("tpe", options={"n_startup_trials": 3})
    with pytest.raises(SettingError, match="population_size"):
        Sampler("tpe", options={"population_size": 3})
    with pytest.raises(SettingError, match="seed"):
        Sampler("tpe", seed=-1)
