"""Masks: which elements of a layer's parameters are pruned, as packed bits, and what keeps them 0.

A layer keeps its class, its parameters and their names. It gains a submodule ``masks`` with a buffer for each masked
parameter: ``LAYER.masks.weight`` in state dicts, checkpoints and model folders. A mask acts when weights change, not at
every forward pass: gradients of pruned elements are 0, :mod:`octavo.train` enforces masks after each update, and before
a forward pass or a state dict a changed weight is masked again: the layer's, and where weights are tied the model's.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import FormatError, ModelError, ShapeError
from octavo.ops.codec import quantize
from octavo.tensors.formats import Format

ATTRIBUTE = "masks"
_SCORES = "_scores"


def packed_bits(keep: Tensor) -> Tensor:
    """Return a bool tensor of n elements as bits, uint8 ``[ceil(n / 8)]``.

    Element i is bit ``i % 8`` of byte ``i // 8``; bits after the last element are 0.
    """
    flat = keep.flatten().to(torch.uint8)
    padded = torch.zeros(-(-flat.numel() // 8) * 8, dtype=torch.uint8, device=keep.device)
    padded[: flat.numel()] = flat
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device=keep.device)).sum(1, dtype=torch.uint8)


def unpacked_bits(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the bool tensor that :func:`packed_bits` took. Raises ShapeError for another number of bytes."""
    n = torch.Size(shape).numel()
    if packed.dtype != torch.uint8 or packed.shape != (-(-n // 8),):
        raise ShapeError(
            f"a mask of shape {tuple(shape)} is uint8 [{-(-n // 8)}], got {packed.dtype} {list(packed.shape)}"
        )
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    return bits.flatten()[:n].bool().view(shape)


@dataclass
class _Enforced:
    """What was masked: the parameter, its version then, its mask, and the hook of its gradient.

    ``bits``: int8 in the parameter's shape, -1 where an element is kept: as an integer of any width all ones.
    ``version``: None while an optimizer may follow a gradient, since fused ones write without a new version.
    """

    parameter: weakref.ref[nn.Parameter]
    version: int | None
    packed: Tensor
    bits: Tensor
    handle: Any = None

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return a gradient with 0 for pruned elements: the hook."""
        self.version = None
        if gradient.is_sparse:
            return gradient
        return gradient.view(_integers(gradient)).bitwise_and(self.bits).view(gradient.dtype)


class Masks(nn.Module):
    """The masks of one layer: a buffer of packed bits for each masked parameter, named as the parameter.

    ``NAME_scores`` beside it are what a criterion has gathered in training (:meth:`scores`).
    """

    def __init__(self) -> None:
        """Begin without masks."""
        super().__init__()
        self._enforced: dict[str, _Enforced] = {}

    def names(self) -> list[str]:
        """Return the names of the masked parameters."""
        return [name for name in self._buffers if not name.endswith(_SCORES)]

    def keep(self, layer: nn.Module, name: str) -> Tensor:
        """Return True where an element of ``layer``'s parameter ``name`` is kept, in its shape; all of it unmasked."""
        parameter = layer._parameters[name]
        assert parameter is not None  # a mask is of a Parameter
        packed = self._buffers.get(name)
        if packed is None:
            return torch.ones(parameter.shape, dtype=torch.bool, device=parameter.device)
        return unpacked_bits(packed, tuple(parameter.shape))

    def put(self, layer: nn.Module, name: str, keep: Tensor) -> None:
        """Set the mask of a parameter, bool in its shape, and write the zeros."""
        held = self._buffers.get(name)
        if held is None:
            self.register_buffer(name, packed_bits(keep))
        else:
            held.copy_(packed_bits(keep))
        self.enforce(layer)

    def scores(self, name: str, count: int, like: Tensor) -> Tensor:
        """Return the scores gathered for ``count`` units of a parameter, a float32 buffer that begins as zeros."""
        held = self._buffers.get(name + _SCORES)
        if held is None:
            held = torch.zeros(count, dtype=torch.float32, device=like.device)
            self.register_buffer(name + _SCORES, held)
        if held.shape != (count,):
            raise ModelError(f"{name}{_SCORES} holds {held.numel()} scores; another granularity gathered them")
        return held

    def score_names(self) -> list[str]:
        """Return the names of the buffers that hold scores."""
        return [name for name in self._buffers if name.endswith(_SCORES)]

    def attach(self, layer: nn.Module) -> None:
        """Become the masks of ``layer``."""
        layer.add_module(ATTRIBUTE, self)
        layer.register_forward_pre_hook(_before_forward)
        layer.register_state_dict_pre_hook(_before_state_dict)

    def detach(self, layer: nn.Module) -> None:
        """Write the zeros a last time and leave ``layer`` as it was before :meth:`attach`."""
        self.enforce(layer)
        for state in self._enforced.values():
            if state.handle is not None:
                state.handle.remove()
        # By function: a layer that took over this one's hooks has registries of its own, which no handle knows.
        for hooks, function in (
            (layer._forward_pre_hooks, _before_forward),
            (layer._state_dict_pre_hooks, _before_state_dict),
        ):
            for key in [key for key, hook in hooks.items() if hook is function]:
                del hooks[key]
        delattr(layer, ATTRIBUTE)

    def enforce(self, layer: nn.Module, *, unless_settled: bool = False) -> None:
        """Set the pruned elements of ``layer`` to 0.

        ``unless_settled``: but not where nothing has written to it since the last time.
        """
        for name in self.names():
            parameter, packed = layer._parameters.get(name), self._buffers[name]
            if parameter is None or packed is None or parameter.is_meta or packed.is_meta:
                continue
            state = self._enforced.get(name)
            if state is None or state.parameter() is not parameter or not _same(packed, state.packed):
                state = self._enforced[name] = self._begun(name, parameter, packed)
            elif unless_settled and state.version is not None and state.version == _version(parameter):
                continue
            if state.handle is None and parameter.requires_grad and parameter.is_leaf:
                state.handle = parameter.register_hook(state)
            # Past the version counter: zeros over zeros, of a weight that a graph may have kept for its backward pass.
            parameter.data.view(_integers(parameter)).bitwise_and_(state.bits)
            state.version = None if parameter.grad is not None else _version(parameter)

    def _begun(self, name: str, parameter: nn.Parameter, packed: Tensor) -> _Enforced:
        before = self._enforced.get(name)
        if before is not None and before.handle is not None:
            before.handle.remove()
        bits = unpacked_bits(packed, tuple(parameter.shape)).to(torch.int8).neg_()
        return _Enforced(weakref.ref(parameter), None, packed.clone(), bits)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the bits alone: a copied layer has other parameters."""
        return {**vars(self), "_enforced": {}}


def _same(packed: Tensor, before: Tensor) -> bool:
    return packed.device == before.device and torch.equal(packed, before)


def _integers(values: Tensor) -> torch.dtype:
    """Return the integers of the same width, whose bits are set to 0 many times faster than floats are filled."""
    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize]


def _version(parameter: Tensor) -> int | None:
    return None if parameter.is_inference() else parameter._version


def _before_forward(layer: nn.Module, arguments: Any) -> None:
    if not torch.compiler.is_compiling():  # graphs hold no masks: what changes weights enforces them
        own = layer._modules[ATTRIBUTE]
        assert isinstance(own, Masks)
        own.enforce(layer, unless_settled=True)


def _before_state_dict(layer: nn.Module, prefix: str, keep_vars: bool) -> None:
    own = layer._modules[ATTRIBUTE]
    assert isinstance(own, Masks)
    own.enforce(layer)


def masked_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Masks]]:
    """Yield path, layer and masks of every masked layer, in the order of the model's modules."""
    for path, module in model.named_modules():
        own = getattr(module, ATTRIBUTE, None)
        if isinstance(own, Masks):
            yield path, module, own


def masks_of(layer: nn.Module, what: str) -> Masks:
    """Return the masks of a layer, made where it has none. Raises ModelError where the name is taken."""
    own = getattr(layer, ATTRIBUTE, None)
    if isinstance(own, Masks):
        return own
    if own is not None or hasattr(layer, ATTRIBUTE):
        raise ModelError(f"{what} has an attribute of its own called {ATTRIBUTE!r}; rename it")
    made = Masks()
    made.attach(layer)
    return made


def _before_model(model: nn.Module, arguments: Any) -> None:
    if not torch.compiler.is_compiling():
        enforce_masks(model, unless_settled=True)


def watch_tied(model: nn.Module) -> None:
    """Let a model write its zeros before a forward pass begins, where another layer reads a masked parameter, too.

    The masks' own hook comes before the layer that holds them, and so may come after the other has read.
    """
    holders: Counter[int] = Counter()
    for module in model.modules():
        holders.update({id(parameter) for parameter in module._parameters.values() if parameter is not None})
    masked = [layer._parameters.get(name) for _, layer, own in masked_layers(model) for name in own.names()]
    unwatch(model)
    if any(holders[id(parameter)] > 1 for parameter in masked):
        model.register_forward_pre_hook(_before_model)


def unwatch(model: nn.Module) -> None:
    """Take back :func:`watch_tied`."""
    for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _before_model]:
        del model._forward_pre_hooks[key]


def enforce_masks(model: nn.Module, *, unless_settled: bool = False) -> None:
    """Set every pruned element of a model to 0.

    ``unless_settled``: but not where nothing has written to it since the last time.
    """
    for _, layer, own in masked_layers(model):
        own.enforce(layer, unless_settled=unless_settled)


@lru_cache(maxsize=256)
def _holds_zero(text: str) -> bool:
    probe = torch.tensor([0.0, 1.0, -0.7, 0.3]).repeat(64)[None]
    return bool((quantize(probe, text)[:, ::4] == 0).all())


def require_zero(fmt: Format, what: str) -> None:
    """Refuse a format in which a pruned weight would not be 0. Raises FormatError naming tensor and format."""
    if not _holds_zero(str(fmt)):
        raise FormatError(f"{what}: '{fmt}' has no 0, which pruned weights are; take a format with 0, such as ternary")
