"""Every architecture of the native decoder at the size of SmolLM2-135M: its speed beside that of ``llama``.

    python benches/architectures.py [--architectures NAME ...] [--recipe int4:g32] [--positions 256] [--rounds 5]
        [--folders DIR] [--json [FILE]] [--force]

Weights are random. Models have 30 layers of 576 channels, 9 heads, and 1536 channels inside each feed-forward network;
mixtures choose experts of as many together. They differ in the bytes that a token reads, weights once and the cache as
long as it is. So the ratio is that of bytes a second: what tokens/s would be at equal bytes. Each round lets every
decoder grow one text to all positions; figures are medians.
Exit status 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import _harness as harness
from generate import PROMPT, grown

if TYPE_CHECKING:
    from octavo import TextGenerator

BAR = 0.9
"""Least bytes a second, of those of ``llama``."""
SIZES = {
    "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
HEADS = {**SIZES, "num_key_value_heads": 9}
ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", SIZES),
    "gpt2": (
        "GPT2",
        {"vocab_size": 49152, "n_embd": 576, "n_layer": 30, "n_head": 9, "n_inner": 2304, "n_positions": 2048},
    ),
    "mistral": ("Mistral", {**SIZES, "sliding_window": 128}),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 64}),
    "gemma2": ("Gemma2", {**SIZES, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 128}),
    "gemma3": ("Gemma3", {**SIZES, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 128}),
    "phi3": ("Phi3", {**SIZES, "pad_token_id": 0}),
    "smollm3": ("SmolLM3", {**SIZES, "pad_token_id": 0}),
    "gpt_neox": ("GPTNeoX", {**HEADS, "intermediate_size": 2304}),
    "opt": (
        "OPT",
        {"vocab_size": 49152, "hidden_size": 576, "word_embed_proj_dim": 576, "num_hidden_layers": 30,
         "num_attention_heads": 9, "ffn_dim": 2304, "max_position_embeddings": 2048},
    ),
    "falcon": (
        "Falcon",
        {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
         "ffn_hidden_size": 2304},
    ),
    "stablelm": ("StableLm", SIZES),
    "granite": ("Granite", SIZES),
    "olmo2": ("Olmo2", SIZES),
    "mixtral": ("Mixtral", {**SIZES, "intermediate_size": 768, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**SIZES, "head_dim": 64, "moe_intermediate_size": 768, "num_experts": 4, "num_experts_per_tok": 2},
    ),
}  # fmt: skip


def load(name: str, recipe: str, folder: Path) -> TextGenerator:
    """Load the decoder of an architecture, whose packed folder is made if it is not there."""
    from octavo import TextGenerator

    place = folder / "".join(letter if letter.isalnum() else "-" for letter in f"{name} {recipe}")
    if not (place / "config.json").exists():
        import octavo
        import torch
        import transformers

        stem, values = ARCHITECTURES[name]
        kind = getattr(transformers, f"{stem}LMHeadModel" if stem == "GPT2" else f"{stem}ForCausalLM")
        torch.manual_seed(0)
        model = octavo.quantize_model(kind(kind.config_class(**values)).eval(), recipe, progress=False)
        octavo.save_model(octavo.pack_model(model), place)
        del model
        gc.collect()
    return TextGenerator.load(place)


def run(args: argparse.Namespace) -> int:
    """Measure and report; exit status 1 where an architecture is below the bar."""
    harness.require_quiet(args.force)
    names = ["llama", *(name for name in args.architectures if name != "llama")]
    with tempfile.TemporaryDirectory() as temporary:
        found = {name: load(name, args.recipe, args.folders or Path(temporary)) for name in names}

        def one_round(_: int) -> dict[str, float]:
            took = {}
            for name, decoder in found.items():
                time.sleep(harness.SETTLE_S)
                took[name] = grown(decoder, args.positions)
            return took

        samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
    nbytes = {
        name: decoder.nbytes + decoder.position_nbytes * (args.positions + PROMPT) / 2
        for name, decoder in found.items()
    }
    speed = {name: [nbytes[name] / took[name] for took in samples] for name in found}
    rows = [
        {
            "architecture": name,
            "tokens_per_s": round(1 / median(took[name] for took in samples), 1),
            "mb_per_token": round(nbytes[name] / 1e6, 1),
            "gb_per_s": round(median(speed[name]) / 1e9, 2),
            # Of the same round: the bandwidth changes on a shared machine.
            "of_llama": round(median(own / llama for own, llama in zip(speed[name], speed["llama"], strict=True)), 3),
            "bar": BAR,
        }
        for name in found
    ]
    print(f"{args.recipe}, up to {args.positions} positions")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.json:
        facts = harness.facts(loads)
        harness.write_json(args.json, {**facts, "recipe": args.recipe, "results": rows})
    return int(any(row["of_llama"] < BAR for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES), metavar="NAME"
    )
    parser.add_argument("--recipe", default="int4:g32")
    parser.add_argument("--positions", type=harness.positive, default=256)
    parser.add_argument("--rounds", type=harness.positive, default=5)
    parser.add_argument("--folders", type=Path, metavar="DIR", help="keep the models here for the next time")
    harness.add_common_arguments(parser, "architectures")
    sys.exit(harness.main(run, parser.parse_args()))
