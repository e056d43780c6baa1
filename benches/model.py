"""A packed text encoder from end to end beside torch's in float32 and bfloat16, and where its time goes.

    python benches/model.py [--weights mxint8] [--inputs bf16,int8:g32] [--batches 1,32] [--tokens 128] [--layers 6]
                            [--threads 2] [--rounds 15] [--json [FILE]] [--force]

BERT as transformers builds it, of the sizes of MiniLM with random weights. Rounds are interleaved, figures are medians.
Linear layers are timed by hooks besides: what is left is torch's own attention, norms and GELU, which run on OpenMP
threads between ours. Exit status 3: the machine is busy. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import _harness as harness

if TYPE_CHECKING:
    from torch import Tensor, nn

SIZES = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522}
PASSES = 3
"""Passes whose linear layers are timed, each round."""
TIMED_S = 0.15
"""Shortest time over which calls in a row are timed."""
LEAST_OTHER = 0.95
"""Speed of torch's own layers between packed ones, over that between float32 ones, at least."""
FLOAT32, BFLOAT16, PACKED = "float32", "bfloat16", "packed"


def encoder(layers: int) -> nn.Module:
    """BERT of the sizes of MiniLM, with random weights."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(num_hidden_layers=layers, **SIZES)).eval()


def contestants(args: argparse.Namespace) -> dict[str, nn.Module]:
    """Models by name: torch's in two dtypes, packed ones with exact and with rounded inputs, and one of bfloat16."""
    import copy

    import octavo
    import torch

    plain = encoder(args.layers)

    def packed(model: nn.Module, inputs: str = "") -> nn.Module:
        recipe = f"{args.weights}; type:Linear input={inputs}" if inputs else args.weights
        return octavo.pack_model(octavo.quantize_model(copy.deepcopy(model), recipe, progress=False))

    narrow = copy.deepcopy(plain).to(torch.bfloat16)
    return {
        FLOAT32: plain,
        BFLOAT16: narrow,
        PACKED: packed(plain),
        **{f"{PACKED} x {inputs}": packed(plain, inputs) for inputs in args.inputs},
        f"{PACKED} in {BFLOAT16}": packed(narrow),
    }


def repeated(call: Callable[[], object]) -> float:
    """Seconds that one of several calls in a row takes, the median; the first is not timed."""
    time.sleep(harness.PAUSE_S)
    call()
    times: list[float] = []
    while sum(times) < TIMED_S or len(times) < 2:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


class LinearTime:
    """Seconds that the linear layers of a model take, by hooks, while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        """Look the layers up."""
        import torch
        from octavo.nn import PackedLinear

        self._layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear | PackedLinear)]
        self.seconds = 0.0

    def __enter__(self) -> LinearTime:
        """Add the hooks."""
        self._handles = [
            handle
            for layer in self._layers
            for handle in (layer.register_forward_pre_hook(self._begin), layer.register_forward_hook(self._end))
        ]
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, *_: object) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


def split(model: nn.Module, ids: Tensor) -> tuple[float, float]:
    """Seconds that the linear layers of one pass take, and everything else; medians of some passes."""
    passes = []
    for _ in range(PASSES):
        with LinearTime(model) as linear:
            begin = time.perf_counter()
            model(input_ids=ids)
            whole = time.perf_counter() - begin
        passes.append((linear.seconds, whole - linear.seconds))
    return median(p[0] for p in passes), median(p[1] for p in passes)


def judge(rows: list[dict[str, Any]], inputs: list[str]) -> list[dict[str, Any]]:
    """Hold packed models against torch's: exact ones against float32, those of bfloat16 inputs against bfloat16.

    And torch's own layers between packed ones against those between float32 ones: our threads are to leave them alone.
    """
    took = {(r["batch"], r["model"]): r["median_ms"] for r in rows}
    others = {(r["batch"], r["model"]): r["other_ms"] for r in rows}
    pairs = [(PACKED, FLOAT32), (f"{PACKED} in {BFLOAT16}", BFLOAT16)]
    pairs += [(f"{PACKED} x bf16", BFLOAT16)] if "bf16" in inputs else []
    verdicts = []
    for batch in sorted({r["batch"] for r in rows}):
        for ours, theirs in pairs:
            ratio = took[batch, theirs] / took[batch, ours]
            bar = f"batch {batch}: {ours} faster than torch in {theirs}"
            verdicts.append({"bar": bar, "times": round(ratio, 3), "verdict": "met" if ratio > 1 else "miss"})
        ratio = others[batch, FLOAT32] / others[batch, PACKED]
        bar = f"batch {batch}: what is not linear, packed, at least {LEAST_OTHER} times as fast as in float32"
        verdicts.append({"bar": bar, "times": round(ratio, 3), "verdict": "met" if ratio >= LEAST_OTHER else "miss"})
    return verdicts


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    models = contestants(args)
    rows: list[dict[str, Any]] = []
    loads: list[float] = []
    with torch.inference_mode():
        for batch in args.batches:
            ids = torch.randint(0, SIZES["vocab_size"], (batch, args.tokens))
            exact = models[FLOAT32](input_ids=ids).last_hidden_state.double()

            def one_round(_: int, ids: Tensor = ids) -> dict[str, tuple[float, float, float]]:
                return {
                    name: (repeated(lambda m=m: m(input_ids=ids)), *split(m, ids))  # type: ignore[misc]
                    for name, m in models.items()
                }

            samples, found = harness.quiet_rounds(args.rounds, args.force, one_round)
            loads += found
            for name, model in models.items():
                whole, linear, other = (median(sample[name][i] for sample in samples) * 1e3 for i in range(3))
                difference = model(input_ids=ids).last_hidden_state.double() - exact
                rows.append(
                    {
                        "batch": batch,
                        "model": name,
                        "median_ms": round(whole, 3),
                        "linear_ms": round(linear, 3),
                        "other_ms": round(other, 3),
                        "difference": float(f"{difference.norm() / exact.norm():.2g}"),
                    }
                )
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "weights": args.weights,
        "tokens": args.tokens,
        "layers": args.layers,
        "rows": rows,
        "bars": judge(rows, args.inputs),
    }
    show(report)
    if args.json:
        harness.write_json(args.json, report)
    return 0


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, SIMD {machine['simd']}, {report['threads']} threads, octavo {machine['octavo']} "
        f"({machine['commit']}), torch {report['torch']}; {report['layers']} layers, {report['tokens']} tokens, "
        f"weights {report['weights']}",
        soft_wrap=True,
    )
    table = Table("batch", "model", "ms", "linear ms", "other ms", "difference from float32")
    for row in report["rows"]:
        table.add_row(*map(str, row.values()))
    console.print(table)
    for verdict in report["bars"]:
        console.print(f"{verdict['verdict']}: {verdict['bar']}: {verdict['times']}x", soft_wrap=True)
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time a packed text encoder from end to end beside torch's.")
    parser.add_argument("--weights", default="mxint8", help="format that linear layers and embeddings are packed in")
    parser.add_argument(
        "--inputs",
        type=lambda text: text.split(","),
        default=["bf16", "int8:g32"],
        help="formats that inputs of linear layers are rounded to",
    )
    parser.add_argument("--batches", type=_numbers, default=(1, 32), help="sequences at a time, default 1,32")
    parser.add_argument("--tokens", type=harness.positive, default=128, help="of a sequence, default 128")
    parser.add_argument("--layers", type=harness.positive, default=6, help="of the encoder, default 6")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="timings of each contestant, default 15")
    harness.add_common_arguments(parser, "model")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(harness.positive(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
