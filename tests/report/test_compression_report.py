"""report.json: whole, plain and checked; what is no report is refused by name; the verdict follows from the values."""

import copy
import json
import math

import octavo
import pytest
from octavo.report.compression_report import PARTS, check_report, read_report, write_report
from octavo.report.value_texts import verdict_sentence
from report.samples import compression, value


@pytest.fixture(scope="module")
def report():
    return compression(blocks=2)


def changed(report, place, new):
    """A copy with another value at a place."""
    made = copy.deepcopy(report)
    *path, last = place
    part = made
    for key in path:
        part = part[key]
    part[last] = new
    return made


def test_what_is_written_is_read_again(report, tmp_path):
    written = write_report(tmp_path, report)
    assert [path.name for path in written] == ["report.json", "report.html"]
    assert read_report(tmp_path) == read_report(written[0]) == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_may_be_missing_with_its_reason_alone(report, part):
    without = {key: it for key, it in report.items() if key != part}
    with pytest.raises(octavo.DataError, match=rf"report\.{part} is missing; give it, or its reason in missing"):
        check_report(without)
    check_report({**without, "missing": {part: "not asked for"}})


@pytest.mark.parametrize(
    ("place", "new", "told"),
    [
        (("schema",), "other", "its schema is 'other'; accepted is 'octavo.report'"),
        (("version",), 2, "version 2 of reports; accepted is 1"),
        (("kind",), "comparison", "kind is 'comparison'; accepted is 'compression'"),
        (("model", "parameters"), True, "model.parameters is True; accepted is a whole number"),
        (("layers", 3, "bits"), "4", r"layers\[3\].bits is '4'; accepted is a number"),
        (("layers", 3, "bits"), math.nan, r"layers\[3\].bits is nan; accepted are finite numbers"),
        (("layers", 3), {}, r"layers\[3\].path is missing; accepted is text"),
        (("metrics", 0, "unit"), "percent", r"metrics\[0\].unit is 'percent'; accepted are 'share'"),
        (("metrics", 0, "better"), "more", r"metrics\[0\].better is 'more'"),
        (("costs", 0, "after"), None, r"costs\[0\].after is missing; give it, or its reason"),
        (("metrics", 0, "examples", "before"), [1], "1 before and 872 after"),
        (("sensitivity", "loss"), [[0.0]], "1 rows; accepted is a row for each of 12 groups"),
        (("sensitivity", "chosen"), ["nf4"], "1 formats; accepted is one for each of 12 groups"),
        (("histograms", 0, "edges"), [0.0, 1.0], "accepted are counts from 0 and one edge more"),
        (("front", "points"), {}, r"front.points is {}; accepted is a list"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_value(report, place, new, told):
    with pytest.raises(octavo.DataError, match=told):
        check_report(changed(report, place, new))


def test_unknown_keys_are_kept(report):
    assert check_report(changed(report, ("model", "licence"), "MIT"))["model"]["licence"] == "MIT"


@pytest.mark.parametrize("content", ["{}", '{"command": "octavo compress", "budget_bits": 6.5}', "[1]", "{", '{"a": NaN}'])  # fmt: skip
def test_files_of_others_are_refused(content, tmp_path):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(octavo.DataError, match=r"report\.json"):
        read_report(tmp_path)
    (tmp_path / "report.html").write_text("<html>")
    with pytest.raises(octavo.DataError, match="a page for people"):
        read_report(tmp_path / "report.html")
    with pytest.raises(FileNotFoundError):
        read_report(tmp_path / "none.json")


def test_a_refused_report_leaves_the_files_as_they_are(report, tmp_path):
    write_report(tmp_path, report)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(octavo.DataError):
        write_report(tmp_path, changed(report, ("layers", 0, "bits"), math.inf))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_verdict_says_bytes_quality_and_speed(report):
    told = "minilm: 7.22 times smaller (90.87 MB to 12.59 MB, 4.43 bits a parameter); accuracy 88.42 % to 88.19 %, −0.23 points (95 % interval −0.81 to +0.35), on 872 sentences of sst2_dev.tsv; 1.81 times faster at batch 1."  # fmt: skip
    assert verdict_sentence(report) == told
    assert verdict_sentence(changed(report, ("verdict", "sentence"), "Small.")) == "Small."


def test_a_missed_goal_and_missing_values_are_said():
    report = json.loads(json.dumps(compression(blocks=1)))
    report["verdict"] |= {"met": False, "reached": 4.61}
    report["metrics"] = [{"key": "agreement", "label": "agreement with the original", "unit": "share", "better": "higher",
                          "after": value(0.983), "missing": "the original agrees with itself"}]  # fmt: skip
    report["costs"] = []
    found = verdict_sentence(check_report(report))
    assert found == "minilm: the goal for average bits of 4.5 bits was missed: 4.61 bits; agreement with the original 98.30 %."  # fmt: skip
    report["metrics"][0] |= {"after": None, "missing": "no data was given"}
    assert "agreement with the original is missing: no data was given" in verdict_sentence(check_report(report))
    bare = {"schema": "octavo.report", "version": 1, "kind": "compression", "model": {"name": "m", "parameters": 1},
            "verdict": {}, "missing": dict.fromkeys(PARTS, "a test")}  # fmt: skip
    assert verdict_sentence(check_report(bare)) == "m: nothing was measured."
