"""The study of pruning: what goes, what stays 0 in fine-tuning, what no seed changes, MASE's activations."""

import pytest
import torch
from octavo.errors import FormatError, ModelError, SettingError
from octavo.lab.studies import result_files
from octavo.lab.studies.forward_costs import forward_costs
from octavo.lab.studies.lora_ranks import Tuning
from octavo.lab.studies.pruning import CRITERIA, Cut, Prune, PrunedPoint
from octavo.report import study_plots
from octavo.search.journal import identity

HEAD, TUNING = "classifier", Tuning(epochs=0.5)
INT8 = "type:Linear int8:channel; name:classifier keep"


def zeros(model):
    """Share of zeros in the weight of each Linear layer."""
    return {
        path: float((module.weight == 0).float().mean())
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("scope", ["local", "global"])
def test_every_criterion_leaves_the_head_and_is_exact(subject, criterion, scope):
    found = zeros(Cut(criterion, "element", scope, 0.5).model(subject, 0))
    assert found.pop(HEAD) == 0
    if scope == "local":
        assert set(found.values()) == {0.5}
    sizes = {path: subject.model().get_submodule(path).weight.numel() for path in found}
    total = sum(sizes.values())
    assert sum(found[path] * sizes[path] for path in found) == pytest.approx(total / 2, abs=1)


def test_what_is_pruned_stays_so_in_fine_tuning(subject, tmp_path):
    point = PrunedPoint(Cut("magnitude", "element", "local", 0.75), TUNING)
    before, after = point.cut.model(subject, 0), point.build(subject, tmp_path)
    for path, share in zeros(before).items():
        layers = before.get_submodule(path), after.get_submodule(path)
        assert torch.equal(layers[0].weight == 0, layers[1].weight == 0), path
        if share:
            assert not torch.equal(layers[0].weight, layers[1].weight)


@pytest.mark.parametrize("criterion", ["random", "magnitude", "taylor"])
def test_gradual_pruning_ends_at_the_sparsity(subject, tmp_path, criterion):
    """It begins at the dense model: 8 steps of training, in which masks grow."""
    cut = Cut(criterion, "element", "local", 0.75)
    point = PrunedPoint(cut, Tuning(epochs=1), gradual=True)
    found = zeros(point.build(subject, tmp_path))
    assert found.pop(HEAD) == 0 and set(found.values()) == {0.75}
    assert identity(point.settings(subject)) != identity(PrunedPoint(cut, Tuning(epochs=1)).settings(subject))
    kinds = {
        (point.cut.criterion, point.gradual) for point in Prune(baseline="mase", gradual=True).points() if point.tuning
    }
    assert kinds == {("dense", False), ("mase", False), ("mase-random", False), ("random", True), ("magnitude", True)}


def test_a_quantized_model_is_pruned_before_its_formats(subject):
    model = Cut("magnitude", "element", "local", 0.5, INT8).model(subject, 0)
    assert zeros(model)["encoder.0.feed_forward.up"] == 0.5
    costs = forward_costs({"quantized": model}, subject)["quantized"]
    assert costs["file_bytes"] is None and costs["packed_bytes"] > 0 and costs["packed_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["head", "neuron"])
def test_what_goes_whole_is_taken_out_before_it_is_timed(subject, granularity):
    """Half of the heads or inner neurons are gone from the file, too."""
    cuts = {name: Cut("magnitude", name, "local", 0.5) for name in ("element", granularity)}
    costs = forward_costs({name: cut.model(subject, 0) for name, cut in cuts.items()}, subject, [granularity])
    full = sum(p.numel() for p in subject.model().parameters())
    assert costs["element"]["parameters"] == full
    for fact in ("parameters", "file_bytes", "packed_bytes"):
        assert costs[granularity][fact] < costs["element"][fact]


@pytest.mark.parametrize("criterion", ["mase", "mase-random"])
def test_the_baseline_of_the_labs_prunes_the_head_and_inputs(subject, criterion):
    model = Cut(criterion, sparsity=0.5).model(subject, 0)
    assert zeros(model)[HEAD] == 0.5
    seen = []
    layer = model.encoder[0].feed_forward.up
    layer.register_forward_pre_hook(lambda module, given: seen.append(float((given[0] == 0).float().mean())))
    with torch.no_grad():
        model(**subject.inputs(4, 4)[0])
    assert seen == [pytest.approx(0.5, abs=0.01)]


def test_random_pruning_of_the_labs_draws_weights_and_inputs_by_the_seed(subject):
    """The study measures a model more than once, and must get the same answers."""
    first, again, other = (Cut("mase-random", sparsity=0.5).model(subject, seed) for seed in (0, 0, 1))
    batch = subject.inputs(8, 8)[0]
    with torch.no_grad():
        assert torch.equal(first(**batch), first(**batch)) and torch.equal(first(**batch), again(**batch))
        assert not torch.equal(first(**batch), other(**batch))
    assert Cut("mase-random", sparsity=0.5).draws() and not Cut("mase", sparsity=0.5).draws()


def test_runs_that_are_measured_are_followed_by_rest_and_told_to_be_kept(laboratory):
    rests, told = [], []
    laboratory.tell = lambda text, share=None: told.append(text)
    points = Prune((0.5,), ("magnitude",), ("local",), seeds=1, tuning=None).points()
    laboratory.measure_all(points[:1])
    laboratory.measure_all(points, cooldown_s=3.0, sleep=rests.append)
    assert rests == []  # the first was found, and none follows the last
    other = Prune((0.7, 0.8), ("magnitude",), ("local",), seeds=1, tuning=None).points()
    laboratory.measure_all(other, cooldown_s=3.0, sleep=rests.append)
    assert rests == [3.0] and f"kept in {laboratory.journal.path}; resting for 3 s" in told


@pytest.mark.slow
def test_every_point_has_its_row_and_its_place_in_the_picture(laboratory):
    study = Prune((0.75, 0.5), scopes=("local",), seeds=2, tuning=TUNING, baseline="mase")
    rows = study.run(laboratory)
    cuts = [
        ("dense", 0.0),
        *((name, share) for name in ("random", "magnitude", "mase", "mase-random") for share in (0.5, 0.75)),
    ]
    assert [(r["criterion"], r["sparsity"], r["tuned"]) for r in rows] == [(*c, t) for c in cuts for t in (False, True)]
    by_seed = {(row["criterion"], row["tuned"]): row["seeds"] for row in rows}
    assert by_seed["magnitude", False] == 1 and by_seed["random", False] == by_seed["magnitude", True] == 2
    assert rows[0]["difference_points"] == 0 and rows[0]["file_bytes"] > rows[0]["packed_bytes"]
    assert all((row["forward_s"] is None) == row["criterion"].startswith("mase") for row in rows)
    assert result_files.prune_table(rows).row_count == 9 and len(result_files.prune_notes(rows)) == 4
    laboratory.subject.model = lambda: pytest.fail("measured twice")
    assert study.run(laboratory) == rows
    pytest.importorskip("matplotlib")
    figure = study_plots.prune_figure(rows, metric="accuracy", title="a title")
    assert [axes.get_title() for axes in figure.axes] == ["element", "measured time"]


@pytest.mark.parametrize(
    "changed",
    [
        PrunedPoint(Cut("random", "element", "local", 0.5), TUNING),
        PrunedPoint(Cut("magnitude", "row", "local", 0.5), TUNING),
        PrunedPoint(Cut("magnitude", "element", "global", 0.5), TUNING),
        PrunedPoint(Cut("magnitude", "element", "local", 0.6), TUNING),
        PrunedPoint(Cut("magnitude", "element", "local", 0.5, INT8), TUNING),
        PrunedPoint(Cut("magnitude", "element", "local", 0.5)),
        PrunedPoint(Cut("magnitude", "element", "local", 0.5), TUNING, 1),
        PrunedPoint(Cut("magnitude", "element", "local", 0.5), Tuning(epochs=1)),
    ],
)
def test_whatever_decides_a_number_is_part_of_its_identity(subject, changed):
    same = PrunedPoint(Cut("magnitude", "element", "local", 0.5), TUNING)
    assert identity(changed.settings(subject)) != identity(same.settings(subject))


@pytest.mark.parametrize(
    "given, error, told",
    [
        (dict(sparsities=()), SettingError, "one of each"),
        (dict(sparsities=(1.0,)), SettingError, "sparsity 1; accepted are shares above 0 and below 1"),
        (dict(criteria=("l2",)), SettingError, "unknown criterion 'l2'"),
        (dict(scopes=("layer",)), SettingError, "unknown scope 'layer'"),
        (dict(granularities=("cube",)), ModelError, "unknown granularity 'cube'"),
        (dict(baseline="torch"), SettingError, "unknown baseline 'torch'; accepted are mase"),
        (dict(tuning=Tuning(epochs=0)), SettingError, "0 epochs"),
        (dict(tuning=None, gradual=True), SettingError, "one of --gradual and --no-tune"),
        (dict(seeds=0), SettingError, "one of each"),
        (dict(cooldown_s=-1.0), SettingError, "a cool-down of -1.0 s"),
        (dict(recipe="int99"), FormatError, "int99"),
    ],
)
def test_a_study_that_cannot_be_is_refused(given, error, told):
    with pytest.raises(error) as refused:
        Prune(**given)
    assert told in str(refused.value)
