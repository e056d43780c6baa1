"""Products with packed weights beside torch's linear in float32 and bfloat16, and beside packed kernels of others.

    python benches/linear.py [--formats a,b] [--inputs int8:g32,bf16,bfloat16] [--batches 1,4,32] [--size 4096x4096]
                             [--peers] [--ggml PATH] [--simd avx2] [--threads 2] [--rounds 25] [--rotate-mb 256]
                             [--json [FILE]] [--force]

Weights take turns, so many of them that they come from memory. Every round times a few calls in a row of each product
of a group of formats, directly beside the dense ones and the peers of that group; a ratio is median over median. Errors
are those against float64. Exit status 3: the machine is busy. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import _harness as harness

if TYPE_CHECKING:
    from _ggml import Library
    from _rotation import Rotation

DENSE = ("float32", "bfloat16")
WHOLE_ROWS = ("int8:channel", "int4:channel")
"""Weights that are multiplied with inputs of a scale a row, in integers."""
ONE_LEVEL = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""What limits torch to AVX2."""


def measure(entrants: dict[str, Rotation], args: argparse.Namespace) -> tuple[dict[str, list[float]], list[float]]:
    """Time every entrant once a round; seconds of each, and loads."""
    from _rotation import burst

    samples, loads = harness.quiet_rounds(
        args.rounds, args.force, lambda _: {name: burst(entrant.call) for name, entrant in entrants.items()}
    )
    return {name: [sample[name] for sample in samples] for name in entrants}, loads


def compare(entrants: dict[str, Rotation], own: Collection[str], times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Make the rows of a group: milliseconds, errors, and how many times faster each is than the dense products.

    ``own``: names of octavo's products, which are compared with all peers; of a peer that has several kinds of memory
    (``NAME, MEMORY``) the fastest counts.
    """
    from _linear_bars import READ

    rows = []
    bandwidth = entrants[READ].nbytes / median(times[READ])
    for name, one in entrants.items():
        took = median(times[name])
        over: dict[str, float] = {}
        for peer, seconds in times.items():
            title = peer.partition(",")[0]
            if peer not in (name, READ) and (peer in DENSE or (name in own and peer not in own)):
                ratio = round(median(seconds) / took, 3)
                over[title] = min(ratio, over.get(title, ratio))
        over[READ] = round(one.nbytes / bandwidth / took, 3)
        figures = {"median_ms": round(took * 1e3, 4), "fastest_ms": round(min(times[name]) * 1e3, 4)}
        rows.append({"row": name, **figures, "gbps": round(one.nbytes / took / 1e9, 2),
                     "error": float(f"{one.error:.2g}"), "over": over})  # fmt: skip
    return rows


def products(
    batch: int, args: argparse.Namespace, library: Library | None
) -> tuple[list[dict[str, Any]], list[float], list[str]]:
    """Measure all groups at a number of rows of inputs: rows of the report, loads, and complaints of peers."""
    import torch
    from _linear_bars import READ
    from _linear_peers import groups, peers
    from _rotation import INTEGER_INPUT, dense, kernel, packed, read

    rows, columns = args.size
    rotate = args.rotate_mb * 10**6
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(1))
    common = {READ: read(rotate), **{name: dense(x, weight, getattr(torch, name), rotate) for name in DENSE}}
    results: list[dict[str, Any]] = []
    loads: list[float] = []
    complaints: list[str] = []
    for texts, names in groups(args.formats):
        own = {}
        for text in texts:
            inputs = [*args.inputs, INTEGER_INPUT] if text in WHOLE_ROWS else args.inputs
            own |= packed(x, weight, text, inputs, rotate)
        others, without = peers(names if args.peers or library else [], x, weight, rotate, library)
        complaints += without
        entrants = {**common, **others, **own}
        times, found = measure(entrants, args)
        loads += found
        for row in compare(entrants, own, times):
            if row["row"] in own:
                row["kernel"] = kernel(row["row"], batch, rows, columns)
            if row["row"] not in common or texts == groups(args.formats)[0][0]:  # the common ones once
                results.append({"batch": batch, **row})
    return results, loads, complaints


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, SIMD {machine['simd']}, {report['threads']} threads, octavo {machine['octavo']} "
        f"({machine['commit']}), torch {report['torch']}; {report['size']}, float32 inputs, {report['rounds']} rounds, "
        f"{report['rotate_mb']} MB of weights in turn; {report['read_gbps']:.1f} GB/s read",
        soft_wrap=True,
    )
    table = Table("batch", "weights", "kernel", "ms", "GB/s", "error", "x float32", "x bfloat16", "of read", "x peers")
    for r in report["results"]:
        over = r["over"]
        others = ", ".join(f"{peer} {ratio}" for peer, ratio in over.items() if peer not in (*DENSE, "read"))
        cells = (r["batch"], r["row"], r.get("kernel", ""), r["median_ms"], r["gbps"], r["error"])
        table.add_row(*map(str, (*cells, *(over.get(peer, "") for peer in (*DENSE, "read")), others)))
    console.print(table)
    for verdict in report["bars"]:
        misses = ", ".join(f"{row} {ratio}" for row, ratio in verdict["misses"].items())
        lowest = min(verdict["ratios"].values())
        told = f"missed by {misses}" if misses else f"lowest {lowest}"
        console.print(f"{verdict['verdict']}: {verdict['bar']}: {told}", soft_wrap=True)
    for complaint in report["without"]:
        print(f"without {complaint}")
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from _ggml import Library
    from _linear_bars import ONE_ROW, READ, judge
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    library = Library(args.ggml, args.threads) if args.ggml else None
    complaints = [] if library or not args.peers else ["ggml: give a built library by --ggml"]
    results: list[dict[str, Any]] = []
    loads: list[float] = []
    with torch.no_grad():
        for batch in args.batches:
            rows, found, without = products(batch, args, library)
            results += rows
            loads += found
            complaints += [line for line in without if line not in complaints]
    alone = {r["row"]: r["median_ms"] for r in results if r["batch"] == 1}
    for r in results:
        if r["row"] in alone and r["batch"] > 1:
            r["over"][ONE_ROW] = round(alone[r["row"]] / r["median_ms"], 3)
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "size": "x".join(map(str, args.size)),
        "rounds": args.rounds,
        "rotate_mb": args.rotate_mb,
        "read_gbps": median(r["gbps"] for r in results if r["row"] == READ),
        "results": results,
        "bars": judge(results, args.simd or ""),
        "without": complaints,
    }
    show(report)
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    from _linear_bars import FORMATS

    parser = argparse.ArgumentParser(description="Time products with packed weights beside torch's and others'.")
    parser.add_argument("--formats", type=_texts, default=FORMATS.split(), help="of weights")
    parser.add_argument(
        "--inputs",
        type=_texts,
        default=[],
        help="formats that inputs are rounded to, too; 'bfloat16' means tensors of that dtype, as they are",
    )
    parser.add_argument("--batches", type=_numbers, default=(1, 32), help="rows of inputs, default 1,32")
    parser.add_argument("--size", type=_size, default=(4096, 4096), help="weights, rows x columns, default 4096x4096")
    parser.add_argument("--peers", action="store_true", help="also packed kernels of torch, torchao and bitsandbytes")
    parser.add_argument("--ggml", type=Path, metavar="PATH", help="also those of ggml: a folder with its libraries")
    parser.add_argument("--simd", choices=("avx2",), help="limit octavo and torch to these instructions")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of all libraries, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=25, help="timings of each contestant, default 25")
    parser.add_argument("--rotate-mb", type=harness.positive, default=256, help="weights in turn, default 256 MB")
    harness.add_common_arguments(parser, "linear")
    return parser.parse_args()


def _texts(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(harness.positive(number) for number in text.split(","))


def _size(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return harness.positive(rows), harness.positive(columns)


def limit(simd: str | None) -> None:
    """Begin again under these instructions: octavo read its environment when it was imported."""
    if simd and os.environ.get("OCTAVO_SIMD") != simd:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_LEVEL | {"OCTAVO_SIMD": simd})


if __name__ == "__main__":
    given = arguments()
    limit(given.simd)
    sys.exit(harness.main(run, given))
