"""Products with packed weights beside torch's linear in float32 and bfloat16, torch's packed kernels and bitsandbytes.

    python benches/linear.py [--formats a,b] [--inputs int8:g32,mxint8] [--batches 1,32] [--size 4096x4096]
                             [--threads 2] [--rounds 25] [--rotate-mb 256] [--json [FILE]] [--force]

Weights take turns, so many of them that they come from memory. Every round times a few calls in a row of a packed
product directly beside the float32 and the bfloat16 one; a ratio is median over median. Exit status 3: the machine is
busy. README.md says more.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMATS = (
    "mxint8 int8:g32 int8:channel mxfp8e4m3 mxfp8e5m2 mxint6 mxfp6e2m3 mxfp6e3m2 int4:g32 uint4:g32 mxint4 mxfp4 nvfp4 "
    "nf4 int3:g32 int2:g32 ternary:channel"
)
INTEGERS = "int8:channel int4:channel"
INPUT = "int8:channel"
"""Inputs of the integer products; others are rounded inputs, as `input=` of a recipe gives them."""
WARM_S = 0.08
"""Calls before those that are timed: the cores of an idle virtual machine take tens of milliseconds to come back."""
BURST = 9
"""Calls in a row that are timed."""


@dataclass(frozen=True)
class Bar:
    """A promise: how many times faster than ``peer`` the product of ``formats`` is at a batch, at least."""

    batch: int
    formats: str
    peer: str
    least: float


BARS = (
    Bar(1, "mxint8 int8:g32", "float32", 7.0),
    Bar(1, "mxint8 int8:g32", "bfloat16", 3.0),
    Bar(1, "mxint6 mxfp6e2m3 mxfp6e3m2", "float32", 9.0),
    Bar(1, "int4:g32 mxint4 mxfp4 nf4", "float32", 12.0),
    Bar(32, FORMATS, "bfloat16", 1.0),
    Bar(32, "int8:channel x int8:channel", "bfloat16", 1 / 0.9),
)


class Rotation:
    """A product whose weights take turns: ``call`` uses the next."""

    def __init__(self, weights: list, product: Callable[[object], Tensor], nbytes: int) -> None:
        self._turns = itertools.cycle(weights)
        self._product = product
        self.nbytes = nbytes
        """Bytes of one weight."""

    def call(self) -> Tensor:
        """Multiply with the next weight."""
        return self._product(next(self._turns))


def dense(x: Tensor, weight: Tensor, dtype: torch.dtype, rotate: int) -> Rotation:
    """torch.nn.functional.linear in a dtype."""
    from torch.nn.functional import linear

    x, weight = x.to(dtype), weight.to(dtype)
    nbytes = weight.numel() * weight.element_size()
    return Rotation([weight.clone() for _ in range(copies(nbytes, rotate))], lambda w: linear(x, w), nbytes)


def copies(nbytes: int, rotate: int) -> int:
    """Weights that are ``rotate`` bytes together, at least two."""
    return max(2, -(-rotate // nbytes))


def packed(x: Tensor, weight: Tensor, text: str, rotate: int) -> Rotation:
    """octavo's product with weights of a format; ``W x I`` rounds its inputs to the format I."""
    import octavo
    from octavo.ops.linear import integer_linear, packed_linear, rounded_linear

    kind, _, inputs = text.partition(" x ")
    first = octavo.encode(weight, kind)
    turns = [_copy(first) for _ in range(copies(first.nbytes, rotate))]
    if inputs == INPUT:
        return Rotation(turns, lambda w: integer_linear(x, w, inputs), first.nbytes)
    if inputs:
        return Rotation(turns, lambda w: rounded_linear(x, w, inputs), first.nbytes)
    return Rotation(turns, lambda w: packed_linear(x, w), first.nbytes)


def _copy(packed_tensor):
    import octavo

    parts = (part.clone() for part in packed_tensor.parts)
    return octavo.PackedTensor(
        packed_tensor.format, *parts, shape=packed_tensor.shape, dtype=packed_tensor.dtype, axis=packed_tensor.axis
    )


def peers(x: Tensor, weight: Tensor, rotate: int) -> Iterator[tuple[str, Callable[[], Rotation]]]:
    """Other kernels for packed weights, each behind a function that may fail on this machine."""
    import torch

    narrow = x.bfloat16()

    def int8() -> Rotation:
        scales = (weight.abs().amax(1) / 127).bfloat16()
        codes = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        turns = [codes.clone() for _ in range(copies(codes.numel(), rotate))]
        return Rotation(turns, lambda w: torch._weight_int8pack_mm(narrow, w, scales), codes.numel())

    def int4() -> Rotation:
        codes = torch.randint(0, 16, weight.shape, dtype=torch.int32)
        first = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.rand(weight.shape[1] // 32, weight.shape[0], 2).bfloat16()
        turns = [(first.clone(), scales.clone()) for _ in range(copies(first.numel(), rotate))]
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        return Rotation(turns, lambda w: product(narrow, w[0], 32, w[1]), first.numel() + scales.numel() * 2)

    def nf4() -> Rotation:
        import bitsandbytes.functional as bnb

        first, state = bnb.quantize_4bit(weight, quant_type="nf4", blocksize=64)
        turns = [first.clone() for _ in range(copies(first.numel(), rotate))]
        nbytes = first.numel() + state.absmax.numel() * 4
        return Rotation(turns, lambda w: x @ bnb.dequantize_4bit(w, state).t(), nbytes)

    yield "torch int8pack, bfloat16 inputs", int8
    yield "torch int4pack, bfloat16 inputs", int4
    yield "bitsandbytes nf4", nf4


def burst(call: Callable[[], object]) -> float:
    """Seconds that one of several calls in a row takes, the median: layers do follow each other."""
    time.sleep(harness.PAUSE_S)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        call()
    times = []
    for _ in range(BURST):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def measure(row: str, one: Rotation, dense_ones: dict[str, Rotation], args: argparse.Namespace) -> dict[str, object]:
    """Time a rotation between the dense ones; times in milliseconds, and how many times faster it is."""
    entrants = {**dense_ones, row: one}
    for entrant in entrants.values():
        entrant.call()

    def one_round(_: int) -> dict[str, float]:
        return {name: burst(entrant.call) for name, entrant in entrants.items()}

    samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
    times = {name: median(sample[name] for sample in samples) for name in entrants}
    fastest = {name: min(sample[name] for sample in samples) for name in entrants}
    return {
        "row": row,
        "median_ms": round(times[row] * 1e3, 4),
        "fastest_ms": round(fastest[row] * 1e3, 4),
        "gbps": round(one.nbytes / times[row] / 1e9, 2),
        "over": {name: round(times[name] / times[row], 3) for name in dense_ones},
        "fastest_over": {name: round(fastest[name] / fastest[row], 3) for name in dense_ones},
        "loads": loads,
    }


def copy_time(nbytes: int) -> float:
    """Seconds that torch takes to copy so many bytes."""
    import torch

    source = torch.ones(nbytes // 4)
    target = torch.empty_like(source)
    return median(harness.timed(lambda: target.copy_(source)) for _ in range(7))


def judge(results: list[dict]) -> list[dict[str, object]]:
    """Hold the ratios against the bars."""
    verdicts = []
    for bar in BARS:
        names = {bar.formats} if " x " in bar.formats else set(bar.formats.split())
        held = {r["row"]: r["over"][bar.peer] for r in results if r["batch"] == bar.batch and r["row"] in names}
        misses = {row: ratio for row, ratio in held.items() if ratio < bar.least}
        verdict = "not measured" if not held else "miss" if misses else "pass"
        verdicts.append({"bar": f"batch {bar.batch}, {bar.formats}: {bar.least:.3g}x {bar.peer}", "misses": misses,
                         "verdict": verdict})  # fmt: skip
    return verdicts


def show(report: dict) -> None:
    """Print the report."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 118)
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, SIMD {machine['simd']}, {report['threads']} threads, octavo {machine['octavo']} "
        f"({machine['commit']}), torch {report['torch']}; {report['size']}, float32 inputs, {report['rounds']} rounds, "
        f"{report['rotate_mb']} MB of weights in turn; copy {report['copy_gbps']:.1f} GB/s read",
        soft_wrap=True,
    )
    table = Table("batch", "weights", "kernel", "ms", "fastest ms", "GB/s", "x float32", "x bfloat16")
    for r in report["results"]:
        cells = (r["batch"], r["row"], r["kernel"], r["median_ms"], r["fastest_ms"], r["gbps"], *r["over"].values())
        table.add_row(*map(str, cells))
    console.print(table)
    for verdict in report["bars"]:
        misses = ", ".join(f"{row} {ratio}" for row, ratio in verdict["misses"].items())
        console.print(f"{verdict['verdict']}: {verdict['bar']}{': ' + misses if misses else ''}", soft_wrap=True)
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from octavo import _core
    from octavo.ops import linear

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    rows, columns = args.size
    rotate = args.rotate_mb * 10**6
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    results, loads, complaints = [], [], []
    with torch.no_grad():
        copied = copy_time(rotate)
        for batch in args.batches:
            x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(1))
            dense_ones = {name: dense(x, weight, getattr(torch, name), rotate) for name in ("float32", "bfloat16")}
            integers = [f"{text} x {INPUT}" for text in INTEGERS.split()]
            rounded = [f"{text} x {inputs}" for text in args.formats for inputs in args.inputs]
            rows_of = (*args.formats, *rounded, *integers)
            entrants = [(t, lambda t=t: packed(x, weight, t, rotate)) for t in rows_of]  # noqa: B023
            for row, build in (*entrants, *peers(x, weight, rotate)):
                own = row in dict(entrants)
                try:
                    result = measure(row, build(), dense_ones, args)
                except (ImportError, RuntimeError, AttributeError) as error:
                    if own:
                        raise
                    complaints.append(f"{row}: {str(error).splitlines()[0]}")
                    continue
                loads += result.pop("loads")
                kind, _, inputs = row.partition(" x ")
                sizes = (batch, rows, columns, torch.float32)
                named = linear.kernel(kind, *sizes, inputs or None, rounded=inputs != INPUT) if own else ""
                results.append({"batch": batch, "kernel": named, **result})
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "size": f"{rows}x{columns}",
        "rounds": args.rounds,
        "rotate_mb": args.rotate_mb,
        "copy_gbps": round(rotate / copied / 1e9, 3),
        "results": results,
        "bars": judge(results),
        "without": complaints,
    }
    show(report)
    for complaint in complaints:
        print(f"without {complaint}")
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time products with packed weights beside torch's.")
    parser.add_argument("--formats", type=lambda text: text.split(","), default=FORMATS.split(), help="of weights")
    parser.add_argument(
        "--inputs", type=lambda text: text.split(","), default=[], help="formats that inputs are rounded to, too"
    )
    parser.add_argument("--batches", type=_numbers, default=(1, 32), help="rows of inputs, default 1,32")
    parser.add_argument("--size", type=_size, default=(4096, 4096), help="weights, rows x columns, default 4096x4096")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=25, help="timings of each contestant, default 25")
    parser.add_argument("--rotate-mb", type=harness.positive, default=256, help="weights in turn, default 256 MB")
    harness.add_common_arguments(parser, "linear")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(harness.positive(number) for number in text.split(","))


def _size(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return harness.positive(rows), harness.positive(columns)


def main() -> int:
    """Run the bench; the exit status is 3 where the machine is busy."""
    args = arguments()
    try:
        return run(args)
    except harness.BusyMachine as error:
        print(error, file=sys.stderr)
        return harness.BUSY


if __name__ == "__main__":
    sys.exit(main())
