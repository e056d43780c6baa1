"""The report of a bench, made from its lines alone: differences, verdicts, curves, and whether the scale is sound."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import DataError
from octavo.lab.language.bench_arms import Budget
from octavo.lab.language.bench_times import TIME_HEADER, BudgetTimes, times_of
from octavo.lab.language.bench_verdict import Comparison, compare, reaches
from octavo.lab.language.language_presets import BASE, PRESETS, TUNED
from octavo.storage import files

Line = dict[str, Any]
REPORT_JSON, REPORT_TEXT = "report.json", "report.md"
HEADER = (
    "arm", ">parameters", ">seeds", ">loss", ">sd", f">against {BASE}", ">needed", "verdict", ">against tuned",
    ">tokens/s", "predicted",
)  # fmt: skip

#: What a scale must show before its ranking is believed: arm, its budget, and what of the other at a whole budget.
_FACTS = (
    ("Muon needs 1.3 times fewer tokens than the tuned baseline", "muon", "0.77tokens", TUNED, "better"),
    ("a batch four times too large loses", "large_batch", "tokens", BASE, "worse"),
    ("QK-norm, squared ReLU and zero outputs win", "modern_block", "tokens", BASE, "better"),
    ("noise-contrastive estimation loses", "nce", "tokens", BASE, "worse"),
)


class BenchReport:
    """Lines of one bench, by arm and budget.

    Arms may differ in their context: each of them predicts every token of the same stream once. Raises DataError where
    losses are of other tokens, or of windows that do not say what stream they are of.

    Runs that end at a loss (``--until``) are compared by :meth:`times`, and by no loss.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        """Group the lines."""
        if not lines:
            raise DataError("no run of this bench has ended; there is nothing to report")
        _check_alike([line for line in lines if "validation" in line])
        self._timed = [line for line in lines if "time_to_loss" in line]
        self._lines = [line for line in lines if "time_to_loss" not in line]

    @property
    def budgets(self) -> list[str]:
        """The budgets that were run, in the order of their first line."""
        return list(dict.fromkeys(line["budget"] for line in self._lines))

    def arms(self, budget: str) -> list[str]:
        """The arms that were run on a budget, from the lowest mean loss on; failed ones last."""
        names = dict.fromkeys(line["arm"] for line in self._lines if line["budget"] == budget)
        return sorted(names, key=lambda name: _mean(self.losses(name, budget)))

    def times(self) -> list[BudgetTimes]:
        """Tokens and seconds of the runs that end at a loss, by budget."""
        return times_of(self._timed)

    def bounds(self, arm: str) -> list[dict[str, Any]]:
        """Bounds on the loss of an arm that has no exact one, of every seed, with budget; none for the others."""
        own = [line for line in self._lines if line["arm"] == arm and "bound" in line]
        return [{"budget": line["budget"], "seed": line["seed"], **line["bound"]} for line in own]

    def reported(self, arm: str, budget: str) -> dict[str, Any] | None:
        """What runs of an arm report that validate with their training targets, the mean and why it is no loss."""
        found = [line["reported"] for line in self._of(arm, budget) if "reported" in line]
        return {"nats": _mean([one["nats"] for one in found]), "told": found[0]["told"]} if found else None

    def sliding(self, arm: str, budget: str) -> str:
        """Return the mean loss of a sliding window and its difference from the exact one, as a text; "" for none."""
        records = [line["sliding_window"] for line in self._of(arm, budget) if "sliding_window" in line]
        if not records:
            return ""
        nats, apart = _mean([one["nats"] for one in records]), _mean([one["difference"] for one in records])
        return f" (sliding window {nats:.4f}, {apart:+.4f})"

    def failures(self, arm: str, budget: str) -> list[str]:
        """Why runs of an arm failed."""
        return [line["failed"] for line in self._of(arm, budget) if "failed" in line]

    def losses(self, arm: str, budget: str) -> list[float]:
        """The losses of an arm over seeds, nats a token."""
        return [line["validation"]["nats"] for line in self._of(arm, budget) if "validation" in line]

    def against(self, arm: str, budget: str, other: str = BASE) -> Comparison | None:
        """Compare an arm with another on the same budget; one of tokens where the other has none of this budget."""
        there = self.losses(other, budget) or self.losses(other, "tokens")
        here = self.losses(arm, budget)
        return compare(here, there) if here and there and (arm != other) else None

    def facts(self) -> list[tuple[str, str]]:
        """Return the statements that make a scale sound, each ``holds``, ``fails`` or ``not measured``."""
        found = []
        for told, arm, budget, other, wanted in _FACTS:
            here, there = self.losses(arm, budget), self.losses(other, "tokens")
            if not here or not there:
                found.append((told, "not measured"))
                continue
            verdict = (reaches if wanted == "better" and budget != "tokens" else compare)(here, there).verdict
            found.append(
                (
                    told,
                    {wanted: "holds", "seeds": "too few seeds", "no spread": "no spread over seeds"}.get(
                        verdict, "fails"
                    ),
                )
            )
        return found

    def rows(self, budget: str) -> list[tuple[str, ...]]:
        """Return the cells of a budget's table."""
        return [self._row(arm, budget) for arm in self.arms(budget)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "budgets": {budget: [self._facts_of(arm, budget) for arm in self.arms(budget)] for budget in self.budgets},
            "fidelity": dict(self.facts()),
            "curves": self.curves(),
            **({"times": [one.as_dict() for one in self.times()]} if self._timed else {}),
        }

    def curves(self) -> dict[str, list[list[float]]]:
        """Return tokens and loss of every arm at a whole budget of tokens, of its first seed."""
        found = {}
        for arm in self.arms("tokens") if "tokens" in self.budgets else ():
            first = next((line for line in self._of(arm, "tokens") if line.get("curve")), None)
            if first is not None:
                found[arm] = first["curve"]
        return found

    def markdown(self) -> str:
        """Return the report for people."""
        parts = ["# Bench of language models", "", *(f"- {note}" for note in self.notes()), ""]
        for budget in self.budgets:
            parts += [f"## Budget: {told(budget)}", "", *markdown_table(HEADER, self.rows(budget)), ""]
        for times in self.times():
            parts += [
                f"## T{times.title[1:]}: {told(times.budget)}",
                "",
                *markdown_table(TIME_HEADER, times.rows()),
                "",
            ]
        parts += ["## Is the scale sound", "", *(f"- {text}: {state}" for text, state in self.facts()), ""]
        return "\n".join(parts)

    def notes(self) -> list[str]:
        """Return how to read the tables."""
        first = next((line for line in (*self._lines, *self._timed) if "validation" in line), None)
        if first is None:
            return ["every run failed"]
        loss, machine = first["validation"], first["machine"]
        told = [machine["gpu"]] if machine.get("gpu") else []
        told += [machine["machine"], *([f"{machine['threads']} threads"] if "threads" in machine else [])]
        return [
            f"validation: {loss['tokens']:,} tokens at context {loss['context']}, nats a token, by exact_nll",
            "against: mean less the other's mean; below 0 is better",
            "needed: 3 standard errors, or the difference that chance passes once in a hundred where seeds are few",
            "verdict 'seeds': a side has fewer than 3; 'no spread': seeds change no loss, so no noise is known",
            *self._contexts(),
            *self._sliding_note(),
            f"machine: {', '.join(told)}, torch {first['torch']}; training seconds without validation",
            "early leads decay: a short budget flatters optimizers and small batches",
        ]

    def _contexts(self) -> list[str]:
        """Return a note where arms differ in their context."""
        arms: dict[int, list[str]] = {}
        for line in self._lines + self._timed:
            if "validation" in line:
                arms.setdefault(line["validation"]["context"], []).append(line["arm"])
        if len(arms) < 2:
            return []
        listed = "; ".join(f"{context:,}: {', '.join(dict.fromkeys(names))}" for context, names in sorted(arms.items()))
        return [f"contexts, each of which predicts every token of the same stream once: {listed}"]

    def _sliding_note(self) -> list[str]:
        if not any("sliding_window" in line for line in self._lines):
            return []
        return [
            "sliding window: keys and values are kept from stride to stride and carry what has left the window; its "
            "loss is none of windows computed anew, is compared with none, and stands beside with the difference"
        ]

    def save(self, folder: Path) -> list[Path]:
        """Write ``report.json`` and ``report.md``."""
        files.write(folder / REPORT_JSON, json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n")
        files.write(folder / REPORT_TEXT, self.markdown())
        return [folder / REPORT_JSON, folder / REPORT_TEXT]

    def _of(self, arm: str, budget: str) -> list[Line]:
        return [line for line in self._lines if line["arm"] == arm and line["budget"] == budget]

    def _facts_of(self, arm: str, budget: str) -> dict[str, Any]:
        losses, lines = self.losses(arm, budget), self._of(arm, budget)
        base, tuned = self.against(arm, budget), self.against(arm, budget, TUNED)
        preset = PRESETS.get(arm.partition("@")[0])
        return {
            "arm": arm,
            "losses": losses,
            "failed": self.failures(arm, budget),
            "bounds": [one for one in self.bounds(arm) if one["budget"] == budget],
            "parameters": next((line["parameters"] for line in lines if "parameters" in line), None),
            "tokens_per_s": [line["tokens_per_s"] for line in lines if "tokens_per_s" in line],
            "against": {BASE: base and vars(base), TUNED: tuned and vars(tuned)},
            "predicted": preset and preset.predicted,
        }

    def _row(self, arm: str, budget: str) -> tuple[str, ...]:
        found = self._facts_of(arm, budget)
        losses, base, tuned = found["losses"], self.against(arm, budget), self.against(arm, budget, TUNED)
        speeds, reported = found["tokens_per_s"], self.reported(arm, budget)
        if found["bounds"]:
            lowest = min(one["nats"] for one in found["bounds"])
            count, size = str(len(found["bounds"])), f"{found['parameters']:,}"
            return (arm, size, count, f"at most {lowest:.4f}", "", "", "", "bound", "", "", found["predicted"] or "")
        if not losses:
            return (arm, "", "0", "failed", "", "", "", "", "", "", found["predicted"] or "")
        return (
            arm,
            f"{found['parameters']:,}",
            str(len(losses)),
            f"{_mean(losses):.4f}"
            + self.sliding(arm, budget)
            + ("" if reported is None else f" (reported {reported['nats']:.4f})"),
            "" if len(losses) < 2 else f"{_sd(losses):.4f}",
            "" if base is None else f"{base.difference:+.4f}",
            "" if base is None or base.needed is None else f"{base.needed:.4f}",
            "" if base is None else base.verdict,
            "" if tuned is None else f"{tuned.difference:+.4f}",
            f"{sorted(speeds)[len(speeds) // 2]:,.0f}",
            found["predicted"] or "",
        )


def _check_alike(lines: Sequence[Line]) -> None:
    """Refuse losses that do not compare: of one window on other tokens, or of several windows on unknown streams."""
    sources: dict[tuple[int, int], set[str]] = {}
    for line in lines:
        loss = line["validation"]
        sources.setdefault((loss["context"], loss["stride"]), set()).add(loss["source_hash"])
    count = sum(map(len, sources.values()))
    streams = {line.get("stream_sha256") for line in lines}
    if count > len(sources) or (len(sources) > 1 and (len(streams) > 1 or None in streams)):
        raise DataError(f"losses on {count} different validations do not compare; name one bench's folder")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; columns whose header begins with ``>`` are aligned to the right."""
    lines = [f"| {' | '.join(name.removeprefix('>') for name in header)} |"]
    lines += [f"| {' | '.join('---:' if name.startswith('>') else '---' for name in header)} |"]
    return lines + [f"| {' | '.join(cells)} |" for cells in rows]


def told(budget: str) -> str:
    """Return a budget in words."""
    found = Budget.parse(budget)
    if found.kind == "hours":
        return f"{found.share:g} hours of training"
    whole = "the scale's tokens" if found.kind == "tokens" else f"the seconds of {BASE}"
    return whole if found.share == 1 else f"{found.share:g} of {whole}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.inf


def _sd(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
