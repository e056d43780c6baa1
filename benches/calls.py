"""What a call of a packed layer costs besides arithmetic: a large product, a tiny layer.

    python benches/calls.py [--only products,layer] [--threads 2] [--rounds 15] [--rotate-mb 256]
                            [--json [FILE]] [--force]

``products``: one row times 4096 x 4096 weights that come from memory. ``layer``: a packed 64 x 64 layer beside
``nn.Linear``, in inference mode. Exit status 3: the machine is busy. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median

import _harness as harness

FORMATS = ("mxint8", "int4:g32", "mxfp4")
SIZE = 4096
SMALL = 64
PARTS = ("products", "layer")
CALLS = 500
"""Calls of a small layer in one timing."""
MOST_ABOVE_US = 5.0
"""What a call of a small packed layer may take above one of ``nn.Linear``."""


def one_call(call: Callable[[], object], calls: int) -> float:
    """Seconds that one of many calls in a row takes."""
    call()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def products(rotate: int) -> dict[str, Callable[[], float]]:
    """One row times large packed weights, which take turns."""
    import torch
    from _rotation import burst, packed

    weight = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, SIZE, generator=torch.Generator().manual_seed(1))
    rotations = {row: one for text in FORMATS for row, one in packed(x, weight, text, (), rotate)}
    return {f"product {text}": lambda r=r: burst(r.call) for text, r in rotations.items()}


def layer() -> dict[str, Callable[[], float]]:
    """A small layer, packed and not."""
    import torch
    from octavo.nn import PackedLinear

    plain = torch.nn.Linear(SMALL, SMALL)
    packed = PackedLinear.from_linear(plain, "mxint8")
    x = torch.randn(1, SMALL)
    return {
        "layer nn.Linear": lambda: one_call(lambda: plain(x), CALLS),
        "layer packed": lambda: one_call(lambda: packed(x), CALLS),
    }


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    parts = {"products": lambda: products(args.rotate_mb * 10**6), "layer": layer}
    entrants = {name: call for part in args.only for name, call in parts[part]().items()}
    with torch.inference_mode():
        samples, loads = harness.quiet_rounds(
            args.rounds, args.force, lambda _: {name: call() for name, call in entrants.items()}
        )
    times = {name: median(sample[name] for sample in samples) for name in entrants}
    above = None
    if "layer packed" in times:
        above = (times["layer packed"] - times["layer nn.Linear"]) * 1e6
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "microseconds": {name: round(seconds * 1e6, 2) for name, seconds in times.items()},
        "bar": None if above is None else {"most_us": MOST_ABOVE_US, "us": round(above, 2)},
    }
    for name, microseconds in report["microseconds"].items():
        print(f"{name:28} {microseconds:10.2f} us")
    if above is not None:
        verdict = "pass" if above <= MOST_ABOVE_US else "miss"
        print(f"{verdict}: a packed layer takes {above:.2f} us above nn.Linear, at most {MOST_ABOVE_US} are accepted")
    if report["machine"]["busy"]:
        print("busy: these figures prove nothing")
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time what a call of a packed layer costs besides arithmetic.")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="timings of each contestant, default 15")
    parser.add_argument("--rotate-mb", type=harness.positive, default=256, help="weights in turn, default 256 MB")
    harness.add_common_arguments(parser, "calls")
    args = parser.parse_args()
    unknown = [part for part in args.only if part not in PARTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: accepted are {','.join(PARTS)}")
    return args


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
