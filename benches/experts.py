"""The experts of a mixture, one token at a time: packed layers beside transformers' batched float32 experts.

    python benches/experts.py [--hidden 1024] [--inner 2048] [--experts 8] [--chosen 2] [--threads 2] [--rounds 15]
                              [--mixtures 6] [--json [FILE]] [--force]

Every call is one row of a Mixtral block without its router: two experts of eight. Mixtures take turns, so that weights
come from memory. ``eager`` and ``grouped_mm`` are transformers' own forwards, ``layers`` the float32 layers that stand
in for them. Exit status 3: the machine is busy. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import _harness as harness

FORMATS = ("int8:g32", "mxint8", "int4:g32", "mxfp4", "int3:g32")
CALLS = 40
"""Calls in one timing."""


def mixtures(args: argparse.Namespace, implementation: str = "eager") -> list[Any]:
    """Modules of experts with weights of their own."""
    import torch
    import transformers
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config = transformers.MixtralConfig(
        hidden_size=args.hidden, intermediate_size=args.inner, num_local_experts=args.experts
    )
    config._experts_implementation = implementation
    torch.manual_seed(0)
    modules = [MixtralExperts(config).eval() for _ in range(args.mixtures)]
    for module in modules:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    return modules


def entrants(args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Seconds of one call, by name; checks that layers compute what the parameters do."""
    import octavo
    import torch
    from octavo.nn.rewriting import rewritten

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(CALLS, 1, args.hidden, generator=generator)
    chosen = torch.stack([torch.randperm(args.experts, generator=generator)[: args.chosen] for _ in range(CALLS)])
    weights = torch.full((1, args.chosen), 1 / args.chosen)

    def timed(modules: list[Any]) -> Callable[[], float]:
        def seconds() -> float:
            begin = time.perf_counter()
            for number in range(CALLS):
                modules[number % len(modules)](x[number], chosen[number][None], weights)
            return (time.perf_counter() - begin) / CALLS

        return seconds

    eager = mixtures(args)
    layers = [rewritten(module) for module in eager]
    one = x[0], chosen[0][None], weights
    if not torch.equal(eager[0](*one), layers[0](*one)):
        raise SystemExit("the layers do not compute the bits of the eager forward")
    found = {"eager": timed(eager), "layers": timed(layers), "grouped_mm": timed(mixtures(args, "grouped_mm"))}
    for text in args.formats:
        packed = [octavo.pack_model(octavo.quantize_model(module, text, progress=False)) for module in eager]
        found[text] = timed(packed)
    return found


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    import transformers
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    with torch.inference_mode():
        calls = entrants(args)
        samples, loads = harness.quiet_rounds(
            args.rounds, args.force, lambda _: {name: call() for name, call in calls.items()}
        )
    times = {name: median(sample[name] for sample in samples) for name in calls}
    floats = min(times[name] for name in ("eager", "grouped_mm"))
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": args.threads,
        "sizes": {name: getattr(args, name) for name in ("hidden", "inner", "experts", "chosen", "mixtures")},
        "microseconds": {name: round(seconds * 1e6, 1) for name, seconds in times.items()},
        "times_float32": {name: round(floats / times[name], 2) for name in args.formats},
    }
    for name, seconds in times.items():
        print(f"{name:12}{seconds * 1e6:10.1f} us{floats / seconds:8.2f}x the faster float32")
    slow = [name for name in args.formats if times[name] > floats]
    print(f"miss: slower than float32: {', '.join(slow)}" if slow else "pass: no format is slower than float32")
    if report["machine"]["busy"]:
        print("busy: these figures prove nothing")
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time the experts of a mixture, one token at a time.")
    for name, default in (("hidden", 1024), ("inner", 2048), ("experts", 8), ("chosen", 2), ("mixtures", 6)):
        parser.add_argument(f"--{name}", type=harness.positive, default=default, help=f"default {default}")
    parser.add_argument("--formats", type=lambda text: text.split(","), default=FORMATS, help="of weights")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="timings of each contestant, default 15")
    harness.add_common_arguments(parser, "experts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
