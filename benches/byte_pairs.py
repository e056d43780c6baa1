"""Byte pair tokenizers beside tiktoken and tokenizers: encoding, decoding, learning a vocabulary; ids compared.

    python benches/byte_pairs.py --merges vocab.bpe --vocabulary encoder.json --ranks gpt2.tiktoken
        --text english=FILE --text code=FILE --text chinese=FILE [--learn FILE] [--rounds 5] [--json [FILE]] [--force]

Each round times every contestant once, one after another; figures are medians of MB/s, ratios those of medians. All
peers give numpy arrays or lists, whichever is the quicker. Exit status 1: ids or merges differ; 3: the machine is busy.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ["RAYON_NUM_THREADS"] = "1"  # of the peers, before they start

import _harness as harness

BARS = {
    ("english", "tiktoken"): 2.0,
    ("english", "tokenizers"): 4.0,
    ("code", "tiktoken"): 1.5,
    ("chinese", "tiktoken"): 1.5,
}
EXPRESSION = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
MOST_BYTES = 4_000_000
SLOW_BYTES = 1_000_000
"""What tokenizers gets of a text: its speed does not depend on the length."""
SIZE = 10_240


def chosen(text: str) -> tuple[str, Path]:
    """Parse ``NAME=FILE``."""
    name, _, path = text.partition("=")
    return name, Path(path)


def contestants(args: argparse.Namespace) -> tuple[dict[str, Callable[[str], object]], object]:
    """Return what encodes a text, by name, and octavo's tokenizer."""
    import tiktoken
    import tokenizers
    from octavo.data import BytePairTokenizer

    mine = BytePairTokenizer.from_merges(args.merges, args.vocabulary)
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in args.ranks.open("rb") if line.strip()}
    other = tiktoken.Encoding("gpt2", pat_str=EXPRESSION, mergeable_ranks=ranks, special_tokens=mine.special)
    with tempfile.TemporaryDirectory() as folder:
        mine.save(folder)
        third = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    calls: dict[str, Callable[[str], object]] = {
        "octavo": lambda text: mine.encode(text, special="split"),
        "tiktoken": lambda text: other.encode_to_numpy(text, disallowed_special=()),
        "tokenizers": lambda text: third.encode(text).ids,
    }
    return calls, mine


def encoding(args: argparse.Namespace) -> tuple[dict[str, object], bool, list[float]]:
    """Time encoding on 1 thread, octavo on 2, and decoding; compare ids."""
    import numpy as np
    from octavo import _core

    calls, mine = contestants(args)
    report: dict[str, object] = {}
    same, loads = True, []
    for name, path in args.text:
        text = path.read_text(encoding="utf-8", errors="replace")[:MOST_BYTES]
        short = text[: SLOW_BYTES * len(text) // max(1, len(text.encode()))]
        nbytes = {"tokenizers": len(short.encode())}
        _core.set_num_threads(1)
        ids = calls["octavo"](text)
        is_same = np.array_equal(ids, calls["tiktoken"](text))
        is_same &= np.array_equal(calls["octavo"](short), calls["tokenizers"](short))
        same &= bool(is_same)

        def one_round(number: int, text: str = text, short: str = short, ids: object = ids) -> dict[str, float]:
            found = {}
            for who, call in calls.items():
                given = short if who == "tokenizers" else text
                found[who] = harness.timed(lambda call=call, given=given: call(given))
            found["decode"] = harness.timed(lambda: mine.decode_bytes(ids))
            _core.set_num_threads(2)
            found["octavo, 2 threads"] = harness.timed(lambda: calls["octavo"](text))
            _core.set_num_threads(1)
            return found

        samples, load = harness.quiet_rounds(args.rounds, args.force, one_round)
        loads += load
        size = len(text.encode())
        speeds = {who: median(nbytes.get(who, size) / sample[who] / 1e6 for sample in samples) for who in samples[0]}
        ratios = {who: speeds["octavo"] / speeds[who] for who in ("tiktoken", "tokenizers")}
        two = speeds["octavo, 2 threads"] / speeds["octavo"]
        report[name] = {
            "bytes": size,
            "ids": len(ids),
            "same_ids": bool(is_same),
            "megabytes_a_second": {who: round(speed, 1) for who, speed in speeds.items()},
            "ratios": {who: round(ratio, 2) for who, ratio in ratios.items()},
            "two_threads": round(two, 2),
            "met": {who: ratios[who] >= bar for (text_name, who), bar in BARS.items() if text_name == name},
        }
        told = ", ".join(f"{who} {speed:.1f}" for who, speed in speeds.items())
        told += "; " + ", ".join(f"x {who} {ratio:.2f}" for who, ratio in ratios.items())
        print(f"{name}: MB/s: {told}; 2 threads {two:.2f}; ids {'equal' if is_same else 'DIFFER'}")
    _core.set_num_threads(0)
    return report, same, loads


def learning(path: Path) -> tuple[dict[str, object], bool]:
    """Time learning 10,240 ids from the documents of a file, once each, all threads; compare merges."""
    import tokenizers
    from octavo.data import BytePairTokenizer
    from octavo.data.document_files import pieces

    os.environ.pop("RAYON_NUM_THREADS", None)
    texts, parts = [], []
    for piece in pieces(path):
        parts.append(piece.text)
        if piece.is_last:
            texts.append(b"".join(parts).decode())
            parts = []
    begin = time.perf_counter()
    mine = BytePairTokenizer.train(texts, SIZE, special=[])
    middle = time.perf_counter()
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    peer.train_from_iterator(texts, trainer)
    end = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        mine.save(folder)
        merges = json.loads((Path(folder) / "tokenizer.json").read_text())["model"]["merges"]
    same = merges == json.loads(peer.to_str())["model"]["merges"]
    found = {
        "bytes": sum(len(text.encode()) for text in texts),
        "seconds": {"octavo": round(middle - begin, 2), "tokenizers": round(end - middle, 2)},
        "ratio": round((end - middle) / (middle - begin), 2),
        "same_merges": same,
    }
    print(f"learning {SIZE} ids from {found['bytes']} bytes: {found['seconds']}, x {found['ratio']}, merges "
          f"{'equal' if same else 'DIFFER'}")  # fmt: skip
    return found, same


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    loads = [harness.require_quiet(args.force)]
    report, same, more = encoding(args)
    loads += more
    if args.learn is not None:
        report["learning"], is_same = learning(args.learn)
        same &= is_same
    if args.json is not None:
        harness.write_json(args.json, {**harness.facts(loads), "texts": report})
    return 0 if same else 1


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("merges", "vocabulary", "ranks"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--text", type=chosen, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--learn", type=Path, metavar="FILE", help="learn a vocabulary from this file, too")
    parser.add_argument("--rounds", type=harness.positive, default=5)
    harness.add_common_arguments(parser, "byte-pairs")
    return harness.main(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
