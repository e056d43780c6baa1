"""Simulated models train in several processes: parameters shared by FSDP2, and Trainer of transformers."""

import subprocess
import sys
from pathlib import Path

import octavo
import pytest
import torch
import torch.distributed as dist
from helpers.models import copied_state, same_tensors

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hugging_face import sharded

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", sharded.__file__]

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning", "ignore::octavo.UnusedLayerWarning")


@pytest.mark.parametrize("recipe", sharded.RECIPES)
def test_sharded_parameters_are_read_by_fsdp_as_they_are(recipe):
    """FSDP2 reads ``layer.weight`` within a forward pass, where other code gets the rounded weight."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        weights = sharded.sharded(recipe)
    finally:
        dist.destroy_process_group()
    assert same_tensors(weights, sharded.whole(recipe, 1))


@pytest.mark.slow
def test_two_processes_of_fsdp_end_with_the_bits_of_one(tmp_path):
    subprocess.run([*TORCHRUN, "fsdp", tmp_path], check=True, timeout=300)
    for recipe in sharded.RECIPES:
        weights = torch.load(tmp_path / f"{recipe}.pt", weights_only=True)
        assert same_tensors(weights, sharded.whole(recipe, 2)), recipe


@pytest.mark.slow
def test_trainer_on_two_processes_writes_a_checkpoint_that_packs(tmp_path):
    subprocess.run([*TORCHRUN, "trainer", tmp_path], check=True, timeout=300)
    first, last = (octavo.load_model(Path(tmp_path, f"checkpoint-{step}")) for step in (2, 4))
    assert not same_tensors(copied_state(first), copied_state(last))
    packed = octavo.pack_model(last.eval())
    with torch.no_grad():
        assert torch.allclose(packed(sharded.texts(0)).logits, last(sharded.texts(0)).logits, atol=1e-5)
