"""GPTQ and HQQ: time on a 4096 x 4096 weight, and what they leave of the error of rounding to nearest.

    python benches/solve.py [--formats a,b] [--size 4096] [--threads 2] [--rounds 5] [--json [FILE]] [--force]

Errors are relative to rounding to nearest: of the layer's outputs for GPTQ and HQQ, and of HQQ's own norm (p = 0.7).
Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = "int4:g32,uint4:g32,int4:channel,mxint4,mxfp4,nvfp4,nf4,int3:g32,int8:channel"
TIMED = {"gptq int4:g32": 3.0, "hqq int4:g32": 0.3, "hqq uint4:g32": 0.3, "hqq mxint4": 0.3}
"""Bars in seconds, on two cores."""
ERROR_SIZE = 1024


def problem(k: int) -> tuple[Tensor, Tensor]:
    """A weight with outliers and the second moments of correlated inputs, seed 0."""
    import torch

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(k, k, generator=generator)
    x = torch.randn(2 * k, k // 8, generator=generator) @ torch.randn(k // 8, k, generator=generator)
    x += torch.randn(2 * k, k, generator=generator)
    return 0.02 * weight * weight.abs().sqrt(), x.T @ x / len(x)


def errors(text: str, weight: Tensor, hessian: Tensor) -> dict[str, float]:
    """Errors of each method over those of rounding to nearest."""
    import octavo
    from octavo.quant import gptq, hqq

    def lost(quantized: Tensor) -> float:
        error = (weight - quantized).double()
        return ((error @ hessian.double()) * error).sum().item()

    nearest = octavo.quantize(weight, text)
    fitted = hqq(weight, text).weight
    found = {
        "gptq": gptq(weight, hessian, text).weight,
        "gptq mse": gptq(weight, hessian, text, scale="mse").weight,
        "gptq descending mse": gptq(weight, hessian, text, order="descending", scale="mse").weight,
        "hqq": fitted,
    }
    ratios = {name: lost(quantized) / lost(nearest) for name, quantized in found.items()}
    norm = ((weight - fitted).abs().pow(0.7).sum() / (weight - nearest).abs().pow(0.7).sum()).item()
    return {name: round(ratio, 4) for name, ratio in {**ratios, "hqq, its norm": norm}.items()}


def calls(weight: Tensor, hessian: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed."""
    from octavo.quant import gptq, hqq

    made = {}
    for name in TIMED:
        method, text = name.split()
        made[name] = (
            (lambda text=text: hqq(weight, text))
            if method == "hqq"
            else (lambda text=text: gptq(weight, hessian, text))
        )
    return made


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--size", type=harness.positive, default=4096)
    parser.add_argument("--threads", type=harness.positive, default=2)
    parser.add_argument("--rounds", type=harness.positive, default=5)
    harness.add_common_arguments(parser, "solve")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    try:
        harness.require_quiet(options.force)
        import torch
        from octavo import _core

        torch.set_num_threads(options.threads)
        _core.set_num_threads(options.threads)
        timed = calls(*problem(options.size))
        for call in timed.values():
            call()
        samples, loads = harness.quiet_rounds(
            options.rounds, options.force, lambda _: {name: harness.timed(call) for name, call in timed.items()}
        )
    except harness.BusyMachine as error:
        print(error, file=sys.stderr)
        return harness.BUSY
    seconds = {name: round(median(sample[name] for sample in samples), 4) for name in timed}
    small = problem(ERROR_SIZE)
    table = {text: errors(text, *small) for text in options.formats.split(",")}
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "size": options.size,
        "threads": options.threads,
        "seconds": seconds,
        "bars": {name: "pass" if seconds[name] <= bar else "miss" for name, bar in TIMED.items()},
        "error_size": ERROR_SIZE,
        "errors": table,
    }
    show(report)
    if options.json:
        harness.write_json(options.json, report)
    return 0


def show(report: dict) -> None:
    """Print times and errors."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    size = report["size"]
    times = Table(f"{size} x {size}, {report['threads']} threads", "seconds", "bar", "verdict")
    for name, seconds in report["seconds"].items():
        times.add_row(name, f"{seconds:.3f}", f"{TIMED[name]:g}", report["bars"][name])
    console.print(times)
    names = list(next(iter(report["errors"].values())))
    errors = Table("error, rounding = 1", *names)
    for text, row in report["errors"].items():
        errors.add_row(text, *(f"{row[name]:.3f}" for name in names))
    console.print(errors)


if __name__ == "__main__":
    sys.exit(main())
