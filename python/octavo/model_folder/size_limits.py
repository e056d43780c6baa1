"""Limits of a model that an untrusted folder describes: its sizes may not exceed the tensors in the folder's file."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._pytree import tree_flatten, tree_map

from octavo.errors import ContainerError
from octavo.storage.reading import shown

if TYPE_CHECKING:
    from octavo.tensors.container import TensorEntry
    from octavo.tensors.packed_tensor import PackedTensor

# Tables that a model computes for itself, such as masks and positions: bytes of one, and of all that it keeps, beside
# the bytes of the file.
_TABLES = 1 << 26
# A call whose sizes multiply to less than this makes no table worth a look, not even of its square.
_SMALL = 1 << 11
# Without a file: what the largest published models have, so that only their sizes bound a configuration.
_ELEMENTS, _MODULES = 1 << 42, 40_000
# Configurations loop over layers and over labels before a model is built: how many there may be, and what they are
# called. Sizes that only tensors have, such as vocabularies, and limits of texts may be any number here.
_LAYERS, _LABELS = 4096, 1 << 16
_LAYER = re.compile(r".*(layer|block|depth|stage|head|group)s?(_|$).*")
_COUNT = re.compile(
    r"(num|n)_(?!.*(vocab|embed|position|token|ctx|sample|step|param|pixel|bucket|element|frame|code|mel|word|length)).*"
    r"|.*(layer|block|depth|stage|head|expert|group|label|classe)s?"
)


def _most(name: str) -> int | None:
    """Return how many of a thing there may be, by the name of the field that counts it; None for what is no count."""
    if not _COUNT.fullmatch(name):
        return None
    return _LAYERS if _LAYER.fullmatch(name) else _LABELS


@dataclass
class Extent:
    """Memory that building a model may allocate; building beyond it stops.

    ``elements``: of weights, which take no memory while a model is built. ``modules``: layers and parameters.
    ``tables``: bytes of tables that the model computes. ``what``: the file, for errors; ``values``: its configuration.
    """

    what: str
    values: Mapping[str, Any] = field(default_factory=dict)
    elements: int = _ELEMENTS
    modules: int = _MODULES
    tables: int = _TABLES
    held: str = "no file of weights is beside it"
    _elements: int = 0
    _modules: int = 0
    _kept: int = 0
    _thread: int = 0

    @classmethod
    def of(cls, entries: Sequence[TensorEntry], what: str, values: Mapping[str, Any]) -> Extent:
        """Return the extent of a model whose file has these ``entries``."""
        sizes = [(math.prod(entry.shape), entry.nbytes) for entry in entries]
        return cls._of_sizes(sizes, what, values)

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor | PackedTensor], what: str, values: Mapping[str, Any]) -> Extent:
        """Return the extent of a model that these tensors are for."""
        return cls._of_sizes([(tensor.numel(), tensor.nbytes) for tensor in tensors.values()], what, values)

    @classmethod
    def _of_sizes(cls, sizes: Sequence[tuple[int, int]], what: str, values: Mapping[str, Any]) -> Extent:
        """Allow what tensors of these elements and bytes account for.

        Weights may be allocated twice, as tied ones are, and have a bit an element at least, whatever the file packs
        them in; a model has a few modules for each of its tensors.
        """
        nbytes = sum(size for _, size in sizes)
        elements = max(8 * nbytes, sum(count for count, size in sizes if size))
        held = f"the weights beside it have {len(sizes)} tensors with {nbytes} bytes"
        return cls(what, values, 2 * elements + (1 << 20), 6 * len(sizes) + 512, _TABLES + nbytes, held)

    def check_counts(self, values: Any = None, where: str = "") -> None:
        """Refuse numbers of layers, labels and the like that no model has. Raises ContainerError naming the field."""
        for key, value in (self.values if values is None else values).items():
            if isinstance(value, Mapping):
                self.check_counts(value, f"{where}{key}.")
            for one in value if isinstance(value, list) else [value]:
                most = _most(str(key)) if type(one) is int else None
                if most is not None and one > most:
                    raise ContainerError(
                        f"{self.what}: {where}{key} is {shown(one)}; accepted are up to {most}, write the number that "
                        "the model has"
                    )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the modules, parameters and buffers that this thread registers."""
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            for register, note in (
                (hooks.register_module_module_registration_hook, self._note_module),
                (hooks.register_module_parameter_registration_hook, self._note_module),
                (hooks.register_module_buffer_registration_hook, self._note_buffer),
            ):
                stack.callback(register(note).remove)
            yield

    def weights(self, tensor: Any) -> None:
        """Count a tensor allocated without memory."""
        self._elements += tensor.numel() if isinstance(tensor, Tensor) else 0
        if self._elements > self.elements:
            self._refuse(f"describes weights of more than {self.elements} elements", list(tensor.shape))

    def check_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call whose result would be a table that is too large, before it is made."""
        leaves = tree_flatten((args, dict(kwargs)))[0]
        scale = 1.0
        sizes = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if leaf.is_meta:
                    return
                scale *= max(leaf.numel(), 1)
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool) and leaf == leaf and abs(leaf) > 1:
                scale *= abs(leaf) if abs(leaf) < 1e30 else 1e30
                sizes.append(leaf)
        if scale < _SMALL:
            return
        options = dict(kwargs)
        if options.get("device") is not None or not any(isinstance(leaf, Tensor) for leaf in leaves):
            options["device"] = torch.device("meta")
        try:
            shaped = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, (args, options))
            made = [one for one in tree_flatten(func(*shaped[0], **shaped[1]))[0] if isinstance(one, Tensor)]
        except Exception:  # no shapes without values: the product of all sizes bounds the result
            if scale * 16 > self.tables:
                self._refuse(f"needs a table of more than {self.tables} bytes", sizes)
            return
        if sum(one.numel() * one.element_size() for one in made if not one._is_view()) > self.tables:
            self._refuse(f"needs a table of more than {self.tables} bytes", sizes or list(made[0].shape))

    def _note_module(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._modules += 1
            if self._modules > self.modules:
                self._refuse(f"describes more than {self.modules} layers and parameters", [])

    def _note_buffer(self, _: nn.Module, __: str, buffer: Tensor | None) -> None:
        if threading.get_ident() == self._thread and isinstance(buffer, Tensor) and not buffer.is_meta:
            self._kept += buffer.numel() * buffer.element_size()
            if self._kept > self.tables:
                self._refuse(f"keeps tables of more than {self.tables} bytes", list(buffer.shape))

    def _refuse(self, problem: str, sizes: list[int | float]) -> None:
        raise ContainerError(
            f"{self.what}: {self._blamed(sizes)}{problem}, and {self.held}; give the configuration of these weights"
        )

    def _blamed(self, sizes: list[int | float]) -> str:
        """Name the field that asks for the most: that of the size seen, else the largest count of layers."""
        found = dict(_numbers(self.values))
        exact = {name: value for name, value in found.items() if value in sizes and value > 1}
        counts = {name: value for name, value in found.items() if _most(name.rpartition(".")[2]) is not None}
        for among in (exact, {} if sizes else counts, found):
            if among:
                name = max(among, key=lambda one: among[one])
                return f"with {name} = {shown(among[name])} it "
        return "it "


def _numbers(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, int]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{where}{key}.")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and not isinstance(one, bool):
                yield f"{where}{key}", one
