"""Comparisons of reports: differences are paired where examples are the same, and nothing is compared in silence."""

import copy
import json
import math
import random

import octavo
import pytest
from helpers.browser import browser, open_in_browser, open_in_frame
from octavo.report.compare_reports import compare_reports, comparison_page
from octavo.report.compression_report import check_report
from report.samples import compression, value
from report.test_compression_page import NARROW


@pytest.fixture(scope="module")
def pair():
    """Two runs of one model, tested on the same examples; the second has two layers in other formats."""
    first = check_report(compression(blocks=2))
    second = copy.deepcopy(first)
    draw = random.Random(1)
    row = second["metrics"][0]
    row["examples"]["after"] = [one if draw.random() < 0.97 else 1 - one for one in row["examples"]["after"]]
    second["layers"][4] |= {"format": "mxint8", "bits": 8.25}
    second["layers"][5] |= {"format": "e4m3", "bits": 8.0}
    return [("small", first), ("smaller", check_report(second))]


def test_a_paired_difference_is_that_of_the_examples(pair):
    found = compare_reports(pair)
    (before, after) = (report["metrics"][0]["examples"]["after"] for _, report in pair)
    each = [two - one for one, two in zip(before, after, strict=True)]
    mean = sum(each) / len(each)
    error = math.sqrt(sum((it - mean) ** 2 for it in each) / (len(each) - 1) / len(each))
    nothing, difference = found["rows"][0]["differences"]
    assert nothing is None and difference["paired"] and difference["examples"] == 872
    assert difference["value"] == pytest.approx(mean) and difference["high"] - mean == pytest.approx(1.959964 * error)
    alone = copy.deepcopy(pair)
    alone[1][1]["metrics"][0]["examples"]["id"] = "other"
    apart = compare_reports(alone)["rows"][0]["differences"][1]
    assert not apart["paired"] and apart["high"] - apart["low"] > difference["high"] - difference["low"]
    assert any("not paired" in note and "accuracy" in note for note in compare_reports(alone)["notes"])


def test_a_run_compared_with_itself_differs_in_nothing(pair):
    found = compare_reports([pair[0], pair[0]])
    assert [run["name"] for run in found["runs"]] == ["small (1)", "small (2)"]
    assert found["layers"] == [] and found["equal_layers"] == len(pair[0][1]["layers"])
    assert all(row["differences"][1]["value"] == 0 for row in found["rows"])


def test_layers_that_differ_and_fronts_of_all_runs_are_told(pair):
    found = compare_reports(pair)
    layers = pair[0][1]["layers"]
    assert [row["path"] for row in found["layers"]] == [layers[4]["path"], layers[5]["path"]]
    assert found["layers"][0]["formats"] == [layers[4]["format"], "mxint8"]
    assert found["front"]["runs"] == ["small", "smaller"] and len(found["front"]["points"]) == 48
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_makes_runs_hard_to_compare_is_said(pair):
    other = copy.deepcopy(pair[1][1])
    other["model"] |= {"name": "bert", "parameters": 5}
    other["machine"]["threads"] = 64
    other["metrics"] = [{"key": "perplexity", "label": "perplexity", "unit": "", "better": "lower", "before": value(9.0), "after": value(9.5)}]  # fmt: skip
    del other["front"], other["layers"]
    other["missing"] = {"front": "no search", "layers": "not kept"}
    found = compare_reports([pair[0], ("bert", check_report(other))])
    assert "another model" in found["notes"][0] and "another machine" in found["notes"][1]
    by_name = {row["key"]: row for row in found["rows"]}
    assert by_name["accuracy"]["values"][1] is None and by_name["accuracy"]["differences"] == [None, None]
    assert by_name["perplexity"]["values"][0] is None and found["layers"] is None
    for count in (1, 7):
        with pytest.raises(octavo.DataError, match=f"{count} reports; accepted are 2 to 6"):
            compare_reports([pair[0]] * count)


LOOK = """{
const seen = {}, texts = selector => [...document.querySelectorAll(selector)].map(it => it.textContent);
seen.h1 = texts("h1")[0]; seen.parts = [...document.querySelectorAll(".part")].map(it => it.id); seen.cards = document.querySelectorAll("#runs .card").length;
seen.key = texts("#front .key span"); seen.rows = texts("#layers tbody td:first-child"); seen.flat = document.documentElement.scrollWidth <= innerWidth;
document.body.replaceChildren(JSON.stringify(seen));
}"""


@browser
def test_the_page_of_a_comparison_works_wide_and_narrow(pair, tmp_path):
    page = comparison_page(compare_reports(pair))
    seen, said = open_in_browser(page, tmp_path, LOOK, "--window-size=1280,900")
    assert said == [] and seen["h1"] == "small against smaller" and seen["flat"]
    assert seen["parts"] == ["rows", "front", "layers"] and seen["cards"] == 2
    assert seen["key"] == ["small", "smaller"] and len(seen["rows"]) == 2
    seen, said = open_in_frame(page, tmp_path, NARROW, 360)
    assert said == [] and seen["flat"] and seen["beyond"] == []
