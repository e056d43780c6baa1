"""Test examples whose answer a compression changed, for the report."""

from __future__ import annotations

from typing import Any

from torch import nn

from octavo.compress.compression_job import Examples
from octavo.train.measurement import Measurement

#: Examples that a report shows.
SHOWN = 10
_LONGEST = 300  # characters of a text that are shown


def changed_examples(
    examples: Examples, original: nn.Module, compressed: nn.Module, before: Measurement, after: Measurement
) -> dict[str, Any] | None:
    """Return how many examples changed, and up to ten of them with both answers, those that lost most first.

    ``before``, ``after``: what both models reached on ``examples``, one value an example. None where nothing changed,
    or where values are not of examples, such as those of tokens.
    """
    if not len(before.values) == len(after.values) == len(examples.texts):
        return None
    sign = 1 if after.goal == "max" else -1
    gains = [sign * (new - old) for old, new in zip(before.values, after.values, strict=True)]
    places = sorted((place for place, gain in enumerate(gains) if gain), key=lambda place: (gains[place], place))
    if not places:
        return None
    shown = places[:SHOWN]
    if examples.answers is not None:
        answers = [list(examples.answers(model, shown)) for model in (original, compressed)]
    else:
        answers = [[f"{it.metric} {it.values[place]:.4g}" for place in shown] for it in (before, after)]
    rows = []
    for number, place in enumerate(shown):
        row = {"text": examples.texts[place], "before": answers[0][number], "after": answers[1][number]}
        if examples.expected is not None:
            row["expected"] = examples.expected[place]
        rows.append({key: _short(text) for key, text in row.items()})
    worse = sum(gain < 0 for gain in gains)
    return {"count": len(gains), "worse": worse, "better": len(places) - worse, "rows": rows}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
