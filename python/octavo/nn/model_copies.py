"""Copies of a model: one with parameters of its own, and one over the same parameters for whoever only measures."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from octavo.errors import DTypeError
from octavo.nn.masks import masked_layers
from octavo.nn.weight_buffers import WeightBuffers

M = TypeVar("M", bound=nn.Module)


def deep_copy(model: M, memo: dict[int, Any] | None = None) -> M:
    """Return a copy that shares nothing with ``model`` but what Python cannot copy: locks, open files, generators.

    ``memo``: what stands for objects of the model, by id, as in ``copy.deepcopy``. Raises DTypeError for what is no
    module, and for a model whose class refuses to be copied.
    """
    _check(model)
    known = dict(memo or {})
    try:
        return copy.deepcopy(model, dict(known))
    except Exception:  # whatever an attribute raises
        _keep_what_refuses(model, known)
    try:
        return copy.deepcopy(model, known)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise DTypeError(
            f"{type(model).__name__} cannot be copied ({told}), and what changes or measures a model works on a copy; "
            "give the class that refuses a __deepcopy__"
        ) from None


def shared_copy(model: M) -> M:
    """Return a copy of the modules of ``model`` over the memory of its parameters, for a measurement.

    Modes, hooks, attributes, buffers and the Parameter objects are the copy's own: another mode, a hook, a gradient or
    another ``.data`` of its parameters is not seen by who uses ``model`` meanwhile. Shared are the values of
    parameters, which must not be written in place, and the codes of packed layers. Copied are parameters under masks,
    whose zeros a forward pass writes. Tied parameters stay tied. Raises DTypeError as :func:`deep_copy`.
    """
    _check(model)
    masked = {id(layer._parameters[name]) for _, layer, own in masked_layers(model) for name in own.names()}
    memo: dict[int, Any] = {
        id(parameter): _over_the_same_memory(parameter)
        for parameter in model.parameters()
        if id(parameter) not in masked and not is_lazy(parameter)
    }
    for module in model.modules():
        if isinstance(module, WeightBuffers):
            memo |= {id(held): held for held in module._buffers.values() if held is not None}
    return deep_copy(model, memo)


def _check(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise DTypeError(f"a model is a torch.nn.Module, got a {type(model).__name__}")


def _over_the_same_memory(parameter: nn.Parameter) -> nn.Parameter:
    values = parameter.detach()
    if issubclass(type(parameter), nn.Parameter):
        made: nn.Parameter = torch.Tensor._make_subclass(type(parameter), values, parameter.requires_grad)
    else:  # a tensor of another class that is used as a parameter
        made = nn.Parameter(values, requires_grad=parameter.requires_grad)
    vars(made).update(vars(parameter))
    return made


def _keep_what_refuses(model: nn.Module, memo: dict[int, Any]) -> None:
    """Let the parts of a model's attributes that cannot be copied stand for themselves in ``memo``."""
    tree = {id(module): module for module in model.modules()}
    seen: set[int] = set()

    def keep(value: Any) -> None:
        if id(value) in seen or id(value) in tree or _copies(value, memo | tree):
            return
        seen.add(id(value))
        for part in _parts(value):
            keep(part)
        if not _copies(value, memo | tree):
            memo[id(value)] = value

    for module in tree.values():
        for held in list(vars(module).values()):
            keep(held)


def _copies(value: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:
        return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    return list(getattr(value, "__dict__", {}).values())
