"""Greedy generation on a GPU: a CUDA graph for each of a few tile sizes, captured at its first use, then replayed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig

ROWS = (1, 16, 256, 4096, 15_360)
"""Rows of a tile."""
# Attention is a batched product for every row and head; libraries map that number to a grid's dimension.
MOST_PRODUCTS = 65_535
# Runs before a capture: libraries choose kernels and allocate workspaces in them.
WARMUP = 3


class Generator(Protocol):
    """A generating model: :class:`FoldedHybrid` with kernels of libraries, :class:`FusedHybrid` with our own."""

    config: Seq2SeqConfig

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    def generate_fixed(self, source_BS: Tensor) -> Tensor:
        """Return the tokens of sources, both uint8 and padded, without waiting for the device."""


class Tile(NamedTuple):
    """Static memory for rows: ``replay`` computes ``tokens_BT`` from ``source_BS``, both uint8 on the device."""

    source_BS: Tensor
    tokens_BT: Tensor
    replay: Callable[[], object]


def capture(model: Generator, rows: int) -> Tile:
    """Capture generation for ``rows`` sources, as PyTorch's notes on CUDA graphs say, on the current device."""
    device = model.device
    source_BS = torch.zeros((rows, model.config.max_source), dtype=torch.uint8, device=device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            model.generate_fixed(source_BS)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on allocating
        tokens_BT = model.generate_fixed(source_BS)
    return Tile(source_BS, tokens_BT, graph.replay)


class Graphs:
    """A model that answers any number of rows. Threads may share one and take turns; ``fork`` loses it.

    ``prepare`` makes the tile of a size; a tile keeps its memory: about 3 GB (counted, shipped model) for the
    largest of a folded model in float32.
    """

    def __init__(self, model: Generator, prepare: Callable[[Generator, int], Tile] = capture) -> None:
        """Take the model where it is; nothing is captured yet."""
        self._model, self._prepare = model, prepare
        most = MOST_PRODUCTS // model.config.heads
        self._sizes = tuple(rows for rows in ROWS if rows <= most)
        self._tiles: dict[int, Tile] = {}
        self._lock = threading.Lock()

    def __call__(self, source_NS: Tensor) -> Tensor:
        """Return tokens ``[N, max_target]`` of sources ``[N, max_source]``, both uint8 on the CPU, padded with 0.

        All work is queued at once, copies from and to pinned memory included; the host waits once, at the end.
        """
        device = self._model.device
        on_gpu = device.type == "cuda"
        source_NS = source_NS.pin_memory() if on_gpu else source_NS
        tokens_NT = torch.empty((len(source_NS), self._model.config.max_target), dtype=torch.uint8, pin_memory=on_gpu)
        current: AbstractContextManager[object] = torch.cuda.device(device) if on_gpu else nullcontext()
        with self._lock, current:
            for rows, size in self._plan(len(source_NS)):
                tile = self._tile(size)
                count = rows.stop - rows.start
                tile.source_BS[:count].copy_(source_NS[rows], non_blocking=True)
                tile.source_BS[count:].zero_()  # rows of pads cost our own kernels nothing
                tile.replay()
                tokens_NT[rows].copy_(tile.tokens_BT[:count], non_blocking=True)
            if on_gpu:
                torch.cuda.current_stream().synchronize()
        return tokens_NT

    def _plan(self, count: int) -> Iterator[tuple[slice, int]]:
        """Yield rows and the size of their tile: full ones of the largest, then the smallest that holds the rest."""
        largest = self._sizes[-1]
        for start in range(0, count, largest):
            stop = min(start + largest, count)
            yield slice(start, stop), next(size for size in self._sizes if size >= stop - start)

    def _tile(self, size: int) -> Tile:
        if size not in self._tiles:
            self._tiles[size] = self._prepare(self._model, size)
        return self._tiles[size]
