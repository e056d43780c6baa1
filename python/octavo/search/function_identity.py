"""The identity of functions, models and their data for a journal: names, code, plain values and tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from hashlib import sha256
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import nn

from octavo.batches import arguments_of, tensors_in

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_LIBRARIES = ("torch", "transformers", "octavo")
_DEEPEST = 6  # of lists in lists: one may hold itself


def function_identity(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return the module, name and SHA-256 of a function's code, and whether there was a source.

    Part of it are plain values (numbers, texts, and lists of them) that it closes over, that are its defaults, that
    functools.partial gives it, or that an object which is called holds. What it calls is not.
    """
    if isinstance(function, functools.partial):
        inner, has_source = function_identity(function.func)
        return f"partial {inner} {_digest(_plain(function.args), _plain(function.keywords))}", has_source
    bound = getattr(function, "__self__", None)
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}.{named.__qualname__}"
    holders = [held for held in (bound, function) if not isinstance(held, ModuleType | type)]
    parts = [_plain(vars(held)) for held in holders if hasattr(held, "__dict__")]
    plain = getattr(function, "__func__", function)
    if isinstance(code := getattr(plain, "__code__", None), CodeType):
        closed = [cell.cell_contents for cell in plain.__closure__ or () if _is_filled(cell)]
        parts += [_of_code(code), _plain(plain.__defaults__), _plain(plain.__kwdefaults__), _plain(closed)]
    try:
        parts.append(inspect.getsource(named))
    except (OSError, TypeError):
        return f"{name} {_digest(*parts)}", False
    return f"{name} {_digest(*parts)}", True


def model_identity(model: nn.Module) -> str:
    """Return a SHA-256 of the code of a model: classes and their sources by path, and plain values of their objects.

    Of classes of torch, transformers and octavo the name stands for the source. Tensors are not part of it.
    """
    sources: dict[type, str] = {}
    found = []
    for path, module in sorted(model.named_modules(remove_duplicate=False)):
        kind = type(module)
        if kind not in sources:
            sources[kind] = f"{kind.__module__}.{kind.__qualname__} {_source(kind)}"
        values = {key: value for key, value in vars(module).items() if not key.startswith("_") and key != "training"}
        found.append(f"{path} {sources[kind]} {_plain(values)}")
    return _digest(*found)


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's code, and of its tensors and their names, whatever their order."""
    found = sha256(model_identity(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            found.update(name.encode())
            found.update(_bytes(tensor))
    return found.hexdigest()


def batches_digest(model: nn.Module, batches: Iterable[Any]) -> str:
    """Return the SHA-256 of everything that batches give a model."""
    found = sha256()
    for batch in batches:
        for tensor in tensors_in(arguments_of(model, batch)):
            found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().flatten()
    return f"{tuple(tensor.shape)}{tensor.dtype}".encode() + plain.view(torch.uint8).numpy().tobytes()


def _source(kind: type) -> str:
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        forward: Any = kind.__dict__.get("forward")
        return _of_code(forward.__code__) if hasattr(forward, "__code__") else ""


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _of_code(code: CodeType) -> str:
    """Return what a code does, without the places of its lines."""
    inner = [_of_code(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _plain(value: Any, deep: int = 0) -> str:
    """Return plain values as text; functions by their code, other objects by their class."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, dict) and deep < _DEEPEST:
        held = sorted((_plain(key, deep + 1), _plain(one, deep + 1)) for key, one in value.items())
        return "{" + ",".join(f"{key}:{one}" for key, one in held) + "}"
    if isinstance(value, list | tuple) and deep < _DEEPEST:
        return "[" + ",".join(_plain(one, deep + 1) for one in value) + "]"
    if callable(value) and not isinstance(value, nn.Module | type) and hasattr(value, "__qualname__"):
        return _named(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _named(function: Callable[..., Any]) -> str:
    """Return a function's name and code, without what it holds: it may hold what holds it."""
    code = getattr(function, "__code__", None)
    return f"{function.__module__}.{function.__qualname__} {_of_code(code) if isinstance(code, CodeType) else ''}"


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()
