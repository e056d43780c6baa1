"""Fusing of the active adapter into the weights, and its undoing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_numbered, tensors_in
from octavo.errors import ModelError, NonFiniteError, OctavoError
from octavo.lora.adapter import Adapters, OriginalAttributes, adapters
from octavo.lora.insert import refuse_fused
from octavo.nn import PackedLinear, Quantizer, QuantLinear
from octavo.nn.masks import masked_layers
from octavo.ops.codec import encode
from octavo.storage.arguments import checks_arguments
from octavo.tensors.packed_tensor import PackedTensor


@dataclass(frozen=True)
class FusedLayer:
    """The effect of fusing on one layer.

    ``update``: Frobenius norm of the adapter's matrix over that of the weight. ``lost``: norm of the rounding error of
    the format, or of a 16-bit float, over the norm of the adapter's matrix; 0 for wider floats. ``codes_changed``:
    share of the weight's codes that changed, None for a float weight and for another format.
    """

    path: str
    format: str | None
    update: float
    lost: float
    codes_changed: float | None


@dataclass(frozen=True)
class FuseReport:
    """The result of fusing. ``output_change``: the largest absolute change of the model's outputs on the given samples,
    divided by their largest magnitude; None without samples.
    """

    layers: tuple[FusedLayer, ...]
    output_change: float | None


@torch.no_grad()
@checks_arguments
def fuse(model: nn.Module, *, samples: Any = None) -> FuseReport:
    """Add the active adapter to the weights of its layers, in place, and disable it.

    Float weights become ``W + scaling * B A``, rounded once. Weights of quantized and packed layers are decoded, summed
    and quantized again with new scales; the report has the rounding errors. The old weights are stored until
    :func:`commit`, which takes memory, and :func:`unfuse` restores them bit for bit. Save the state dict of a fused
    model after :func:`commit`, because before it contains the adapters too. After an error the model is unchanged.

    Args:
        model: with an active adapter.
        samples: a batch whose outputs are compared: a dict for keywords, a tuple or list for several arguments, else
            the one argument.

    Returns:
        The effect on each layer, and the change of the outputs.

    Raises:
        ModelError: if no adapter is active, if one is fused already, or if a layer has masks.
        NonFiniteError: if a sum is NaN or beyond the weight's dtype; names the layer.

    Example:
        >>> model = octavo.lora.insert(nn.Sequential(nn.Linear(64, 64)), rank=4)
        >>> _ = nn.init.normal_(model.get_parameter("0.lora.default.B"))
        >>> x = torch.randn(2, 64)
        >>> adapted, report = model(x), octavo.lora.fuse(model)
        >>> torch.allclose(model(x), adapted, atol=1e-4)
        True
    """
    layers = adapters(model)
    refuse_fused(layers, "fusing again")
    active = {path: own for path, own in layers.items() if own.active is not None}
    if not active:
        raise ModelError("lora: no adapter is active; insert one, or choose one with activate")
    _refuse_masks(model, active)
    before = None if samples is None else outputs_of(model, samples)
    try:
        report = tuple(_fuse_layer(path, model.get_submodule(path), own) for path, own in active.items())
        change = None if before is None else largest_change(before, outputs_of(model, samples))
    except BaseException:
        _restore(model, active)
        raise
    return FuseReport(report, change)


def _refuse_masks(model: nn.Module, layers: Mapping[str, Adapters]) -> None:
    masked = {path for path, _, _ in masked_layers(model)}
    path = next((path for path in layers if path in masked), None)
    if path is not None:
        raise ModelError(
            f"lora: {path}: has masks, which would set the adapter's share of pruned weights to 0; "
            "octavo.prune.fold_model comes first, and the fused weight is dense"
        )


@torch.no_grad()
@checks_arguments
def unfuse(model: nn.Module) -> None:
    """Undo :func:`fuse`, in place: restore the original weight tensors, and enable the adapter again.

    Args:
        model: fused.

    Raises:
        ModelError: if nothing is fused.
    """
    _restore(model, _fused(model, "unfuse"))


@checks_arguments
def commit(model: nn.Module) -> None:
    """Make :func:`fuse` final, in place: remove adapters and stored weights; plain layers with their old names remain.

    All adapters of the model are removed, also inactive ones. Frozen parameters stay frozen; ``requires_grad_`` changes
    that.

    Args:
        model: fused.

    Raises:
        ModelError: if nothing is fused.
    """
    _fused(model, "commit")
    for path, own in adapters(model).items():
        own.detach(model.get_submodule(path))


def _fused(model: nn.Module, verb: str) -> dict[str, Adapters]:
    fused = {path: own for path, own in adapters(model).items() if own.original is not None}
    if not fused:
        raise ModelError(f"lora: nothing to {verb}; fuse comes first")
    return fused


def _restore(model: nn.Module, layers: Mapping[str, Adapters]) -> None:
    """Restore the original attributes of fused layers; other layers do not change."""
    for path, own in layers.items():
        if own.original is not None:
            for name, value in own.original.attributes.items():
                setattr(model.get_submodule(path), name, value)
            own.original = None


def _fuse_layer(path: str, layer: nn.Module, own: Adapters) -> FusedLayer:
    assert own.active is not None  # fuse looks at no other
    delta = getattr(own, own.active).delta()
    try:
        if isinstance(layer, PackedLinear):
            return _fuse_packed(path, layer, own, delta)
        quantizer = layer.weight_quantizer if isinstance(layer, QuantLinear) else None
        if isinstance(layer, QuantLinear) and quantizer is not None and quantizer.enabled:
            return _fuse_quantized(path, layer, quantizer, own, delta)
        assert isinstance(layer, nn.Linear)
        return _fuse_float(path, layer, own, delta)
    except OctavoError as error:
        raise type(error)(f"lora: {path or 'the layer'}: {error}") from None


def _fuse_float(path: str, layer: nn.Linear, own: Adapters, delta: Tensor) -> FusedLayer:
    old = layer.weight
    wanted = old.double() + delta
    new = _finite(wanted, old.dtype)
    lost = ratio(new.double() - wanted, delta) if old.dtype.itemsize < 4 else 0.0
    own.original = OriginalAttributes({"weight": old})
    # A new Parameter, because tied layers keep the old one.
    layer.weight = nn.Parameter(new, requires_grad=False)
    return FusedLayer(path, None, ratio(delta, old), lost, None)


def _finite(wanted: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum in the weight's dtype."""
    new = wanted.to(dtype)
    bad = int((~torch.isfinite(new)).sum())
    if bad:
        kind = str(dtype).removeprefix("torch.")
        raise NonFiniteError(
            f"{bad} of {new.numel()} weights plus update are NaN or beyond {kind}; lower alpha, train the adapter "
            "again, or fuse a model of a wider dtype"
        )
    return new


def _fuse_packed(path: str, layer: PackedLinear, own: Adapters, delta: Tensor) -> FusedLayer:
    old = layer.packed_weight
    before = old.decode(torch.float32)
    wanted = before.double() + delta
    new = encode(_finite(wanted, old.dtype), old.format, axis=old.axis, scale=old.scale)
    bias = layer._buffers.get("bias")  # an int32 one, which the new scales give other steps
    own.original = OriginalAttributes({"weight": old} if bias is None else {"weight": old, "bias": bias})
    layer.weight = new
    return rounded_layer(path, old, new, wanted, before, delta)


def _fuse_quantized(path: str, layer: QuantLinear, quantizer: Quantizer, own: Adapters, delta: Tensor) -> FusedLayer:
    """Store the sum in the float weight, with a new quantizer whose static scales are chosen again."""
    weight = layer.weight
    old = quantizer.encode(weight.detach())
    before = old.decode(torch.float32)
    wanted = before.double() + delta
    summed = _finite(wanted, weight.dtype)
    new = encode(summed, old.format, axis=old.axis, scale=old.scale)
    own.original = OriginalAttributes({"weight": weight, "weight_quantizer": quantizer})
    layer.weight = nn.Parameter(summed, requires_grad=False)
    if quantizer.is_static:
        layer.weight_quantizer = with_scales_of(quantizer, new)
    return rounded_layer(path, old, new, wanted, before, delta)


def with_scales_of(quantizer: Quantizer, packed: PackedTensor) -> Quantizer:
    """Return a quantizer of the same format with the scales of an encoded tensor, fixed."""
    fixed = Quantizer(quantizer.spec, axis=quantizer.axis, what=quantizer.what)
    has_zeros, has_levels = packed.format.core.has_zeros, packed.format.core.has_levels
    fixed.set_scales(packed.scales, packed.zeros if has_zeros else None, packed.levels if has_levels else None)
    return fixed


def rounded_layer(
    path: str, old: PackedTensor, new: PackedTensor, wanted: Tensor, before: Tensor, delta: Tensor
) -> FusedLayer:
    """Return what fusing did to a layer of formats: ``wanted`` is the sum of ``before`` and ``delta``, float64."""
    is_same = old.format == new.format  # codes of two formats are not compared
    changed = float((old.unpack() != new.unpack()).double().mean()) if is_same else None
    lost = ratio(new.decode(torch.float32).double() - wanted, delta)
    return FusedLayer(path, str(new.format), ratio(delta, before), lost, changed)


def ratio(part: Tensor, whole: Tensor) -> float:
    """Return the norm of one tensor over that of another, 0 where that is 0."""
    norm = float(torch.linalg.vector_norm(whole.double()))
    return float(torch.linalg.vector_norm(part.double())) / norm if norm else 0.0


def largest_change(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the largest absolute change of outputs, over their largest magnitude."""
    largest = max(float(a.abs().max()) for a in before)
    gap = max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True))
    return gap / largest if largest else gap


def outputs_of(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return the float tensors of the model's output on a batch, in evaluation mode; modes are restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        out = call_numbered(model, batch, 0, "samples, batch")
    finally:
        for module, mode in modes.items():
            module.training = mode
    tensors = [tensor for tensor in tensors_in(out) if tensor.is_floating_point() and tensor.numel()]
    if not tensors:
        raise ModelError("lora: the model returns no float tensor for these samples")
    return tensors
