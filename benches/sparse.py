"""Products of one row of inputs with sparse codes beside the same product with dense codes: time, bytes and error.

    python benches/sparse.py [--formats int8:g32,mxint8,int4:g32,mxfp6e2m3] [--zeros 0.5,0.75,0.9] [--size 4096]
                             [--rows 1] [--threads 2] [--rounds 9] [--rotate 256] [--json [FILE]] [--force]

Weights are square, normal values of which a share chosen at random is 0, and take turns, ``--rotate`` megabytes of
them, so that they come from memory. Rounds are interleaved, figures are medians. Bars hold for formats of 8 bits, one
row and two threads. Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import _harness as harness

if TYPE_CHECKING:
    from torch import Tensor

BARS = {0.5: 0.75, 0.75: 0.5}
"""Most time over that of dense codes, by share of zeros."""


def products(x: Tensor, kind: str, zeros: float, size: int, rotate: int) -> dict[str, tuple[Callable[[], Tensor], int]]:
    """Return the product with dense and with sparse codes, whose weights take turns, and the bytes of one weight."""
    import octavo
    import torch
    from octavo.nn import PackedLinear

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=generator)
    weight[torch.rand(size, size, generator=generator) < zeros] = 0
    first = octavo.encode(weight, kind)
    made = {}
    for name, packed in (("dense", first), ("sparse", first.to_sparse())):
        count = max(2, -(-rotate // packed.nbytes))
        turns = itertools.cycle([PackedLinear(_copy(packed)) for _ in range(count)])
        made[name] = (lambda turns=turns: next(turns)(x)), packed.nbytes
    return made


def _copy(packed: Any) -> Any:
    """Return the tensor in memory of its own."""
    import octavo

    logical = {"shape": packed.shape, "dtype": packed.dtype, "axis": packed.axis}
    others = [part.clone() for part in (packed.scales, packed.zeros, packed.levels)]
    if packed.sparse is None:
        return octavo.PackedTensor(packed.format, packed.codes.clone(), *others, **logical)
    return octavo.PackedTensor.of_sparse(
        packed.format, packed.sparse.map(lambda part: part.clone()), *others, **logical
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from _rotation import burst
    from octavo import _core
    from octavo.ops import sparse

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    x = torch.randn(args.rows, args.size, generator=torch.Generator().manual_seed(1))
    rows: list[dict[str, Any]] = []
    all_loads: list[float] = []
    with torch.inference_mode():
        for kind, zeros in itertools.product(args.formats.split(","), map(float, args.zeros.split(","))):
            pair = products(x, kind, zeros, args.size, args.rotate << 20)
            wanted, found = (call().double() for call, _ in pair.values())

            def one_round(_: int, pair: dict[str, tuple[Callable[[], Tensor], int]] = pair) -> dict[str, float]:
                return {name: burst(call) for name, (call, _) in pair.items()}

            samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
            all_loads += loads
            dense, less = (median(sample[name] for sample in samples) * 1e3 for name in pair)
            rows.append(
                {
                    "weights": kind,
                    "zeros": zeros,
                    "dense ms": round(dense, 3),
                    "sparse ms": round(less, 3),
                    "of dense": round(less / dense, 3),
                    "bytes of dense": round(pair["sparse"][1] / pair["dense"][1], 3),
                    "difference": float(f"{(wanted - found).norm() / wanted.norm():.2g}"),
                    "kernel": sparse.kernel(kind, args.rows, args.size, args.size, torch.float32),
                }
            )
    report = {
        "machine": harness.facts(all_loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "size": args.size,
        "batch": args.rows,
        "rotate": args.rotate,
        "rows": rows,
        "bars": judge(rows) if (args.rows, args.threads) == (1, 2) else [],
    }
    harness.show(
        report,
        f"{args.size} x {args.size}, {args.rows} rows of float32 inputs, weights take turns through {args.rotate} MB",
    )
    if args.json:
        harness.write_json(args.json, report)
    return 0


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the formats of 8 bits against the bars of their shares of zeros."""
    found = []
    for row in rows:
        bar = BARS.get(row["zeros"])
        if bar is not None and "int8" in row["weights"]:
            name = f"{row['weights']} at {row['zeros']:.0%} zeros: {bar}x the time of dense codes"
            found.append(
                {"bar": name, "value": row["of dense"], "verdict": "met" if row["of dense"] <= bar else "miss"}
            )
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time products with sparse codes beside those with dense codes.")
    parser.add_argument("--formats", default="int8:g32,mxint8,int4:g32,mxfp6e2m3", help="texts of formats")
    parser.add_argument("--zeros", default="0.5,0.75,0.9", help="shares of zeros")
    parser.add_argument("--size", type=harness.positive, default=4096, help="rows and columns of a weight")
    parser.add_argument("--rows", type=harness.positive, default=1, help="of inputs, default 1")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=9, help="timings of each contestant, default 9")
    parser.add_argument("--rotate", type=harness.positive, default=256, help="megabytes of weights that take turns")
    harness.add_common_arguments(parser, "sparse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
