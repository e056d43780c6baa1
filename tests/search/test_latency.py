"""Latency tables: entries are measured once for a machine, predictions add up, bounds are kept by what is measured."""

import numpy as np
import octavo
import pytest
import torch
from octavo.compress import trial_bench
from octavo.compress.compression_options import Goal
from octavo.errors import ConfigError, DataError
from octavo.search import LatencyTable, allocate, measure_latency, measure_sensitivity, measured_latencies
from octavo.search.bounded_front import bounded_front
from octavo.search.journal import Journal
from torch import nn

FORMATS = ["int4:g32", "mxint8", "nf4"]


class Net(nn.Module):
    """Two layers of one shape, one that runs twice, and one of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.last(self.second(self.second(self.first(x).relu()).relu()))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(measured_latencies, "_ROUNDS", 3)
    monkeypatch.setattr(measured_latencies, "_BURST_S", 1e-5)


@pytest.fixture(scope="module")
def batches():
    return [torch.randn(4, 64, generator=torch.Generator().manual_seed(place)) for place in range(3)]


@pytest.fixture(scope="module")
def sensitivity(batches):
    return measure_sensitivity(Net(), batches, FORMATS, progress=False)


def test_layers_of_one_shape_are_one_entry_and_a_call_each(sensitivity, batches):
    found = measure_latency(Net(), batches[0], sensitivity, progress=False)
    rows = {group.name: found.seconds[row] for row, group in enumerate(sensitivity.groups)}
    assert np.array_equal(rows["second"], 2 * rows["first"])  # it runs twice
    assert (found.seconds > 0).all() and found.samples == 4
    keep = sensitivity.formats.index("keep")
    assert found.rest == pytest.approx(max(found.whole - found.seconds[:, keep].sum(), 0))
    choice = {group.name: "nf4" for group in sensitivity.groups}
    column = sensitivity.formats.index("nf4")
    assert found.predict(choice, sensitivity) == pytest.approx(found.rest + found.seconds[:, column].sum())


def test_a_table_is_measured_once_and_goes_on(sensitivity, batches, tmp_path, monkeypatch):
    measured = []
    original = measured_latencies._in_turn

    def counting(calls):
        measured.extend(name for name in calls if name)
        if len(measured) > 4 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        return original(calls)

    monkeypatch.setattr(measured_latencies, "_in_turn", counting)
    with pytest.raises(KeyboardInterrupt):
        measure_latency(Net(), batches[0], sensitivity, table=tmp_path / "table", progress=False)
    first = measure_latency(Net(), batches[0], sensitivity, table=tmp_path / "table", progress=False)
    entries = 2 * (len(FORMATS) + 1)  # two shapes
    with Journal(tmp_path / "table") as journal:
        assert len(journal) == entries
        assert all(record["settings"]["machine"]["cpu"] for record in journal)
    assert len(measured) == entries + len(FORMATS) + 1  # the entry that was stopped was begun again
    again = measure_latency(Net(), batches[0], sensitivity, table=tmp_path / "table", progress=False)
    assert np.array_equal(again.seconds, first.seconds) and len(measured) == entries + len(FORMATS) + 1


def test_another_machine_measures_anew(sensitivity, batches, tmp_path, monkeypatch):
    measure_latency(Net(), batches[0], sensitivity, table=tmp_path, progress=False)
    here = measured_latencies.machine()
    monkeypatch.setattr(measured_latencies, "machine", lambda: {**here, "threads": 63})
    measure_latency(Net(), batches[0], sensitivity, table=tmp_path, progress=False)
    with Journal(tmp_path) as journal:
        assert len({record["settings"]["machine"]["threads"] for record in journal}) == 2


def table_for(sensitivity, seed=0):
    """A table without a clock: wider formats are slower."""
    random = np.random.default_rng(seed)
    bytes_ = sensitivity.nbytes / sensitivity.nbytes.max()
    return LatencyTable(bytes_ * 1e-3 + 1e-4 * random.random(bytes_.shape), rest=2e-3, whole=5e-3, samples=1)


def test_seconds_are_an_objective_and_a_bound(sensitivity):
    table = table_for(sensitivity)
    front = allocate(sensitivity, cost=table)
    assert front.unit == "seconds"
    for point in front:
        assert point.cost == pytest.approx(table.predict(point.choice, sensitivity))
    least, most = front.cost.min(), front.cost.max()
    for bound in (least, (least + most) / 2, most):
        one = allocate(sensitivity, bounds={"latency": (table, bound)})[0]
        assert table.predict(one.choice, sensitivity) <= bound * (1 + 1e-9)
        assert one.loss == pytest.approx(front.at(cost=bound * (1 + 1e-9)).loss)
    with pytest.raises(ConfigError, match=r"latency <= 0\.001"):
        allocate(sensitivity, bounds={"latency": (table, 1e-3)})  # less than the rest


def test_a_bounded_front_keeps_the_bound_and_beats_what_keeps_it(sensitivity):
    table, front = table_for(sensitivity), allocate(sensitivity)
    seconds = [table.predict(point.choice, sensitivity) for point in front]
    bound = float(np.median(seconds))
    found = bounded_front(front, {"latency": (table, bound)}, nbytes=float(front.nbytes[len(front) // 2]))
    assert (np.diff(found.nbytes) > 0).all() and (np.diff(found.loss) < 0).all()
    assert all(table.predict(point.choice, sensitivity) <= bound * (1 + 1e-9) for point in found)
    loose = bounded_front(front, {"latency": (table, 1.0)})
    assert loose.loss.min() == front.loss.min()
    with pytest.raises(ConfigError, match="latency"):
        bounded_front(front, {"latency": (table, 1e-6)})


def test_what_cannot_be_is_refused(sensitivity, batches):
    both = measure_sensitivity(Net(), batches, ["mxint8"], roles=("weight", "input"), progress=False)
    with pytest.raises(ConfigError, match="weight"):
        measure_latency(Net(), batches[0], both, progress=False)
    with pytest.raises(ConfigError, match="another model"):
        measure_latency(nn.Sequential(nn.Linear(64, 8)), batches[0], sensitivity, progress=False)
    with pytest.raises(DataError, match="seconds"):
        LatencyTable(np.array([[-1.0]]), 0.0, 0.0, 1)
    with pytest.raises(ConfigError, match="one goal"):
        Goal()
    with pytest.raises(ConfigError, match="latency"):
        Goal(bits=4, latency=-1.0)


def compressed(batches, **goal):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    return octavo.compress_model(model, data=batches, formats=FORMATS, progress=False, **goal)


def test_a_compression_is_chosen_among_models_that_were_measured_within_the_bound(batches, monkeypatch):
    clock = {"int4:g32": 3e-3, "nf4": 2e-3, "mxint8": 1e-3}

    def latencies(models, batch):
        assert len(batch) == 2
        told = {}
        for name, model in models.items():
            layers = [layer for layer in model.modules() if hasattr(layer, "weight")]
            told[name] = {"value": sum(clock.get(str(getattr(layer, "format", "")), 5e-3) for layer in layers)}
        return told

    monkeypatch.setattr(trial_bench, "latencies", latencies)
    found = compressed(batches, nbytes=40_000, latency=4.5e-3, latency_batch=2)
    assert found.found.chosen.seconds <= 4.5e-3 and found.found.chosen.nbytes <= 40_000
    row = next(row for row in found.report["costs"] if row["key"] == "latency_bound")
    assert row["after"]["value"] == found.found.chosen.seconds and "predicted" in row["told"]
    assert found.report["verdict"]["met"]
    alone = compressed(batches, latency=2.5e-3, latency_batch=2)
    assert alone.found.chosen.seconds == 2e-3 and alone.report["verdict"]["unit"] == "s"


def test_a_bound_that_is_missed_is_told(batches, monkeypatch):
    monkeypatch.setattr(trial_bench, "latencies", lambda models, batch: {"": {"value": 9.0}})
    found = compressed(batches, budget=6.0, latency=1.0)
    verdict = found.report["verdict"]
    assert not verdict["met"] and verdict["unit"] == "s" and verdict["reached"] == 9.0
