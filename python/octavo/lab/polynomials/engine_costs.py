"""What two exported models cost in the native engine: peak memory, seconds of a call and lines a second.

``python -m octavo.lab.polynomials.engine_costs FOLDER`` answers the lines of its input and prints its memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError
from octavo.lab.polynomials.native_engine import Engine
from octavo.storage import children
from octavo.storage.process_memory import forget_peak, peak, resident

_PEAK = "growth of a process of its own while it loads the model and answers"


def engine_costs(before: Path, after: Path, lefts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a report: peak memory, latencies of 1 and 32 lines, lines a second over all ``lefts``."""
    from octavo.search.measured_costs import SIZES, cost_row, seconds_in_turn  # with torch, which the probe is without

    engines = {"before": Engine.load(before), "after": Engine.load(after)}

    def seconds(lines: Sequence[str]) -> list[dict[str, Any]]:
        found = seconds_in_turn({name: partial(engine.expand, lines) for name, engine in engines.items()})
        return list(found.values())

    rows = [
        cost_row(
            "peak_bytes", f"peak memory, batch {SIZES[-1]}", "B",
            *(answering_bytes(folder, lefts[: SIZES[-1]]) for folder in (before, after)), told=_PEAK,
        )
    ]  # fmt: skip
    for size in SIZES:
        rows.append(cost_row(f"latency_{size}", f"latency, batch {size}", "s", *seconds(lefts[:size]), interval="IQR"))
    speeds = [len(lefts) / found["value"] for found in seconds(lefts)]
    rows.append(cost_row("lines_per_s", "lines a second, native engine", "", *speeds, better="higher"))
    return rows


def answering_bytes(folder: Path, lines: Sequence[str]) -> int:
    """Return the bytes that a process grows by at most while it loads a model and answers lines.

    Raises OctavoError with the end of its output where it fails.
    """
    command = children.command(["-m", "octavo.lab.polynomials.engine_costs", str(folder)])
    # The package that runs here, wherever it was imported from.
    paths = [path for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    given = "\n".join(lines)
    ran = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        raise OctavoError(f"the measuring process ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return int(ran.stdout)


def _main() -> None:
    folder, lines = sys.argv[1], sys.stdin.read().split("\n")
    forget_peak()
    held = resident()
    Engine.load(folder).expand(lines)
    print(max(peak() - held, 0))


if __name__ == "__main__":
    _main()
