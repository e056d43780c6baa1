"""Findings, rules and agreements as tables for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo.display.console import table
from octavo.interchange.check.base_rules import Agreement
from octavo.interchange.check.findings import Findings, Rule, all_rules
from octavo.interchange.check.reader_routes import Route

if TYPE_CHECKING:
    from rich.table import Table

ROWS, _WORST = 20, 10


def finding_table(findings: Findings) -> Table:
    """Return a row for each finding, at most ``ROWS`` of a rule; further places of a tensor are counted."""
    rows = table("severity", "rule", "tensor or field", "found", "first place")
    counts: dict[str, int] = {}
    for one in findings:
        counts[one.rule.id] = counts.get(one.rule.id, 0) + 1
        if counts[one.rule.id] > ROWS:
            continue
        place = str(one.places[0]) if one.places else one.file
        more = f" (and {one.count - 1} more)" if one.count > 1 and one.places else ""
        rows.add_row(one.severity, one.rule.id, one.subject, one.text, f"{place}{more}")
    for rule, count in counts.items():
        if count > ROWS:
            rows.add_row("", rule, f"({count - ROWS} more, all with --json)", "", "")
    return rows


def rule_lines(findings: Findings) -> list[str]:
    """Return what the broken rules mean: effect and repair of each, once."""
    broken: dict[str, Rule] = {one.rule.id: one.rule for one in findings}
    return [f"{rule.id}: {rule.defect}. Effect: {rule.effect}. Repair: {rule.repair}." for rule in broken.values()]


def rule_table() -> Table:
    """Return a row for each rule."""
    rows = table("rule", "severity", "what is wrong", "what readers do", "repair")
    for one in all_rules():
        rows.add_row(one.id, one.severity, one.defect, one.effect, one.repair)
    return rows


def agreement_table(agreements: list[Agreement]) -> Table:
    """Return the layers that are farthest from the original."""
    rows = table("layer", "layout", ">bits", ">cosine", ">SQNR dB")
    for one in sorted(agreements, key=lambda one: one.cosine)[:_WORST]:
        sqnr = f"{one.sqnr_db:.2f}" if math.isfinite(one.sqnr_db) else str(one.sqnr_db)
        rows.add_row(one.name, one.layout, f"{one.bits:.3f}", f"{one.cosine:.5f}", sqnr)
    return rows


def route_table(routes: list[Route]) -> Table:
    """Return how a reader treats the layers."""
    rows = table(">layers", "layout", "verdict", "how", "for example")
    for one in routes:
        rows.add_row(str(one.layers), one.layout, one.verdict, one.how, one.example)
    return rows
