"""Tables and pictures of the studies of speed: ``octavo lab study compile`` and ``octavo lab study attention``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from octavo.display.console import table
from octavo.display.numbers import size
from octavo.lab.studies.kernel_profile import short_name
from octavo.report.study_plots import COLOURS, Rows, figure, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KERNEL_NOTE = "kernel: the one with most time of its own, and its share, by torch's profiler; on a CPU an operator."


def compile_table(rows: Rows) -> Table:
    """Return a row a kind of model."""
    calls, device = call_counts(rows), ["device"] if "device" in rows[0] else []
    made = table(
        *device,
        "model", ">first call s", ">eager ms", ">compiled ms", ">speed-up", ">pays after calls", ">graph breaks",
        ">largest difference",
        *(f">{kind} {count} calls s" for count in calls for kind in ("eager", "compiled")),
    )  # fmt: skip
    for row in rows:
        pays = "never" if row["calls_to_pay"] is None else f"{row['calls_to_pay']:,}"
        made.add_row(
            *(row[name] for name in device),
            row["model"],
            f"{row['cold_s']:.2f}",
            f"{1e3 * row['eager_s']:.3f}",
            f"{1e3 * row['compiled_s']:.3f}",
            f"{row['speed_up']:.2f}",
            pays,
            str(row["graph_breaks"]),
            f"{row['largest_difference']:.1e}",
            *(f"{row[f'{kind}_{count}_calls_s']:.3f}" for count in calls for kind in ("eager", "compiled")),
        )
    return made


def call_counts(rows: Rows) -> list[int]:
    """Return the numbers of calls whose totals were measured."""
    return [int(name.split("_")[1]) for name in rows[0] if name.startswith("eager_") and name.endswith("_calls_s")]


def compile_notes(rows: Rows) -> list[str]:
    """Return what the columns mean, and why graphs broke."""
    totals = ["N calls: their total with the first in, which compiles, measured call by call."]
    return [
        "first call: capture and compilation with empty caches; later calls: medians of rounds that take turns.",
        "pays after: calls whose saved time is that of the first call. Graph breaks: returns to Python inside a call.",
        *(totals if call_counts(rows) else []),
        *(f"{_model(row)}: {row['break_reasons']}" for row in rows if row["break_reasons"]),
    ]


def _model(row: dict[str, Any]) -> str:
    """Return the model of a row, with its device where rows have several."""
    return f"{row['model']}, {row['device']}" if "device" in row else str(row["model"])


def compile_figure(rows: Rows, *, title: str) -> Figure:
    """Draw the first call, and time a call in eager mode and compiled, a group of bars a model; then totals."""
    counts = call_counts(rows)
    made, panels = figure(3 if counts else 2)
    names = [_model(row) for row in rows]
    panels[0].bar(names, [row["cold_s"] for row in rows], 0.5, color=COLOURS[0])
    panels[0].set(xlabel="model", ylabel="first compiled call (s)", title="cold start")
    for position, (key, label) in enumerate((("eager_s", "eager"), ("compiled_s", "compiled"))):
        places = [number + 0.4 * (position - 0.5) for number in range(len(names))]
        panels[1].bar(places, [1e3 * row[key] for row in rows], 0.4, label=label, color=COLOURS[position])
    panels[1].set_xticks(range(len(names)), names)
    panels[1].set(xlabel="model", ylabel="time of a call (ms)", title="steady state")
    panels[1].legend(fontsize="small")
    for position, row in enumerate(rows if counts else ()):
        looks = line_style(position)
        for kind, line, face in (("eager", "--", "white"), ("compiled", "-", looks["color"])):
            totals = [row[f"{kind}_{count}_calls_s"] for count in counts]
            label = f"{_model(row)} {kind}"
            panels[2].plot(counts, totals, label=label, linestyle=line, markerfacecolor=face, **looks)
    if counts:
        panels[2].set(xlabel="calls, the first in", ylabel="total (s)", title="totals", yscale="log")
        panels[2].legend(fontsize="small")
    made.suptitle(title)
    return made


def attention_table(rows: Rows) -> Table:
    """Return a row for each dtype and length; columns of memory where it was measured."""
    measured = any(row["naive_peak_bytes"] is not None for row in rows)
    memory = (">naive peak", ">fused peak") if measured else (">scores",)
    device = ["device"] if "device" in rows[0] else []
    made = table(*device, "dtype", ">tokens", ">naive ms", ">fused ms", ">speed-up", *memory, ">largest difference")
    profiled = "naive_kernel" in rows[0]
    for name in ("naive", "fused") if profiled else ():
        made.add_column(f"{name} kernel", overflow="fold")
        made.add_column("share", justify="right")
    for row in rows:
        held = ("naive_peak_bytes", "sdpa_peak_bytes") if measured else ("score_bytes",)
        made.add_row(
            *(row[name] for name in device),
            row["dtype"],
            f"{row['length']:,}",
            f"{1e3 * row['naive_s']:.3f}",
            f"{1e3 * row['sdpa_s']:.3f}",
            f"{row['speed_up']:.2f}",
            *("" if row[name] is None else size(row[name]) for name in held),
            f"{row['largest_difference']:.1e}",
            *(
                cell
                for name in (("naive", "sdpa") if profiled else ())
                for cell in (short_name(row[f"{name}_kernel"]), f"{row[f'{name}_kernel_share']:.0%}")
            ),
        )
    return made


def attention_notes(rows: Rows) -> list[str]:
    """Return what the columns mean."""
    if all(row["naive_peak_bytes"] is None for row in rows):
        memory = "scores: what naive attention holds of them at once, computed; on a GPU peaks are measured"
    else:
        memory = "peak: most bytes allocated during a call, beyond its inputs"
    notes = ["fused: torch's scaled_dot_product_attention, whose scores never are in memory as a whole.", f"{memory}."]
    return [*notes, *([KERNEL_NOTE] if "naive_kernel" in rows[0] else [])]


def attention_figure(rows: Rows, *, title: str) -> Figure:
    """Draw time against length, both axes logarithmic: dashes for naive attention, lines for the fused one."""
    made, (panel,) = figure()
    groups = dict.fromkeys((row.get("device", ""), row["dtype"]) for row in rows)
    for position, (device, dtype) in enumerate(groups):
        chosen = [row for row in rows if (row.get("device", ""), row["dtype"]) == (device, dtype)]
        looks = line_style(position)
        across = [row["length"] for row in chosen]
        for key, label, line, face in (("naive_s", "naive", "--", "white"), ("sdpa_s", "fused", "-", looks["color"])):
            values = [1e3 * row[key] for row in chosen]
            panel.plot(
                across, values, label=f"{device} {dtype} {label}".strip(), linestyle=line, markerfacecolor=face, **looks
            )
    lengths = sorted({row["length"] for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.set(xlabel="length (tokens)", ylabel="time of a call (ms)", title=title)
    panel.legend(fontsize="small")
    return made
