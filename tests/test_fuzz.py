"""Mutated folders and files of every kind end well: no signal, no untyped error, bounded memory and time, no code run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

CAMPAIGN = Path(__file__).parents[1] / "fuzz" / "attacks" / "campaign.py"
KINDS = (
    "saved-bert", "saved-module", "recipe-model", "pack", "compress", "classifier", "run", "container", "recipes",
    "seq2seq", "gpt", "lora", "journal", "gguf", "compressed-tensors", "packed-folders",
)  # fmt: skip
FEW, MANY = 16, 10_000


def campaign(kind, count):
    """Run a campaign in a process of its own and return what it says."""
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, CAMPAIGN, kind, "--count", str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_a_few_of_every_kind_end_well():
    code, told = campaign("all", FEW)
    assert code == 0, told
    assert told.count(f" {FEW} cases, signal 0, untyped 0, memory 0, time 0, executed 0") == len(KINDS), told


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_of_a_kind_end_well(kind):
    code, told = campaign(kind, MANY)
    assert code == 0, told
