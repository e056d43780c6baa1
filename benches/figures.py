"""Measures the figures of README.md and the manual: ``python benches/figures.py``, then ``python docs/figures.py``.

Each group is what one command gives. It goes into benches/results/figures.json with the command, the processor and the
date as soon as it is measured, and replaces the group of that name alone: ``--only NAME`` measures some. Groups that
say ``source`` are read from recorded results; those with neither stay as they are.
"""

import argparse
import csv
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from octavo import __version__
from octavo.cuda.machine import cpu
from octavo.lab.polynomials import Engine
from octavo.lab.polynomials.accuracy import measure
from octavo.lab.polynomials.data import splits
from octavo.lab.polynomials.export import export_model
from octavo.lab.polynomials.shipped import load_shipped

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches" / "results"
FIGURES = RESULTS / "figures.json"
PLAIN = "mxint8,int6:g64,int5:g64,nf4/32,nf4,nf3/32,nf3,int2:g32"  # candidates without a solver
COMPRESSIONS = {
    "compress": "octavo compress",
    "compress-plain": f"octavo compress --formats {PLAIN}",
    "compress-train": "octavo compress --train",
    "minilm": "octavo compress --model minilm",
}
"""Commands whose ``report.json`` holds the figures, by the name of their group."""
STUDIES = {"ptq-minilm", "qat-minilm", "formats-minilm", "qat-tiny", "ptq-tiny"}
"""Recorded studies of accuracy: ``results/study-NAME.csv`` with the command in the JSON file beside it."""
SHIPPED = {"fp32": "exact", "static INT8": "integer_exact"}
"""Counts of right lines beside the shipped model."""


def figure(value: float, unit: str) -> dict[str, object]:
    """Return a figure as the file holds it."""
    return {"value": value, "unit": unit}


def of_report(report: dict) -> dict[str, dict]:
    """Return the figures of the report of a compression."""
    metric, *others = report["metrics"]
    costs = {row["key"]: row for row in report["costs"]}
    found = {
        "before": figure(metric["before"]["value"], metric["unit"]),
        "after": figure(metric["after"]["value"], metric["unit"]),
        "bytes before": figure(costs["file_bytes"]["before"]["value"], "B"),
        "bytes": figure(costs["file_bytes"]["after"]["value"], "B"),
        "bits": figure(costs["bits_all"]["after"]["value"], "bits"),
    }
    if "low" in metric.get("difference", {}):
        for end in ("low", "high"):
            found[f"change, {end}"] = figure(100 * metric["difference"][end], "points")
    for row in others:
        for label, value in (row.get("others") or {}).items():
            if label.startswith("best uniform"):
                found["best single format"] = figure(value["value"], row["unit"])
    for row in report["rejected"]:
        if row["what"].endswith(" for all layers"):
            found[row["what"]] = figure(row["measured"]["value"], others[0]["unit"])
    return found


def compressed(command: str) -> dict[str, dict]:
    """Run a command of ``octavo compress`` in a folder of its own and return the figures of its report."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*shlex.split(command)[1:], "-o", f"{folder}/out"]
        subprocess.run([sys.executable, "-c", "from octavo.cli import main; main()", *words], check=True, cwd=folder)
        return of_report(json.loads(Path(folder, "out", "report.json").read_text(encoding="utf-8")))


def of_study(name: str) -> dict[str, dict]:
    """Return the accuracies of a recorded study, with the half width of their intervals in points."""
    found = {}
    with (RESULTS / f"study-{name}.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = " ".join([row["family"], row["width"], row.get("method") or row["mode"]])
            found[key] = figure(float(row["accuracy"]), "share")
            if row["half_interval_95"]:
                found[f"{key}, interval"] = figure(100 * float(row["half_interval_95"]), "points")
    return found


def of_memory() -> dict[str, dict]:
    """Return the bytes of the recorded study of memory, and their share of those in float32."""
    with (RESULTS / "study-memory-minilm.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["bytes"]]
    whole = {row["what"]: float(row["bytes"]) for row in rows if row["model"] == "fp32"}
    found = {}
    for row in rows:
        key = f"{row['model']} {row['what']}"
        found[key] = figure(float(row["bytes"]), "B")
        if row["what"] in whole:
            found[f"{key}, share"] = figure(float(row["bytes"]) / whole[row["what"]], "share")
    return found


def of_shipped() -> dict[str, dict]:
    """Return the shares of 20,000 test lines that the shipped model answers to the last character."""
    lines = splits().test
    with tempfile.TemporaryDirectory() as folder:
        packed = export_model(*load_shipped(), Path(folder, "packed"), format="mxint8")
        engines = {
            "fp32": Engine.load(),
            "mxint8": Engine.load(packed),
            "static INT8": Engine.load(precision="integer"),
        }
        return {name: figure(measure(engine.expand, lines).share, "share") for name, engine in engines.items()}


def machine() -> dict[str, object]:
    """Return what the figures of a run depend on besides the command."""
    facts = cpu()
    return {
        "processor": f"{facts['name']}, {facts['simd_level']}{', AMX' if 'amx_int8' in facts['instructions'] else ''}",
        "threads": {"torch": torch.get_num_threads(), "kernels": facts["threads"]},
        "versions": {"octavo": __version__, "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> None:
    """Measure what is asked for, group by group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*COMPRESSIONS, *sorted(STUDIES), "memory-minilm", "shipped"]
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=names, default=names, help=", ".join(names))
    for name in parser.parse_args().only:
        print(f"{name} ...", flush=True)
        if name in COMPRESSIONS:
            made = {"command": COMPRESSIONS[name], **machine(), "figures": compressed(COMPRESSIONS[name])}
        elif name == "shipped":
            command = "pytest -m slow tests/lab/polynomials/test_shipped.py -s"
            made = {"command": command, **machine(), "figures": of_shipped()}
        else:
            file = RESULTS / f"study-{name}.json"
            study = json.loads(file.read_text(encoding="utf-8"))
            read = of_memory() if name == "memory-minilm" else of_study(name)
            made = {
                "command": study["command"],
                "source": str(file.with_suffix(".csv").relative_to(ROOT)),
                "figures": read,
            }
            if "machine" in study:
                made["processor"] = str(study["machine"])
        known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
        made.setdefault("processor", known.get(name, {}).get("processor", "not recorded"))
        known[name] = made
        whole = FIGURES.with_name(f".{FIGURES.name}.{os.getpid()}")
        whole.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        whole.replace(FIGURES)


if __name__ == "__main__":
    main()
