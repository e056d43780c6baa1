"""Reading a layer's weight or bias past the layer: what a model gets whose own code multiplies ``layer.weight``.

Some models use a layer as a holder of its weight (DeBERTa's ``rel_embeddings``, Mamba's ``conv1d``). Inside a forward
pass, ``layer.weight`` of a quantised layer is the rounded weight and of a packed one the decoded weight, so that the
model computes with the same values however it reads them. Everywhere else it is the Parameter or PackedTensor.
Methods that compute outside any module's forward say so with :func:`rounded_weights`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

_CALL = nn.Module._call_impl.__code__

_rounded: ContextVar[bool] = ContextVar("octavo_rounded_weights", default=False)

# Every watch gets the ids of the layers that are read past while it is here.
watches: list[set[int]] = []


@contextmanager
def rounded_weights() -> Iterator[None]:
    """Read ``layer.weight`` and ``layer.bias`` of quantised layers as in a forward pass: rounded, or decoded.

    For a model's methods that read weights themselves and are called without its forward, such as a ``generate`` of its
    own; also a decorator of them.
    """
    token = _rounded.set(True)
    try:
        yield
    finally:
        _rounded.reset(token)


def inside_forward(layer: nn.Module) -> bool:
    """Whether the code that reads an attribute of ``layer`` is part of a forward pass; tells the watches of it.

    Octavo's own layers never ask: they read their registries. Frames are looked at instead of hooks, which would slow
    every module of the model down and miss the parts that are called alone, as ``generate`` calls an encoder.
    """
    if torch.compiler.is_compiling():
        return True
    found = _rounded.get()
    frame = None if found else sys._getframe(2)
    while frame is not None and not found:
        found = frame.f_code is _CALL or frame.f_code.co_name == "forward"
        frame = frame.f_back
    if found:
        for watch in watches:
            watch.add(id(layer))
    return found


def late(make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``make()``, at the first use of its values: many models read no more than the dtype.

    Compilers get the tensor itself.
    """
    return make() if torch.compiler.is_compiling() else LateTensor(make, shape, dtype, device)


class LateTensor(Tensor):
    """A tensor whose values are computed when an operation first asks for them; its shape is known before."""

    @staticmethod
    def __new__(
        cls, make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> LateTensor:
        """Stand for ``make()``, which has this shape, dtype and device and no gradient."""
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self, make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Compute nothing yet."""
        self._make: Callable[[], Tensor] | None = make
        self._value: Tensor | None = None

    def value(self) -> Tensor:
        """Return the tensor, computed once."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer what is known, and compute the values for everything else."""
        if func in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(LateTensor, LateTensor.value, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the values: what comes from C++ comes here."""
        args, kwargs = tree_map_only(LateTensor, LateTensor.value, (args, kwargs or {}))
        return func(*args, **kwargs)


_KNOWN = {
    Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__, Tensor.is_cuda.__get__,
    Tensor.is_meta.__get__, Tensor.layout.__get__, Tensor.requires_grad.__get__, Tensor.size, Tensor.dim,
    Tensor.numel, Tensor.element_size, Tensor.is_floating_point, Tensor.__len__,
}  # fmt: skip
