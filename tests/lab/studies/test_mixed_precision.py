"""The labs' mixed-precision search: a class of layers a curve, an axis a key, and the ladder beside it on one model."""

import random

import pytest
from octavo.errors import FormatError, SettingError
from octavo.lab.mase import search_spaces
from octavo.lab.mase.layer_settings import Settings, read_format
from octavo.lab.mase.search_spaces import CLASSES, FRACTIONS, PRESETS, classes_of, mixed_space, nearest, replaced
from octavo.lab.studies import architecture_tables as tables
from octavo.lab.studies.mixed_precision import MixedPrecision, against_ladder, weight_bytes
from octavo.recipe import Recipe
from octavo.report.architecture_plots import best_so_far_figure
from octavo.tensors.formats import Format

LAYERS = ["encoder.0.attention.query", "pooler"]
#: The keys of each class in the labs' objective, without the layer before them.
COMPONENTS = ("data_in", "weight", "bias")
KEYS = {
    "Full": ["type"], "Binary": ["type"], "BinaryScaling": ["type"], "BinaryResidualSign": ["data_in_levels"],
    "Integer": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "frac_width")],
    "Log": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "exponent_bias")],
    "BlockFP": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "block_size")],
    "BlockLog": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "block_size")],
    "BlockMinifloat": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "exponent_width", "block_size")],
    "MinifloatDenorm": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "exponent_width", "exponent_bias")],
    "MinifloatIEEE": [f"{c}_{k}" for c in COMPONENTS for k in ("width", "exponent_width", "exponent_bias")],
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", CLASSES)
def test_every_point_is_a_recipe_of_all_layers_and_float_is_of_full_alone(preset, name):
    space = mixed_space(preset, name, LAYERS)
    assert [axis.name for axis in space.axes] == [f"{layer}_{key}" for layer in LAYERS for key in KEYS[name]]
    for seed in range(12):
        recipe = space.spec(space.draw(random.Random(seed)))["recipe"]
        assert (recipe is None) == (name == "Full")
        if recipe:
            rules = Recipe.parse(recipe).rules
            assert len(rules) == len(LAYERS)
            needed = {"Binary": {"weight"}, "BinaryResidualSign": {"weight", "input"}}
            assert all(set(dict(rule.gives)) == needed.get(name, {"weight", "input", "bias"}) for rule in rules)
    space.check_axes()


def test_presets_have_the_values_of_the_reports():
    assert search_spaces.keys("lab-a", "MinifloatIEEE")["bias_exponent_bias"] == (3, 7, 15)
    assert search_spaces.keys("lab-a", "MinifloatIEEE")["weight_width"] == (8, 16, 32)
    lab_b = search_spaces.keys("lab-b", "MinifloatDenorm")
    assert (lab_b["data_in_width"], lab_b["data_in_exponent_width"]) == ((4, 8, 16), (4, 5, 6))
    assert lab_b["weight_exponent_bias"] == (13, 15, 17)
    assert search_spaces.keys("lab-a", "BlockFP")["weight_block_size"] == (16, 32)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", [name for name in CLASSES if len(KEYS[name]) > 3])
def test_settings_without_a_format_take_the_nearest_by_the_rule(preset, name):
    """What has a format is never changed; else exponents become fewer first, then widths, and nothing is nearer."""
    scheme, space = CLASSES[name], mixed_space(preset, name, ["layer"])
    for seed in range(40):
        point = space.draw(random.Random(seed))
        config = {key.removeprefix("layer_weight_"): value for key, value in point.items() if "_weight_" in key}
        config |= {"exponent_bias_width": 8} if name in ("BlockMinifloat", "BlockLog") else {}
        config |= {"exponent_width": 8} if name == "BlockFP" else {}
        found = nearest(scheme, tuple(config.items()))
        assert has_format(scheme, found)
        if has_format(scheme, config):
            assert found == config
            continue
        changed = {key for key in config if found[key] != config[key]}
        assert changed and changed <= {"width", "exponent_width"}
        assert all(found[key] < config[key] for key in changed)
        for key in changed:
            assert not has_format(scheme, found | {key: found[key] + 1}) or "exponent_width" not in changed


def has_format(scheme, config):
    try:
        read_format(scheme, Settings("layer: weight", config))
    except FormatError:
        return False
    return True


def test_what_took_the_nearest_is_counted():
    space = mixed_space("lab-a", "MinifloatDenorm", ["pooler"])
    point = {axis.name: axis.choices[0] for axis in space.axes}
    assert replaced("MinifloatDenorm", ["pooler"], point) == 0
    point |= {"pooler_weight_width": 32, "pooler_bias_width": 32}
    assert replaced("MinifloatDenorm", ["pooler"], point) == 2
    assert "weight=denorm16e2b3" in space.spec(point)["recipe"]


@pytest.mark.parametrize(
    ("name", "fractions"), [("mase-a", {8: 6, 16: 14, 32: 30, 4: 4}), ("mase-b", {8: 4, 16: 8, 32: 16})]
)
def test_baselines_set_fractions_by_hand(name, fractions):
    assert {width: FRACTIONS[name](width) for width in fractions} == fractions
    space = mixed_space("lab-a", "Integer", ["pooler"], name)
    point = {f"pooler_{component}_width": 8 for component in COMPONENTS}
    text = f"fixed8.{fractions[8]}"
    assert space.spec(space.checked(point)) == {"recipe": f"name:pooler weight={text} input={text} bias={text}"}


def test_names_that_are_none_are_refused():
    for names in (("lab-c", "Integer"), ("lab-a", "Posit")):
        with pytest.raises(SettingError, match="accepted are lab-a, lab-b"):
            mixed_space(*names, LAYERS)
    with pytest.raises(SettingError, match="mase-a, mase-b"):
        mixed_space("lab-a", "Integer", LAYERS, "mase-c")
    with pytest.raises(SettingError, match="unknown layer class 'posit'; accepted are Full, Integer"):
        classes_of(["posit"])
    assert classes_of(["LinearInteger", "block", "blocklog", "integer"]) == (
        "Integer", "BlockFP", "BlockMinifloat", "BlockLog",
    )  # fmt: skip


def test_bytes_are_those_of_formats_and_of_what_stays_float(laboratory):
    model = laboratory.subject.model()
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert weight_bytes(model, None) == total
    shape = tuple(model.pooler.weight.shape)
    saved = model.pooler.weight.nbytes - Format("int4:g32").nbytes(shape)
    assert weight_bytes(model, "name:pooler int4:g32") == total - saved


def test_keys_of_trials_are_the_names_of_the_labs_and_every_trial_trains(laboratory):
    """``study mixed --preset lab-a --epochs 1``: read from the storage's own trials, as Optuna has them."""
    optuna = pytest.importorskip("optuna")
    from octavo.lab.architectures.trial_storage import open_storage

    study = MixedPrecision(
        ("Integer", "BlockMinifloat"), samplers=("tpe", "random"), trials=2, epochs=0.25, points=1, samples=8,
        formats=("mxint8",),
    )  # fmt: skip
    rows = study.run(laboratory)
    assert {row["group"] for row in rows} == {"Integer", "BlockMinifloat", "ladder"}
    layers = [path for path, part in laboratory.subject.model().named_modules() if type(part).__name__ == "Linear"]
    studies = optuna.get_all_study_summaries(open_storage(laboratory.folder))
    assert len(studies) == 4  # one a class and sampler
    for summary in studies:
        name = summary.study_name.split()[2].rstrip(",")
        for trial in optuna.load_study(study_name=summary.study_name, storage=open_storage(laboratory.folder)).trials:
            assert list(trial.params) == [f"{layer}_{key}" for layer in layers for key in KEYS[name]]
            log = laboratory.folder / "runs" / trial.user_attrs["identity"][:16] / "metrics.jsonl"
            assert log.exists() == (name == "Integer")  # MASE's layers of the other class give no gradient
    logs = list((laboratory.folder / "runs").rglob("*.safetensors"))
    assert not logs  # weights of trials are dropped, their logs stay
    count = len((laboratory.folder / "study.jsonl").read_text().splitlines())
    assert study.run(laboratory) == rows
    assert len((laboratory.folder / "study.jsonl").read_text().splitlines()) == count


def test_training_in_trials_changes_what_they_answer_and_has_points_of_its_own(laboratory):
    pytest.importorskip("optuna")
    shape = {"samplers": ("random",), "trials": 2, "points": 1, "samples": 8, "formats": ("mxint8",)}
    without = MixedPrecision(("Integer",), **shape).run(laboratory)
    trained = MixedPrecision(("Integer",), epochs=2.0, **shape).run(laboratory)
    assert [row["recipe"] for row in without] == [row["recipe"] for row in trained]
    assert [row["accuracy"] for row in without] != [row["accuracy"] for row in trained]


@pytest.mark.slow
def test_searches_and_the_ladder_are_measured_on_the_same_model_once(laboratory, monkeypatch):
    pytest.importorskip("optuna")
    touched = []
    subject, right = laboratory.subject, laboratory.subject.right
    monkeypatch.setattr(subject, "right", lambda model, part: touched.append(part) or right(model, part))
    study = MixedPrecision(("Full", "Integer"), trials=4, points=3, samples=8, formats=("int4:g32", "mxint8"))
    rows = study.run(laboratory)
    counts = {(row["group"], row["sampler"]) for row in rows}
    assert counts == {*((g, s) for g in study.classes for s in study.samplers), ("ladder", "ladder")}
    assert sum(row["group"] == "Full" for row in rows) == 2  # float is one point
    # Searches share what they build; the ladder has its own; test texts are read for what was chosen.
    recipes = {row["recipe"] for row in rows if row["group"] != "ladder"}
    ladder = sum(row["group"] == "ladder" for row in rows)
    assert touched.count("validation") == len(recipes) + ladder + 1 and 0 < ladder <= 3  # and the float model, once
    assert sum(row["test"] is not None for row in rows) == 5
    compared = against_ladder(rows)
    assert len(compared) == 4 and all(row["evaluations"] >= 1 for row in compared)
    count = len(touched)
    assert study.run(laboratory) == rows and len(touched) == count


def test_the_ladder_counts_where_it_is_as_good_in_no_more_bytes():
    def row(group, place, accuracy, nbytes):
        return {"group": group, "sampler": "tpe" if group != "ladder" else group, "builds": place, "accuracy": accuracy,
                "bytes": nbytes, "test": 0.5, "recipe": None}  # fmt: skip

    rows = [row("integer", 1, 0.7, 10), row("integer", 6, 0.8, 9), row("ladder", 1, 0.9, 12), row("ladder", 2, 0.8, 9)]
    (found,) = against_ladder(rows)
    assert (found["evaluations"], found["ladder_evaluations"], found["times_fewer"]) == (6, 2, 3.0)
    (found,) = against_ladder(rows[:-1])
    assert found["ladder_evaluations"] is None and found["times_fewer"] is None


def test_samplers_are_drawn_in_one_panel_and_apart_with_the_same_axes():
    pytest.importorskip("matplotlib")
    rows = [
        {"group": group, "search": sampler, "builds": place, "best_so_far": 0.5 + place / 10}
        for group in ("Integer", "Log") for sampler in ("tpe", "random") for place in range(1, 4)
    ]  # fmt: skip
    drawing = best_so_far_figure(rows, lines="group", panels="search", metric="accuracy", title="t")
    whole, *apart = drawing.axes
    assert len(whole.lines) == 4 and [len(panel.lines) for panel in apart] == [2, 2]
    drawing.canvas.draw()
    assert len({panel.get_ylim() for panel in drawing.axes}) == len({panel.get_xlim() for panel in drawing.axes}) == 1


def test_the_notes_say_what_took_the_nearest():
    rows = [
        {"group": "MinifloatDenorm", "accuracy": 0.5, "bytes": 9, "test": None, "nearest": 3},
        {"group": "ladder", "accuracy": 0.5, "bytes": 9, "test": 0.5, "nearest": 0},
    ]
    assert any(note.startswith("MinifloatDenorm: 3 settings") for note in tables.mixed_notes(rows))
