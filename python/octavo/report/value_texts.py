"""Values of a report as people read them: with unit and interval, as a change, and the verdict in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.display.numbers import size

_MINUS = "\N{MINUS SIGN}"


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit: ``88.42 %``, ``11.30 MB``, ``1.83 ms``."""
    if unit == "share":
        return f"{100 * value:.2f} %".replace("-", _MINUS)
    if unit == "B":
        return size(round(value))
    if unit == "s":
        scale, name = (1, "s") if abs(value) >= 1 else (1e3, "ms") if abs(value) >= 1e-3 else (1e6, "us")
        return f"{value * scale:.3g} {name}"
    text = f"{value:.4g}".replace("-", _MINUS)
    return f"{text} {unit}" if unit else text


def difference_text(difference: Mapping[str, Any], unit: str) -> str:
    """Return a difference with its sign and interval: ``-0.23 points (95 % interval -0.60 to +0.14)``."""
    scale, name = (100.0, " points") if unit == "share" else (1.0, f" {unit}" if unit else "")

    def signed(value: float) -> str:
        return (f"{scale * value:+.2f}" if unit == "share" else f"{value:+.3g}").replace("-", _MINUS)

    text = f"{signed(difference['value'])}{name}"
    if difference.get("low") is None or difference.get("high") is None:
        return text
    return f"{text} (95 % interval {signed(difference['low'])} to {signed(difference['high'])})"


def row_difference(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return after minus before of a row: its own, with an interval, or that of the two values; None without both."""
    if row.get("difference"):
        return dict(row["difference"])
    if row.get("before") and row.get("after"):
        return {"value": row["after"]["value"] - row["before"]["value"]}
    return None


def prediction_line(prediction: Mapping[str, Any]) -> str:
    """Return the predicted and the measured loss of the chosen model, and how well the prediction orders points."""
    parts, unit = [], prediction["unit"]
    if (chosen := prediction.get("chosen")) is not None:
        values = (f"{name} {value_text(chosen[name], unit)}" for name in ("predicted", "measured"))
        parts.append(", ".join(values))
    if prediction.get("rank_correlation") is not None:
        count = len(prediction["pairs"])
        parts.append(f"rank correlation {prediction['rank_correlation']:.2f} over {count} points")
    return f"{prediction['label']:30} {'; '.join(parts) or 'no point of the front was chosen'}"


def verdict_sentence(report: Mapping[str, Any]) -> str:
    """Return what came of a compression in one sentence: the goal if it was missed, bytes, the main metric, speed."""
    verdict = report["verdict"]
    if verdict.get("sentence"):
        return str(verdict["sentence"])
    costs = {row["key"]: row for row in report.get("costs") or () if row.get("after")}
    parts = [_size_part(costs)]
    if report.get("metrics"):
        parts.append(_metric_part(report["metrics"][0], report.get("data") or ()))
    parts.append(_speed_part(costs))
    gains = "; ".join(part for part in parts if part) or "nothing was measured"
    missed = ""
    if verdict.get("met") is False:
        wanted = (
            "" if verdict.get("limit") is None else f" of {value_text(verdict['limit'], verdict.get('unit') or '')}"
        )
        reached = (
            "" if verdict.get("reached") is None else f": {value_text(verdict['reached'], verdict.get('unit') or '')}"
        )
        missed = f"the goal for {verdict.get('goal') or 'size'}{wanted} was missed{reached}; "
    return f"{report['model']['name']}: {missed}{gains}."


def summary_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what a report says first: the verdict, every value before and after, and how well it was predicted."""
    lines = [verdict_sentence(report)]
    for row in (*report["metrics"], *report["costs"]):
        if "after" in row:
            split = f" ({row['split']})" if "split" in row else ""
            before, after = (_plain_value(row[key]["value"], row["unit"]) for key in ("before", "after"))
            lines.append(f"{row['label']:30} {before} -> {after}{split}")
        for label, value in (row.get("others") or {}).items():
            lines.append(f"  {label:28} {_plain_value(value['value'], row['unit'])}")
    if prediction := report.get("prediction"):
        lines.append(prediction_line(prediction))
    return lines


def _plain_value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.2%}"
    if unit == "B":
        return size(int(value))
    return f"{1000 * value:.2f} ms" if unit == "s" else f"{value:,.4g}"


def _size_part(costs: Mapping[str, Mapping[str, Any]]) -> str:
    row = costs.get("file_bytes")
    bits = costs.get("bits_all") or costs.get("bits_quantized")
    average = f"{bits['after']['value']:.3g} bits a parameter" if bits else ""
    if not row:
        return average
    after = row["after"]["value"]
    if not row.get("before") or not after:
        return ", ".join(part for part in (value_text(after, "B"), average) if part)
    before = row["before"]["value"]
    inside = ", ".join(part for part in (f"{value_text(before, 'B')} to {value_text(after, 'B')}", average) if part)
    return f"{_times(before / after, 'smaller', 'larger')} ({inside})"


def _metric_part(row: Mapping[str, Any], data: Sequence[Mapping[str, Any]]) -> str:
    if not row.get("after"):
        return f"{row['label']} is missing: {row['missing']}"
    after = value_text(row["after"]["value"], row["unit"])
    difference = row_difference(row)
    if difference is None or not row.get("before"):
        return f"{row['label']} {after}{_basis(row, data)}"
    return (
        f"{row['label']} {value_text(row['before']['value'], row['unit'])} to {after}, "
        f"{difference_text(difference, row['unit'])}{_basis(row, data)}"
    )


def _basis(row: Mapping[str, Any], data: Sequence[Mapping[str, Any]]) -> str:
    """Return on what a metric was measured, such as ``, on 16 built-in sentences``; empty where it is not told."""
    split = next((it for it in data if it["split"] == row.get("split")), None)
    count = (split or {}).get("count") or row["after"].get("count")
    if not count:
        return ""
    source = str(split["source"]).removeprefix("other ") if split else "example" if count == 1 else "examples"
    return f", on {count:,} {source}"


def _speed_part(costs: Mapping[str, Mapping[str, Any]]) -> str:
    row = costs.get("latency_1")
    if not row or not row.get("before") or not row["after"]["value"]:
        return ""
    return f"{_times(row['before']['value'] / row['after']['value'], 'faster', 'slower')} at batch 1"


def _times(ratio: float, more: str, less: str) -> str:
    if 0.99 < ratio < 1.01:
        return f"not {more}"
    return f"{ratio:.3g} times {more}" if ratio > 1 else f"{1 / ratio:.3g} times {less}" if ratio else f"not {more}"
