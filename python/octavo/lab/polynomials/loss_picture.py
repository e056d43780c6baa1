"""The picture of a training run: loss against updates, and exact match on validation lines beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.report.study_plots import COLOURS, figure, save
from octavo.train.metric_files import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "loss"


def draw_losses(folder: Path) -> list[Path]:
    """Draw the run of a folder as ``loss.png`` and ``loss.svg`` in it, and return their paths.

    Raises PackageError where matplotlib is not installed.
    """
    return save(loss_figure(read_metrics(folder), title=folder.name), folder, NAME)


def loss_figure(lines: Sequence[Mapping[str, Any]], *, title: str) -> Figure:
    """Draw the lines of ``metrics.jsonl``: the mean loss of each window of updates, and exact match where evaluated."""
    training = [line for line in lines if line["kind"] == "train" and line["loss"] is not None]
    evaluations = [line for line in lines if line["kind"] == "evaluation" and "exact" in line["metrics"]]
    drawing, panels = figure(2 if evaluations else 1)
    panels[0].plot([line["step"] for line in training], [line["loss"] for line in training], color=COLOURS[0])
    panels[0].set(xlabel="updates", ylabel="loss (nats a token)", yscale="log", title=title)
    if evaluations:
        shares = [100 * line["metrics"]["exact"] for line in evaluations]
        panels[1].plot([line["step"] for line in evaluations], shares, color=COLOURS[1], marker="s")
        panels[1].set(xlabel="updates", ylabel="exact match of validation lines (%)", ylim=(0, 102))
    return drawing
