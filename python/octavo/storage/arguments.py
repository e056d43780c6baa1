"""Arguments of public functions, checked against the annotations of their signature before any work.

``@checks_arguments`` on a function, and ``check_fields(self)`` in a frozen dataclass, refuse what is not of the kind
that the annotation says, with the function, the argument, the value and what is accepted. What an annotation cannot
say, such as a range, the function checks itself. Not for functions that torch.compile traces.

A boolean is no number. Numbers of numpy are numbers; NaN is none, and whole numbers fit in 64 bits. Texts are UTF-8
without halves of surrogate pairs; a path has no NUL. A text is no sequence of texts. Protocols, and annotations that
name no class, are not checked.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from octavo.errors import DataError, DTypeError, NonFiniteError, OctavoError, SettingError
from octavo.storage.reading import shown

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = (NoneType, bool, int, float, complex, str, bytes)
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", NoneType: "None"}
_PLURALS = {bool: "booleans", int: "whole numbers", float: "numbers", str: "texts", NoneType: "None"}
_WHOLE = range(-(2**63), 2**63)


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with its arguments checked against their annotations.

    The wrapper raises DTypeError for another kind of object, SettingError for another choice of a Literal or a whole
    number beyond 64 bits, NonFiniteError for NaN, DataError for a text or path that no file could hold.
    """
    signature = inspect.signature(function)
    place = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the call below says it as Python does, with the function's name
            arguments = {}
        for name, value in arguments.items():
            kind = _kinds(function).get(name, Any)
            if kind is not Any:
                _check_parameter(signature.parameters[name], value, kind, place)
        return function(*args, **kwargs)

    return call


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass against their annotations. Raises as the wrapper of :func:`checks_arguments`."""
    kinds = _kinds(value.__class__)
    for field in fields(value):
        check(getattr(value, field.name), kinds.get(field.name, Any), f"{type(value).__name__}: {field.name}")


def check(value: object, kind: Any, label: str) -> None:
    """Refuse a value that is not of an annotation's kind; ``label`` names it. Raises as :func:`checks_arguments`."""
    error = _fault(value, kind, label)
    if error is not None:
        raise error


def is_finite(value: object) -> bool:
    """Whether a value is a number that float64 holds: no boolean, NaN or infinity."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _check_parameter(parameter: inspect.Parameter, value: Any, kind: Any, place: str) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        for item in value:
            check(item, kind, f"{place}: {parameter.name}")
    elif parameter.kind is parameter.VAR_KEYWORD:
        for name, item in value.items():
            check(item, kind, f"{place}: {name}")
    elif value is not parameter.default:  # a default is right, whatever the annotation says of it
        check(value, kind, f"{place}: {parameter.name}")


@cache
def _kinds(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function's parameters or of a class's fields; those that cannot be read are Any."""
    kinds: dict[str, Any] = {}
    for one in reversed(owner.__mro__) if isinstance(owner, type) else (owner,):
        for name, annotation in inspect.get_annotations(one).items():
            kinds[name] = _evaluated(annotation, one.__module__) if isinstance(annotation, str) else annotation
    return kinds


def _evaluated(annotation: str, module: str) -> Any:
    """Return what an annotation of a module says; Any where it cannot be read."""
    for names in (vars(sys.modules[module]), None):
        with suppress(NameError):
            return eval(annotation, _names(module) if names is None else names)
    return Any


@cache
def _names(module: str) -> dict[str, Any]:
    """Return the names of a module, those that it imports for type checkers among them, which are imported now."""
    names = dict(vars(sys.modules[module]))
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):  # no source: what only type checkers import is not checked
        return names
    for block in tree.body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id.endswith("TYPE_CHECKING"):
            for line in block.body:
                with suppress(ImportError):  # an optional package
                    exec(compile(ast.Module([line], []), module, "exec"), names)
    return names


def _fault(value: object, kind: Any, label: str) -> OctavoError | None:
    """Return what is wrong with a value, None where it is of the kind."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _fault_of_union(value, kind, label)
    if origin is Literal:
        accepted = ", ".join(map(repr, get_args(kind)))
        is_one = isinstance(value, _PLAIN) and value in get_args(kind)
        return None if is_one else SettingError(f"{label} is {_given(value)}; accepted are {accepted}")
    if not _is(value, kind):
        return DTypeError(f"{label} is {_given(value)}; accepted is {_accepted(kind)}")
    if kind in (int, float):
        return _fault_of_number(value, kind, label)
    if isinstance(value, str):
        return _fault_of_text(value, label, is_path=False)
    if isinstance(value, os.PathLike):
        return _fault_of_text(os.fspath(value), label, is_path=True)
    return _fault_of_items(value, kind, label)


def _fault_of_union(value: object, kind: Any, label: str) -> OctavoError | None:
    """Return the fault under the member of the union that the value is of, else that it is of none."""
    members = get_args(kind)
    if isinstance(value, str) and any(_is_path(member) for member in members) and str in members:
        return _fault_of_text(value, label, is_path=True)
    faults = [_fault(value, member, label) for member in members]
    if None in faults:
        return None
    nearer = [fault for fault, member in zip(faults, members, strict=True) if _is(value, member)]
    return nearer[0] if nearer else DTypeError(f"{label} is {_given(value)}; accepted is {_accepted(kind)}")


def _fault_of_number(value: Any, kind: type, label: str) -> OctavoError | None:
    if kind is int:
        bounds = f"{_WHOLE.start} to {_WHOLE.stop - 1}"
        return None if int(value) in _WHOLE else SettingError(f"{label} is {shown(value)}; accepted are {bounds}")
    try:
        is_number = not math.isnan(value)
    except OverflowError:
        return SettingError(f"{label} is {shown(value)}; accepted are numbers that float64 holds")
    return None if is_number else NonFiniteError(f"{label} is {value}; accepted are numbers")


def _fault_of_text(text: str | bytes, label: str, *, is_path: bool) -> OctavoError | None:
    try:
        data = os.fsencode(text) if is_path else str(text).encode()
    except UnicodeEncodeError as error:
        half = f"column {error.start + 1}: half of a surrogate pair, which is no character"
        return DataError(f"{label} is {shown(text)}: {half}")
    if is_path and b"\0" in data:
        return DataError(f"{label} is {shown(text)}: a path holds no NUL")
    return None


def _fault_of_items(value: Any, kind: Any, label: str) -> OctavoError | None:
    """Return the first fault of the items that an annotation of a container says something about."""
    origin, inner = get_origin(kind), get_args(kind)
    if not inner or not isinstance(value, Collection):
        return None
    if origin is tuple and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            return DTypeError(f"{label} holds {len(value)} values; accepted is {_accepted(kind)}")
        pairs: Iterable[tuple[Any, Any, str]] = ((item, one, label) for item, one in zip(value, inner, strict=True))
    elif isinstance(value, Mapping) and len(inner) == 2:
        keys = ((key, inner[0], f"a key of {label}") for key in value)
        pairs = [*keys, *((value[key], inner[1], f"{label}[{shown(key)}]") for key in value)]
    elif _is_container(origin):
        pairs = ((item, inner[0], f"an item of {label}") for item in value) if inner[0] is not Any else ()
    else:
        return None
    return next((fault for item, one, name in pairs if (fault := _fault(item, one, name)) is not None), None)


def _is(value: object, kind: Any) -> bool:
    """Whether a value is of the class that an annotation names, whatever it holds."""
    origin = get_origin(kind) or kind
    if kind in (Any, object):
        return True
    if isinstance(kind, TypeVar):
        return kind.__bound__ is None or _is(value, kind.__bound__)
    if origin in (Union, UnionType):
        return any(_is(value, member) for member in get_args(kind))
    if kind is None:
        return value is None
    if kind is int or kind is float:
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool)
    if origin is Callable:
        return callable(value)
    if _is_container(origin):
        origin = Sequence if origin is tuple else origin
        is_array = origin is Collection and hasattr(value, "__array__")
        return isinstance(value, origin) and not isinstance(value, str | bytes | bytearray) and not is_array
    try:
        return isinstance(value, origin)
    except TypeError:  # a protocol, or no class at all
        return True


def _is_path(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and hasattr(origin, "__fspath__")


def _is_container(origin: Any) -> bool:
    if not isinstance(origin, type) or hasattr(origin, "__array__"):
        return False
    return issubclass(origin, Iterable) and not issubclass(origin, str | bytes)


def _accepted(kind: Any, names: Mapping[Any, str] = _NAMES) -> str:
    """Return an annotation in words."""
    if isinstance(kind, TypeVar):
        kind = kind.__bound__ or Any
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_accepted(one, names) for one in get_args(kind)))
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind in names or kind is None:
        return names[kind or NoneType]
    if _is_path(kind):
        return "a path"
    if origin is Callable:
        return "a function"
    if _is_container(origin):
        items = [_accepted(one, _PLURALS) for one in get_args(kind) if one not in (Any, Ellipsis)]
        name = origin.__name__.lower()
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}" + (f" of {' to '.join(items)}" if items else "")
    name = getattr(origin, "__name__", str(origin))
    if (module := getattr(origin, "__module__", "")).startswith("torch"):
        name = f"torch.nn.{name}" if module.startswith("torch.nn") else f"torch.{name}"
    return f"a {name}"


def _given(value: object) -> str:
    """Return a value for a message: itself where it is plain, else its class."""
    return shown(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
