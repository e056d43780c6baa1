"""The report of ``octavo compress``: model and budget, candidates, choice, sizes and accuracies."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table

from octavo import files
from octavo.display.console import table
from octavo.display.numbers import decibels, size
from octavo.folder.companion_files import REPORTS
from octavo.folder.weight_tables import comparison_dict

if TYPE_CHECKING:
    from octavo.folder.pack_checkpoint import Comparison
    from octavo.systems.polynomials.accuracy import Accuracy
    from octavo.systems.sentences.text_encoder import Agreement


class Outcome(Protocol):
    """The effect of packing on the model's task."""

    @property
    def task(self) -> str:
        """Name of the job."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, by the name of what was measured."""
        ...

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for people."""
        ...


@dataclass(frozen=True)
class EmbeddingOutcome:
    """Sentence embeddings before and after."""

    agreement: Agreement
    task: str = "sentence embeddings of built-in sentences, mean pooling; after: the packed model, octavo.load_model"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"agreement": asdict(self.agreement)}

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for people."""
        found = self.agreement
        return [
            ("embedding cosine", f"mean {found.cosine_mean:.5f}, least {found.cosine_min:.5f}"),
            ("nearest neighbour", f"the same for {100 * found.top1:.1f}% of {found.sentences} sentences"),
            ("five nearest", f"{100 * found.top5:.1f}% in common"),
        ]


@dataclass(frozen=True)
class ExpansionOutcome:
    """Polynomials expanded before, by PyTorch, and after, by the native engine; lines a second are of this machine."""

    before: Accuracy
    after: Accuracy
    before_per_s: float
    after_per_s: float
    task: str = "expanding polynomials that do not occur in training; before: PyTorch fp32, after: native engine"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "before": {**self.before.as_dict(), "lines_per_s": self.before_per_s},
            "after": {**self.after.as_dict(), "lines_per_s": self.after_per_s},
        }

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for people."""
        faster = self.after_per_s / self.before_per_s
        return [
            ("exact match", f"{self.before.share:.3%} -> {self.after.share:.3%} of {self.before.lines:,} test lines"),
            ("speed", f"{self.before_per_s:,.0f} -> {self.after_per_s:,.0f} lines/s, {faster:.1f}x faster"),
        ]


@dataclass(frozen=True)
class Candidate:
    """A format that was tried; ``exact``: its share of right answers, where it was run."""

    comparison: Comparison
    exact: float | None = None

    def merit(self) -> tuple[float, float, int]:
        """Return what the best format has most of: right answers, then SQNR, then bytes saved."""
        return (self.exact or 0.0, self.comparison.errors.sqnr_db, -self.comparison.nbytes)


@dataclass(frozen=True)
class CompressReport:
    """One run. It holds no paths but the user's."""

    model: str
    budget: float
    candidates: list[Candidate]
    chosen: Candidate
    file: str
    bytes_before: int
    bytes_after: int
    outcome: Outcome
    versions: dict[str, str]

    @property
    def ratio(self) -> float:
        """Ratio of the sizes of the weights' file, before over after."""
        return self.bytes_before / self.bytes_after

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        formats = ",".join(str(entry.comparison.format) for entry in self.candidates)
        return f"octavo compress --model {self.model} --budget {self.budget:g} --formats {formats}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "command": self.command,
            "model": self.model,
            "task": self.outcome.task,
            "budget_bits": self.budget,
            "candidates": [
                {**comparison_dict(entry.comparison), **({} if entry.exact is None else {"exact": entry.exact})}
                for entry in self.candidates
            ],
            "chosen": str(self.chosen.comparison.format),
            "bits_per_weight": self.chosen.comparison.bits_per_element,
            "file": self.file,
            "file_bytes_before": self.bytes_before,
            "file_bytes": self.bytes_after,
            "ratio": self.ratio,
            **self.outcome.as_dict(),
            "versions": self.versions,
        }

    def results(self) -> list[tuple[str, str]]:
        """Return what people want to know, line by line."""
        best = self.chosen.comparison
        return [
            ("chosen", f"{best.format}, {best.bits_per_element:.4g} bits per weight, scales included"),
            ("size on disk", f"{size(self.bytes_before)} -> {size(self.bytes_after)}, {self.ratio:.2f}x smaller"),
            *self.outcome.results(),
        ]

    def candidate_table(self) -> Table:
        """One row a format: what it costs, what it loses, and whether it fits."""
        rows = table(*self._header())
        for cells in self._candidates():
            rows.add_row(*cells)
        return rows

    def _header(self) -> list[str]:
        run = [">exact match"] if self._were_run else []
        return ["format", ">bits", ">weights", ">SQNR dB", ">max error", ">cosine", *run, ""]

    @property
    def _were_run(self) -> bool:
        return any(entry.exact is not None for entry in self.candidates)

    def _candidates(self) -> list[tuple[str, ...]]:
        rows = []
        for candidate in self.candidates:
            entry = candidate.comparison
            over = "over the budget" if entry.bits_per_element > self.budget else ""
            exact = "" if candidate.exact is None else f"{candidate.exact:.2%}"
            rows.append(
                (
                    str(entry.format),
                    f"{entry.bits_per_element:.4g}",
                    size(entry.nbytes),
                    decibels(entry.errors.sqnr_db),
                    f"{entry.errors.largest:.3g}",
                    f"{entry.errors.cosine:.6f}",
                    *([exact] if self._were_run else []),
                    "chosen" if entry is self.chosen.comparison else over,
                )
            )
        return rows

    def markdown(self) -> str:
        """Return the report for people."""
        merit = "the highest SQNR (signal to quantization noise over all weights)"
        if self._were_run:
            merit = "most right answers on validation lines, then the highest SQNR of the weights,"
        lines = [
            f"# {self.model}, packed to {self.chosen.comparison.format}",
            "",
            f"- budget: {self.budget:g} bits per weight",
            f"- task: {self.outcome.task}, before against after in one run",
            *(f"- {name}: {text}" for name, text in self.results()),
            f"- file: `{self.file}`",
            "",
            f"The format within the budget with {merit} was chosen.",
            "",
            f"| {' | '.join(name.removeprefix('>') for name in self._header())} |",
            f"| {' | '.join('---:' if name.startswith('>') else '---' for name in self._header())} |",
            *(f"| {' | '.join(cells)} |" for cells in self._candidates()),
            "",
            f"Again: `{self.command}`, with {', '.join(f'{name} {text}' for name, text in self.versions.items())}.",
            "",
        ]
        return "\n".join(lines)

    def save(self, folder: Path) -> None:
        """Write ``report.json`` and ``report.md`` into ``folder``."""
        files.write(folder / REPORTS[0], json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")
        files.write(folder / REPORTS[1], self.markdown())
