"""Runtime costs of a model: peak memory and seconds of a call, before and after, as rows of a report."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.data.batches import call_on, map_leaves, samples_of, tensors_in
from octavo.train.model_outputs import evaluating

#: Batch sizes of the latencies in a report; the most ids of a batch, and the most parameters times ids: of a large
#: vocabulary the scores would else take gigabytes, of a large model the calls minutes.
SIZES, IDS, WORK = (1, 32), 2048, 1 << 36
_RUNS, _SECONDS = 15, 4.0  # rounds of a latency, and seconds after which three rounds are enough
_PEAK = "weights, and the most bytes of tensors that were alive at once in a call"


Value = float | Mapping[str, Any]  # a number, or the VALUE of a report


def cost_row(
    key: str, label: str, unit: str, before: Value | None = None, after: Value | None = None, **more: Any
) -> dict[str, Any]:
    """Return a row of costs, lower is better; a value that is None is left out."""
    row: dict[str, Any] = {"key": key, "label": label, "unit": unit, "better": "lower"}
    for name, value in (("before", before), ("after", after)):
        if value is not None:
            row[name] = dict(value) if isinstance(value, Mapping) else {"value": value}
    return row | more


def forward_costs(before: nn.Module, after: nn.Module, batch: Any) -> list[dict[str, Any]]:
    """Return peak memory, and latencies at 1 and 32 samples, of two models.

    Fewer samples of a batch with more than 2,048 ids, or of a model with more than 32 million parameters. A row without
    values has the reason. ``batch``: the input of both, cut or repeated to so many samples.
    """
    rows, largest = [], batch
    label = "peak memory"
    ids = max((leaf.numel() for leaf in tensors_in(batch) if not leaf.is_floating_point()), default=1)
    length = max(ids // max(samples_of(batch), 1), 1)
    most = min(IDS, WORK // max(sum(parameter.numel() for parameter in before.parameters()), 1)) // length
    for size in dict.fromkeys(max(min(size, most), 1) for size in SIZES):
        name, title = f"latency_{size}", f"latency, batch {size}"
        try:
            seconds = latencies({"before": before, "after": after}, resized(batch, size))
        except Exception as error:  # whatever a model does with a batch of another size
            reason = f"the model does not take {size} samples: {error}"[:300]
            rows.append(cost_row(name, title, "s", missing=reason))
            continue
        rows.append(cost_row(name, title, "s", seconds["before"], seconds["after"], interval="IQR"))
        largest, label = resized(batch, size), f"peak memory, batch {size}"
    peaks = [peak_bytes(model, largest) for model in (before, after)]
    return [cost_row("peak_bytes", label, "B", *peaks, told=_PEAK), *rows]


def latencies(models: Mapping[str, nn.Module], batch: Any) -> dict[str, dict[str, Any]]:
    """Return median and quartiles of the seconds of forward passes; the models take turns."""
    with evaluating(*models.values()) as own:
        return seconds_in_turn({name: partial(call_on, model, batch) for name, model in zip(models, own, strict=True)})


def resized(batch: Any, size: int) -> Any:
    """Return a batch with ``size`` samples: the first ones, repeated where there are fewer."""

    def leaf(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or not item.ndim:
            return item
        times = -(-size // max(len(item), 1))
        return item.repeat(times, *(1,) * (item.ndim - 1))[:size]

    return map_leaves(leaf, batch)


def seconds_in_turn(calls: Mapping[str, Callable[[], object]]) -> dict[str, dict[str, Any]]:
    """Return median and quartiles of the seconds of calls; the calls take turns, after two rounds of warm-up."""
    timings: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(2):
        for call in calls.values():
            call()
    end = time.perf_counter() + _SECONDS
    rounds = 0
    while rounds < 3 or (rounds < _RUNS and time.perf_counter() < end):
        rounds += 1
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            timings[name].append(time.perf_counter() - begin)
    return {name: quartiles(seconds) for name, seconds in timings.items()}


def quartiles(values: list[float]) -> dict[str, Any]:
    """Return the VALUE of a report: median, lower and upper quartile, count."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"value": middle, "low": low, "high": high, "count": len(values)}


def peak_bytes(model: nn.Module, batch: Any) -> int:
    """Return the bytes of a model's tensors plus the peak bytes of tensors alive at once during a call."""
    with evaluating(model) as (model,):
        call_on(model, batch)
        with _Alive((*model.parameters(), *model.buffers(), *tensors_in(batch))) as alive:
            call_on(model, batch)
    return held_bytes(model) + alive.peak


class _Alive(TorchDispatchMode):
    """Counts the bytes of live storages that operators allocate inside; ``existing`` tensors do not count."""

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's own
        self._known = {tensor.untyped_storage()._cdata: 0 for tensor in existing}
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = storage.nbytes()
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._freed, storage._cdata)
        return result

    def _freed(self, storage: int) -> None:
        self.live -= self._known.pop(storage)


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers in memory, shared ones once."""
    sizes = {
        tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()
    }  # fmt: skip
    return sum(sizes.values())
