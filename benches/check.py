"""Speed of ``octavo check`` over checkpoints in the page cache, by layout, and the memory that it takes.

    python benches/check.py [--megabytes 256] [--rounds 5] [--layouts bf16,ct-int4] [--json [FILE]]

Codes are random bytes, scales are sound: rules find nothing and so read everything that they read of a sound file.
Bar: 200 MB of tensors a second for every layout. README.md here says more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import _harness as harness
import numpy as np

BAR_MB_S = 200
ROWS, COLUMNS = 4096, 4096
WIDE = {"bf16": 2.0, "fp8": 1.0}  # bytes of a weight; about a half in all others
LAYER = "model.layers.{}.mlp.down_proj"


def random_bytes(*shape: int) -> Any:
    """Return random bytes below 0x7F, which are NaN in no float of 8 bits."""
    return np.random.default_rng(0).integers(1, 0x7F, shape, dtype=np.uint8)


def compressed_tensors(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def folder_of(layout: str, layers: int, path: Path) -> Path:
    """Write a folder of some layers."""
    import octavo
    import torch

    codes = random_bytes(ROWS, COLUMNS // 2)
    halves = torch.full((ROWS, COLUMNS // 128), 0.01, dtype=torch.bfloat16)
    config: dict[str, Any] | None = None
    if layout == "bf16":
        parts = {".weight": (torch.randn(ROWS, COLUMNS) / 50).bfloat16()}
    elif layout == "ct-int4":
        parts = {
            ".weight_packed": torch.from_numpy(codes.view(np.int32)),
            ".weight_scale": halves,
            ".weight_shape": torch.tensor([ROWS, COLUMNS]),
        }
        config = compressed_tensors("pack-quantized", {"num_bits": 4, "type": "int", "group_size": 128})
    elif layout == "gptq":
        parts = {
            ".qweight": torch.from_numpy(codes.reshape(-1).view(np.int32).reshape(COLUMNS // 8, ROWS)),
            ".qzeros": torch.full((COLUMNS // 128, ROWS // 8), 0x77777777, dtype=torch.int32),
            ".scales": halves.half().T.contiguous(),
            ".g_idx": torch.arange(COLUMNS, dtype=torch.int32) // 128,
        }
        config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    elif layout == "nvfp4":
        parts = {
            ".weight_packed": torch.from_numpy(codes),
            ".weight_scale": torch.from_numpy(random_bytes(ROWS, COLUMNS // 16)).view(torch.float8_e4m3fn),
            ".weight_global_scale": torch.tensor([5000.0]),
        }
        config = compressed_tensors("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 16})
    else:
        parts = {
            ".weight": torch.from_numpy(random_bytes(ROWS, COLUMNS)).view(torch.float8_e4m3fn),
            ".weight_scale": torch.full((ROWS, 1), 0.001),
        }
        config = compressed_tensors("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})
    path.mkdir()
    tensors = {LAYER.format(number) + suffix: part for number in range(layers) for suffix, part in parts.items()}
    octavo.save(tensors, path / "model.safetensors", metadata={"format": "pt"})
    if config is not None:
        (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    return path


def packed_of(layers: int, path: Path) -> Path:
    """Write a container of ours, with digests as octavo.save_model writes them."""
    import octavo
    import torch

    weight = octavo.encode(torch.randn(ROWS, COLUMNS) / 50, "mxfp4")
    tensors = {f"{LAYER.format(number)}.weight": weight for number in range(layers)}
    octavo.save(tensors, path, metadata={"digests": json.dumps(octavo.tensors.container.digests(tensors))})
    return path


def gguf_of(kind: str, layers: int, path: Path) -> Path:
    """Write a GGUF file of some blocks."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    elements, nbytes = gguf.GGML_QUANT_SIZES[number]
    data = random_bytes(ROWS, COLUMNS // elements, nbytes)
    if kind == "Q6_K":
        data[..., -2:] = (0, 0x20)  # a scale of 2^-7
    else:
        data[..., :4] = (0, 0x20, 0, 0x20)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    for block in range(layers):
        writer.add_tensor(f"blk.{block}.ffn_down.weight", data.reshape(ROWS, -1), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LAYOUTS: dict[str, Callable[[str, int, Path], Path]] = {
    **dict.fromkeys(("bf16", "ct-int4", "gptq", "nvfp4", "fp8"), folder_of),
    "octavo-mxfp4": lambda _, layers, path: packed_of(layers, path.with_suffix(".safetensors")),
    **dict.fromkeys(
        ("gguf-Q4_0", "gguf-Q8_0", "gguf-Q4_K", "gguf-Q6_K"),
        lambda layout, layers, path: gguf_of(layout.removeprefix("gguf-"), layers, path.with_suffix(".gguf")),
    ),
}


def run(args: argparse.Namespace) -> int:
    """Run the bench; the exit status is 1 where a layout is below the bar."""
    from octavo.interchange.check.run_check import check_path

    harness.require_quiet(args.force)
    wanted = args.layouts.split(",") if args.layouts else list(LAYOUTS)
    rows, loads = [], []
    with tempfile.TemporaryDirectory() as folder:
        for layout in wanted:
            a_layer = WIDE.get(layout, 0.55) * ROWS * COLUMNS / 1e6
            path = LAYOUTS[layout](layout, max(round(args.megabytes / a_layer), 1), Path(folder) / layout)
            checked = check_path(path)  # reads the file into the page cache
            assert not len(checked.findings), [one.text for one in checked.findings]
            nbytes = checked.model.source.nbytes
            samples, load = harness.quiet_rounds(
                args.rounds, args.force, lambda _, path=path: harness.timed(lambda: check_path(path))
            )
            loads += load
            tracemalloc.start()
            check_path(path)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            speed = nbytes / median(samples) / 1e6
            rows.append(
                {
                    "layout": layout,
                    "MB": round(nbytes / 1e6, 1),
                    "MB/s": round(speed),
                    "peak of Python's memory, MB": round(peak / 1e6, 1),
                    "verdict": "pass" if speed >= BAR_MB_S else "miss",
                }
            )
            print(rows[-1], file=sys.stderr)
    report = {"machine": harness.facts(loads), "bar_mb_s": BAR_MB_S, "rows": rows}
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if args.json:
        harness.write_json(args.json, report)
    return 0 if all(row["verdict"] == "pass" for row in rows) else 1


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description="Measure octavo check over checkpoints in the page cache.")
    parser.add_argument("--megabytes", type=harness.positive, default=256, help="of tensors, each layout")
    parser.add_argument("--rounds", type=harness.positive, default=5)
    parser.add_argument("--layouts", metavar="a,b", help=f"some of {', '.join(LAYOUTS)}")
    harness.add_common_arguments(parser, "check")
    return harness.main(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
