"""Extraction of a part of a model: the module of a path, and the inputs of that module."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo.data.batches import call_numbered, tensors_in
from octavo.errors import ModelError
from octavo.graph.analysis import in_mode
from octavo.graph.model_passes import Pass, PassInputs, TransformReport, register_pass
from octavo.nn.model_copies import deep_copy, shared_copy
from octavo.recipe.sites import dtype_name
from octavo.storage.arguments import checks_arguments


@dataclass(frozen=True)
class ExtractConfig:
    """``path``: path of the module, as in ``named_modules()``."""

    path: str

    def __post_init__(self) -> None:
        """Check the path. Raises ModelError."""
        if not isinstance(self.path, str) or not self.path:
            raise ModelError(f"path is {self.path!r}; give the path of a module, such as 'encoder.layer.0'")


@checks_arguments
def extract(
    model: nn.Module, path: str, inputs: Any = None, *, inplace: bool = False
) -> tuple[nn.Module, TransformReport]:
    """Return the module of a path as a separate model, and a report of its inputs and outputs.

    :func:`module_inputs` returns the inputs of the module.

    Args:
        model: the whole model.
        path: of the module.
        inputs: inputs of the whole model, which runs once in evaluation mode; without them the report is empty.
        inplace: return the module itself instead of a copy.

    Returns:
        The module and the report.

    Raises:
        ModelError: for an unknown path and for a module that the model does not call.
    """
    module = _module(model, ExtractConfig(path).path)
    rows: list[tuple[str, str, str, str]] = []
    if inputs is not None:
        arguments, output = _called(model, path, inputs)
        named = [("input", name, value) for name, value in arguments.items()]
        for kind, name, value in (*named, ("output", "", output)):
            for tensor in tensors_in(value):
                rows.append((kind, name, " x ".join(map(str, tensor.shape)) or "scalar", dtype_name(tensor.dtype)))
    part = module if inplace else deep_copy(module)
    return part, TransformReport(("kind", "argument", "shape", "dtype"), tuple(rows))


@checks_arguments
def module_inputs(model: nn.Module, path: str, inputs: Any) -> dict[str, Any]:
    """Return the arguments of the module of a path, by the parameter names of its forward.

    The model runs once in evaluation mode and is not changed.

    Args:
        model: the whole model.
        path: of the module.
        inputs: of the whole model, as for :func:`capture`.

    Returns:
        Arguments by name.

    Raises:
        ModelError: for an unknown path, a module that the model does not call, and arguments without names.
    """
    return _called(model, path, inputs)[0]


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        inside = [name for name, _ in model.named_modules() if name][:8]
        raise ModelError(f"{type(model).__name__} has no module {path!r}; it has {', '.join(inside)}, ...") from None


class _Enough(Exception):
    """Stops a forward pass after the call of the module was recorded."""


@torch.no_grad()
def _called(model: nn.Module, path: str, inputs: Any) -> tuple[dict[str, Any], Any]:
    """Return the arguments and the output of the first call of a module."""
    model = shared_copy(model)
    module = _module(model, path)
    call: list[Any] = []

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                raise ModelError(f"{path}: its forward takes *{name}, which has no names; call it with a tuple")
            named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        call.extend((named, output))
        raise _Enough

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        with in_mode(model, False):
            call_numbered(model, inputs, 0, "inputs, batch")
    except _Enough:
        pass
    finally:
        handle.remove()
    if not call:
        raise ModelError(f"{path}: {type(model).__name__} does not call it on these inputs")
    return call[0], call[1]


def _run(model: nn.Module, config: ExtractConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    """Extract, and replace the inputs and batches of the pipeline by those of the module."""
    part, report = extract(model, config.path, pass_inputs.inputs, inplace=True)
    if pass_inputs.calibration is not None:
        pass_inputs.calibration = list(_each(model, config.path, pass_inputs.calibration))
    if pass_inputs.inputs is not None:
        pass_inputs.inputs = module_inputs(model, config.path, pass_inputs.inputs)
    return part, report


def _each(model: nn.Module, path: str, batches: Any) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield module_inputs(model, path, batch)


_ANY = ("masks", "calibration", "quantization", "training", "fold", "pack")
register_pass(Pass("extract", "structure", ExtractConfig, _run, also_after=_ANY))
