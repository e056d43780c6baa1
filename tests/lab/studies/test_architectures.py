"""The study of architectures: networks built once for all curves and samplers, an honest split, tables that add up."""

import json

import pytest
import torch
from octavo.errors import DataError, SettingError

pytest.importorskip("optuna")

from octavo.cli.lab._study import show
from octavo.lab.architectures.search_loop import Build
from octavo.lab.polynomials.data import signs
from octavo.lab.studies import architecture_tables as tables
from octavo.lab.studies.architecture_builds import ArchitectureBuilds, Compression, inherit, network
from octavo.lab.studies.architectures import Architectures, EpochCurve
from octavo.report import architecture_plots

SMALL = {"batch_size": 16}


class Counted(ArchitectureBuilds):
    """Builds that are not trained: a number made of the choices stands for the accuracy."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.built = []

    def evaluate(self, build):
        self.built.append(build.identity)
        sizes = build.spec["network"]
        value = 0.5 + sizes["layers"] / 10 + sizes["width"] / 1000 - len(sizes.get("identity_layers", ())) / 100
        value += sizes["heads"] / 1e4 + sizes["feed_forward"] / 1e6 + build.spec["seed"] / 1e8
        facts = {"accuracy": value, "parameters": sizes["width"], "seconds": 0.0}
        return facts | ({} if self.compression is None else {"compressed": value - 0.1, "tuned": value - 0.01})

    def trained(self, spec, folder, report=None):
        return network(spec["network"]).eval(), 0.0


def run(study, builds, folder):
    return study.run(builds, folder, folder, lambda text, share=None: None)


@pytest.mark.slow
def test_lab32_is_built_once_for_all_samplers_seeds_and_curves(split, tmp_path):
    builds = Counted(split, compression=Compression("type:Linear int8"))
    study = Architectures(seeds=2, trials=32, repeats=2, samplers=("grid", "random"))
    found = run(study, builds, tmp_path)
    assert len(builds.built) == len(set(builds.built)) == 32 + 1  # and the chosen network with another seed
    assert len(found.searches) == 3 * (1 + 2)
    assert {len(search.trials) for search in found.searches.values()} == {32}
    best = max(trial.values[0] for trial in found.searches["grid", "none", 0].trials)
    for row in found.summaries():
        assert row["reached"] == row["searches"] and 1 <= row["builds_to_top"] <= 31
        assert row["best"] == pytest.approx(best - {"none": 0, "without": 0.1, "with": 0.01}[row["curve"]])
    assert found.chosen["facts"]["accuracy"] == best and found.chosen["test"]["texts"] == 40
    again = Counted(split, compression=Compression("type:Linear int8"))
    assert run(study, again, tmp_path).rows() == found.rows() and not again.built


def test_networks_are_trained_compressed_and_trained_again_on_validation_texts_alone(split, tmp_path, monkeypatch):
    builds = ArchitectureBuilds(split, compression=Compression("type:Linear int8:channel", 0.5, 1.0), changes=SMALL)
    touched = []
    monkeypatch.setattr(builds, "test_accuracy", lambda model: touched.append(1) or {"right": 1, "texts": 2})
    study = Architectures(samplers=("random",), trials=2, repeats=1)
    found = run(study, builds, tmp_path)
    for row in found.rows():
        assert all(0 <= row[name] <= 1 for name in ("accuracy", "compressed", "tuned"))
    assert len(touched) == 1
    assert not list(tmp_path.rglob("checkpoint*")) and list(tmp_path.rglob("last.safetensors"))
    without_test = signs.load(64, validation=24, test=40)
    shuffled = type(without_test)(
        without_test.train, without_test.validation, without_test.test.pick(range(39, -1, -1))
    )
    monkeypatch.undo()
    other = run(study, ArchitectureBuilds(shuffled, compression=builds.compression, changes=SMALL), tmp_path / "other")
    values = [(row["accuracy"], row["compressed"], row["tuned"]) for row in found.rows()]
    assert [(row["accuracy"], row["compressed"], row["tuned"]) for row in other.rows()] == values


def test_training_goes_on_from_what_is_in_the_folder(split, tmp_path):
    builds = ArchitectureBuilds(split, changes=SMALL)
    space = builds.space("lab32", "tiny", 1.0)
    point = next(space.points())

    def build(folder):
        return Build(point, space.spec(point), "id", folder, lambda step, value: False)

    first = builds.evaluate(build(tmp_path / "one"))
    torch.manual_seed(5)
    assert builds.evaluate(build(tmp_path / "two")) == first  # no draw comes from outside
    assert builds.evaluate(build(tmp_path / "one")) == first


def test_weights_are_inherited_where_shapes_match(split):
    builds = ArchitectureBuilds(split)
    space = builds.space("lab32", "tiny", 1.0)
    sizes = {"heads": 2, "hidden": 32, "intermediate": 64, "type": "linear"}
    large, small = (network(space.spec({"layers": layers, **sizes})["network"]) for layers in (2, 1))
    assert inherit(small, large) == 1.0
    assert all(torch.equal(tensor, large.state_dict()[name]) for name, tensor in small.state_dict().items())
    wide = network(space.spec({"layers": 1, **sizes, "hidden": 64})["network"])
    assert 0 < inherit(wide, large) < 0.05


def test_a_super_model_of_other_texts_is_refused(split, tmp_path):
    from octavo.lab.classifiers import kinds

    other = signs.load(64, validation=24, test=40)
    texts = tuple(text.replace("(", "[") for text in other.train.texts)
    changed = type(other)(type(other.train)(texts, other.train.labels), other.validation, other.test)
    kinds.build("tiny", changed).save(tmp_path / "model", {})
    with pytest.raises(DataError, match="other ids"):
        ArchitectureBuilds(split, warm=tmp_path)


def test_a_few_training_texts_have_the_vocabulary_of_all(split):
    whole, few = (ArchitectureBuilds(texts) for texts in (split, split.fewer(2)))
    assert few.fixed == whole.fixed


def test_accuracy_against_epochs_has_a_row_for_each(split, tmp_path):
    builds = Counted(split)
    point = {"layers": 2, "heads": 2, "hidden": 64, "intermediate": 64, "type": "identity"}
    rows = EpochCurve((2, 1, 4), point, seeds=2).run(builds, tmp_path, tmp_path, lambda text, share=None: None)
    assert [row["epochs"] for row in rows] == [1, 2, 4] and len(builds.built) == 6
    assert tables.epoch_table(rows).row_count == 3
    with pytest.raises(SettingError, match="heads is 3"):
        EpochCurve((1, 2), {**point, "heads": 3}).run(builds, tmp_path, tmp_path, lambda text, share=None: None)


def test_tables_and_pictures_have_their_data_beside_them(split, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    builds = Counted(split, compression=Compression("type:Linear int8"))
    found = run(Architectures(repeats=2, samplers=("grid", "random")), builds, tmp_path)
    summaries = found.summaries()
    axes = [axis.name for axis in found.space.axes]
    show(
        "nas", found.rows(), {"study": "nas"}, tmp_path, json=False, journal="trials.jsonl",
        table=lambda rows: tables.sampler_table(summaries),
        notes=lambda rows: tables.search_notes(summaries, found.chosen, builds.majority),
        draw=lambda rows: architecture_plots.best_so_far_figure(rows, lines="sampler", panels="curve", metric="accuracy", title="t"),
        further={"nas-axes": lambda rows: architecture_plots.axis_figure(rows, axes, metric="accuracy", title="t")},
    )  # fmt: skip
    told = capsys.readouterr().out
    assert "chosen: layers=2" in told and "until the best 5 %" in told
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(rows) == 2 * 32 * 3 and {row["best_so_far"] for row in rows if row["builds"] == 32}
    assert (tmp_path / "nas.png").stat().st_size > 10_000 and (tmp_path / "nas-axes.svg").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"samplers": ()}, "one at least"),
        ({"samplers": ("annealing",)}, "unknown sampler"),
        ({"trials": 0}, "trials is 0"),
        ({"epochs": float("nan")}, "epochs"),
    ],
)
def test_what_cannot_be_searched_is_refused(given, told):
    with pytest.raises(SettingError, match=told):
        Architectures(**given)
