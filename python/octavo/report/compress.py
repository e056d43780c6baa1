"""The report of ``octavo compress``: what was asked, what was tried, what was chosen, and what it changed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from octavo.report.console import table
from octavo.report.weights import comparison_dict, decibels, size

if TYPE_CHECKING:
    from octavo.models.minilm import Agreement
    from octavo.quant.weights import Comparison

TASK = "sentence embeddings: mean pooling, fp32 arithmetic"


@dataclass(frozen=True)
class CompressReport:
    """One run. It holds no times and no paths but the user's, so that the same run gives the same report."""

    model: str
    budget: float
    compared: list[Comparison]
    chosen: Comparison
    file: str
    bytes_before: int
    bytes_after: int
    agreement: Agreement
    versions: dict[str, str]

    @property
    def ratio(self) -> float:
        """How many times smaller the weights' file is."""
        return self.bytes_before / self.bytes_after

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        formats = ",".join(str(entry.format) for entry in self.compared)
        return f"octavo compress {self.model} --budget {self.budget:g} --formats {formats}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "command": self.command,
            "model": self.model,
            "task": TASK,
            "budget_bits": self.budget,
            "candidates": [comparison_dict(entry) for entry in self.compared],
            "chosen": str(self.chosen.format),
            "bits_per_weight": self.chosen.bits_per_element,
            "file": self.file,
            "file_bytes_before": self.bytes_before,
            "file_bytes": self.bytes_after,
            "ratio": self.ratio,
            "agreement": asdict(self.agreement),
            "versions": self.versions,
        }

    def results(self) -> list[tuple[str, str]]:
        """Return what people want to know, line by line."""
        found = self.agreement
        return [
            ("chosen", f"{self.chosen.format}, {self.chosen.bits_per_element:.4g} bits per weight, scales included"),
            ("size on disk", f"{size(self.bytes_before)} -> {size(self.bytes_after)}, {self.ratio:.2f}x smaller"),
            ("embedding cosine", f"mean {found.cosine_mean:.5f}, least {found.cosine_min:.5f}"),
            ("nearest neighbour", f"the same for {100 * found.top1:.1f}% of {found.sentences} sentences"),
            ("five nearest", f"{100 * found.top5:.1f}% in common"),
        ]

    def candidate_table(self) -> Table:
        """One row a format: what it costs, what it loses, and whether it fits."""
        rows = table("format", ">bits", ">weights", ">SQNR dB", ">max error", ">cosine", "")
        for cells in self._candidates():
            rows.add_row(*cells)
        return rows

    def _candidates(self) -> list[tuple[str, ...]]:
        rows = []
        for entry in self.compared:
            over = "over the budget" if entry.bits_per_element > self.budget else ""
            rows.append(
                (
                    str(entry.format),
                    f"{entry.bits_per_element:.4g}",
                    size(entry.nbytes),
                    decibels(entry.errors.sqnr_db),
                    f"{entry.errors.largest:.3g}",
                    f"{entry.errors.cosine:.6f}",
                    "chosen" if entry is self.chosen else over,
                )
            )
        return rows

    def markdown(self) -> str:
        """Return the report for people."""
        lines = [
            f"# {self.model}, packed to {self.chosen.format}",
            "",
            f"- budget: {self.budget:g} bits per weight",
            f"- task: {TASK}, before against after on {self.agreement.sentences} built-in sentences, in one run",
            *(f"- {name}: {text}" for name, text in self.results()),
            f"- file: `{self.file}`",
            "",
            "The format of highest SQNR (signal to quantisation noise over all weights) within the budget was chosen.",
            "",
            "| format | bits | weights | SQNR dB | max error | cosine | |",
            "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
            *(f"| {' | '.join(cells)} |" for cells in self._candidates()),
            "",
            f"Again: `{self.command}`, with {', '.join(f'{name} {text}' for name, text in self.versions.items())}.",
            "",
        ]
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write ``report.json`` and ``report.md`` into ``folder``."""
        (folder / "report.json").write_text(json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")
        (folder / "report.md").write_text(self.markdown())
