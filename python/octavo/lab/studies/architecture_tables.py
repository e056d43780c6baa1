"""Tables of the study of architectures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from octavo.display.console import table

#: What each curve is of, for people.
TOLD = {"none": "no compression", "without": "compressed", "with": "compressed, trained again"}


def sampler_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return the best accuracy of each sampler and curve, and networks until one of the best 5 % of the space."""
    made = table("curve", "sampler", ">searches", ">networks", ">best", ">until the best 5 %")
    for row in summaries:
        made.add_row(
            TOLD[row["curve"]], row["sampler"], str(row["searches"]), str(row["trials"]),
            _share(row["best"], row["best_half_interval_95"]), _builds(row),
        )  # fmt: skip
    return made


def epoch_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return accuracy against epochs."""
    measures = [name for name in ("accuracy", "compressed", "tuned") if any(name in row for row in rows)]
    made = table(">epochs", ">seeds", *(f">{name}" for name in measures))
    for row in rows:
        cells = (_share(row[name], row[f"{name}_half_interval_95"]) if name in row else "" for name in measures)
        made.add_row(f"{row['epochs']:g}", str(row["seeds"]), *cells)
    return made


def search_notes(summaries: Sequence[dict[str, Any]], chosen: dict[str, Any] | None, majority: float) -> list[str]:
    """Return what was chosen and what it gave, and how far differences can be told apart."""
    notes = [f"accuracy on validation texts, of which {majority:.1%} are of one class; ± is the 95 % interval"]
    if any(row["searches"] > 1 for row in summaries):
        notes.append(
            "bands of the picture reach from the least to the largest of the searches with other sampler seeds"
        )
    if any(row["top_value"] is not None for row in summaries):
        notes.append("until the best 5 %: distinct networks, over the seeds of the sampler; a tie with them counts")
    if chosen is not None:
        point = " ".join(f"{name}={choice}" for name, choice in chosen["point"].items())
        test = chosen["test"]
        notes.append(
            f"chosen: {point}: {_share(chosen['validation'], chosen['half_interval_95'])} of validation over "
            f"{chosen['seeds']} seeds, {test['right'] / test['texts']:.2%} of {test['texts']:,} test texts"
        )
        if chosen["sd"] is not None:
            notes.append(
                f"the standard deviation over seeds is {100 * chosen['sd']:.2f} points: smaller differences between "
                "networks are no findings"
            )
        if chosen["inherited"]:
            notes.append(f"{chosen['inherited']:.1%} of its parameters began at the weights of --warm")
    return notes


def _share(mean: float, half: float | None) -> str:
    return f"{mean:.2%}" + ("" if half is None else f" ± {100 * half:.2f}")


def _builds(row: dict[str, Any]) -> str:
    if row["top_value"] is None:
        return ""
    if "builds_to_top" not in row:
        return f"{row['reached']} of {row['searches']} got there"
    half = row["builds_half_interval_95"]
    return f"{row['builds_to_top']:.1f}" + ("" if half is None else f" ± {half:.1f}")


def mixed_table(compared: Sequence[dict[str, Any]]) -> Table:
    """Return each search's best point, and how soon the ladder was as good in no more bytes."""
    made = table("layers", "sampler", ">best", ">test", ">MB", ">evaluations", ">ladder", ">times fewer")
    for row in compared:
        ladder = "" if row["ladder_evaluations"] is None else str(row["ladder_evaluations"])
        made.add_row(
            row["group"], row["sampler"], f"{row['accuracy']:.2%}", f"{row['test']:.2%}", f"{row['bytes'] / 1e6:.3f}",
            str(row["evaluations"]), ladder or "not reached", ladder and f"{row['times_fewer']:.1f}",
        )  # fmt: skip
    return made


def mixed_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the columns mean, the points of the ladder, and how many settings took the nearest format."""
    near = dict.fromkeys(row["group"] for row in rows if row.get("nearest"))
    ladder = [row for row in rows if row["group"] == "ladder"]
    points = ", ".join(f"{row['accuracy']:.2%} in {row['bytes'] / 1e6:.3f} MB" for row in ladder)
    tested = next((row["test"] for row in ladder if row["test"] is not None), None)
    return [
        "best: on validation texts, after so many evaluations; ladder: its evaluations until a point is at least as "
        "good in no more bytes",
        f"ladder: {points}" + ("" if tested is None else f"; its best has {tested:.2%} of test texts"),
        "MB: all parameters, scales included; the ladder's one pass of sensitivities runs no evaluation",
        *(
            f"{name}: {sum(row['nearest'] for row in rows if row['group'] == name):,} settings that were tried have no "
            "format here; the nearest one, with fewer exponent bits or a smaller width, stood for them"
            for name in near
        ),
    ]
