"""What the Python benches share: a check that the machine is quiet, paired timing, and the facts of the machine.

Nothing here imports torch, so that ``startup.py`` can time processes before torch starts its threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

Samples = TypeVar("Samples")
BENCHES = Path(__file__).resolve().parent
PAUSE_S = 0.004
"""Sleep before each timing: torch's OpenMP workers spin for some milliseconds after each torch op, and would steal a
core from whoever comes next."""
SETTLE_S = 0.1
"""Pause before each decoder: threads of the one before spin for some time after its last product."""
WINDOW_S = 0.5
"""Shortest time over which load is measured; /proc/stat counts in hundredths of a second."""
MOST_LOAD_CORES = 0.15
"""Load of other processes, in cores, above which figures are not to be trusted."""
MOST_DISCARDED = 3
"""Rounds in a row that a busy machine may cost before a bench gives up."""
BUSY = 3
"""Exit status of a bench that refused to report on a busy machine."""


class BusyMachine(Exception):
    """Other processes use this machine; a bench exits with status BUSY."""


class Load:
    """Load of everything but this process and its finished children, in cores, from construction to ``stop``.

    From the idle time in /proc/stat; without it (macOS), the load average of the last minute less one for ourselves.
    """

    def __init__(self) -> None:
        self._begin = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        own = time.process_time() + sum(os.times()[2:4])
        try:
            fields = Path("/proc/stat").read_text().split(maxsplit=6)
        except OSError:
            return time.perf_counter(), own, float("nan")
        return time.perf_counter(), own, (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> float:
        """Return the load since construction, waiting until the window is long enough to tell."""
        time.sleep(max(0.0, WINDOW_S - (time.perf_counter() - self._begin[0])))
        elapsed, own, idle = (after - before for before, after in zip(self._begin, self._read(), strict=True))
        if idle != idle:
            return max(0.0, os.getloadavg()[0] - 1)
        return max(0.0, (os.cpu_count() or 1) - (idle + own) / elapsed)


def require_quiet(force: bool) -> float:
    """Measure the load before a bench. Raises BusyMachine above MOST_LOAD_CORES unless ``force``."""
    load = Load().stop()
    if load > MOST_LOAD_CORES and not force:
        raise BusyMachine(busy_text(load))
    return load


def busy_text(load: float) -> str:
    """Say how busy the machine is and what can be done."""
    return (
        f"busy machine: other processes use {load:.2f} cores, at most {MOST_LOAD_CORES} are accepted; "
        "wait for them to finish, or pass --force for figures marked as busy"
    )


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes, after a pause (see PAUSE_S). Its result is freed after the clock has stopped."""
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - begin
    del result
    return elapsed


def quiet_rounds(rounds: int, force: bool, one_round: Callable[[int], Samples]) -> tuple[list[Samples], list[float]]:
    """Run ``one_round`` ``rounds`` times; return what each gave and the load of others during it.

    A round during which the machine was busy is discarded and repeated, unless ``force``. Raises BusyMachine after
    MOST_DISCARDED of them in a row.
    """
    samples: list[Samples] = []
    loads: list[float] = []
    discarded = 0
    while len(samples) < rounds:
        window = Load()
        sample = one_round(len(samples))
        load = window.stop()
        if load > MOST_LOAD_CORES and not force:
            discarded += 1
            print(f"round {len(samples) + 1} discarded: {busy_text(load)}", file=sys.stderr)
            if discarded == MOST_DISCARDED:
                raise BusyMachine(busy_text(load))
            continue
        discarded = 0
        samples.append(sample)
        loads.append(load)
        print(f"round {len(samples)} of {rounds}", file=sys.stderr)
    return samples, loads


def cpu_model() -> str:
    """Model name of the CPU."""
    from octavo.cuda.machine import cpu

    return str(cpu()["name"])


def slug(text: str) -> str:
    """Lower-case words joined by dashes, for a file name; trademark signs dropped."""
    return "-".join(re.findall(r"[a-z0-9.]+", re.sub(r"\((r|tm)\)", "", text.lower())))


def commit() -> str | None:
    """Commit of the checkout, with ``-dirty`` where files differ; None outside a checkout."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=BENCHES, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def facts(loads: list[float]) -> dict[str, object]:
    """Baseline of a report: machine, versions, command and load."""
    from octavo import __version__, _core

    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = " ".join(["python", f"benches/{Path(sys.argv[0]).name}", *words])
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "simd": _core.simd_level(),
        "python": platform.python_version(),
        "octavo": __version__,
        "busy": max(loads) > MOST_LOAD_CORES,
        "load_of_others_cores": round(median(loads), 3),
        "highest_load_of_others_cores": round(max(loads), 3),
    }


def results_file(bench: str) -> Path:
    """Where the committed result of this machine lies."""
    return BENCHES / "results" / f"{bench}-{slug(cpu_model())}.json"


def write_json(path: Path, report: dict[str, object]) -> None:
    """Write a report, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def show(report: dict[str, Any], about: str) -> None:
    """Print a report with ``rows``, ``bars``, ``threads``, ``torch`` and ``machine``. ``about``: what was measured."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    machine = report["machine"]
    console.print(
        f"{machine['cpu']}, SIMD {machine['simd']}, {report['threads']} threads, octavo {machine['octavo']} "
        f"({machine['commit']}), torch {report['torch']}; {about}",
        soft_wrap=True,
    )
    table = Table(*report["rows"][0])
    for row in report["rows"]:
        table.add_row(*map(str, row.values()))
    console.print(table)
    for verdict in report["bars"]:
        console.print(f"{verdict['verdict']}: {verdict['bar']}: {verdict['value']}x", soft_wrap=True)
    if machine["busy"]:
        console.print("busy: these figures prove nothing")


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: accepted are 1 and more")
    return number


def main(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a bench; the exit status is BUSY where the machine is, and 2 with the error of octavo where it has one."""
    from octavo import OctavoError

    try:
        return run(args)
    except BusyMachine as error:
        print(error, file=sys.stderr)
        return BUSY
    except OctavoError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def add_common_arguments(parser: argparse.ArgumentParser, bench: str) -> None:
    """Add the arguments of every bench: where the figures go, and whether a busy machine will do."""
    parser.add_argument(
        "--json",
        nargs="?",
        type=Path,
        const=results_file(bench),
        metavar="FILE",
        help=f"write the figures; without FILE to benches/results/{bench}-<cpu>.json",
    )
    parser.add_argument("--force", action="store_true", help="measure on a busy machine too; the report says so")
