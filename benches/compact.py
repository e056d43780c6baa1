"""A text encoder without half of its heads and feed-forward neurons beside the whole one: time, bytes and error.

    python benches/compact.py [--share 0.5] [--weights mxint8] [--batch 8] [--tokens 128] [--layers 6] [--threads 2]
                              [--rounds 15] [--json [FILE]] [--force]

BERT as transformers builds it, of the sizes of MiniLM with random weights. Of each attention and each feed-forward the
units of the smallest weights are zeroed, and taken out by octavo.prune.compact_model. Rounds are interleaved, figures
are medians. Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import _harness as harness
from model import SIZES, encoder, repeated

if TYPE_CHECKING:
    from torch import nn

FASTER, LAYERS, FILE = 1.8, 0.51, 0.78
"""Bars at a share of a half: speed over the whole model, bytes of packed layers and of the file over its."""


def zeroed(model: nn.Module, share: float) -> nn.Module:
    """Zero what reads the units of the smallest weights: a ``share`` of the heads and neurons of each layer."""
    import torch
    from octavo.prune import groups

    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for group in groups(model, kinds=("head", "neuron")):
            if group.name.startswith("pooler"):
                continue
            scores = torch.stack(
                [sum(piece.of(parameters[piece.name]).abs().sum() for piece in unit.consumers) for unit in group.units]
            )
            for number in scores.argsort()[: round(share * len(group.units))].tolist():
                for piece in group.units[number].consumers:
                    parameters[piece.name].index_fill_(piece.dim, piece.indices, 0)
    return model


def nbytes(model: nn.Module) -> tuple[int, int]:
    """Return the bytes of the weights of all linear layers, and those of the file that the model is written to."""
    import octavo
    import torch
    from octavo.nn import PackedLinear

    linear = 0
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            linear += layer.packed_weight.nbytes
        elif isinstance(layer, torch.nn.Linear):
            linear += layer.weight.nbytes
    with tempfile.TemporaryDirectory() as folder:
        octavo.save_model(model, folder)
        return linear, (Path(folder) / "model.octavo.safetensors").stat().st_size


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import octavo
    import torch
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    masked = zeroed(encoder(args.layers), args.share)
    compact, told = octavo.prune.compact_model(masked)

    def packed(model: nn.Module) -> nn.Module:
        return octavo.pack_model(octavo.quantize_model(copy.deepcopy(model), args.weights, progress=False))

    pairs = {"float32": (masked, compact), args.weights: (packed(masked), packed(compact))}
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        ids = torch.randint(0, SIZES["vocab_size"], (args.batch, args.tokens))

        def one_round(_: int) -> dict[tuple[str, int], float]:
            return {
                (name, side): repeated(lambda m=model: m(input_ids=ids))  # type: ignore[misc]
                for name, pair in pairs.items()
                for side, model in enumerate(pair)
            }

        samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
        for name, pair in pairs.items():
            whole, small = (median(sample[name, side] for sample in samples) * 1e3 for side in range(2))
            bytes_ = [nbytes(model) for model in pair]
            before, after = (model(input_ids=ids).last_hidden_state.double() for model in pair)
            rows.append(
                {
                    "weights": name,
                    "whole ms": round(whole, 2),
                    "compact ms": round(small, 2),
                    "faster": round(whole / small, 3),
                    "linear layers": round(bytes_[1][0] / bytes_[0][0], 4),
                    "file": round(bytes_[1][1] / bytes_[0][1], 4),
                    "file bytes": bytes_[1][1],
                    "difference": float(f"{(before - after).norm() / before.norm():.2g}"),
                }
            )
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "share": args.share,
        "batch": args.batch,
        "tokens": args.tokens,
        "parameters": list(told.parameters),
        "rows": rows,
        "bars": judge(rows) if args.share == 0.5 else [],
    }
    harness.show(report, f"batch {args.batch}, {args.tokens} tokens, {args.share:.0%} of heads and neurons taken out")
    if args.json:
        harness.write_json(args.json, report)
    return 0


def judge(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold each pair against the bars of a share of a half."""
    found = []
    for row in rows:
        for what, column, bar in (
            ("speed", "faster", FASTER),
            ("bytes", "linear layers", LAYERS),
            ("bytes", "file", FILE),
        ):
            met = row[column] >= bar if what == "speed" else row[column] <= bar
            found.append(
                {"bar": f"{row['weights']}: {column} {bar}x", "value": row[column], "verdict": "met" if met else "miss"}
            )
    return found


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time a text encoder without some heads and neurons beside the whole.")
    parser.add_argument("--share", type=float, default=0.5, help="of heads and neurons that go, default 0.5")
    parser.add_argument("--weights", default="mxint8", help="format that linear layers and embeddings are packed in")
    parser.add_argument("--batch", type=harness.positive, default=8, help="sequences at a time, default 8")
    parser.add_argument("--tokens", type=harness.positive, default=128, help="of a sequence, default 128")
    parser.add_argument("--layers", type=harness.positive, default=6, help="of the encoder, default 6")
    parser.add_argument("--threads", type=harness.positive, default=2, help="of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="timings of each contestant, default 15")
    harness.add_common_arguments(parser, "compact")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
