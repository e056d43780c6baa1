"""Measurement of points by several processes: forks of this one, which share the model and its data.

Only this process writes the journal. A worker takes the next point when it has finished one. Workers end with this
process, however it ends. Each worker computes with one thread, so that workers do not compete for processors.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from octavo.errors import ConfigError, WorkerError
from octavo.storage.children import end_with_parent

_work: list[Callable[[Any], Any]] = []  # in a worker: the function that measures a point


def check_workers(workers: int) -> int:
    """Return the number of processes. Raises ConfigError for none, and for several where the system cannot fork."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers is {workers!r}; accepted are whole numbers of at least 1")
    if workers > 1 and not hasattr(os, "fork"):
        raise ConfigError(f"workers is {workers}: this system has no fork; leave it at 1")
    return workers


def measured_by(workers: int, work: Callable[[Any], Any], points: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each point with its result of ``work``, in the order of ``points``.

    One worker, or one point, is measured in this process. Points and results are plain values. Exceptions of ``work``
    are raised here, and workers then stop after their current point. Raises WorkerError for a worker that was killed.
    """
    if min(workers, len(points)) < 2:
        yield from ((point, work(point)) for point in points)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(workers, len(points)), context, _begin, (work, os.getpid())) as pool:
        try:
            yield from zip(points, pool.map(_do, points), strict=True)
        except BrokenProcessPool:
            raise WorkerError(
                f"one of {workers} worker processes was killed, perhaps for want of memory; fewer need less of it, and "
                "points that a journal holds are not measured again"
            ) from None


def _begin(work: Callable[[Any], Any], parent: int) -> None:
    """Initialise a worker with one thread, because OpenMP's threads do not survive a fork."""
    end_with_parent(parent)
    torch.set_num_threads(1)
    _work[:] = [work]


def _do(point: Any) -> Any:
    return _work[0](point)
