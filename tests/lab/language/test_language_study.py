"""The study of techniques: one page from the lines of benches, every row with its verdict and the line that repeats it."""

import json
import shlex
from dataclasses import replace

import pytest
from helpers.browser import browser, open_in_browser
from lab.language.test_bench import lines
from octavo.errors import DataError
from octavo.lab.language.bench_arms import arm, arms
from octavo.lab.language.bench_report import BenchReport
from octavo.lab.language.claims import CLAIMS, NEXT, SECOND, TRIED
from octavo.lab.language.language_presets import BASE
from octavo.lab.language.language_scales import SCALES
from octavo.lab.language.language_study import read_benches, study_table
from octavo.report.html_page import language_page

BASE_LOSSES = [3.0, 3.002, 2.998]


def example():
    found = {BASE: BASE_LOSSES, "muon": [2.7, 2.702, 2.698], "nce": [3.0005, 3.0, 3.001], "gated_mlp": [2.9]}
    made = lines(found) + lines({BASE: BASE_LOSSES, "muon": [2.8, 2.81, 2.805]}, "time")
    bound = {"nats": 4.5, "error": 0.01, "tokens": 128, "context": 16, "draws": 4, "guard": 0.0, "source_hash": "other"}
    diffusion = {key: value for key, value in made[0].items() if key != "validation"}
    made.append(diffusion | {"arm": "masked_diffusion", "bound": bound, "curve": []})
    return [
        line | {"data": "a book.txt", "scale": "micro", "whole_tokens": 640, "validation_tokens": 128} for line in made
    ]


def test_every_arm_has_both_budgets_its_expectation_and_a_verdict_in_words():
    study = study_table(example())
    arms_found = {row["arm"]: row for row in study["arms"]}
    muon = arms_found["muon"]
    assert muon["expected"] == "better" and muon["cells"]["tokens"]["verdict"] == "better"
    assert muon["cells"]["tokens"]["high"] < 0 and muon["cells"]["time"]["difference"] == pytest.approx(
        -0.195, abs=1e-3
    )
    assert "Better than" not in muon["sentence"] and "better than the baseline: 0.3000 nats" in muon["sentence"]
    assert "at the scale's tokens" in muon["sentence"].lower() and muon["sentence"].endswith("As expected.")
    even = arms_found["nce"]["sentence"]
    assert "not told from the noise" in even and even.endswith("Expected: worse.")
    assert "fewer than three seeds" in arms_found["gated_mlp"]["sentence"]
    assert arms_found[BASE]["sentence"] == "The baseline."


def test_a_bound_stands_apart_from_losses():
    study = study_table(example())
    row = next(row for row in study["arms"] if row["arm"] == "masked_diffusion")
    assert row["cells"] == {} and "no verdict" in row["sentence"]
    assert (
        study["bounds"][0]["bounds"][0]["nats"] == 4.5
        and "compares with no exact loss" in study["bounds"][0]["sentence"]
    )


def test_every_row_has_the_line_that_repeats_it():
    for row in study_table(example())["arms"]:
        words = shlex.split(row["command"])
        assert words[:6] == ["octavo", "lab", "bench", "gpt", "--data", "a book.txt"]
        options = dict(zip(words[4::2], words[5::2], strict=True))
        assert row["arm"] in arms(options["--arms"]) and options["--tokens"] == "640"
        assert options["--seeds"] == ("1" if row["arm"] in ("gated_mlp", "masked_diffusion") else "3")
        assert options["--budgets"] == ("tokens,time" if row["arm"] in (BASE, "muon") else "tokens")


def test_every_technique_of_the_reports_has_a_row_with_its_claim_and_the_line_that_repeats_it():
    study = study_table(example())
    for claim in CLAIMS:
        own = [row for row in study["claims"] if (row["list"], row["technique"]) == (claim.list, claim.technique)]
        assert [row["arm"] for row in own] == [*claim.arms, *([""] if claim.command else [])]
        assert all(row["claimed"] == claim.claimed and row["command"].startswith("octavo lab ") for row in own)
        for name in claim.arms:
            arm(name, replace(SCALES["micro"], end_of_text=0))
    rows = {row["arm"]: row for row in study["claims"]}
    assert rows["nce"]["at_tokens"]["verdict"] == "even" and "Expected: worse" in rows["nce"]["verdict"]
    assert "at_tokens" not in rows["gqa"] and rows["gqa"]["verdict"] == "not measured in these benches"
    assert "--arms gqa --seeds 3 --budgets tokens,time" in rows["gqa"]["command"]
    assert {claim.list for claim in CLAIMS} == {TRIED, NEXT, SECOND}
    for name, count in ((NEXT, 10), (SECOND, 13)):
        assert [int(claim.technique.split(":")[0]) for claim in CLAIMS if claim.list == name] == [*range(1, count + 1)]


def test_runs_that_end_at_a_loss_are_no_rows_of_losses():
    point = {"step": 2, "tokens": 9, "training_s": 1.0, "clock_s": 2.0, "nats": 3.0}
    timed = {"loss": 3.0, "reached": point, "in_a_row": 1, "claim": False, "estimate": None, "silent": None}
    timed |= {"validations": [point], "compares": False}
    plain = example()
    study = study_table([*plain, *(line | {"arm": "modern", "time_to_loss": timed} for line in plain[:1])])
    assert study["arms"] == study_table(plain)["arms"] and study["times"][0]["arms"][0]["tokens"] == 9


def test_the_page_loads_nothing_and_holds_every_row():
    page = language_page(study_table(example()))
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert "@INCLUDE" not in page and all(
        name in page for name in ("muon", "gated_mlp", "masked_diffusion", "octavo lab bench gpt")
    )


def test_benches_are_read_from_folders_and_files(tmp_path):
    (tmp_path / "b").mkdir()
    old = [{key: value for key, value in line.items() if key not in ("scale", "whole_tokens")} for line in example()]
    text = "".join(json.dumps(line) + "\n" for line in old)
    (tmp_path / "b" / "results.jsonl").write_text(text + '{"arm": "cut')
    (tmp_path / "b" / "bench.json").write_text(json.dumps({"scale": "mini", "tokens": 7, "validation_tokens": 8}))
    (tmp_path / "other.jsonl").write_text(text)
    found = read_benches([tmp_path / "b", tmp_path / "other.jsonl"])
    assert len(found) == 2 * len(old) and found[0]["scale"] == "mini" and "scale" not in found[-1]
    assert (tmp_path / "b" / "results.jsonl").read_text().endswith("cut")  # it reads, and mends nothing
    with pytest.raises(DataError, match="no lines of a bench"):
        read_benches([tmp_path / "none"])


def test_what_a_run_reports_with_its_training_targets_stands_beside_its_true_loss():
    made = [
        line | {"reported": {"nats": 2.5, "told": "no likelihood"}} if line["arm"] == "nce" else line
        for line in example()
    ]
    row = next(row for row in study_table(made)["arms"] if row["arm"] == "nce")
    assert row["cells"]["tokens"]["reported"]["nats"] == 2.5 and row["cells"]["tokens"]["loss"] == pytest.approx(
        3.0005, abs=1e-3
    )
    shown = next(row for row in BenchReport(made).rows("tokens") if row[0] == "nce")
    assert shown[3] == "3.0005 (reported 2.5000)"


LOOK = """{
const seen = {}, texts = selector => [...document.querySelectorAll(selector)].map(it => it.textContent);
seen.parts = [...document.querySelectorAll(".part")].map(it => it.id); seen.arms = texts("#table tbody td:first-child");
seen.commands = texts("#table code").length; seen.lines = document.querySelectorAll("#curves polyline").length;
seen.flat = document.documentElement.scrollWidth <= innerWidth;
document.body.replaceChildren(JSON.stringify(seen));
}"""


@browser
def test_the_page_works_in_a_browser(tmp_path):
    seen, said = open_in_browser(language_page(study_table(example())), tmp_path, LOOK, "--window-size=1280,900")
    assert said == [] and seen["flat"] and seen["parts"] == ["table", "claims", "bounds", "curves", "fidelity"]
    assert set(seen["arms"]) == {BASE, "muon", "nce", "gated_mlp", "masked_diffusion"}
    assert seen["commands"] == 5 and seen["lines"] == 4
