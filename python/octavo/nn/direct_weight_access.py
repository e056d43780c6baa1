"""Reading a layer's weight or bias past the layer: what a model gets whose own code multiplies ``layer.weight``.

Some models use a layer as a holder of its weight (DeBERTa's ``rel_embeddings``, Mamba's ``conv1d``). Inside a forward
pass, ``layer.weight`` of a quantized layer is the rounded weight and of a packed one the decoded weight, so that the
model computes with the same values however it reads them. Everywhere else it is the Parameter or PackedTensor.
Methods that compute outside any module's forward say so with :func:`rounded_weights`. What is read is a copy: writing
to it would be lost, and raises ModelError with the layer's name and the rule that keeps it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils._pytree import tree_map_only

from octavo.errors import ModelError

_CALL = nn.Module._call_impl.__code__
_CHECKPOINT = vars(checkpoint)  # what it calls again in a backward pass is the forward pass, by whatever name

_SHARDING = "torch.distributed.fsdp"  # its hooks read Parameters, to gather and to scatter them

_rounded: ContextVar[bool] = ContextVar("octavo_rounded_weights", default=False)

# Every watch gets the ids of the layers that are read past while it is here.
watches: list[set[int]] = []


class rounded_weights:
    """Read ``layer.weight`` and ``layer.bias`` of quantized layers as in a forward pass: rounded, or decoded.

    For a model's methods that read weights themselves and are called without its forward, such as a ``generate`` of its
    own; also a decorator of them, of generators and coroutines too.
    """

    def __init__(self) -> None:
        """Change nothing yet."""
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        """Read rounded weights from now on, in this thread or task."""
        if not torch.compiler.is_compiling():  # compiled code reads rounded weights anyway
            self._tokens.append(_rounded.set(True))

    def __exit__(self, *error: object) -> None:
        """Read as before."""
        if self._tokens:
            _rounded.reset(self._tokens.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, whose every step reads rounded weights."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            steps = _Steps if inspect.isgeneratorfunction(function) else _AsyncSteps

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return steps(function(*args, **kwargs))

        elif inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **kwargs: Any) -> Any:
                with rounded_weights():
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                with rounded_weights():
                    return function(*args, **kwargs)

        return wrapped


class _Steps(Generator[Any, Any, Any]):
    """A generator whose steps read rounded weights; its consumer, between them, does not."""

    def __init__(self, made: Generator[Any, Any, Any]) -> None:
        self._made = made

    def send(self, value: Any) -> Any:
        with rounded_weights():
            return self._made.send(value)

    def throw(self, *error: Any) -> Any:
        with rounded_weights():
            return self._made.throw(*error)


class _AsyncSteps(AsyncGenerator[Any, Any]):
    """As :class:`_Steps`, of an asynchronous generator."""

    def __init__(self, made: AsyncGenerator[Any, Any]) -> None:
        self._made = made

    async def asend(self, value: Any) -> Any:
        with rounded_weights():
            return await self._made.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with rounded_weights():
            return await self._made.athrow(*error)


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
        if str(frame.f_globals.get("__name__")).startswith(_SHARDING):
            return False
        found = frame.f_code is _CALL or frame.f_code.co_name == "forward" or frame.f_globals is _CHECKPOINT
        frame = frame.f_back
    if found:
        for watch in watches:
            watch.add(id(layer))
    return found


def late(
    make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str
) -> Tensor:
    """Return ``make()``, at the first use of its values: many models read no more than the dtype.

    ``what``: names the tensor in errors. Compilers get the tensor itself.
    """
    return make() if torch.compiler.is_compiling() else LateTensor(make, shape, dtype, device, what)


def guarded(tensor: Tensor, what: str) -> Tensor:
    """Return ``tensor``, with its gradient, refusing to be written to; transforms and compilers get the tensor itself.

    ``what``: names the tensor in errors.
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return tensor
    made = tensor.as_subclass(RoundedTensor)
    made._value, made._what = tensor, what
    return made


class _Read(Tensor):
    """What the two kinds of tensors share that are read past a layer: operations get plain ones, but for writes."""

    _what: str

    def value(self) -> Tensor:
        """Return the plain tensor."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer what is known, and compute the values for everything else."""
        if func in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        subject = next(iter((*args, *kwargs.values())), None)
        written = subject if _writes(func) else kwargs.get("out")
        if isinstance(written, _Read):
            raise _written(written._what)
        args, kwargs = tree_map_only(_Read, lambda read: read.value(), (args, kwargs))
        result = func(*args, **kwargs)
        return guarded(result, subject._what) if func in _ALIASES and isinstance(subject, _Read) else result


class RoundedTensor(_Read):
    """A rounded weight or bias, with its gradient."""

    _value: Tensor

    def value(self) -> Tensor:
        """Return the plain tensor."""
        return self._value


class LateTensor(_Read):
    """A tensor whose values are computed when an operation first asks for them; its shape is known before."""

    @staticmethod
    def __new__(
        cls, make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str
    ) -> LateTensor:
        """Stand for ``make()``, which has this shape, dtype and device and no gradient."""
        return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self, make: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str
    ) -> None:
        """Compute nothing yet."""
        self._make: Callable[[], Tensor] | None = make
        self._value: Tensor | None = None
        self._what = what

    def value(self) -> Tensor:
        """Return the tensor, computed once."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        assert self._value is not None
        return self._value

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # the stub forgets the function
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the values: what comes from C++ comes here."""
        args, kwargs = tree_map_only(LateTensor, LateTensor.value, (args, kwargs or {}))
        return func(*args, **kwargs)


def _writes(func: Callable[..., Any]) -> bool:
    """Whether a function of torch changes its first argument, by its name: ``add_``, ``__iadd__``, ``w[0] = 0``."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return func == _SET_DATA or name in _OPERATORS
    return name.endswith("_") and name not in ("requires_grad_", "share_memory_", "detach_")


def _written(what: str) -> ModelError:
    from octavo.recipe.rule import Rule  # it imports the layers

    rule = Rule(name=what.rpartition(": ")[0], keep=True)
    return ModelError(
        f"{what} is written to in a forward pass, where it is a copy that the layer does not read; write to it before "
        f"the pass, or keep the layer with the rule '{rule}'"
    )


_DATA: Any = Tensor.data  # a descriptor at run time
_SET_DATA = _DATA.__set__
_ALIASES = {_DATA.__get__, Tensor.detach}
_OPERATORS = {"__setitem__", *(f"__i{name}__" for name in (
    "add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul",
))}  # fmt: skip
_FACTS = ("shape", "dtype", "device", "ndim", "is_cuda", "is_meta", "layout", "requires_grad")
_KNOWN = {
    *(getattr(Tensor, name).__get__ for name in _FACTS),
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.element_size, Tensor.is_floating_point, Tensor.__len__,
}  # fmt: skip
