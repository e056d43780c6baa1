"""Running a model on calibration batches, and the order in which its layers run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import DataError, DTypeError

# Called with what was finished, and how many of how many.
Progress = Callable[[str, int, int], None]


class _Reached(Exception):  # noqa: N818
    """Nothing after this layer is needed."""


def run(model: nn.Module, batch: Any) -> Any:
    """Call a model on a batch: a mapping gives keywords, a tuple or list positions, anything else is the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)


def checked(model: nn.Module, calibration: Iterable[Any], what: str) -> list[Any]:
    """Return the batches. Raises DTypeError for what is no model, DataError where there is none."""
    if not isinstance(model, nn.Module):
        raise DTypeError(f"{what}: model is a {type(model).__name__}; accepted is a torch.nn.Module")
    if isinstance(calibration, Tensor | Mapping | str):
        raise DataError(
            f"{what}: calibration is a {type(calibration).__name__}; pass batches, such as a list with this one"
        )
    batches = list(calibration)
    if not batches:
        raise DataError(f"{what}: calibration holds no batch; pass some inputs of the model")
    return batches


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside; the modes of all modules afterwards as before."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def hooked(handles: Iterable[Any]) -> Iterator[None]:
    """Remove hooks afterwards."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def stages(model: nn.Module, layers: Mapping[str, nn.Module], batch: Any) -> list[list[str]]:
    """Return the names of ``layers`` in the order they first run, those together that are given the same tensor.

    Layers that do not run are left out.
    """
    given: list[tuple[Tensor, list[str]]] = []
    seen: set[str] = set()

    def note(name: str, x: Tensor) -> None:
        if name in seen:
            return
        seen.add(name)
        if given and given[-1][0] is x:
            given[-1][1].append(name)
        else:
            given.append((x, [name]))

    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: note(name, args[0]))
        for name, layer in layers.items()
    ]
    with evaluating(model), hooked(hooks):
        run(model, batch)
    return [names for _, names in given]


def run_to(model: nn.Module, batches: Iterable[Any], last: nn.Module, calls: int = 1) -> None:
    """Run batches up to the given call of ``last``; hooks registered before on it have run then."""
    left = calls

    def stop(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _Reached

    with hooked([last.register_forward_hook(stop)]):
        for batch in batches:
            left = calls
            try:
                run(model, batch)
            except _Reached:
                continue
