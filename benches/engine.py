"""Polynomials expanded from text to text: the native engine beside PyTorch, lines a second and seconds for one line.

    python benches/engine.py [--model FOLDER] [--lines 1000000] [--rounds 5] [--binary FILE] [--json [FILE]] [--force]

Figures are medians over interleaved rounds. Exit status 3: the machine is busy. README.md here says more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import _harness as harness

REPOSITORY = harness.BENCHES.parent
BINARY = REPOSITORY / "target" / "release" / "octavo-expand"
LINE = "(7-3*z)*(-5*z-9)"
NATIVE = ("float", "bfloat16", "integer")
"""Precisions of the engine."""
SMALL = {**dict.fromkeys(NATIVE, 50_000), "general": 2_048, "eager cached": 4_096, "eager uncached": 512}
"""Lines that each contestant answers in a round: a second or two for each."""
MOST_SECONDS = 50.0
"""Bar of a million lines on 2 cores."""
GENERAL = {"one line": (1, 1, 100), "one line, beam 4": (1, 4, 30), "512 lines": (512, 1, 3)}
"""What the general route is timed on: lines, width of the beam, calls."""
LEAST_OVER_EAGER, LEAST_OVER_UNCACHED = 8.0, 2.0
MOST_COLD_MS, MOST_WARM_MS = 50.0, 1.0


def contestants(folder: Path) -> dict[str, Callable[[list[str]], object]]:
    """Functions from left sides to right sides, by name."""
    import torch
    from octavo.lab.polynomials import Engine
    from octavo.lab.polynomials.accuracy import expander
    from octavo.lab.polynomials.export import INTEGER, load_model
    from octavo.model_folder.model_config import own_model

    network, tokenizer = load_model(folder)
    own = own_model(folder)
    variants = {} if own is None else own.variants

    def uncached(lefts: list[str]) -> list[str]:
        source = torch.from_numpy(tokenizer.encode(lefts, end=False)[0])
        return tokenizer.decode(network.generate(source, cache=False)[0])

    found: dict[str, Callable[[list[str]], object]] = {
        name: Engine.load(folder, precision=name).expand for name in NATIVE if name != "integer" or INTEGER in variants
    }
    found["general"] = Engine.load(folder, route="general").expand
    found["eager cached"] = expander(network, tokenizer)
    found["eager uncached"] = uncached
    return found


def throughput(folder: Path, rounds: int, force: bool) -> tuple[dict[str, float], list[float]]:
    """Lines a second of every contestant, and the copy bandwidth in GB/s, medians of interleaved rounds."""
    import torch
    from octavo.lab.polynomials.data import generate

    lefts = [line.partition("=")[0] for line in generate(max(SMALL.values()), seed=77)]
    calls = contestants(folder)
    source = torch.randn(1 << 24)
    target = torch.empty_like(source)
    for name, call in calls.items():
        call(lefts[: SMALL[name] // 8])

    def one_round(_: int) -> dict[str, float]:
        seen = {
            name: SMALL[name] / harness.timed(lambda n=name, c=call: c(lefts[: SMALL[n]]))
            for name, call in calls.items()
        }
        seen["copy GB/s"] = 2 * source.nbytes / harness.timed(lambda: target.copy_(source)) / 1e9
        return seen

    samples, loads = harness.quiet_rounds(rounds, force, one_round)
    return {name: median(sample[name] for sample in samples) for name in samples[0]}, loads


def million(folder: Path, lines: int, precision: str) -> float:
    """Seconds from a text file of ``lines`` lines to a text file of their answers."""
    from octavo.lab.polynomials import Engine
    from octavo.lab.polynomials.data import generate

    with tempfile.TemporaryDirectory() as scratch:
        given, answers = Path(scratch) / "in.txt", Path(scratch) / "out.txt"
        given.write_text("".join(line.partition("=")[0] + "\n" for line in generate(lines, seed=78)))
        engine = Engine.load(folder, precision=precision)
        seconds = harness.timed(lambda: engine.expand_file(given, answers))
        if answers.read_bytes().count(b"\n") != lines:
            raise RuntimeError("the engine answered another number of lines")
    return seconds


def warm_ms(folder: Path) -> float:
    """Milliseconds of one line in a process that has done it before."""
    from octavo.lab.polynomials import Engine

    engine = Engine.load(folder)
    return 1e3 * median(harness.timed(lambda: engine.expand([LINE])) for _ in range(200))


def general_ms(folder: Path) -> dict[str, float]:
    """Milliseconds of a call of the general route, which runs every architecture, on one thread and on all."""
    from octavo.lab.polynomials import Engine
    from octavo.lab.polynomials.data import generate

    lefts = [line.partition("=")[0] for line in generate(max(lines for lines, _, _ in GENERAL.values()), seed=77)]
    found = {}
    for name, (lines, beam, calls) in GENERAL.items():
        for threads in (1, None):
            engine = Engine.load(folder, route="general", threads=threads)
            given = [LINE] if lines == 1 else lefts[:lines]
            engine.expand(given, beam=beam)
            times = [harness.timed(lambda e=engine, g=given, b=beam: e.expand(g, beam=b)) for _ in range(calls)]
            found[f"{name}, {'all threads' if threads is None else 'one thread'}"] = 1e3 * median(times)
    return found


def cold_ms(command: list[str], runs: int = 15) -> float:
    """Milliseconds of a whole process that answers one line."""
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        subprocess.run(command, input=LINE + "\n", text=True, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begin)
    return 1e3 * median(times[1:])


def row(what: str, value: float, unit: str, bar: float | None = None, *, least: bool = False) -> dict[str, object]:
    """Return one line of the report; ``least``: the bar is a lower one."""
    met = bar is None or (value >= bar if least else value <= bar)
    verdict = "" if bar is None else "pass" if met else "miss"
    return {"what": what, "value": float(f"{value:.4g}"), "unit": unit, "bar": bar, "verdict": verdict}


def main() -> int:
    """Run the bench; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="model folder; default: the shipped model")
    parser.add_argument("--lines", type=harness.positive, default=1_000_000, help="lines of the long run")
    parser.add_argument("--rounds", type=harness.positive, default=5)
    parser.add_argument("--binary", type=Path, default=BINARY, help="octavo-expand; left out where it is not built")
    harness.add_common_arguments(parser, "engine")
    given = parser.parse_args()
    try:
        load = harness.require_quiet(given.force)
        from octavo.lab.polynomials.shipped import shipped_folder

        folder = given.model or shipped_folder()
        command = [sys.executable, "-m", "octavo", "lab", "expand"]
        cold = {"octavo lab expand (Python)": [*command, "--model", str(folder), LINE]}
        if given.binary.exists():
            cold["octavo-expand"] = [str(given.binary), "--model", str(folder)]
        rows = [
            row(
                f"one line, cold process, {name}",
                cold_ms(command),
                "ms",
                MOST_COLD_MS if "Python" not in name else None,
            )
            for name, command in cold.items()
        ]
        rows.append(row("one line, warm", warm_ms(folder), "ms", MOST_WARM_MS))
        rows += [row(f"general route, {name}", value, "ms") for name, value in general_ms(folder).items()]
        rates, loads = throughput(folder, given.rounds, given.force)
        for name, rate in rates.items():
            rows.append(row(name, rate, "GB/s" if "copy" in name else "lines/s"))
        eager = rates["eager cached"]
        for name in NATIVE:
            if name in rates:
                rows.append(
                    row(f"{name} over eager PyTorch, batch 512", rates[name] / eager, "x", LEAST_OVER_EAGER, least=True)
                )
        rows.append(
            row("eager cached over uncached", eager / rates["eager uncached"], "x", LEAST_OVER_UNCACHED, least=True)
        )
        for name in NATIVE:
            if name in rates:
                rows.append(
                    row(f"{given.lines:,} lines, {name}", million(folder, given.lines, name), "s", MOST_SECONDS)
                )
    except harness.BusyMachine as error:
        print(error, file=sys.stderr)
        return harness.BUSY
    for line in rows:
        bar = "" if line["bar"] is None else f"bar {line['bar']:g} {line['verdict']}"
        print(f"{line['what']:44} {line['value']:>12,} {line['unit']:8} {bar}")
    if given.json:
        harness.write_json(given.json, {**harness.facts([load, *loads]), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
