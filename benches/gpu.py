"""Kernels on a GPU against the bandwidth and products of the same run; every kernel is checked before it is timed.

    python benches/gpu.py [--json FILE] [--only yardsticks,decode,...] [--model FOLDER]

Yardsticks come first: COPY, READ, MM (torch._int_mm) and LIN (torch's bfloat16 linear). Times are medians of 50 replays
of a CUDA graph whose calls walk through more memory than the second cache holds. README.md says more.
Exit status 0: measured, whatever the verdicts; 1: a kernel gave wrong results or failed; 3: there is no GPU to use.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _harness as harness
from gpu import bars, report

NO_GPU = 3
GROUPS = ("yardsticks", "capture", "decode", "int8", "linear", "seq2seq", "memory")
"""In the order in which they run."""
HELD = {"yardsticks", "decode", "linear", "seq2seq"}
"""Groups whose ratios need the yardsticks; the others bring their own."""

Work = Iterator[Callable[[], Any]]


def missing() -> str | None:
    """Say what is missing for a run; None where nothing is."""
    import torch
    from octavo.cuda import device as cuda

    if not torch.cuda.is_available():
        return "torch finds no GPU here"
    if not cuda.is_available():
        return "; ".join(f"{part}: {why}" for part, why in cuda.info().missing.items()) or "no device and compiler"
    return None


def machine() -> dict[str, Any]:
    """Return device, driver and versions beside the facts of the host."""
    from dataclasses import asdict

    import torch
    from octavo.cuda import device as cuda

    found = asdict(cuda.info())
    if found["compiler"]:
        found["compiler"]["path"] = Path(found["compiler"]["path"]).name
    found.pop("cache")
    return {**harness.facts([harness.Load().stop()]), "torch": torch.__version__, "cuda": torch.version.cuda, **found}


def yardsticks() -> dict[str, Any]:
    """Measure what all else is held against, and tables of torch's own products."""
    import torch
    from gpu import timing

    four = torch.ones(4, device="cuda")
    sides = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    bf16 = timing.microseconds([lambda: sides[0] @ sides[1], lambda: sides[1] @ sides[2]])
    squares = {str(side): timing.int_mm(side, side, side) for side in (1024, 2048, 4096, 8192)}
    return {
        "copy_bytes_per_s": timing.copy_rate(),
        "read_bytes_per_s": timing.read_rate(),
        "bf16_tflops": 2e-6 * 8192**3 / bf16,
        "int_mm_us": squares | {f"{m}x4096x4096": timing.int_mm(m, 4096, 4096) for m in (1, 8, 16, 17, 32)},
        "lin_us": {f"{m}x{n}x{k}": timing.dense_linear(m, n, k)
                   for n, k in ((4096, 4096), (8192, 8192), (14336, 4096)) for m in (1, 8, 16)},
        "graph_node_us": timing.microseconds([lambda: four.add_(1)] * 200),
        "add_host_us": timing.host_microseconds(lambda: torch.add(four, four)),
    }  # fmt: skip


def work(group: str, measured: dict[str, Any], model: Path | None) -> Work:
    """Return what a group measures, a function each."""
    from gpu import calls, codecs, generation, models, products

    match group:
        case "capture":
            yield from calls.run()
        case "decode":
            yield codecs.all_pairs
            yield from codecs.run(measured["copy_bytes_per_s"])
        case "int8":
            yield from products.run_integers()
        case "linear":
            yield from products.run_linear(measured["read_bytes_per_s"])
        case "seq2seq":
            yield from generation.run(measured["copy_bytes_per_s"])
        case "memory":
            yield from models.run(model)


def collect(jobs: Work, figures: list[bars.Figure], without: list[str], after: Callable[[], None]) -> None:
    """Do all jobs; one that fails is noted, and the next goes on."""
    jobs = iter(jobs)
    while True:
        found: list[bars.Figure] = []
        try:
            job = next(jobs)
        except StopIteration:
            return
        except Exception as error:  # the group cannot be prepared
            without.append(_first_line(error))
            return
        try:
            result = job()
            for figure in [result] if isinstance(result, dict) else result:
                found.append(figure)
                print(f"{bars.label(figure)}: {report.line(figure)}", file=sys.stderr, flush=True)
        except Exception as error:
            without.append(_first_line(error))
            print(f"failed: {without[-1]}", file=sys.stderr, flush=True)
        figures += found
        after()


def run(args: argparse.Namespace) -> int:
    """Measure, judge, print and write."""
    import torch
    from octavo.display.console import console, print_table
    from octavo.errors import PackageError

    begin, figures, without = time.monotonic(), [], []
    told: dict[str, Any] = {"machine": machine(), "yardsticks": yardsticks() if HELD & set(args.only) else {}}

    def save() -> dict[str, Any]:
        bars.add_one_row(figures)
        told.update(seconds=round(time.monotonic() - begin), bars=bars.judge(figures), figures=figures, without=without)
        if args.json:
            harness.write_json(args.json, told)
        return told

    for group in args.only:
        if group != "yardsticks":
            collect(work(group, told["yardsticks"], args.model), figures, without, torch.cuda.empty_cache)
        save()  # what has been measured is kept, whatever comes
    out = console()
    name = torch.cuda.get_device_name()
    rates = [
        f"{kind} {told['yardsticks'][key] / 1e12:.2f} TB/s"
        for kind, key in (("COPY", "copy_bytes_per_s"), ("READ", "read_bytes_per_s"))
        if key in told["yardsticks"]
    ]
    out.print(", ".join([f"{name}: {told['seconds']} s", *rates]))
    print_table(out, report.verdicts(told["bars"]))
    for complaint in without:
        out.print(f"failed: {complaint}")
    if args.json:
        try:
            report.draw(figures, name, args.json.with_suffix(".png"))
        except PackageError as error:
            out.print(str(error))
    return 1 if without or not all(figure["correct"] for figure in figures) else 0


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Check and time kernels on a GPU, and hold them against their bars.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, and the picture beside them")
    parser.add_argument("--only", type=_groups, default=GROUPS, help=f"of {','.join(GROUPS)}; default: all")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="of transformers, for memory; default: MiniLM")
    return parser.parse_args(given)


def _groups(text: str) -> tuple[str, ...]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in GROUPS]:
        raise argparse.ArgumentTypeError(f"unknown group {unknown[0]!r}; accepted are {', '.join(GROUPS)}")
    return tuple(name for name in GROUPS if name in chosen)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def main() -> int:
    """Run the bench; the exit status is NO_GPU where there is none to use."""
    args = arguments()
    if why := missing():
        print(f"no GPU to measure: {why}; octavo doctor tells more", file=sys.stderr)
        return NO_GPU
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
