"""Finds the layers that read the output of a norm, by watching every operation of one forward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.data.batches import tensors_in
from octavo.quant.calibration import call
from octavo.recipe.sites import is_transposed


def is_norm(module: nn.Module) -> bool:
    """Tell whether a module is a LayerNorm, an RMSNorm or one that is named so."""
    return type(module).__name__.endswith(("LayerNorm", "RMSNorm"))


@dataclass(frozen=True)
class Consumer:
    """A linear layer, or torch's MultiheadAttention by its packed projection."""

    module: nn.Module

    @property
    def weight(self) -> Tensor:
        """The matrix that multiplies the input, ``[out, in]``."""
        if isinstance(self.module, nn.MultiheadAttention):
            return self.module.in_proj_weight.data
        weight = cast("Tensor", self.module.weight).data
        return weight.T if is_transposed(self.module) else weight

    def columns(self) -> Tensor:
        """Return the largest magnitude of each column, float32."""
        return self.weight.abs().amax(0).float()

    def scale(self, scales: Tensor) -> None:
        """Multiply the columns."""
        self.weight.mul_(scales.to(self.weight))


def _is_consumer(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None and module.bias_k is None
    return isinstance(module, nn.Linear) or is_transposed(module)


def find_consumers(model: nn.Module, norms: list[nn.Module], batch: Any) -> dict[nn.Module, list[Consumer] | str]:
    """Return, for each norm, all modules that read its output if they are consumers, else the reason to leave it."""
    watch = _Watch(model, norms)
    with watch:
        output = call(model, batch, 0)
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    return {norm: watch.verdict(norm, output, owners) for norm in norms}


class _Watch(TorchDispatchMode):
    """Notes every operation on a tensor that shares memory with a norm's output, and the module it happens in."""

    def __init__(self, model: nn.Module, norms: list[nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's has no types
        self._inside: list[nn.Module] = []  # consumers that run now
        self._norms: dict[int, nn.Module] = {}  # by storage
        self._kept: list[Tensor] = []  # so that no storage is used again
        self.calls: Counter[nn.Module] = Counter()
        self.readers: dict[nn.Module, dict[nn.Module | str, None]] = {norm: {} for norm in norms}
        self._pure: Counter[tuple[nn.Module, nn.Module]] = Counter()
        self._handles = [norm.register_forward_hook(self._made) for norm in norms]
        for module in model.modules():
            if _is_consumer(module):
                self._handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._leave))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call] # torch's has no types
        for handle in self._handles:
            handle.remove()

    def _made(self, norm: nn.Module, _: Any, output: Tensor) -> None:
        self.calls[norm] += 1
        if isinstance(output, Tensor):
            self._kept.append(output)
            self._norms[_storage(output)] = norm

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside.append(module)
        self.calls[module] += 1
        inputs = (*args, *kwargs.values())[: 3 if isinstance(module, nn.MultiheadAttention) else 1]
        read = {self._norms.get(_storage(x)) for x in inputs if isinstance(x, Tensor)}
        if len(read) == 1 and (norm := read.pop()) is not None:
            self._pure[norm, module] += 1

    def _leave(self, *_: Any) -> None:
        self._inside.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        outputs = {_storage(x) for x in tensors_in(output)}
        for x in tensors_in((args, kwargs or {})):
            norm = self._norms.get(_storage(x))
            # A view of it reads nothing yet; writing into it does.
            if norm is not None and (_storage(x) not in outputs or func._schema.is_mutable):
                self.readers[norm][self._inside[0] if self._inside else _name(func)] = None
        return output

    def verdict(self, norm: nn.Module, output: Any, owners: Counter[int]) -> list[Consumer] | str:
        """Return the consumers of a norm, or why it cannot be scaled."""
        readers = list(self.readers[norm])
        weight = getattr(norm, "weight", None)
        if not self.calls[norm]:
            return "it does not run"
        if not isinstance(weight, Tensor) or weight.ndim != 1:
            return "it has no weight for each channel"
        if any(owners[id(p)] > 1 for p in norm._parameters.values() if p is not None):
            return "it shares its weight with another module"
        if any(self._norms.get(_storage(x)) is norm for x in tensors_in(output)):
            return "the model returns its output"
        others = [reader for reader in readers if isinstance(reader, str)]
        if others:
            return f"its output is also read by {', '.join(sorted(others))}"
        if not readers:
            return "nothing reads its output"
        modules = [reader for reader in readers if not isinstance(reader, str)]
        for module in modules:
            if self._pure[norm, module] != self.calls[module]:
                return f"a {type(module).__name__} that reads its output reads others too"
            consumer = Consumer(module)
            if owners[id(_parameter(module))] > 1:
                return f"a {type(module).__name__} that reads its output shares its weight"
            if consumer.weight.shape[1] != len(weight):
                return f"a {type(module).__name__} reads its output in another shape"
        return [Consumer(module) for module in modules]


def _parameter(module: nn.Module) -> Tensor:
    return module.in_proj_weight if isinstance(module, nn.MultiheadAttention) else cast("Tensor", module.weight)


def _name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata
