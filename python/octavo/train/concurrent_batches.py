"""Batches through a model in several threads, one of torch each, with the results of one batch after the other.

torch adds in another order when it has other threads, so measurements that must not depend on them run it in one
(:func:`octavo.tensors.fixed_order.one_thread`). Several batches beside each other then use the processor's other cores.
What hooks do to sums waits its turn (:func:`in_turn`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from octavo.tensors.fixed_order import threads_outside

T = TypeVar("T")

# Modules whose forward passes are known to share nothing: a user's class may keep what it reads.
_KNOWN = ("torch.nn.", "transformers.", "octavo.")
# What a pass does not keep: hooks are looked at apart; the first pass of a quantized model says what it bypassed.
_NOT_KEPT = ("_parameters", "_hooks", "_hooks_with_kwargs", "_hooks_always_called", "bypassed")
_ITEMS = 64  # of a container that are compared
_unchanged: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def run_batches(
    model: nn.Module, batches: Iterable[Any], visit: Callable[[int, Any], T], *, together: bool = True
) -> Iterator[T]:
    """Yield ``visit(number, batch)`` of each batch, in order; several run at a time where the model allows it.

    Inside :func:`octavo.tensors.fixed_order.one_thread`, on the CPU, for modules of torch, transformers and Octavo that
    a first pass leaves as they were, and without hooks of others. Else one after the other.

    Args:
        model: what ``visit`` runs.
        batches: any number of them.
        visit: function of a batch's number and the batch.
        together: False runs one after the other in any case.

    Yields:
        What ``visit`` returns.
    """
    source = enumerate(batches)

    def alone(number: int, batch: Any) -> T:
        with _visiting(None, number):
            return visit(number, batch)

    if model not in _unchanged and _is_known(model):
        for number, batch in islice(source, 1):
            before = _state(model)
            result = alone(number, batch)
            _unchanged[model] = before == _state(model)
            yield result
    if together and (count := threads_outside()) > 1 and keeps_nothing(model):
        yield from _side_by_side(source, visit, count)
    else:
        yield from (alone(number, batch) for number, batch in source)


def keeps_nothing(model: nn.Module) -> bool:
    """Whether all modules are those of torch, transformers and Octavo, on the CPU, which a pass left as they were."""
    return _unchanged.get(model, False) and _is_known(model)


def current_batch() -> int:
    """Return the number of the batch that this thread runs."""
    return _current.get()[1]


@contextmanager
def in_turn(place: Hashable) -> Iterator[None]:
    """Do what is inside in the order of the batches, once in each: sums of floats depend on it."""
    turns, number = _current.get()
    if turns is None:
        yield
        return
    turns.wait(place, number)
    yield
    turns.passed(place, number)


class _Ended(Exception):
    """A batch before raised."""


class _Turns:
    """Which batches have been at which places, and which are finished."""

    def __init__(self, first: int) -> None:
        self._changed = threading.Condition()
        self._first = first  # of the batches that are not finished
        self._finished: set[int] = set()
        self._passed: dict[Hashable, set[int]] = {}
        self._failed: list[int] = []

    def wait(self, place: Hashable, number: int) -> None:
        with self._changed:
            passed = self._passed.setdefault(place, set())
            self._changed.wait_for(
                lambda: all(earlier in passed or earlier in self._finished for earlier in range(self._first, number))
            )
            if any(failed < number for failed in self._failed):
                raise _Ended

    def passed(self, place: Hashable, number: int) -> None:
        with self._changed:
            self._passed[place].add(number)
            self._changed.notify_all()

    def finish(self, number: int, *, failed: bool) -> None:
        with self._changed:
            if failed:
                self._failed.append(number)
            self._finished.add(number)
            while self._first in self._finished:
                self._finished.discard(self._first)
                for passed in self._passed.values():
                    passed.discard(self._first)
                self._first += 1
            self._changed.notify_all()


_current: ContextVar[tuple[_Turns | None, int]] = ContextVar("current", default=(None, 0))


@contextmanager
def _visiting(turns: _Turns | None, number: int) -> Iterator[None]:
    token = _current.set((turns, number))
    try:
        yield
    finally:
        _current.reset(token)


def _side_by_side(source: Iterator[tuple[int, Any]], visit: Callable[[int, Any], T], count: int) -> Iterator[T]:
    turns: _Turns | None = None
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def work(turns: _Turns, number: int, batch: Any) -> T:
        failed = True
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad), _visiting(turns, number):
                result = visit(number, batch)
            failed = False
            return result
        finally:
            turns.finish(number, failed=failed)

    waiting: list[Future[T]] = []
    # Each thread says it for itself: products of OpenMP and MKL would else use all of them.
    with ThreadPoolExecutor(count, "octavo-batch", lambda: torch.set_num_threads(1)) as pool:
        try:
            for number, batch in source:
                turns = turns or _Turns(number)
                waiting.append(pool.submit(copy_context().run, work, turns, number, batch))
                if len(waiting) > count:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def _is_known(model: nn.Module) -> bool:
    if torch.is_autocast_enabled("cpu") or any(not parameter.is_cpu for parameter in model.parameters()):
        return False
    return all(_is_ours(type(module)) and all(map(_is_ours, _hooks(module))) for module in model.modules())


def _hooks(module: nn.Module) -> Iterator[Any]:
    own = vars(module)
    for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
        yield from own[name].values()
    if "forward" in own:
        yield own["forward"]


def _is_ours(one: Any) -> bool:
    return f"{getattr(one, '__module__', None) or type(one).__module__}.".startswith(_KNOWN)


def _state(model: nn.Module) -> list[Any]:
    """Return what a pass changes in modules that keep something: which objects they hold, and versions of buffers."""
    return [
        [(name, _outline(value)) for name, value in vars(module).items() if not name.endswith(_NOT_KEPT)]
        for module in model.modules()
    ]


def _outline(value: Any, depth: int = 2) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), value._version if not value.is_inference() else 0
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    elif depth == 2 and hasattr(value, "__dict__") and not isinstance(value, type | nn.Module) and not callable(value):
        inside = vars(value).values()
    size = len(value) if isinstance(value, Mapping | list | set) else 0
    return id(value), size, [_outline(one, depth - 1) for one in islice(inside, _ITEMS)] if depth else None
