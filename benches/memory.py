"""Resident memory of a packed model beside the float32 one, each loaded with octavo.load_model in a process of its own.

    python benches/memory.py [--model minilm|FOLDER] [--recipe mxint8] [--json [FILE]]

``octavo pack`` packs the folder; growth is counted from a process that has imported everything and run a tiny model of
the same architecture, since what Python loads on first use belongs to no model. The embeddings of the packed model are
compared with those of the simulated one. README.md here says more.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _harness as harness

MOST_SHARE = 0.30
"""Growth of resident memory of the packed model over that of float32."""
SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 64}


def load(folder: Path, rehearsal: Path, vectors: Path, recipe: str | None) -> dict[str, int]:
    """Load a model, embed the built-in sentences, and return resident bytes before and after loading, and at most.

    ``rehearsal``: a folder with a tiny model, packed, loaded and run first. ``recipe``: simulate it on the model first.
    """
    import octavo
    import torch
    from octavo.compress.examples import SENTENCES
    from octavo.compress.sentence_encoder import Encoder
    from octavo.lab.studies.memory_probe import forget_peak, peak, resident

    torch.set_num_threads(1)
    ids = torch.ones(1, 4, dtype=torch.int64)
    with torch.inference_mode():
        octavo.load_model(rehearsal).base_model(input_ids=ids)
    gc.collect()
    forget_peak()
    told = {"imports": resident()}
    model = octavo.load_model(folder)
    gc.collect()
    told["loaded"] = resident()
    encoder = Encoder(folder, model if recipe is None else octavo.quantize_model(model, recipe, progress=False))
    found = encoder.embed(SENTENCES)
    told["peak"] = peak()
    octavo.save({"vectors": found}, vectors)
    return told


def rehearse(folder: Path, target: Path) -> None:
    """Write a tiny packed model of the architecture of ``folder``."""
    import octavo
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    for name, value in SMALL.items():
        setattr(config, name, value)
    model = transformers.AutoModel.from_config(config).eval()
    octavo.save_model(octavo.pack_model(octavo.quantize_model(model, "mxint8", progress=False)), target)


def measure(folder: Path, recipe: str) -> dict[str, Any]:
    """Pack a folder, load both in fresh processes, and return bytes, their share and the largest difference."""
    import octavo

    with tempfile.TemporaryDirectory() as made:
        own = Path(made)
        packed, small = own / "packed", own / "small"
        command = [sys.executable, "-m", "octavo", "pack", str(folder), "-o", str(packed), "--recipe", recipe]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rehearse(folder, small)
        told = {}
        for name, source, simulated in (
            ("float32", folder, None),
            ("packed", packed, None),
            ("simulated", folder, recipe),
        ):
            given = [str(source), str(small), str(own / f"{name}.safetensors"), *([simulated] if simulated else [])]
            child = subprocess.run(
                [sys.executable, __file__, "--load", *given], check=True, stdout=subprocess.PIPE, text=True
            )
            told[name] = json.loads(child.stdout.splitlines()[-1])
        vectors = {name: octavo.load(own / f"{name}.safetensors")["vectors"] for name in told}
        file_bytes = (packed / "model.octavo.safetensors").stat().st_size
    growth = {name: told[name]["loaded"] - told[name]["imports"] for name in ("float32", "packed")}
    peaks = {name: told[name]["peak"] - told[name]["imports"] for name in ("float32", "packed")}
    share = growth["packed"] / growth["float32"]
    return {
        "recipe": recipe,
        "file_bytes": file_bytes,
        "growth": growth,
        "peak_growth": peaks,
        "share": round(share, 4),
        "bar": MOST_SHARE,
        "verdict": "pass" if share <= MOST_SHARE else "miss",
        "largest_difference_from_simulated": (vectors["packed"] - vectors["simulated"]).abs().max().item(),
        "largest_difference_from_float32": (vectors["packed"] - vectors["float32"]).abs().max().item(),
    }


def main() -> int:
    """Run the bench; the exit status is 1 above the bar."""
    if sys.argv[1:2] == ["--load"]:
        folder, small, vectors, *recipe = sys.argv[2:]
        print(json.dumps(load(Path(folder), Path(small), Path(vectors), *(recipe or [None]))))
        return 0
    parser = argparse.ArgumentParser(description="Measure resident memory of a packed text encoder beside float32.")
    parser.add_argument("--model", default="minilm", metavar="minilm|FOLDER", help="a text encoder of transformers")
    parser.add_argument("--recipe", default="mxint8", help="what it is packed by")
    harness.add_common_arguments(parser, "memory")
    args = parser.parse_args()
    from octavo.storage.named_models import resolved

    folder = resolved(args.model)
    report = {
        "machine": harness.facts([harness.Load().stop()]),
        "model": Path(args.model).name,
        **measure(folder, args.recipe),
    }
    for name in ("growth", "peak_growth"):
        sizes = report[name]
        print(f"{name:12} float32 {sizes['float32'] / 1e6:7.1f} MB   packed {sizes['packed'] / 1e6:7.1f} MB")
    print(f"share {report['share']:.1%} of float32, bar {MOST_SHARE:.0%}: {report['verdict']}")
    print(f"largest difference: from simulated {report['largest_difference_from_simulated']:.3g}", end="")
    print(f", from float32 {report['largest_difference_from_float32']:.3g}")
    if args.json:
        harness.write_json(args.json, report)
    return 0 if report["verdict"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
