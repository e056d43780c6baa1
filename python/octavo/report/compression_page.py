"""The page of a compression report: one file, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.report.html_page import html_page
from octavo.report.value_texts import verdict_sentence


def compression_page(report: Mapping[str, Any]) -> str:
    """Return the page of a report as :func:`octavo.report.compression_report.check_report` accepts it."""
    facts = {part: value for part, value in report.items() if part not in ("metrics", "costs")}
    for part in ("metrics", "costs"):  # values of single examples are for comparisons of runs, not for the eye
        facts[part] = [{key: it for key, it in row.items() if key != "examples"} for row in report.get(part) or ()]
    title = f"{report['model']['name']}: compression report"
    return html_page("compression_page.html", title, {**facts, "sentence": verdict_sentence(report)})
