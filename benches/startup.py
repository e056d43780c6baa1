"""What using octavo costs before any work: start-up time, wheel size, and the price of a call on a tiny tensor.

    python benches/startup.py [--runs 15] [--wheel FILE] [--json [FILE]] [--force]

Times are medians. Exit status 3: the machine is busy. README.md here says more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import _harness as harness

HELP = "import sys; sys.argv[0] = 'octavo'; from octavo.cli import main; main()"
"""What the console script ``octavo`` runs; it need not be installed."""
STARTS = (
    ("python, nothing imported", ["-c", "pass"], None),
    ("import octavo", ["-c", "import octavo"], 0.15),
    ("octavo --help", ["-c", HELP, "--help"], 0.4),
)
"""Name, arguments of the interpreter, and the bar in seconds; the interpreter's own start is in each of them."""
MOST_WHEEL_MB = 10.0
MOST_OVERHEAD_US = 8.0
"""What an operation may cost above a plain Python function that calls octavo._core."""
ELEMENTS = 64
CALLS = 2000
"""Calls in one timing of an operation."""
FORMAT = "mxint8"


def torch_loaded(arguments: list[str]) -> bool:
    """Whether the interpreter has torch after running with these arguments."""
    told = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    return "torch" in modules


def start_s(arguments: list[str]) -> float:
    """Seconds from starting an interpreter to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def starts(runs: int, force: bool) -> tuple[list[dict], list[float]]:
    """Time every start, interleaved; return rows for the report and the load of others."""
    for _, arguments, _ in STARTS:
        start_s(arguments)  # compiles to __pycache__ and fills the file cache
    samples, loads = harness.quiet_rounds(runs, force, lambda _: [start_s(arguments) for _, arguments, _ in STARTS])
    rows = []
    for (name, arguments, bar), times in zip(STARTS, zip(*samples, strict=True), strict=True):
        loaded = torch_loaded(arguments)
        rows.append(row(name, median(times), bar, "s", extra="torch loaded" if loaded else "", failed=loaded))
    return rows, loads


def row(name: str, value: float, bar: float | None, unit: str, extra: str = "", failed: bool = False) -> dict:
    """Return one line of the report."""
    verdict = "" if bar is None else "miss" if failed or value > bar else "pass"
    return {"what": name, "value": round(value, 4), "unit": unit, "bar": bar, "verdict": verdict, "note": extra}


def calls() -> list[tuple[str, float | None, Callable[[], object], Callable[[], object]]]:
    """Name, bar, public function and its plain counterpart, which allocates the same results and calls the core."""
    import octavo
    import torch
    from octavo import _core
    from octavo.nn import PackedLinear

    format = octavo.Format(FORMAT)
    core = format.core
    x = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    trained = x.clone().requires_grad_()
    packed = octavo.encode(x, format)
    codes, scales = packed.codes, packed.scales

    def plain_quantize() -> torch.Tensor:
        out = torch.empty_like(x)
        _core._quantize(core, 0, x.shape, -1, x.data_ptr(), out.data_ptr(), "floor", None)
        return out

    def plain_encode() -> tuple[torch.Tensor, torch.Tensor]:
        parts = torch.empty(codes.shape, dtype=torch.uint8), torch.empty(scales.shape, dtype=torch.uint8)
        addresses = parts[0].data_ptr(), parts[1].data_ptr(), 0, 0
        _core._encode(core, 0, x.shape, -1, x.data_ptr(), addresses, "floor", "error", None)
        return parts

    def plain_decode() -> torch.Tensor:
        out = torch.empty(x.shape)
        _core._decode(core, 0, x.shape, -1, (codes.data_ptr(), scales.data_ptr(), 0, 0), out.data_ptr())
        return out

    linear = torch.nn.Linear(ELEMENTS, ELEMENTS).requires_grad_(False)
    layer = PackedLinear.from_linear(linear, format)

    return [
        ("quantize", MOST_OVERHEAD_US, lambda: octavo.quantize(x, format), plain_quantize),
        ("encode", MOST_OVERHEAD_US, lambda: octavo.encode(x, format), plain_encode),
        ("decode", MOST_OVERHEAD_US, lambda: octavo.decode(packed), plain_decode),
        ("quantize recording a gradient", None, lambda: octavo.quantize(trained, format), plain_quantize),
        ("PackedLinear of 64 rows above nn.Linear", MOST_OVERHEAD_US, lambda: layer(x), lambda: linear(x)),
    ]


def call_us(call: Callable[[], object]) -> float:
    """Microseconds of one call, from CALLS of them in a row."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e6


def overheads(runs: int, force: bool) -> tuple[list[dict], list[float]]:
    """Time every public function beside its plain counterpart; the overhead is the difference of the medians."""
    pairs = calls()
    for _, _, public, plain in pairs:
        public()
        plain()

    def one_round(_: int) -> list[tuple[float, float]]:
        return [(call_us(public), call_us(plain)) for _, _, public, plain in pairs]

    samples, loads = harness.quiet_rounds(runs, force, one_round)
    rows = []
    for (name, bar, _, _), times in zip(pairs, zip(*samples, strict=True), strict=True):
        public, plain = (median(column) for column in zip(*times, strict=True))
        rows.append(
            row(f"{name}, {ELEMENTS} elements, {FORMAT}", public - plain, bar, "us", f"{public:.2f} - {plain:.2f}")
        )
    return rows, loads


def show(report: dict) -> None:
    """Print the report."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, octavo {machine['octavo']} "
        f"({machine['commit']}), {report['runs']} runs, machine {'busy' if machine['busy'] else 'quiet'}",
        soft_wrap=True,
    )
    table = Table("what", "value", "bar", "verdict", "note")
    for line in report["results"]:
        bar = "" if line["bar"] is None else f"{line['bar']:g} {line['unit']}"
        table.add_row(line["what"], f"{line['value']:.3f} {line['unit']}", bar, line["verdict"], line["note"])
    console.print(table)
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def run(args: argparse.Namespace) -> None:
    """Measure, print, and write the JSON file if asked for. Raises BusyMachine."""
    harness.require_quiet(args.force)
    rows, loads = starts(args.runs, args.force)
    if args.wheel:
        rows.append(row("wheel", args.wheel.stat().st_size / 1e6, MOST_WHEEL_MB, "MB", args.wheel.name))
    more_rows, more_loads = overheads(args.runs, args.force)
    report = {"machine": harness.facts(loads + more_loads), "runs": args.runs, "results": rows + more_rows}
    show(report)
    if args.json:
        harness.write_json(args.json, report)


def main() -> int:
    """Run the bench; the exit status is 3 where the machine is busy."""
    parser = argparse.ArgumentParser(description="Time the start of octavo and its calls on tiny tensors.")
    parser.add_argument("--runs", type=harness.positive, default=15, help="timings of each, default 15")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel whose size is checked")
    harness.add_common_arguments(parser, "startup")
    args = parser.parse_args()
    if args.wheel and not args.wheel.is_file():
        parser.error(f"--wheel {args.wheel}: no such file")
    try:
        run(args)
    except harness.BusyMachine as error:
        print(error, file=sys.stderr)
        return harness.BUSY
    return 0


if __name__ == "__main__":
    sys.exit(main())
