"""Limits of a model that an untrusted folder describes: its sizes may not exceed the tensors in the folder's file."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._pytree import tree_flatten, tree_map

from octavo.errors import ContainerError
from octavo.model_folder.config_numbers import blame
from octavo.model_folder.step_limit import limited

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
# Steps of Python code that building a model takes, beside one for each of so many bytes of the file.
_STEPS, _BYTES_A_STEP = 1 << 22, 16


@dataclass
class Extent:
    """Memory and time that building a model may take; building beyond it stops.

    ``elements``: of weights, which take no memory while a model is built. ``modules``: layers and parameters.
    ``tables``: bytes of tables that the model computes. ``steps``: of Python code. ``what``: the file, for errors;
    ``values``: its configuration; ``known``: sizes that tensors of the file have.
    """

    what: str
    values: Mapping[str, Any] = field(default_factory=dict)
    elements: int = _ELEMENTS
    modules: int = _MODULES
    tables: int = _TABLES
    steps: int = 1 << 24
    known: frozenset[int] = frozenset()
    held: str = "no file of weights is beside it"
    _elements: int = 0
    _modules: int = 0
    _kept: int = 0
    _thread: int = 0

    @classmethod
    def of(cls, entries: Sequence[TensorEntry], what: str, values: Mapping[str, Any]) -> Extent:
        """Return the extent of a model whose file has these ``entries``."""
        return cls._of_sizes([(tuple(entry.shape), entry.nbytes) for entry in entries], what, values)

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor | PackedTensor], what: str, values: Mapping[str, Any]) -> Extent:
        """Return the extent of a model that these tensors are for."""
        return cls._of_sizes([(tuple(tensor.shape), tensor.nbytes) for tensor in tensors.values()], what, values)

    @classmethod
    def _of_sizes(cls, sizes: Sequence[tuple[tuple[int, ...], int]], what: str, values: Mapping[str, Any]) -> Extent:
        """Allow what tensors of these shapes and bytes account for.

        Weights may be allocated twice, as tied ones are, and have a bit an element at least, whatever the file packs
        them in; a model has a few modules for each of its tensors.
        """
        nbytes = sum(size for _, size in sizes)
        elements = max(8 * nbytes, sum(math.prod(shape) for shape, size in sizes if size))
        held = f"the weights beside it have {len(sizes)} tensors with {nbytes} bytes"
        return cls(
            what,
            values,
            elements=2 * elements + (1 << 20),
            modules=6 * len(sizes) + 512,
            tables=_TABLES + nbytes,
            steps=_STEPS + nbytes // _BYTES_A_STEP,
            known=frozenset(size for shape, _ in sizes for size in shape),
            held=held,
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the modules, parameters and buffers that this thread registers, and its steps."""
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            for register, note in (
                (hooks.register_module_module_registration_hook, self._note_module),
                (hooks.register_module_parameter_registration_hook, self._note_module),
                (hooks.register_module_buffer_registration_hook, self._note_buffer),
            ):
                stack.callback(register(note).remove)
            too_long = f"takes more than {self.steps} steps to build"
            stack.enter_context(limited(self.steps, lambda: self._refuse(too_long, [])))
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

    def _refuse(self, problem: str, sizes: list[int | float]) -> NoReturn:
        with_number = blame(self.values, sizes, self.known)
        raise ContainerError(
            f"{self.what}: {with_number}it {problem}, and {self.held}; give the configuration of these weights"
        )
