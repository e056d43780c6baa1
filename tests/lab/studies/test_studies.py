"""Studies: honest splits, points found again, models that no point can touch, tables that say what was measured."""

import csv
import itertools
import json
import math

import octavo
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo.errors import DataError, FormatError, SettingError
from octavo.lab.studies import candidates, format_families, memory, probe_batches, ptq_qat
from octavo.lab.studies import result_files as report
from octavo.lab.studies.measured_points import Laboratory, Point, Training
from octavo.lab.studies.result_rows import draws, weight_bits
from octavo.lab.studies.subject import digest
from octavo.recipe import Recipe
from octavo.report import study_plots
from octavo.search.journal import NAME, Journal, identity
from octavo.train.intervals import paired_error, spread, student

INT8 = "type:Linear weight=int8:channel input=int8@minmax"
TRAINING = Training(share=0.05, rate=0.1)


def point(recipe=INT8, method="ptq", seed=0, **changes):
    return Point({"study": "test", "family": "int", "width": 8}, method, recipe, seed, TRAINING, **changes)


# --- statistics -----------------------------------------------------------------------------------------------------


def test_intervals_are_students():
    """Against published quantiles of the t distribution."""
    for freedom, quantile in (
        (1, 12.706),
        (4, 2.776),
        (10, 2.228),
        (12, 2.179),
        (20, 2.086),
        (30, 2.042),
        (120, 1.980),
    ):
        assert student(freedom) == pytest.approx(quantile, abs=3e-3)
    found = spread([0.8, 0.9, 0.85])
    assert (found.mean, found.count) == (pytest.approx(0.85), 3)
    assert found.sd == pytest.approx(0.05)
    assert found.half == pytest.approx(4.303 * 0.05 / math.sqrt(3))


def test_one_seed_has_no_interval():
    assert spread([0.5]).half is None


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_what_has_no_mean_is_refused(values):
    with pytest.raises(DataError, match="finite numbers"):
        spread(values)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_paired_error_is_that_of_the_differences(answers):
    """The standard error of a mean of -1, 0 and 1."""
    differences = torch.tensor([float(after) - float(before) for before, after in answers], dtype=torch.float64)
    lost, gained = int((differences < 0).sum()), int((differences > 0).sum())
    expected = differences.std(correction=0) / math.sqrt(len(answers))
    assert paired_error(lost, gained, len(answers)) == pytest.approx(float(expected))


# --- points ---------------------------------------------------------------------------------------------------------


def test_no_point_touches_the_model(laboratory):
    before = digest(laboratory.subject.model())
    laboratory.measure_all([point(), point(method="qat")])
    assert digest(laboratory.subject.model()) == before == laboratory.subject.identity["weights"]


def test_a_finished_point_is_not_measured_again(laboratory, monkeypatch):
    told = []
    first = laboratory.measure_all([point()])
    monkeypatch.setattr(laboratory, "build", lambda *_: pytest.fail("built twice"))
    laboratory.tell = lambda text, share: told.append((text, share))
    assert laboratory.measure_all([point()]) == first
    assert told == [(f"[1/1] int 8 ptq seed 0: {first[0]['result']['right'] / 40:.2%} of 40 (found)", 1.0)]


def test_a_study_that_was_stopped_ends_as_one_that_was_not(subject, tmp_path, monkeypatch):
    """Stopped inside a point; journals are the same but for clocks."""
    points = [point(seed=seed, method=method) for seed in (0, 1) for method in ("ptq", "qat")]

    def lines(folder):
        records = [json.loads(line) for line in (folder / NAME).read_text().splitlines()]
        return [(record["id"], record["settings"], record["result"]) for record in records]

    with Journal(tmp_path / "whole") as journal:
        Laboratory(subject, journal, tmp_path / "whole").measure_all(points)
    with Journal(tmp_path / "stopped") as journal, monkeypatch.context() as patch:
        stopped = Laboratory(subject, journal, tmp_path / "stopped")
        measured = stopped.compare
        patch.setattr(stopped, "compare", lambda *given: measured(*given) if len(journal) < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stopped.measure_all(points)
    with Journal(tmp_path / "stopped") as journal:
        Laboratory(subject, journal, tmp_path / "stopped").measure_all(points)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")


@pytest.mark.parametrize(
    "changed",
    [
        point(recipe="type:Linear weight=int7:channel input=int8@minmax"),
        point(seed=1),
        point(samples=8),
        point(method="qat"),
        Point({"study": "other"}, "ptq", INT8),
    ],
)
def test_whatever_decides_a_number_is_part_of_its_identity(subject, changed):
    assert identity(changed.settings(subject)) != identity(point().settings(subject))


def test_training_settings_are_part_of_the_identity_of_trained_points_only(subject):
    other = Point({"study": "test", "family": "int", "width": 8}, "ptq", INT8, training=Training(share=0.2))
    assert other.settings(subject) == point().settings(subject)
    trained = Point({"study": "test", "family": "int", "width": 8}, "qat", INT8, training=Training(share=0.2))
    assert trained.settings(subject) != point(method="qat").settings(subject)


def test_training_leaves_its_log_and_no_weights(laboratory):
    record = laboratory.measure_all([point(method="qat")])[0]
    run = laboratory.folder / "runs" / record["id"][:16]
    assert (run / "metrics.jsonl").exists()
    assert not list(run.rglob("*.safetensors")) and not list(run.rglob("*.pt"))


def test_test_texts_are_touched_once_a_point_and_never_by_a_choice(laboratory, monkeypatch):
    touched = []
    subject, right = laboratory.subject, laboratory.subject.right
    monkeypatch.setattr(subject, "right", lambda model, part: touched.append(part) or right(model, part))
    for width in (4, 8):
        laboratory.judge(point(recipe=f"type:Linear weight=int{width}:channel"))
    assert touched == []
    laboratory.measure_all([point()])
    assert touched == ["test", "test"]  # the point, and once the float32 model that it is compared with
    laboratory.measure_all([point(), point(seed=1)])
    assert touched == ["test"] * 3


def test_calibration_texts_are_training_texts_drawn_by_the_seed(subject, split):
    def rows(batches):
        return {tuple(row[row > 0].tolist()) for batch in batches for row in batch["input_ids"]}

    train = rows(subject._train.batches())
    assert rows(subject.calibration(16, 0)) <= train and rows(subject.calibration(16, 0)) != rows(
        subject.calibration(16, 1)
    )
    assert rows(subject.calibration(16, 0)) == rows(subject.calibration(16, 0))


def test_no_quantization_is_at_no_distance(subject):
    assert subject.distance(subject.model()) == 0


def test_bits_are_those_of_the_bytes(subject):
    model = subject.model()
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    packed = sum(octavo.encode(weight.detach(), "mxint8").nbytes for weight in weights)
    elements = sum(weight.numel() for weight in weights)
    assert weight_bits(model, "type:Linear weight=mxint8") == 8 * packed / elements
    assert weight_bits(model, "type:Linear weight=fixed4.2") == 4.0
    assert weight_bits(model, "type:Linear input=int8") is None


# --- accuracy against width -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_study_of_widths_measures_every_point_of_its_table(laboratory, tmp_path):
    study = ptq_qat.PtqQat(("int", "mase"), (4, 8), seeds=2, training=TRAINING)
    rows = study.run(laboratory)
    assert [(row["family"], row["width"], row["method"]) for row in rows] == [
        ("fp32", 32, "fp32"),
        *((family, width, method) for family in ("int", "mase") for width in (4, 8) for method in ("ptq", "qat")),
    ]
    assert len(laboratory.journal) == 1 + 2 * 4 + 2 * 3  # MASE calibrates nothing: all seeds are one without training
    base = rows[0]
    assert base["difference_points"] == 0 and base["half_interval_95"] is None
    for row in rows[1:]:
        assert 0 <= row["accuracy"] <= 1
        assert row["difference_points"] == pytest.approx(100 * (row["accuracy"] - base["accuracy"]))
        assert row["seeds"] == (1 if (row["family"], row["method"]) == ("mase", "ptq") else 2)


def test_the_baseline_of_the_labs_is_set_by_hand():
    assert ptq_qat.family("mase").recipe(8) == "type:Linear weight=fixed8.4 input=fixed8.4 bias=fixed8.4"
    assert not draws(ptq_qat.family("mase").recipe(8))


@pytest.mark.parametrize("width", range(2, 33))
@pytest.mark.parametrize("name", ptq_qat.FAMILIES)
def test_every_family_has_recipes_or_says_none(name, width):
    for trained in (False, True):
        recipe = ptq_qat.family(name).recipe(width, trained=trained)
        assert recipe is None or Recipe.parse(recipe).rules
    assert ptq_qat.family(name).recipe(8) is not None


def test_formats_with_a_hole_for_the_width_are_families():
    assert ptq_qat.family("int{w}:g32+int8").recipe(4) == "type:Linear weight=int4:g32 input=int8"
    assert ptq_qat.family("mxint{w}").recipe(4) == "type:Linear weight=mxint4"


@pytest.mark.parametrize(
    "given, told",
    [
        (dict(families=("int9",)), "unknown family 'int9'"),
        (dict(families=("nonsense{w}",)), "nonsense"),
        (dict(families=("int{x}{w}",)), "int{x}{w}"),
        (dict(families=()), "one of each"),
        (dict(widths=(1,)), "width 1; accepted are 2 to 32"),
        (dict(families=("int",), widths=(32,)), "family 'int' has none of the widths 32"),
        (dict(seeds=0), "one of each"),
    ],
)
def test_a_study_of_widths_that_cannot_be_is_refused(given, told):
    with pytest.raises(SettingError) as error:
        ptq_qat.PtqQat(**given)
    assert told in str(error.value)


# --- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", candidates.FAMILIES)
def test_every_family_has_configurations_that_the_model_takes(subject, family):
    """Each of them, at some width, for weights and for inputs."""
    texts = [text for width in (1, 2, 4, 8) for text in candidates.weights(family, width)]
    assert texts and any(candidates.inputs(family, width) for width in (1, 2, 4, 8))
    assert len(texts) == len(set(texts))
    for text in texts:
        assert Recipe.parse(f"type:Linear weight={text}").plan(subject.model())


def test_the_study_of_formats_reports_the_closest_of_each_family(laboratory):
    rows = format_families.Formats(("fixed", "mxint"), (4,), seeds=2).run(laboratory)
    assert [(row["family"], row["mode"]) for row in rows] == [
        ("fp32", "weights"),
        *((family, mode) for family in ("fixed", "mxint") for mode in ("weights", "both")),
    ]
    judged = [record for record in laboratory.journal if "distance" in record]
    for row in rows[1:]:
        held = [r for r in judged if (r["settings"]["family"], r["settings"]["mode"]) == (row["family"], row["mode"])]
        assert row["recipe"] == min(held, key=lambda record: record["distance"])["settings"]["recipe"]
        assert row["weight_bits"] < 9 and (row["input_bits"] == 32) == (row["mode"] == "weights")


@pytest.mark.parametrize(
    "given, told",
    [
        (dict(families=("posit",)), "unknown family 'posit'"),
        (dict(families=("nvfp",), widths=(8,)), "family 'nvfp' has none of the widths 8"),
        (dict(widths=(0,)), "width 0; accepted are 1 to 16"),
        (dict(modes=("biases",)), "unknown mode 'biases'"),
        (dict(families=()), "one of each"),
    ],
)
def test_a_study_of_formats_that_cannot_be_is_refused(given, told):
    with pytest.raises(SettingError) as error:
        format_families.Formats(**given)
    assert told in str(error.value)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_packed_model_is_counted_measured_and_compared(laboratory):
    """In a process of its own, as the real study; found again after that."""
    study = memory.Memory(("mxint8",), texts=20)
    rows = study._rows(laboratory, "mxint8")
    held = {(row["what"], row["kind"]): row.get("bytes") for row in rows}
    parts = sum(held[part, "counted"] for part in memory.COMPONENTS)
    assert parts == held["all weights", "counted"] < held["file", "measured"]
    assert all(0 <= held[what, "measured"] < 100e6 for what in ("loaded", "peak"))
    assert rows[-1] == {
        "model": "mxint8",
        "what": "same answers",
        "kind": "answers",
        "texts": 20,
        "same": 20,
        "same_top": 20,
    }
    laboratory.subject.model = lambda: pytest.fail("measured twice")
    assert study._rows(laboratory, "mxint8") == rows


def test_counted_bytes_are_those_of_the_tensors(subject):
    model = subject.model()
    assert memory.by_component(model)["all weights"] == sum(tensor.nbytes for tensor in model.state_dict().values())
    model.encoder[0].attention.key.weight = model.encoder[0].attention.query.weight  # tied: once
    tied = memory.by_component(model)["attention"]
    assert memory.by_component(subject.model())["attention"] - tied == 16 * 16 * 4


@pytest.mark.parametrize(
    "path, name",
    [
        ("bert.embeddings.LayerNorm.weight", "embeddings"),
        ("source_embedding.weight", "embeddings"),
        ("bert.encoder.layer.0.attention.self.query.weight_codes", "attention"),
        ("bert.encoder.layer.0.attention.output.dense.bias", "attention"),
        ("bert.encoder.layer.5.output.dense.weight", "feed-forward"),
        ("encoder.0.feed_forward.up.weight", "feed-forward"),
        ("bert.pooler.dense.weight", "other"),
    ],
)
def test_components_are_told_by_paths(path, name):
    assert memory.component(path) == name


def test_batches_cross_to_another_process_unchanged():
    given = [{"input_ids": torch.ones(2, 3), "attention_mask": torch.zeros(2, 3)}] * 11
    assert str(probe_batches.batches(probe_batches.flat(given))) == str(given)
    pairs = [(torch.ones(2, 3), torch.zeros(2, 4))] * 11
    assert str(probe_batches.batches(probe_batches.flat(pairs))) == str(pairs)


def test_the_highest_scores_are_in_order_and_old_records_are_without_them():
    scores = torch.tensor([[0.1, 3.0, 2.0, 1.0], [4.0, 1.0, 2.0, 3.0]])
    assert probe_batches.highest(scores).tolist() == [[1, 2, 3], [0, 3, 2]]
    assert probe_batches.highest(scores[None, :, :2]).tolist() == [[1, 0], [0, 1]]
    row = {"model": "mxint8", "what": "same answers", "kind": "answers", "texts": 20, "same": 19}
    assert report.memory_notes([row])[-1] == "mxint8: 19 of 20 answers as simulated"
    assert "18 with the same three highest scores" in report.memory_notes([row | {"same_top": 18}])[-1]


def test_a_study_of_memory_that_cannot_be_is_refused():
    with pytest.raises(SettingError, match="one of each"):
        memory.Memory(())
    with pytest.raises(FormatError, match="int99"):
        memory.Memory(("int99",))


# --- reports --------------------------------------------------------------------------------------------------------

ROW = {"seeds": 3, "sd": 0.01, "texts": 872, "difference_points": -1.0, "paired_error_points": 0.5}
WIDTH_ROWS = [
    {**ROW, "family": "fp32", "width": 32, "method": "fp32", "accuracy": 0.9, "half_interval_95": None, "recipe": None},
    {**ROW, "family": "int", "width": 4, "method": "ptq", "accuracy": 0.8, "half_interval_95": 0.02, "recipe": "x"},
    {**ROW, "family": "int", "width": 4, "method": "qat", "accuracy": 0.89, "half_interval_95": None, "recipe": "x"},
]
FORMAT_ROWS = [
    {**row, "mode": mode, "weight_bits": bits, "input_bits": 32.0}
    for row, mode, bits in zip(WIDTH_ROWS, ("weights", "weights", "both"), (32.0, 4.25, 4.5), strict=True)
]


def test_tables_are_saved_as_they_were_measured(tmp_path):
    report.save(tmp_path, WIDTH_ROWS, {"study": "test"})
    assert json.loads((tmp_path / report.JSON).read_text()) == {"study": "test", "rows": WIDTH_ROWS}
    read = list(csv.DictReader((tmp_path / report.CSV).open()))
    assert [float(row["accuracy"]) for row in read] == [0.9, 0.8, 0.89]
    assert read[0]["half_interval_95"] == ""


@pytest.mark.parametrize(
    "rows, table, draw, label",
    [
        (WIDTH_ROWS, report.width_table, study_plots.width_figure, "width of an element (bits)"),
        (FORMAT_ROWS, report.format_table, study_plots.format_figure, "average weight bits, scales included"),
    ],
)
def test_pictures_name_their_axes_and_units(tmp_path, rows, table, draw, label):
    pytest.importorskip("matplotlib")
    assert table(rows).row_count in (2, 3)
    figure = draw(rows, metric="accuracy", title="a title")
    for axes in figure.axes:
        assert axes.get_xlabel() == label and axes.get_ylabel() == "accuracy on test texts (%)"
    assert [path.stat().st_size > 1000 for path in study_plots.save(figure, tmp_path, "test")] == [True, True]


def test_the_picture_of_memory_has_a_bar_for_every_number():
    pytest.importorskip("matplotlib")
    counts = {"embeddings": 5, "attention": 3, "all weights": 8}
    rows = [
        {"model": model, "what": what, "kind": kind, "bytes": count}
        for model in ("fp32", "mxint8")
        for kind, counted in (("counted", counts), ("measured", {"file": 9, "loaded": 10, "peak": 12}))
        for what, count in counted.items()
    ]
    figure = study_plots.memory_figure(rows, metric="accuracy", title="a title")
    counted, measured = (sorted(bar.get_height() * 1e6 for bar in axes.patches) for axes in figure.axes)
    assert counted == pytest.approx([3, 3, 5, 5]) and measured == pytest.approx([9, 9, 10, 10, 12, 12])
    bars = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in figure.axes[1].patches)
    assert all(right <= left + 1e-9 for (_, right), (left, _) in itertools.pairwise(bars))
    assert report.memory_table(rows).row_count == 6


def test_no_two_families_look_the_same():
    styles = [tuple(study_plots.line_style(position).values()) for position in range(len(candidates.FAMILIES))]
    assert len(set(styles)) == len(styles)


# --- training through a format, and weights that all round to 0 -------------------------------------------------------


def test_a_share_that_is_asked_for_is_not_cut_and_a_cut_is_told(laboratory, monkeypatch):
    """A tenth of a long training is bounded; a share that was given is taken whole."""
    subject, told = laboratory.subject, []
    subject.steps = 31_000
    assert Training().config(subject, 0).steps == 1000
    assert Training(share=1.0, most=None).config(subject, 0).steps == 31_000
    laboratory.tell = lambda text, share=None: told.append(text)
    monkeypatch.setattr(laboratory, "measure_all", lambda points: [])
    for training in (Training(), Training(share=0.1, most=None)):
        monkeypatch.setattr(ptq_qat, "rows", lambda records: [])
        ptq_qat.PtqQat(("int",), (8,), 1, training).run(laboratory)
    assert told == ["training takes 1,000 updates in place of 3,100; --qat-share 0.1 takes all of them"]


def test_epochs_are_passes_over_the_training_texts(subject):
    """64 texts in batches of 8, whatever trained the model; the bound of a share is none of theirs."""
    assert Training(epochs=1, rate=1.0).config(subject, 0).steps == 8
    assert Training(epochs=500, rate=1.0).config(subject, 0).steps == 4000
    assert Training(epochs=1, rate=1.0).config(subject, 0).learning_rate == subject.learning_rate
    subject.texts = None
    with pytest.raises(SettingError, match="have no end; give --qat-share 1 --qat-rate 1"):
        Training(epochs=1).config(subject, 0)


def test_weights_that_all_round_to_zero_are_told_and_the_study_goes_on(laboratory):
    """At 4 bits with 2 of a fraction, steps of a quarter are larger than weights of this model."""
    told = []
    laboratory.tell = lambda text, share=None: told.append(text)
    with torch.no_grad():
        for name, parameter in laboratory.subject._model.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2 and "embeddings" not in name:
                parameter.clamp_(-0.1, 0.1)
    rows = ptq_qat.PtqQat(("mase-b",), (4, 16), 1, Training(epochs=0.25, rate=0.01)).run(laboratory)
    assert [(row["width"], row["method"], row["zero_layers"], row["quantized_layers"]) for row in rows] == [
        (32, "fp32", None, None), (4, "ptq", 8, 8), (4, "qat", 8, 8), (16, "ptq", None, None), (16, "qat", None, None),
    ]  # fmt: skip
    assert sum("all weights of 8 of 8 layers round to 0" in text for text in told) == 2
    notes = report.width_notes(rows)
    assert "mase-b, 4 bits, before training: all weights of all 8 layers are 0: all texts have the same scores" in notes
    assert "mase-b, 4 bits, after training" in " ".join(notes) and "16 bits" not in " ".join(notes)


def test_records_without_zeros_are_read(laboratory):
    """Earlier versions did not write them."""
    study = ptq_qat.PtqQat(("int",), (8,), 1, None)
    rows = study.run(laboratory)
    assert all(row["zero_layers"] is None for row in rows) and report.width_notes(rows) == report.accuracy_notes(rows)
