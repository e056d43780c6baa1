"""Data parallelism: processes started by :mod:`octavo.train.launch` or torchrun, and sums over them.

Every process has the whole model and computes its share of each update (:func:`octavo.train.task.share`). DDP averages
gradients; the loop turns the average into the sum and divides by the tokens of the whole update. Therefore the result
does not depend on the number of tokens in each process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from octavo.cuda.device_names import torch_device
from octavo.errors import ConfigError, CudaUnavailableError
from octavo.storage import children

_T = TypeVar("_T")


@dataclass(frozen=True)
class Processes:
    """This process among those of the run: ``rank`` of ``world``, and the ``device`` it computes on."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0

    def sum(self, vector: Tensor) -> Tensor:
        """Sum ``vector`` (float64, on ``device``) over all processes in place, and return it."""
        if self.world > 1:
            dist.all_reduce(vector)
        return vector

    def gather(self, item: Any) -> list[Any]:
        """Return the ``item`` of every process, by rank."""
        if self.world == 1:
            return [item]
        items: list[Any] = [None] * self.world
        dist.all_gather_object(items, item)
        return items

    def from_first(self, item: _T) -> _T:
        """Return the ``item`` of the first process."""
        if self.world == 1:
            return item
        items = [item]
        dist.broadcast_object_list(items, src=0, device=self.device if self.device.type == "cuda" else None)
        return items[0]

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join(device: str) -> Iterator[Processes]:
    """Join the process group of this run, or run as the only process; leave the group at the end.

    ``device``: ``auto``, ``cpu`` or ``cuda``, of TrainConfig; on CUDA each process of a machine has its own GPU, the
    only one torch's current GPU. The
    backend is NCCL on CUDA and gloo on the CPU. An existing process group is used and not destroyed. Processes of
    torchrun then end with their agent.
    Raises ConfigError for ``cuda`` without a GPU, or with fewer GPUs than processes.
    """
    several = dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())
    place = _device(device, dist.get_node_local_rank(0) if several else None)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if not several:
        yield Processes(0, 1, place)
        return
    ours = not dist.is_initialized()
    if ours:
        children.end_with_parent()
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), place)
    finally:
        if ours:
            dist.destroy_process_group()


def _device(name: str, local_rank: int | None) -> torch.device:
    if name == "cpu" or not torch.cuda.is_available():
        try:
            return torch_device("cpu" if name == "auto" else name)
        except CudaUnavailableError as error:
            raise ConfigError(f"{error}, or 'auto'") from None
    if local_rank is None:
        return torch_device("cuda")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this machine has no GPU of its own; there are {torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)
