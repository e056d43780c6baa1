"""Raw ops never touch memory outside their operands, whatever they are given: see ``guarded.py``."""

import os
import subprocess
import sys
from pathlib import Path

import octavo
import pytest

HARNESS = Path(__file__).parents[2] / "fuzz" / "attacks" / "guarded.py"
PACKAGE = Path(octavo.__file__).resolve().parents[1]


def swept(count, seed, side):
    """Run the harness in a process of its own, which forks: nothing of this one's threads and memory is in the way."""
    path = os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(count), str(seed), side],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert f"{count} calls" in done.stdout


@pytest.mark.parametrize("side", ["after", pytest.param("before", marks=pytest.mark.slow)])
def test_misfit_operands_are_refused_without_a_fault(side):
    swept(1000, 13, side)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["after", "before"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_million_misfit_calls_end_without_a_fault(side, seed):
    swept(250_000, seed, side)
