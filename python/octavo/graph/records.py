"""Typed, immutable records of the tensors, operators and modules of a captured graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from octavo.errors import ModelError
from octavo.recipe.sites import dtype_name
from octavo.storage.arguments import checks_arguments

Size: TypeAlias = Any
"""A size of a tensor: an int, or a sympy expression of ``batch``, ``sequence`` and other symbols."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Ref:
    """A tensor among the arguments of an operator: the name of its record."""

    name: str

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a graph.

    ``name``: for a weight or buffer its name in the state dict. ``kind``: ``input``, ``weight``, ``buffer``,
    ``constant`` or ``activation``. ``format``: format of its values, None for values of ``dtype``. ``alias_of``: the
    tensor whose storage it shares. ``nbytes``: bytes of a weight in its format on disk, with scales and padding.
    ``is_packed``: whether the model stores it as codes.
    """

    name: str
    kind: str
    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: str = "cpu"
    format: str | None = None
    alias_of: str | None = None
    nbytes: int | None = None
    is_packed: bool = False

    @property
    def elements(self) -> Size:
        """Number of elements; symbolic where the shape is."""
        return math.prod(self.shape)

    @checks_arguments
    def shape_at(self, **sizes: int) -> tuple[int, ...]:
        """Return the shape at sizes.

        Args:
            sizes: such as ``batch=8, sequence=128``.

        Returns:
            Whole numbers.

        Raises:
            ModelError: for a missing size.
        """
        return tuple(at(size, sizes) for size in self.shape)

    @property
    def bytes_in_memory(self) -> Size:
        """Bytes of the tensor in memory: codes and scales of a packed weight, otherwise elements of ``dtype``."""
        return self.nbytes if self.is_packed else self.elements * self.dtype.itemsize

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; sizes that are symbolic as texts.

        Returns:
            A dictionary.
        """
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": [plain(size) for size in self.shape],
            "dtype": dtype_name(self.dtype),
            "device": self.device,
            "format": self.format,
            "alias_of": self.alias_of,
            "bytes": plain(self.bytes_in_memory),
        }


@dataclass(frozen=True)
class Node:
    """One operator call.

    ``op``: its name, such as ``aten.linear`` or ``octavo.packed_linear``. ``module_path``, ``module_class``: the
    innermost module whose forward called it. ``arguments``: by the names of the operator's schema; tensors as
    :class:`Ref`. ``stack``: source lines of the call, ``FILE:LINE in FUNCTION``, innermost first. ``function``: the
    call in Python that made it: a name that tells calls apart, and ``KIND.NAME`` as ``torch.export`` has it, or
    ``operator.NAME`` for arithmetic. ``modules``: paths of the modules around it, outermost first, with ``@1`` after
    the path for a second call.
    """

    id: str
    op: str
    module_path: str
    module_class: str
    outputs: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)
    stack: tuple[str, ...] = ()
    function: tuple[str, str] | None = None
    modules: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that the operator reads, each once, in order."""
        return tuple(dict.fromkeys(ref.name for ref in refs(tuple(self.arguments.values()))))

    @checks_arguments
    def named(self, argument: str) -> str | None:
        """Return the name of the tensor of an argument.

        Args:
            argument: name in the operator's schema.

        Returns:
            The name; None if the argument is no tensor.
        """
        value = self.arguments.get(argument)
        return value.name if isinstance(value, Ref) else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            A dictionary.
        """
        return {
            "id": self.id,
            "op": self.op,
            "module": self.module_path,
            "class": self.module_class,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "arguments": {name: plain(value) for name, value in self.arguments.items()},
            "source": list(self.stack),
        }


@dataclass(frozen=True)
class ModuleRecord:
    """One module of the model.

    ``paths``: all paths of the module, first that of ``named_modules()``. ``weights``: names of its own weights,
    without those of its children. ``formats``: formats by role of a quantized or packed layer. ``is_block``: whether it
    is one node of the module level. ``is_leaf``: whether a tracer of FX takes it as one call: layers of ``torch.nn``
    and of ``octavo``, without ``Sequential``.
    """

    path: str
    module_class: str
    paths: tuple[str, ...]
    weights: tuple[str, ...] = ()
    formats: Mapping[str, str] = field(default_factory=lambda: NOTHING, hash=False)
    is_block: bool = False
    is_leaf: bool = False
    training: bool = False
    description: str = ""


@dataclass(frozen=True)
class ModuleNode:
    """A module and the operators inside it: a node of the module level.

    ``nodes``: ids of its operators, in order. ``inputs``: tensors from outside. ``outputs``: tensors that are read
    outside. ``hash``: equal for modules whose operators differ only in the identity of their weights.
    """

    module_path: str
    module_class: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    hash: str

    @property
    def id(self) -> str:
        """The path of the module."""
        return self.module_path

    def as_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            A dictionary.
        """
        return {
            "module": self.module_path,
            "class": self.module_class,
            "operators": len(self.nodes),
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "weights": list(self.weights),
            "hash": self.hash,
        }


@dataclass(frozen=True)
class Block:
    """Modules that differ only in the identity of their weights, shown once with a ``count``."""

    module_class: str
    paths: tuple[str, ...]
    hash: str
    operators: int

    @property
    def count(self) -> int:
        """Number of modules."""
        return len(self.paths)


def refs(value: Any) -> Iterator[Ref]:
    """Yield the tensors inside an argument, nested lists included."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from refs(item)


def at(value: Size, sizes: Mapping[str, int]) -> Any:
    """Return the number of a symbolic value at ``sizes``; a number is returned unchanged.

    Raises ModelError naming a symbol that has no size.
    """
    symbols = getattr(value, "free_symbols", None)
    if symbols is None:
        return value
    missing = sorted(str(symbol) for symbol in symbols if str(symbol) not in sizes)
    if missing:
        raise ModelError(f"the size {missing[0]!r} is not given; give {', '.join(f'{name}=...' for name in missing)}")
    import sympy

    number = value.xreplace({symbol: sympy.Integer(sizes[str(symbol)]) for symbol in symbols}).doit()
    return int(number) if number.is_Integer else float(number)


def plain(value: Any) -> Any:
    """Return a value for JSON: numbers, texts and lists unchanged, all other values as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if getattr(value, "is_Integer", False):
        return int(value)
    return str(value)
