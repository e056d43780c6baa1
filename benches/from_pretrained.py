"""Memory and time of packing a random Llama in bfloat16 while it is read, by two ways, and of opening what they write.

    python benches/from_pretrained.py [--size 1b|small] [--recipe int4:g32] [--json [FILE]]

The folder is written to a temporary directory, a shard a layer. Each way runs in a process of its own, whose anonymous
memory (RssAnon: not the pages of mapped files) is read every 5 ms from outside; counted is what comes on top of the
imports. README.md here says more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _harness as harness

SIZES = {
    "1b": {  # Llama 3.2
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
    },
    "small": {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000,
    },
}  # fmt: skip
MOST_BYTES, MOST_SECONDS = 1.5e9, 60.0
"""Anonymous memory on top of imports and of the packed file, and time on two cores."""
WAYS = ("from_pretrained", "pack", "open")
"""Packing while reading, ``octavo pack``, and opening the folder that it wrote."""
_EVERY_S = 0.005


def write_folder(folder: Path, size: str) -> None:
    """Write a random model with a tied head, one layer at a time."""
    import torch
    import transformers
    from safetensors.torch import save_file

    values = SIZES[size]
    config = transformers.LlamaConfig(**values, tie_word_embeddings=True, architectures=["LlamaForCausalLM"])
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {
            name: tuple(value.shape) for name, value in transformers.LlamaForCausalLM(config).state_dict().items()
        }
    shapes.pop("lm_head.weight")
    shards: dict[str, list[str]] = {}
    for name in shapes:
        parts = name.split(".")
        shards.setdefault(f"layer-{parts[2]}" if parts[1] == "layers" else parts[1], []).append(name)
    places = {}
    generator = torch.Generator().manual_seed(0)
    for shard, names in shards.items():
        file = f"model-{shard}.safetensors"
        tensors = {
            name: torch.ones(shapes[name]).bfloat16()
            if len(shapes[name]) == 1
            else torch.empty(shapes[name], dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
            for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def run(way: str, source: Path, target: Path, recipe: str) -> None:
    """Pack in this process, after all imports; a line on standard output says that they are done."""
    import octavo.transformers
    import torch
    import transformers
    from octavo.cli import pack

    torch.set_num_threads(2)
    assert pack and transformers.LlamaForCausalLM  # both are imported
    print("imported", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    if way == "pack":
        from octavo.cli import main

        sys.argv = ["octavo", "pack", str(source), "-o", str(target), "--recipe", recipe]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        print(json.dumps({"seconds": time.perf_counter() - start}))
        return
    config = {} if way == "open" else {"quantization_config": octavo.transformers.OctavoConfig(recipe)}
    model = transformers.AutoModelForCausalLM.from_pretrained(target if way == "open" else source, **config)
    seconds = time.perf_counter() - start
    packed = {
        id(layer.weight_codes): layer.packed_weight.nbytes
        for layer in model.modules()
        if hasattr(layer, "weight_codes")
    }
    print(json.dumps({"seconds": seconds, "packed_bytes": sum(packed.values())}))


def anonymous(process: int) -> int:
    """Return the bytes of anonymous memory of a process; 0 where it has ended."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon:"))


def measure(way: str, source: Path, target: Path, recipe: str) -> dict[str, Any]:
    """Return seconds, and the peak of anonymous memory on top of imports, of one way."""
    command = [sys.executable, __file__, "--run", way, str(source), str(target), recipe]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None  # both are pipes
        child.stdout.readline()
        imports = peak = anonymous(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        while child.poll() is None:
            peak = max(peak, anonymous(child.pid))
            time.sleep(_EVERY_S)
        lines = child.stdout.read().splitlines()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {child.returncode}")
    figures = json.loads(lines[-1])
    return {"seconds": round(figures["seconds"], 1), "peak_bytes": peak - imports, **figures}


def report(size: str, recipe: str) -> dict[str, Any]:
    """Return the figures of both ways, and whether each keeps the bars."""
    with tempfile.TemporaryDirectory() as made:
        source, target = Path(made) / "float", Path(made) / "packed"
        source.mkdir()
        write_folder(source, size)
        figures = {way: measure(way, source, target, recipe) for way in WAYS}
        packed = (target / "model.octavo.safetensors").stat().st_size
        dense = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    for row in figures.values():
        row["over_packed_bytes"] = row["peak_bytes"] - packed
        is_within = row["over_packed_bytes"] <= MOST_BYTES and row["seconds"] <= MOST_SECONDS
        row["verdict"] = "pass" if is_within else "miss"
    return {"size": size, "recipe": recipe, "float_bytes": dense, "packed_bytes": packed, "ways": figures}


def main() -> int:
    """Run the bench; the exit status is 1 above a bar."""
    if sys.argv[1:2] == ["--run"]:
        way, source, target, recipe = sys.argv[2:]
        run(way, Path(source), Path(target), recipe)
        return 0
    parser = argparse.ArgumentParser(description="Measure memory and time of packing a Llama while it is read.")
    parser.add_argument("--size", default="1b", choices=list(SIZES))
    parser.add_argument("--recipe", default="int4:g32", help="what it is packed by")
    harness.add_common_arguments(parser, "from-pretrained")
    args = parser.parse_args()
    load = harness.require_quiet(args.force)
    figures = {"machine": harness.facts([load]), **report(args.size, args.recipe)}
    print(f"float {figures['float_bytes'] / 1e6:.0f} MB, packed {figures['packed_bytes'] / 1e6:.0f} MB")
    for way, row in figures["ways"].items():
        print(
            f"{way:16} {row['seconds']:6.1f} s   peak {row['peak_bytes'] / 1e6:7.0f} MB, "
            f"{row['over_packed_bytes'] / 1e6:6.0f} MB over the packed size: {row['verdict']}"
        )
    if args.json:
        harness.write_json(args.json, figures)
    return 0 if all(row["verdict"] == "pass" for row in figures["ways"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
