"""Encode, decode and quantize of every format, beside ``copy_`` of the same tensor and beside other libraries.

    python benches/codecs.py [--formats a,b] [--size 4096x4096] [--threads 2] [--rounds 15] [--only encode,decode]
                             [--peers] [--json [FILE]] [--force]

Every round times every contestant once, each directly after a ``torch.Tensor.copy_``. A ratio is the median time of a
contestant over the median time of those copies. Exit status 3: the machine is busy. README.md here says more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness

if TYPE_CHECKING:
    from _peers import Contestant
    from torch import Tensor

OPERATIONS = ("encode", "quantize", "decode")
SLOW_S = 0.1
"""Contestants slower than this take part in the first SLOW_ROUNDS rounds only; noise is small beside them."""
SLOW_ROUNDS = 3


@dataclass(frozen=True)
class Bar:
    """A promise of the core: the ratio to ``copy_`` that every selected contestant keeps to."""

    text: str
    limit: float
    selects: Callable[[Contestant], bool]


def _is_slow(c: Contestant) -> bool:
    custom_bias = c.family == "minifloat" and "b" in c.format
    return c.family in ("log", "denorm") or custom_bias or c.rule == "mse" or c.format.endswith(":mse")


BARS = (
    Bar(
        "encode int8, fixed8, mxint8",
        1.0,
        lambda c: c.operation == "encode" and c.format in ("int8", "fixed8", "mxint8") and c.rule == "floor",
    ),
    Bar(
        "encode mxfp8, mxfp6, mxfp4, packed",
        1.3,
        lambda c: c.operation == "encode" and c.family == "mxfp" and c.rule == "floor",
    ),
    Bar("decode of any mx", 1.0, lambda c: c.operation == "decode" and c.family in ("mxint", "mxfp")),
    Bar(
        "quantize of any format",
        1.5,
        lambda c: c.operation == "quantize" and c.family != "peer" and not _is_slow(c),
    ),
    Bar(
        "quantize: log, denorm, custom bias, mse rule",
        3.0,
        lambda c: c.operation == "quantize" and c.family != "peer" and _is_slow(c),
    ),
)


def contestants(formats: list[str], x: Tensor, out: Tensor) -> list[Contestant]:
    """Operations of octavo into existing buffers; block formats also under the scale rules ceil and mse."""
    import octavo
    from _peers import Contestant

    found = []
    for text in formats:
        format = octavo.Format.parse(text)
        for rule in ("floor", "ceil", "mse") if format.is_block else ("floor",):
            packed = octavo.encode(x, format, scale=rule)
            calls = {
                "encode": lambda f=format, r=rule, p=packed: octavo.encode(x, f, scale=r, out=p),
                "quantize": lambda f=format, r=rule: octavo.quantize(x, f, scale=r, out=out),
                "decode": lambda p=packed: octavo.decode(p, out=out),
            }
            if rule != "floor":
                del calls["decode"]  # a decoder does not see the rule
            row = str(format) if rule == "floor" else f"{format} scale={rule}"
            bits = packed.bits_per_element
            found += [Contestant(row, op, call, bits, format.family, str(format), rule) for op, call in calls.items()]
    return found


def measure(
    entrants: list[Contestant], copy: Callable[[], object], rounds: int, force: bool
) -> tuple[dict[Contestant, tuple[tuple[float, ...], ...]], dict[Contestant, Exception], list[float]]:
    """Time every contestant and the copy before it, round by round.

    Returns ``(seconds, seconds of the copies)`` of each contestant, the contestants that failed with their errors, and
    the load of others during the rounds. Raises BusyMachine.
    """
    failures: dict[Contestant, Exception] = {}
    slow = set()
    for entrant in entrants:
        try:
            entrant.call()  # touches every page and builds what is built once
            if harness.timed(entrant.call) > SLOW_S:
                slow.add(entrant)
        except Exception as error:
            if entrant.family != "peer":
                raise
            failures[entrant] = error
    fit = [entrant for entrant in entrants if entrant not in failures]

    def one_round(index: int) -> dict[Contestant, tuple[float, float]]:
        sample = {}
        for entrant in fit:
            if entrant not in slow or index < SLOW_ROUNDS:
                copied = harness.timed(copy)
                sample[entrant] = harness.timed(entrant.call), copied
        return sample

    samples, loads = harness.quiet_rounds(rounds, force, one_round)
    times = {
        entrant: tuple(zip(*(sample[entrant] for sample in samples if entrant in sample), strict=True))
        for entrant in fit
    }
    return times, failures, loads


def judge(ratios: dict[Contestant, float]) -> list[dict[str, object]]:
    """Hold the ratios against the bars."""
    verdicts = []
    for bar in BARS:
        held = {c.row: round(ratio, 4) for c, ratio in ratios.items() if bar.selects(c)}
        misses = {row: ratio for row, ratio in held.items() if ratio > bar.limit}
        worst = max(held, key=lambda row: held[row], default=None)
        verdicts.append(
            {
                "bar": bar.text,
                "limit": bar.limit,
                "measured": len(held),
                "worst": worst,
                "worst_ratio": held.get(worst),
                "misses": misses,
                "verdict": "not measured" if not held else "miss" if misses else "pass",
            }
        )
    return verdicts


def show(report: dict, ratios: dict[Contestant, float], gbps: dict[Contestant, float], complaints: list[str]) -> None:
    """Print the report: machine, bandwidths, ratios, bars."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)
    machine = report["machine"]
    state = "busy" if machine["busy"] else "quiet"
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, SIMD {machine['simd']}, {report['threads']} threads, octavo "
        f"{machine['octavo']} ({machine['commit']}), torch {report['torch']}\n"
        f"{report['size']} float32, {report['rounds']} rounds, machine {state}: others used up to "
        f"{machine['highest_load_of_others_cores']:.2f} cores\n"
        f"copy_: {report['copy_ms']:.2f} ms, {report['copy_gbps']:.1f} GB/s of float32, so "
        f"{2 * report['copy_gbps']:.1f} GB/s read and written\n"
        "x: time over that of copy_; ! misses a bar. GB/s: float32 side only",
        soft_wrap=True,
    )
    columns = [op for op in OPERATIONS if any(c.operation == op for c in ratios)]
    table = Table()
    table.add_column("format")
    table.add_column("bits", justify="right")
    for op in columns:
        table.add_column(f"{op} x", justify="right")
        table.add_column("GB/s", justify="right")
    cells = {(c.row, c.operation): c for c in ratios}
    last_was_peer = False
    for row, bits, peer in dict.fromkeys((c.row, c.bits, c.family == "peer") for c in ratios):
        if peer and not last_was_peer:
            table.add_section()
        last_was_peer = peer
        texts = []
        for op in columns:
            c = cells.get((row, op))
            missed = c is not None and any(bar.selects(c) and ratios[c] > bar.limit for bar in BARS)
            ratio = "" if c is None else f"{ratios[c]:.2f}{'!' if missed else ' '}"
            texts += [f"[red]{ratio}[/red]" if missed else ratio, "" if c is None else f"{gbps[c]:.2f}"]
        table.add_row(row, f"{bits:.4g}", *texts)
    console.print(table)

    bars = Table("bar", "limit", "worst", "format", "passed", "verdict")
    for verdict in report["bars"]:
        worst = "" if verdict["worst_ratio"] is None else f"{verdict['worst_ratio']:.2f}"
        passed = f"{verdict['measured'] - len(verdict['misses'])} of {verdict['measured']}"
        bars.add_row(
            verdict["bar"], f"{verdict['limit']:.1f}", worst, verdict["worst"] or "", passed, verdict["verdict"]
        )
    console.print(bars)
    for verdict in report["bars"]:
        if verdict["misses"]:
            listed = ", ".join(f"{row} {ratio:.2f}" for row, ratio in verdict["misses"].items())
            console.print(f"misses of '{verdict['bar']}': {listed}", soft_wrap=True)
    if report["size"] != "4096x4096" or report["threads"] != 2:
        console.print("the bars are meant for 4096x4096 and 2 threads")
    for complaint in complaints:
        console.print(complaint, markup=False, soft_wrap=True)
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch and bitsandbytes load their OpenMP
    import octavo
    import torch
    from _peers import one_line, peers
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    x = torch.randn(args.size, generator=torch.Generator().manual_seed(0))
    out = torch.empty_like(x)
    entrants = contestants(args.formats or [str(f) for f in octavo.formats()], x, out)
    complaints: list[str] = []
    if args.peers:
        others, complaints = peers(x, out)
        entrants += others
    entrants = [c for c in entrants if c.operation in args.only]
    if not entrants:
        raise octavo.OctavoError("nothing to measure with these options")

    times, failures, loads = measure(entrants, lambda: out.copy_(x), args.rounds, args.force)
    complaints += [one_line(f"{c.row}, {c.operation},", error) for c, error in failures.items()]
    size_gb = x.numel() * 4 / 1e9
    copy_s = median(second for _, copies in times.values() for second in copies)
    ratios = {c: median(own) / median(copies) for c, (own, copies) in times.items()}
    gbps = {c: size_gb / median(own) for c, (own, _) in times.items()}
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "size": "x".join(str(n) for n in args.size),
        "rounds": args.rounds,
        "copy_ms": round(copy_s * 1e3, 4),
        "copy_gbps": round(size_gb / copy_s, 3),
        "bars": judge(ratios),
        "results": [
            {
                "row": c.row,
                "family": c.family,
                "operation": c.operation,
                "bits_per_element": c.bits,
                "ratio_to_copy": round(ratios[c], 4),
                "gbps": round(gbps[c], 3),
                "median_ms": round(median(own) * 1e3, 4),
                "copy_median_ms": round(median(copies) * 1e3, 4),
                "fastest_ms": round(min(own) * 1e3, 4),
                "rounds": len(own),
            }
            for c, (own, copies) in times.items()
        ],
        "without": complaints,
    }
    show(report, ratios, gbps, complaints)
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time the codecs beside torch.Tensor.copy_ and other libraries.")
    parser.add_argument("--formats", type=lambda text: text.split(","), help="texts of formats; default: all listed")
    parser.add_argument("--size", type=_size, default=(4096, 4096), help="rows x columns, default 4096x4096")
    parser.add_argument("--threads", type=harness.positive, default=2, help="threads of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="timings of each contestant, default 15")
    parser.add_argument("--only", type=_operations, default=OPERATIONS, help="of encode,quantize,decode; default: all")
    parser.add_argument("--peers", action="store_true", help="also torch, torchao, ml_dtypes and bitsandbytes")
    harness.add_common_arguments(parser, "codecs")
    return parser.parse_args()


def _size(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return harness.positive(rows), harness.positive(columns)


def _operations(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    if not set(asked) <= set(OPERATIONS):
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are {', '.join(OPERATIONS)}")
    return tuple(asked)


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
