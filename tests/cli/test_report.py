"""``octavo report``: a page drawn anew, runs compared, and files that are no reports refused."""

import copy
import json

from octavo.report.compression_report import check_report, write_report
from report.samples import compression


def runs(folder):
    """Two folders of runs."""
    first = compression(blocks=1)
    second = copy.deepcopy(first)
    second["metrics"][0]["examples"]["after"][:9] = [0] * 9
    second["layers"][2] |= {"format": "e4m3", "bits": 8.0}
    for name, report in (("small", first), ("smaller", second)):
        (folder / name).mkdir()
        write_report(folder / name, report)
    return folder / "small", folder / "smaller"


def test_a_page_is_drawn_anew_from_the_values(octavo, tmp_path):
    small, _ = runs(tmp_path)
    before = (small / "report.html").read_bytes()
    (small / "report.html").unlink()
    output = octavo("report", small).output
    assert output.startswith("minilm: 7.22 times smaller") and "latency, batch 32" in output and "x 0.139" in output
    assert (small / "report.html").read_bytes() == before
    octavo("report", small / "report.json", "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == before
    assert json.loads(octavo("report", small, "--json").stdout) == check_report(compression(blocks=1))


def test_runs_are_compared(octavo, tmp_path):
    small, smaller = runs(tmp_path)
    output = octavo("report", small, smaller, "--html", tmp_path / "both.html").output
    assert "formats differ in 1 tensors and agree in 8" in output and "points (" in output
    assert "small against smaller" in (tmp_path / "both.html").read_text()
    found = json.loads(octavo("report", small, smaller, "--json").stdout)
    assert found["kind"] == "comparison" and found["rows"][0]["differences"][1]["paired"]


def test_rows_of_two_splits_are_told_apart(octavo, tmp_path):
    small, smaller = runs(tmp_path)
    for place in (small, smaller):
        report = json.loads((place / "report.json").read_text())
        row = report["metrics"][0]
        report["metrics"] = [row | {"split": "test"}, row | {"key": row["key"] + "_validation", "split": "validation"}]
        write_report(place, report)
    for given in ((small,), (small, smaller)):
        output = octavo("report", *given).output
        assert f"{row['label']}, test data" in output and f"{row['label']}, validation data" in output


def test_other_files_are_refused(octavo, tmp_path):
    small, _ = runs(tmp_path)
    old, html = tmp_path / "old.json", tmp_path / "small" / "report.html"
    old.write_text('{"command": "octavo compress", "budget_bits": 6.5}')
    assert "no report of octavo compress, its schema is missing" in octavo("report", old, code=2).output
    assert "a page for people; give report.json" in octavo("report", html, code=2).output
    assert "no such file" in octavo("report", small, tmp_path / "none", code=2).output
    assert "old.json" in octavo("report", small, old, code=2).output
    report = json.loads((small / "report.json").read_text()) | {"version": 9}
    (small / "report.json").write_text(json.dumps(report))
    assert "version 9 of reports; accepted is 1" in octavo("report", small, code=2).output
