"""Runs ``torch.export`` on a model with any inputs and outputs and named symbolic sizes, without running the model."""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from threading import RLock
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from octavo.data.batches import call_on, map_leaves
from octavo.errors import ModelError
from octavo.nn.model_copies import shared_copy

_ONE_AT_A_TIME = RLock()  # torch.export has global state, and stdout is redirected for the whole process

Names = Mapping[str, Sequence[str | None]]
"""Names of the dimensions of each input, None for a fixed dimension."""


@dataclass(frozen=True)
class FlatInputs:
    """The inputs of a model, flattened.

    ``tensors`` and their ``names``. ``rest``: all leaves, with the index into ``tensors`` in place of a tensor.
    ``symbols``: names of the dimensions of each tensor. ``sizes``: the size of each symbol in the inputs.
    """

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    rest: tuple[Any, ...]
    tree: TreeSpec
    symbols: tuple[tuple[str | None, ...], ...]
    sizes: Mapping[str, int]

    def key(self) -> tuple[Any, ...]:
        """A cache key: names, shapes, dtypes and devices of tensors, and all other arguments."""
        tensors = tuple((tuple(x.shape), x.dtype, x.device) for x in self.tensors)
        return self.names, tensors, tuple(map(repr, self.rest)), str(self.tree), self.symbols, tuple(self.sizes.items())


class _Slot(int):
    """The number of a tensor among the inputs."""


class _Call(nn.Module):
    """Wraps a model so that it takes and returns flat tensors, which ``torch.export`` accepts for every model."""

    def __init__(self, model: nn.Module, flat: FlatInputs) -> None:
        super().__init__()
        self.model = model
        self._flat = flat

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the model and return the tensors in its output."""
        flat = self._flat
        leaves = [tensors[leaf] if isinstance(leaf, _Slot) else leaf for leaf in flat.rest]
        return tuple(held_tensors(call_on(self.model, tree_unflatten(leaves, flat.tree))))


def held_tensors(output: Any) -> list[Tensor]:
    """Return the tensors in an output of a model, each once: in containers and in attributes of objects."""
    tensors: dict[int, Tensor] = {}
    seen: set[int] = set()

    def visit(item: Any) -> None:
        if isinstance(item, Tensor):
            tensors.setdefault(id(item), item)
        elif item is None or isinstance(
            item, str | bytes | int | float | type | FunctionType | MethodType | ModuleType
        ):
            return
        elif id(item) not in seen and not isinstance(item, nn.Module):
            seen.add(id(item))
            if isinstance(item, Mapping):
                parts: Any = item.values()
            elif isinstance(item, tuple | list | set):
                parts = item
            else:
                parts = list(getattr(item, "__dict__", {}).values())
            for part in parts:
                visit(part)

    visit(output)
    return list(tensors.values())


def take(model: nn.Module, inputs: Any, dimensions: Names | None) -> FlatInputs:
    """Flatten inputs: a mapping of keyword arguments, a tuple or list of positional arguments, or a single argument.

    Raises ModelError for inputs that do not fit the model's ``forward``.
    """
    if isinstance(inputs, Mapping):
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = dict(inputs)
    else:
        args, kwargs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
    bound = _bound(model, args, kwargs)
    plain = map_leaves(lambda leaf: leaf, kwargs if isinstance(inputs, Mapping) else args)
    leaves, tree = tree_flatten(plain)
    argument = _argument_names(bound)
    tensors: list[Tensor] = []
    names: list[str] = []
    rest: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            names.append(argument.get(id(leaf), f"input_{len(tensors)}"))
            rest.append(_Slot(len(tensors)))
            tensors.append(leaf)
        else:
            rest.append(leaf)
    if not tensors:
        raise ModelError(
            f"{type(model).__name__}: the inputs hold no tensor; give a batch, such as {{'input_ids': ids}}"
        )
    symbols = _symbols(model, names, tensors, dimensions)
    sizes: dict[str, int] = {}
    for tensor, dims in zip(tensors, symbols, strict=True):
        for size, symbol in zip(tensor.shape, dims, strict=True):
            if symbol is not None:
                sizes.setdefault(symbol, int(size))
    device = next((p.device for p in (*model.parameters(), *model.buffers())), None)
    if device is not None and device.type == "meta":
        tensors = [x.to(device) for x in tensors]
    if all(x.ndim == 0 or x.shape[0] == 1 for x in tensors) and sizes.get("batch") == 1:
        # torch.export specialises a size of 1, so two samples are exported instead.
        tensors = [
            torch.cat([x, x]) if x.ndim and dims[0] == "batch" else x for x, dims in zip(tensors, symbols, strict=True)
        ]
    return FlatInputs(tuple(names), tuple(tensors), tuple(rest), tree, symbols, sizes)


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """Bind inputs to the arguments of ``forward``. Raises ModelError for unexpected and for missing arguments."""
    try:
        accepted = inspect.signature(model.forward)
    except ValueError as error:
        raise ModelError(
            f"{type(model).__name__}: its forward is one of TorchScript or of C++, which tells no arguments; give "
            "the module that was traced, or one whose forward calls it"
        ) from error
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        bound = accepted.bind_partial(*args, **kwargs)
        for name, parameter in accepted.parameters.items():
            if name not in bound.arguments and parameter.default is parameter.empty and parameter.kind not in several:
                raise TypeError(f"missing a required argument: {name!r}")
    except TypeError as error:
        takes = ", ".join(accepted.parameters)
        raise ModelError(
            f"{type(model).__name__}: the inputs do not fit its forward: {error}; it takes {takes}"
        ) from None
    return bound


def _argument_names(bound: inspect.BoundArguments) -> dict[int, str]:
    """Return the name of the argument that contains each tensor, by the id of the tensor."""
    names: dict[int, str] = {}
    for name, value in bound.arguments.items():
        parts = value.items() if isinstance(value, Mapping) else [(name, value)]
        for part, inner in parts:
            tensors = held_tensors(inner)
            for number, tensor in enumerate(tensors):
                names.setdefault(id(tensor), str(part) if len(tensors) == 1 else f"{part}_{number}")
    return names


def _symbols(
    model: nn.Module, names: Sequence[str], tensors: Sequence[Tensor], dimensions: Names | None
) -> tuple[tuple[str | None, ...], ...]:
    """Return the names of dimensions: from ``dimensions``, else ``batch`` and ``sequence`` by the shape of an input."""
    unknown = sorted(set(dimensions or ()) - set(names))
    if unknown:
        raise ModelError(f"dimensions: no input is called {unknown[0]!r}; the inputs are {', '.join(names)}")
    decodes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    lengths: dict[str, int] = {}
    symbols = []
    for name, tensor in zip(names, tensors, strict=True):
        if dimensions is not None and name in dimensions:
            dims = tuple(dimensions[name])
            if isinstance(dimensions[name], str) or not all(
                dim is None or (isinstance(dim, str) and dim) for dim in dims
            ):
                raise ModelError(
                    f"dimensions: {name} is given {dimensions[name]!r}; give a name or None for each dimension, such "
                    "as ('batch', None)"
                )
            if len(dims) != tensor.ndim:
                raise ModelError(f"dimensions: {name} has shape {tuple(tensor.shape)}, got {len(dims)} names for it")
            symbols.append(dims)
            continue
        dims_list: list[str | None] = [None] * tensor.ndim
        if tensor.ndim:
            dims_list[0] = "batch"
        is_tokens = not tensor.is_floating_point() and tensor.ndim == 2
        if is_tokens or (tensor.is_floating_point() and tensor.ndim == 3):
            length, symbol = int(tensor.shape[1]), "sequence"
            if name.startswith("decoder_") or (decodes and name == "labels"):
                symbol = "decoder_sequence"
            if lengths.setdefault(symbol, length) != length:
                symbol = f"{name}_length"
            dims_list[1] = symbol
        symbols.append(tuple(dims_list))
    return tuple(symbols)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings, prints and logs of ``torch.export``; the graph reports a refusal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    said = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def exported(model: nn.Module, flat: FlatInputs) -> Any:
    """Return the exported program of a model, in the model's mode, without gradients.

    ``torch.export`` works on a copy with fake tensors as parameters and buffers: nothing is computed, and the model is
    not changed. Its exceptions are not caught.
    """
    from torch.export import Dim, export

    dims = tuple(
        {number: Dim.AUTO for number, symbol in enumerate(symbols) if symbol is not None} or None
        for symbols in flat.symbols
    )
    with _ONE_AT_A_TIME, _quiet(), torch.no_grad():
        return export(_Call(shared_copy(model), flat), flat.tensors, dynamic_shapes={"tensors": dims}, strict=False)
