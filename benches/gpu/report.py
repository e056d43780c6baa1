"""What a run looks like: verdicts as a table, and time against size as a picture. Nothing here needs a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.display.console import table
from rich.table import Table

from gpu.bars import Figure

RATIOS = ("of_copy", "of_allowance", "over_mase", "of_mm", "over_torch", "over_padded", "over_lin", "of_read", "of_add",
          "of_copy_rate")  # fmt: skip


def verdicts(judged: list[dict[str, Any]]) -> Table:
    """Return a row a bar."""
    made = table("verdict", "bar", ">figures", ">worst", ">stretch", "misses")
    for row in judged:
        worst = "" if row["worst"] is None else f"{row['worst']:.3g}"
        stretch = "" if row["stretch"] is None else f"{row['stretch']:g}{' reached' if row['stretch_reached'] else ''}"
        misses = "; ".join(row["misses"][:3]) + (f"; and {len(row['misses']) - 3} more" if row["misses"][3:] else "")
        made.add_row(row["verdict"], row["bar"], str(row["figures"]), worst, stretch, misses)
    return made


def line(figure: Figure) -> str:
    """Return a figure in a line: its time and its ratios."""
    words = [] if figure.get("correct") else ["WRONG"]
    if figure.get("us") is not None:
        words.append(f"{figure['us']:.2f} us")
    words += [f"{name} {figure[name]:.3f}" for name in RATIOS if figure.get(name) is not None]
    return ", ".join(words)


def draw(figures: list[Figure], title: str, path: Path) -> bool:
    """Draw time of decode against size for CPU and GPU; False where nothing was measured.

    Raises PackageError where matplotlib is not installed.
    """
    from octavo.report.study_plots import figure, line_style

    points = sorted((f for f in figures if f["kernel"] == "latency"), key=lambda f: f["elements"])
    if not points:
        return False
    made, (panel,) = figure()
    for position, (key, name) in enumerate(
        (("cpu_us", "CPU"), ("eager_us", "GPU, called and waited for"), ("us", "GPU, in a graph"))
    ):
        panel.plot([p["elements"] for p in points], [p[key] for p in points], label=name, **line_style(position))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set(xlabel="elements", ylabel="time of a decode (us)", title=f"MXINT8 to bfloat16: {title}")
    panel.legend(fontsize="small")
    made.savefig(path, dpi=150)
    return True
