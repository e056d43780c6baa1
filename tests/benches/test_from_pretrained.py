"""Packing while reading holds the packed model and little more: the bench at a small size, and at that of a 1B Llama."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5.24")
BENCH = Path(__file__).resolve().parents[2] / "benches" / "from_pretrained.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RssAnon stands in /proc")


def bench(size, timeout, folder):
    command = [sys.executable, str(BENCH), "--size", size, "--force", "--json", str(folder / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode in (0, 1), done.stderr
    return json.loads((folder / "figures.json").read_text())


def test_the_bench_runs_every_way(tmp_path):
    ways = bench("small", 240, tmp_path)["ways"]
    assert set(ways) == {"from_pretrained", "pack", "open"}
    assert all(row["peak_bytes"] >= 0 and row["verdict"] == "pass" for row in ways.values())


@pytest.mark.slow
def test_a_llama_of_1b_is_packed_within_1_5_gb_over_its_packed_size(tmp_path):
    figures = bench("1b", 900, tmp_path)
    assert figures["packed_bytes"] < 0.3 * figures["float_bytes"]
    assert all(row["over_packed_bytes"] <= 1.5e9 for row in figures["ways"].values()), figures
