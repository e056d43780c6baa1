"""The labs' mixed-precision search: settings key by key, float a choice, and the ladder beside it on the same model."""

import random

import pytest
from octavo.errors import SettingError
from octavo.lab.mase import search_spaces
from octavo.lab.mase.search_spaces import FRACTIONS, GROUPS, PRESETS, mixed_space
from octavo.lab.studies.mixed_precision import MixedPrecision, against_ladder, linear_layers, weight_bytes
from octavo.recipe import Recipe
from octavo.tensors.formats import Format

LAYERS = ["encoder.0.attention.query", "pooler"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("group", GROUPS)
def test_every_point_is_a_recipe_of_the_layers_that_are_not_float(preset, group):
    space = mixed_space(preset, group, LAYERS)
    for seed in range(12):
        point = space.draw(random.Random(seed))
        recipe = space.spec(point)["recipe"]
        chosen = [layer for layer in LAYERS if point[layer] != "float"]
        assert (recipe is None) == (not chosen)
        if recipe:
            rules = Recipe.parse(recipe).rules
            assert len(rules) == len(chosen)
            # A binary layer with a residual sign keeps its bias, and its weight where that is not trained.
            needed = {"input"} if group == "binary" else {"weight", "input", "bias"}
            assert all(needed <= set(dict(rule.gives)) <= {"weight", "input", "bias"} for rule in rules)
    if group != "full":
        space.check_axes()


def test_presets_have_the_values_of_the_reports():
    assert search_spaces.keys("lab-a", "minifloat")["minifloat_ieee"] == {
        "width": (8, 16, 32), "exponent_width": (2, 3, 4), "exponent_bias": (3, 7, 15)
    }  # fmt: skip
    assert search_spaces.keys("lab-b", "minifloat")["minifloat_denorm"]["exponent_width"] == (4, 5, 6)
    assert set(search_spaces.keys("lab-b", "log")["log"]["exponent_bias"]) == {13, 15, 17}
    assert search_spaces.keys("lab-a", "block")["block_fp"]["block_size"] == (16, 32)


@pytest.mark.parametrize(
    ("name", "fractions"), [("mase-a", {8: 6, 16: 14, 32: 30, 4: 4}), ("mase-b", {8: 4, 16: 8, 32: 16})]
)
def test_baselines_set_fractions_by_hand(name, fractions):
    assert {width: FRACTIONS[name](width) for width in fractions} == fractions
    space = mixed_space("lab-a", "integer", ["pooler"], name)
    point = {
        "pooler": "integer",
        **{f"pooler integer {role}": f"width=8 frac_width={fractions[8]}" for role in search_spaces.ROLES},
    }
    text = f"fixed8.{fractions[8]}"
    assert space.spec(space.checked(point)) == {"recipe": f"name:pooler weight={text} input={text} bias={text}"}


def test_names_that_are_none_are_refused():
    for given in (("lab-c", "integer"), ("lab-a", "posit")):
        with pytest.raises(SettingError, match="accepted are lab-a, lab-b"):
            mixed_space(*given, LAYERS)
    with pytest.raises(SettingError, match="mase-a, mase-b"):
        mixed_space("lab-a", "integer", LAYERS, "mase-c")


def test_bytes_are_those_of_formats_and_of_what_stays_float(laboratory):
    model = laboratory.subject.model()
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert weight_bytes(model, None) == total
    shape = tuple(model.pooler.weight.shape)
    saved = model.pooler.weight.nbytes - Format("int4:g32").nbytes(shape)
    assert weight_bytes(model, "name:pooler int4:g32") == total - saved


@pytest.mark.slow
def test_searches_and_the_ladder_are_measured_on_the_same_model_once(laboratory, monkeypatch):
    pytest.importorskip("optuna")
    touched = []
    subject, right = laboratory.subject, laboratory.subject.right
    monkeypatch.setattr(subject, "right", lambda model, part: touched.append(part) or right(model, part))
    layers = linear_layers(subject.model())
    spaces = {name: mixed_space("lab-a", name, layers) for name in ("full", "integer")}
    study = MixedPrecision(trials=4, points=3, samples=8, formats=("int4:g32", "mxint8"))
    rows = study.run(laboratory, spaces)
    counts = {(row["group"], row["sampler"]) for row in rows}
    assert counts == {*((g, s) for g in spaces for s in study.samplers), ("ladder", "ladder")}
    assert sum(row["group"] == "full" for row in rows) == 2  # float is one point
    # Searches share what they build; the ladder has its own; test texts are read for what was chosen.
    recipes = {row["recipe"] for row in rows if row["group"] != "ladder"}
    ladder = sum(row["group"] == "ladder" for row in rows)
    assert touched.count("validation") == len(recipes) + ladder and 0 < ladder <= 3
    assert sum(row["test"] is not None for row in rows) == 5
    compared = against_ladder(rows)
    assert len(compared) == 4 and all(row["evaluations"] >= 1 for row in compared)
    count = len(touched)
    assert study.run(laboratory, spaces) == rows
    assert len(touched) - count == ladder


def test_the_ladder_counts_where_it_is_as_good_in_no_more_bytes():
    def row(group, place, accuracy, nbytes):
        return {"group": group, "sampler": "tpe" if group != "ladder" else group, "builds": place, "accuracy": accuracy,
                "bytes": nbytes, "test": 0.5, "recipe": None}  # fmt: skip

    rows = [row("integer", 1, 0.7, 10), row("integer", 6, 0.8, 9), row("ladder", 1, 0.9, 12), row("ladder", 2, 0.8, 9)]
    (found,) = against_ladder(rows)
    assert (found["evaluations"], found["ladder_evaluations"], found["times_fewer"]) == (6, 2, 3.0)
    (found,) = against_ladder(rows[:-1])
    assert found["ladder_evaluations"] is None and found["times_fewer"] is None
