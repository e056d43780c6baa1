"""Table, notes and picture of the bench of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from octavo.display.console import table
from octavo.display.numbers import size
from octavo.lab.studies.kernel_profile import short_name
from octavo.report.study_plots import Rows, figure, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOLD = {"prompt": "prompt ms", "decode": "a token ms"}
SLACK = 1.1
"""Growth of time over that of bytes from which on a note says so: medians of a few runs differ by as much."""


def phases(rows: Rows) -> list[str]:
    """Return the phases that were measured."""
    return [phase for phase in _TOLD if f"{phase}_s" in rows[0]]


def attention_cost_table(rows: Rows) -> Table:
    """Return a row for each kind and context."""
    made = table("kind", ">context", ">cache")
    for phase in phases(rows):
        rate = (">TFLOP/s",) if phase == "prompt" else (">GB/s", ">of read")
        for name in (f">{_TOLD[phase]}", *rate, ">peak"):
            made.add_column(name.removeprefix(">"), justify="right")
        if f"{phase}_kernel" in rows[0]:
            made.add_column(f"{phase} kernel", overflow="fold")
            made.add_column("share", justify="right")
    for row in rows:
        cells = [row["kind"], f"{row['context']:,}", size(row["cache_bytes"])]
        for phase in phases(rows):
            cells.append(f"{1e3 * row[f'{phase}_s']:.3f}")
            if phase == "prompt":
                cells.append(f"{row['prompt_tflops']:.3f}")
            else:
                cells += [f"{row['decode_gb_s']:.2f}", f"{row['decode_gb_s'] / row['read_gb_s']:.0%}"]
            cells.append(size(row[f"{phase}_peak_bytes"]))
            if f"{phase}_kernel" in row:
                cells += [short_name(row[f"{phase}_kernel"]), f"{row[f'{phase}_kernel_share']:.0%}"]
        made.add_row(*cells)
    return made


def attention_cost_notes(rows: Rows) -> list[str]:
    """Return what the columns mean, and whether a token's time grows as the bytes of the cache do."""
    told = [
        "From given queries to mixed heads, medians over runs; FLOPs of the mathematics, bytes of the cache read once.",
        f"of read: of the {rows[0]['read_gb_s']:.1f} GB/s at which this device reads memory, measured in every run.",
        "cache: of all sequences; peak: most bytes that torch allocated in a call beyond its inputs.",
    ]
    for kind, times, more in growth(rows):
        verdict = "no faster than" if times <= SLACK * more else "faster than"
        told.append(f"{kind}: a token's time grows {times:.1f} times, its cache {more:.1f} times: {verdict} the bytes")
    return told


def growth(rows: Rows) -> list[tuple[str, float, float]]:
    """Return by how much a token's time and the bytes of the cache grow from the shortest to the longest context."""
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows) if "decode" in phases(rows) else ():
        own = [row for row in rows if row["kind"] == kind]
        if len(own) > 1:
            first, last = own[0], own[-1]
            found.append((kind, last["decode_s"] / first["decode_s"], last["cache_bytes"] / first["cache_bytes"]))
    return found


def attention_cost_figure(rows: Rows, *, title: str) -> Figure:
    """Draw time of a prompt, time of a token, and bytes of the cache against the context, axes logarithmic."""
    names = {"prompt_s": "time of a prompt (ms)", "decode_s": "time of a token (ms)", "cache_bytes": "cache (MB)"}
    shown = {name: label for name, label in names.items() if name in rows[0]}
    made, panels = figure(len(shown))
    contexts = sorted({row["context"] for row in rows})
    for panel, (name, label) in zip(panels, shown.items(), strict=True):
        for position, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
            own = [row for row in rows if row["kind"] == kind]
            values = [row[name] * (1e-6 if name == "cache_bytes" else 1e3) for row in own]
            panel.plot([row["context"] for row in own], values, label=kind, **line_style(position))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(contexts, [str(context) for context in contexts])
        panel.set(xlabel="context (positions)", ylabel=label)
        panel.legend(fontsize="small")
    made.suptitle(title)
    return made


def attention_runs_figure(rates: Rows, *, title: str) -> Figure:
    """Draw TFLOP/s and GB/s of every run, a panel for each and for each phase: a colour a kind, a line a context."""
    names = {"tflops": "TFLOP/s", "gb_s": "GB/s"}
    measured = list(dict.fromkeys(rate["phase"] for rate in rates))
    drawing, panels = figure(len(names) * len(measured))
    from matplotlib.ticker import MaxNLocator

    shown = [(phase, name) for phase in measured for name in names]
    contexts = sorted({rate["context"] for rate in rates})
    for panel, (phase, name) in zip(panels, shown, strict=True):
        for position, kind in enumerate(dict.fromkeys(rate["kind"] for rate in rates)):
            for place, context in enumerate(contexts):
                own = [r for r in rates if (r["kind"], r["context"], r["phase"]) == (kind, context, phase)]
                panel.plot(
                    [rate["run"] + 1 for rate in own], [rate[name] for rate in own],
                    label=f"{kind}, {context:,}", alpha=0.4 + 0.6 * (place + 1) / len(contexts),
                    **line_style(position),
                )  # fmt: skip
        panel.set_yscale("log")
        panel.set(xlabel="run", ylabel=names[name], title="a token" if phase == "decode" else phase)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].legend(fontsize="x-small", ncols=2)
    drawing.suptitle(title)
    return drawing
