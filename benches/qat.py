"""A step of quantization-aware training over a step in float32: forward, backward and AdamW, for each recipe.

    python benches/qat.py [--recipes weights,inputs,mxfp4] [--layers 6] [--batch 16x64] [--threads 2] [--rounds 15]
                          [--peers] [--json [FILE]] [--force]

The model is a BERT of transformers, 384 wide, with a small vocabulary and without dropout: its linear layers are most
of the step. All models take turns in one process, each after a step of the float32 model; a ratio is the median of
a step's time over that of the float32 step before it. Exit status 3: the machine is busy. README.md says more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness

if TYPE_CHECKING:
    import torch

WIDTH, INNER, HEADS, WORDS = 384, 1536, 12, 1024
RATE = 1e-5
FLOAT = "float32"


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how many times the float32 step it may take at most."""

    text: str
    most: float


RECIPES = {
    "weights": Recipe("type:Linear weight=int4:g32", 1.05),
    "inputs": Recipe("type:Linear weight=int4:g32 input=int8:channel", 1.15),
    "mxfp4": Recipe("type:Linear weight=mxfp4 input=mxfp4", 1.15),
}
PEERS = {"torchao weights": None, "torchao inputs": "per_token"}
"""QAT of torchao with int4 weights in groups of 32, and the granularity of its int8 inputs."""


def bert(layers: int) -> torch.nn.Module:
    """A BERT with two labels; the same weights at every call."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers,
        num_attention_heads=HEADS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


def torchao_bert(layers: int, inputs: str | None) -> torch.nn.Module:
    """The model with torchao's fake quantized linear layers."""
    import torch
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    model = bert(layers)
    activation = None if inputs is None else IntxFakeQuantizeConfig(torch.int8, inputs, is_symmetric=False)
    weight = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    quantize_(model, QATConfig(activation_config=activation, weight_config=weight, step="prepare"))
    return model.train()


def stepper(model: torch.nn.Module, rows: int, tokens: int) -> Callable[[], float]:
    """A function that trains one step and returns its seconds."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, WORDS, (rows, tokens), generator=generator)
    labels = torch.randint(0, 2, (rows,), generator=generator)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def steppers(args: argparse.Namespace) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """Steps by name, float32 first, and a line for each peer that takes no part."""
    import octavo

    rows, tokens = args.batch
    steps = {FLOAT: stepper(bert(args.layers), rows, tokens)}
    for name in args.recipes:
        model = octavo.quantize_model(bert(args.layers), RECIPES[name].text, progress=False).train()
        steps[name] = stepper(model, rows, tokens)
    complaints = []
    for name, inputs in PEERS.items() if args.peers else ():
        try:
            steps[name] = stepper(torchao_bert(args.layers, inputs), rows, tokens)
            steps[name]()
        except Exception as error:  # whatever a foreign library raises: the bench goes on without it
            from _peers import one_line

            steps.pop(name, None)
            complaints.append(one_line(name, error))
    return steps, complaints


def run(args: argparse.Namespace) -> int:
    """Measure, print, and write the JSON file if asked for."""
    harness.require_quiet(args.force)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch loads its OpenMP
    import torch
    from octavo import _core

    torch.set_num_threads(args.threads)
    _core.set_num_threads(args.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that stay float32 by intent
        steps, complaints = steppers(args)
    for step in steps.values():
        step()
        step()
    samples, loads = harness.quiet_rounds(
        args.rounds, args.force, lambda _: {name: (steps[FLOAT](), step()) for name, step in steps.items()}
    )
    ratios = {name: median(step / plain for plain, step in (sample[name] for sample in samples)) for name in steps}
    times = {name: median(sample[name][1] for sample in samples) for name in steps}
    rows = {
        name: {
            "recipe": RECIPES[name].text if name in RECIPES else None,
            "median_ms": round(1e3 * times[name], 3),
            "ratio_to_float32": round(ratios[name], 4),
            "most": RECIPES[name].most if name in RECIPES else None,
        }
        for name in steps
    }
    report = {
        "machine": harness.facts(loads),
        "torch": torch.__version__,
        "threads": args.threads,
        "layers": args.layers,
        "batch": "x".join(str(n) for n in args.batch),
        "rows": rows,
        "without": complaints,
    }
    for name, row in rows.items():
        verdict = "" if row["most"] is None else "pass" if row["ratio_to_float32"] <= row["most"] else "miss"
        bar = "" if row["most"] is None else f"at most {row['most']:.2f}: {verdict}"
        print(f"{name:16} {row['median_ms']:9.1f} ms  {row['ratio_to_float32']:6.3f} of float32  {bar}")
    for complaint in complaints:
        print(complaint)
    if report["machine"]["busy"]:
        print("busy: these figures prove nothing")
    if args.json:
        harness.write_json(args.json, report)
    return 0


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Time a step of quantization-aware training over one in float32.")
    parser.add_argument(
        "--recipes", type=_recipes, default=tuple(RECIPES), help=f"of {','.join(RECIPES)}; default: all"
    )
    parser.add_argument("--layers", type=harness.positive, default=6, help="of the model, default 6")
    parser.add_argument("--batch", type=_batch, default=(16, 64), help="texts x tokens, default 16x64")
    parser.add_argument("--threads", type=harness.positive, default=2, help="threads of octavo and of torch, default 2")
    parser.add_argument("--rounds", type=harness.positive, default=15, help="steps of each model, default 15")
    parser.add_argument("--peers", action="store_true", help="also QAT of torchao")
    harness.add_common_arguments(parser, "qat")
    return parser.parse_args()


def _recipes(text: str) -> tuple[str, ...]:
    asked = text.split(",")
    if not set(asked) <= set(RECIPES):
        raise argparse.ArgumentTypeError(f"{text!r}: accepted are {', '.join(RECIPES)}")
    return tuple(asked)


def _batch(text: str) -> tuple[int, int]:
    rows, tokens = text.split("x")
    return harness.positive(rows), harness.positive(tokens)


if __name__ == "__main__":
    sys.exit(harness.main(run, arguments()))
