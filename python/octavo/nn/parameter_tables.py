"""Parameters of a module that holds no layer for them, as tables: positions, latents, weights of its own products.

A parameter ``position_embeddings`` ``[1, N, D]`` becomes an ``nn.Embedding`` of the name ``position_embeddings_table``
inside a module of the same class, whose attribute ``position_embeddings`` is the rows of the table, rounded or decoded
as the table is. The module's own code runs as it is.

Rows are made once in each call of the module's ``forward``, however often it reads them, as a loop does that takes a
part of a parameter at a time. State matrices and factors stay as they are: models raise them to powers, or multiply
everything by them. So do weights that choose experts, which are small and decide much.
"""

from __future__ import annotations

import copyreg
import functools
import math
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.late_binding import late
from octavo.nn.format_layer import FormatLayer
from octavo.nn.rewriting import Origin, Rewriting, bare_copy, made_from, register_rewriting
from octavo.tensors.packed_tensor import FLOATS

_LEAST = 256  # elements: below, scales and the names of a file weigh more than is saved
_NARROW = 32  # columns: narrower tables are turned, for a scale counts for a row at least
_SUFFIX = "_table"
_STAYS = re.compile(r"A|.*(A_log|A_logs|decay|scale|scaling|gamma|lambda\w*|alpha|beta|temperature|dt_bias|time_\w+)")
_CHOOSES = re.compile(r"\w*(Router|Gate|Gating|TopK|Norm)\w*")
_PLAIN = {nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict}
_LEFT = ("torch.", "octavo.")  # packages: their classes read parameters past the attributes, or are ours


# The module whose forward runs, and the rows of its tables that it has read.
_reads: ContextVar[tuple[nn.Module, dict[str, Tensor]] | None] = ContextVar("octavo_table_reads", default=None)


class TableClass(type):
    """The class of a class whose parameters are tables: pickled as the class that it was made of, and their names."""


_classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def class_with_tables(cls: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Return the subclass of ``cls`` whose attributes of these names are the rows of tables."""
    if (cls, names) not in _classes:
        named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        properties = {name: property(_reader(name)) for name in names}
        forward = {} if cls.forward is nn.Module.forward else {"forward": _reading_once(cls.forward)}
        members = {**named, **properties, **forward}
        _classes[cls, names] = cast("type[nn.Module]", TableClass(cls.__name__, (cls,), members))
    return _classes[cls, names]


def _reader(name: str) -> Any:
    return lambda module: _rows(module, name)


def _reading_once(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module's ``forward`` in which the rows of its tables are made once."""

    @functools.wraps(forward)
    def reading(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        token = _reads.set((self, {}))
        try:
            return forward(self, *args, **kwargs)
        finally:
            _reads.reset(token)

    return reading


def _rows(module: nn.Module, name: str) -> Tensor:
    """Return the rows of a table, those of this call of the module's ``forward`` where it is in one."""
    reads = None if torch.compiler.is_compiling() else _reads.get()
    if reads is None or reads[0] is not module:
        return rows_of(module, name)
    if name not in reads[1]:
        reads[1][name] = rows_of(module, name)
    return reads[1][name]


def rows_of(module: nn.Module, name: str) -> Tensor:
    """Return a parameter that is a table: every row, as the table looks it up, in the shape of the parameter."""
    record, table = made_from(module), cast("Any", module._modules[name + _SUFFIX])
    assert record is not None  # the class is that of such modules alone
    origin = record.origins[name]
    codes = table._buffers.get("weight_codes")
    device = table._parameters["weight"].device if codes is None else codes.device
    rows: Tensor = table(torch.arange(table.num_embeddings, device=device))
    return (rows.T if origin.is_turned else rows).reshape(origin.shape)


def _tables(module: nn.Module) -> list[str]:
    """Return the names of the parameters of a module that become tables."""
    return [
        name
        for name, value in module._parameters.items()
        if value is not None
        and value.dtype in FLOATS
        and not nn.parameter.is_lazy(value)
        and value.numel() >= _LEAST
        and sum(size > 1 for size in value.shape) > 1
        and not _STAYS.fullmatch(name)
    ]


def _fits(module: nn.Module) -> bool:
    cls = type(module)
    theirs = any(f"{base.__module__}.".startswith(_LEFT) for base in cls.__mro__ if base not in _PLAIN)
    if type(cls) is not type or theirs or isinstance(module, FormatLayer) or "parametrizations" in module._modules:
        return False
    if _CHOOSES.fullmatch(cls.__name__) or late("kind_of")(module) is not None:
        return False
    return bool(_tables(module))


def _origins(module: nn.Module) -> dict[str, Origin]:
    origins = {}
    for name in _tables(module):
        shape = tuple(module.get_parameter(name).shape)
        columns = shape[-1]
        rows = math.prod(shape) // columns
        turned = columns < _NARROW <= rows
        part = f"{name}{_SUFFIX}.weight"
        origins[name] = Origin(shape, (part,), (columns, rows) if turned else (rows, columns), turned)
    return origins


def _build(module: nn.Module, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    names = tuple(name.removesuffix(f"{_SUFFIX}.weight") for name in parts)
    new: nn.Module = bare_copy(module, class_with_tables(type(module), names), names)
    for name in names:
        weight = parts[f"{name}{_SUFFIX}.weight"]
        table = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
        table.weight = weight
        new.add_module(name + _SUFFIX, table.train(module.training))
    return new


def _made_of(cls: TableClass) -> tuple[Any, tuple[type, tuple[str, ...]]]:
    """Return what makes a class anew in another process."""
    names = tuple(name for name, value in vars(cls).items() if isinstance(value, property))
    return class_with_tables, (cls.__mro__[1], names)


copyreg.pickle(TableClass, _made_of)
register_rewriting(Rewriting("tables", _fits, _origins, _build, is_last=True))
