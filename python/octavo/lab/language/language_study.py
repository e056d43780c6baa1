"""The study of techniques: everything that benches measured, as one table with curves and verdicts in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import DataError
from octavo.lab.language.bench_arms import Budget
from octavo.lab.language.bench_report import BenchReport, Line, told
from octavo.lab.language.bench_verdict import Comparison
from octavo.lab.language.claims import claim_rows
from octavo.lab.language.language_bench import PLAN, RESULTS, lines_of
from octavo.lab.language.language_presets import BASE, PRESETS
from octavo.storage.reading import read_json
from octavo.train.intervals import spread

SCHEMA, VERSION = "octavo.language-study", 1
_WORDS = {
    "better": "Better than the baseline",
    "worse": "Worse than the baseline",
    "even": "Not told from the noise of seeds",
}


def read_benches(paths: Sequence[Path]) -> list[Line]:
    """Return the lines of benches: folders of ``octavo lab bench gpt``, or files of its lines.

    Every line says what it needs to be repeated: ``scale``, ``whole_tokens``, ``validation_tokens`` and ``compile`` are
    taken from the folder's plan where an older line lacks them. Raises DataError for a path without lines.
    """
    found: list[Line] = []
    for path in paths:
        file = path / RESULTS if path.is_dir() else path
        lines = lines_of(file) if file.exists() else []
        if not lines:
            raise DataError(f"{path}: no lines of a bench; accepted are folders of octavo lab bench gpt, or {RESULTS}")
        plan: dict[str, Any] = {}
        if (file.parent / PLAN).exists():
            plan = read_json(file.parent / PLAN, error=DataError)
            plan = {
                "scale": plan["scale"],
                "whole_tokens": plan["tokens"],
                "validation_tokens": plan["validation_tokens"],
                "compile": plan.get("compile", False),
            }
        found += [{**plan, **line} for line in lines]
    return found


def study_table(lines: Sequence[Line], *, title: str = "Techniques of language models") -> dict[str, Any]:
    """Return the study as plain values: ``budgets``, ``arms``, ``claims``, ``curves``, ``fidelity``, ``notes``.

    An arm has one cell a budget: mean loss with its 95 % interval over seeds, the difference from the baseline of the
    same budget with the interval by which it is claimed (99 % and 3 standard errors at least), verdict and sentence;
    what was expected; and the command that repeats it. Bounds on a likelihood stand apart: they compare with no loss.
    ``claims``: every technique of the reports, with arms that were measured or the line that would measure them.
    ``times``: of runs that end at a loss. Raises DataError as :class:`BenchReport`.
    """
    report = BenchReport(lines)
    times, lines = report.times(), [line for line in lines if "time_to_loss" not in line]
    names = list(dict.fromkeys(name for budget in report.budgets for name in report.arms(budget)))
    arms = [_arm(name, report, lines) for name in names]
    usual = [line for line in lines if line["arm"] == BASE] or list(lines)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "title": title,
        "baseline": BASE,
        "facts": _facts(report, lines),
        "notes": report.notes(),
        "budgets": [{"name": budget, "told": told(budget)} for budget in report.budgets],
        "arms": arms,
        "claims": claim_rows(arms, lambda name: command(name, usual)) if usual else [],
        "times": [one.as_dict() for one in times],
        "bounds": [_bound(name, report, lines) for name in names if report.bounds(name)],
        "curves": [{"arm": arm, "points": points} for arm, points in report.curves().items()],
        "fidelity": [{"fact": fact, "state": state} for fact, state in report.facts()],
    }


def _arm(name: str, report: BenchReport, lines: Sequence[Line]) -> dict[str, Any]:
    own = [line for line in lines if line["arm"] == name]
    preset = PRESETS.get(name.partition("@")[0])
    predicted = preset.predicted if preset and name in PRESETS and name != BASE else None
    cells = {budget: _cell(name, budget, report) for budget in report.budgets}
    return {
        "arm": name,
        "told": preset.summary if preset else "",
        "expected": predicted,
        "parameters": next((line["parameters"] for line in own if "parameters" in line), None),
        "tokens_per_s": _median([line["tokens_per_s"] for line in own if "tokens_per_s" in line]),
        "cells": {budget: cell for budget, cell in cells.items() if cell is not None},
        "sentence": _sentence(name, predicted, cells),
        "command": command(name, own),
    }


def _cell(name: str, budget: str, report: BenchReport) -> dict[str, Any] | None:
    losses = report.losses(name, budget)
    if not losses:
        failed = report.failures(name, budget)
        return {"verdict": "failed", "told": failed[0]} if failed else None
    found = spread(losses)
    cell: dict[str, Any] = {"loss": found.mean, "seeds": found.count, "half": found.half}
    if (against := report.against(name, budget)) is not None:
        cell |= {"difference": against.difference, "verdict": against.verdict}
        if against.needed is not None:
            cell |= {"low": against.difference - against.needed, "high": against.difference + against.needed}
        cell["told"] = in_words(against)
    if (reported := report.reported(name, budget)) is not None:
        cell["reported"] = reported
    return cell


def in_words(found: Comparison) -> str:
    """Return a comparison as a sentence."""
    size = f"{abs(found.difference):.4f} nats a token {'below' if found.difference < 0 else 'above'} the baseline"
    if found.verdict == "seeds":
        return f"No claim with fewer than three seeds a side: {size}."
    if found.verdict == "no spread":
        return f"No claim, for seeds change no loss on either side and show no noise: {size}."
    if not found.difference:
        return "The baseline's loss, in every seed."
    assert found.needed is not None
    return f"{_WORDS[found.verdict]}: {size}, claimed from {found.needed:.4f} on."


def _sentence(name: str, predicted: str | None, cells: dict[str, dict[str, Any] | None]) -> str:
    """Return the verdict of an arm over its budgets in words, beside what was expected."""
    if name == BASE:
        return "The baseline."
    parts = []
    for budget, cell in cells.items():
        if cell is not None and "told" in cell:
            parts.append(f"At {told(budget)}: {cell['told'][0].lower()}{cell['told'][1:]}")
    if not parts:
        return "A bound on the likelihood alone: no verdict beside exact losses."
    verdict = next((cell["verdict"] for cell in cells.values() if cell and "verdict" in cell), None)
    if predicted is not None and verdict in _WORDS:
        parts.append("As expected." if verdict == predicted else f"Expected: {predicted}.")
    return " ".join(parts)


def _bound(name: str, report: BenchReport, lines: Sequence[Line]) -> dict[str, Any]:
    found = report.bounds(name)
    preset = PRESETS.get(name.partition("@")[0])
    return {
        "arm": name,
        "told": preset.summary if preset else "",
        "bounds": found,
        "sentence": "An upper bound on the loss, with the error of its estimate; it compares with no exact loss.",
        "command": command(name, [line for line in lines if line["arm"] == name]),
    }


def command(name: str, lines: Sequence[Line]) -> str:
    """Return the command line that repeats the runs of an arm."""
    first = lines[0]
    words = ["octavo", "lab", "bench", "gpt", "--data", str(first.get("data", "DATA"))]
    for option, key in (
        ("--scale", "scale"),
        ("--tokens", "whole_tokens"),
        ("--validation-tokens", "validation_tokens"),
    ):
        if key in first:
            words += [option, str(first[key])]
    if first.get("compile"):
        words.append("--compile")
    budgets = sorted({line["budget"] for line in lines}, key=lambda text: (Budget.parse(text).kind != "tokens", text))
    words += ["--arms", name, "--seeds", str(1 + max(line["seed"] for line in lines)), "--budgets", ",".join(budgets)]
    return shlex.join(words)


def _facts(report: BenchReport, lines: Sequence[Line]) -> list[str]:
    first = next((line for line in lines if "machine" in line), None)
    found = [f"{len(lines)} runs", f"{len({line['arm'] for line in lines})} arms"]
    if lines and "scale" in lines[0]:
        found.append(f"scale {lines[0]['scale']}")
    if first is not None:
        found.append(f"torch {first['torch']}")
    return found


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
