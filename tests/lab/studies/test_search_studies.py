"""Studies that choose formats: every cell of a sensitivity is in its table, and the combined study is one table."""

import math

import pytest
from octavo.errors import FormatError, SettingError
from octavo.lab.studies import search_tables
from octavo.lab.studies.combined import Combined
from octavo.lab.studies.format_sensitivity import FormatSensitivity, agreement
from octavo.lab.studies.lora_ranks import Tuning
from octavo.recipe import Recipe

FORMATS = ("int2:g16", "nf4/16", "int8:channel")


def test_a_sensitivity_has_a_row_for_each_group_and_format_and_is_measured_once(laboratory):
    study = FormatSensitivity(FORMATS, samples=8)
    rows = study.run(laboratory)
    groups = list(dict.fromkeys(row["group"] for row in rows))
    assert [(row["group"], row["format"]) for row in rows] == [(group, text) for group in groups for text in FORMATS]
    layers = {path for row in rows for path in row["layers"].split()}
    assert {"embeddings.word", "encoder.0.attention.query", "classifier"} <= layers
    mean = [sum(math.log(row["loss"] + 1e-12) for row in rows if row["format"] == text) for text in FORMATS]
    assert mean[0] > mean[1] > mean[2]
    assert -1 <= agreement(rows) <= 1 and all(row["estimate"] >= 0 for row in rows)
    table = search_tables.sensitivity_table(rows)
    assert table.row_count == len(groups) and len(table.columns) == 2 + len(FORMATS)
    assert "rank correlation" in search_tables.sensitivity_notes(rows)[1]
    alone = FormatSensitivity(FORMATS, samples=8, estimate=False).run(laboratory)
    assert [row["loss"] for row in alone] == [row["loss"] for row in rows] and agreement(alone) is None
    pytest.importorskip("matplotlib")
    from octavo.report.search_plots import sensitivity_figure

    (panel, *_) = sensitivity_figure(rows, title="a title").axes
    assert [label.get_text() for label in panel.get_yticklabels()] == groups


def test_the_combined_study_finds_a_recipe_within_the_budget_and_measures_each_step(laboratory):
    study = Combined(5.5, FORMATS, 0.5, 1, Tuning(epochs=0.5), samples=8, tries=2, baseline="mase")
    rows = study.run(laboratory)
    names = ["fp32", "50% pruned", "quantized", "quantized, 50% pruned", "mase: quantized, 50% pruned"]
    assert [(row["model"], row["tuned"]) for row in rows] == [
        (name, tuned) for name in names for tuned in (False, True)
    ]
    assert rows[0]["bits"] == 32 and rows[0]["difference_points"] == 0
    recipe = rows[4]["recipe"]
    explained = Recipe.parse(recipe).explain(laboratory.subject.model())
    assert rows[4]["bits"] == explained.totals.bits_of_all <= 5.5
    assert search_tables.combined_table(rows).row_count == 5
    assert f"recipe: {recipe}" in search_tables.combined_notes(rows)
    laboratory.measure = lambda point: pytest.fail("measured twice")
    assert study.run(laboratory) == rows
    pytest.importorskip("matplotlib")
    from octavo.report.search_plots import combined_figure

    (panel,) = combined_figure(rows, metric="accuracy", title="a title").axes
    assert [label.get_text() for label in panel.get_yticklabels()] == names


@pytest.mark.parametrize(
    ("study", "given", "error", "told"),
    [
        (FormatSensitivity, {"formats": ()}, SettingError, "0 formats"),
        (FormatSensitivity, {"formats": ("int99",)}, FormatError, "int99"),
        (FormatSensitivity, {"roles": ("bias",)}, SettingError, "unknown role 'bias'"),
        (Combined, {"budget": math.nan}, SettingError, "a budget of nan"),
        (Combined, {"sparsity": 0.0}, SettingError, "sparsity 0"),
        (Combined, {"tries": 0}, SettingError, "one of each"),
        (Combined, {"formats": ("int99",)}, FormatError, "int99"),
    ],
)
def test_a_study_that_cannot_be_is_refused(study, given, error, told):
    with pytest.raises(error, match=told):
        study(**given)
