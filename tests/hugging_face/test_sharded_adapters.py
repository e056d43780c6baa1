"""Adapters of PEFT on packed models train in several processes: copies of DDP, and parameters shared by FSDP2."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from helpers.models import same_tensors

pytest.importorskip("peft")

from hugging_face import sharded_adapters as adapters

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", adapters.__file__]


@pytest.mark.parametrize("kind", adapters.KINDS)
def test_adapters_of_one_process_end_with_the_bits_of_none(kind):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made = adapters.shared(kind)
    finally:
        dist.destroy_process_group()
    expected = adapters.whole(kind, 1)
    assert same_tensors(made, expected) and any(tensor.any() for name, tensor in made.items() if "lora_B" in name)


@pytest.mark.slow
def test_two_processes_end_with_the_bits_of_one(tmp_path):
    subprocess.run([*TORCHRUN, tmp_path], check=True, timeout=300)
    for kind in adapters.KINDS:
        made = torch.load(tmp_path / f"{kind}.pt", weights_only=True)
        assert same_tensors(made, adapters.whole(kind, 2)), kind
