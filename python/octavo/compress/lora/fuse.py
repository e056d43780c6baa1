"""Moving the active adapter into the weights, and out again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.compress.lora.adapter import Adapters, Kept, adapters
from octavo.compress.lora.insert import refuse_fused
from octavo.errors import ModelError
from octavo.nn import PackedLayer, PackedLinear, Quantiser, QuantLinear
from octavo.ops import encode
from octavo.tensor import PackedTensor


@dataclass(frozen=True)
class FusedLayer:
    """What fusing did to one layer.

    ``update``: Frobenius norm of the adapter's matrix over that of the weight. ``lost``: norm of what rounding to the
    format changed, over the norm of the adapter's matrix; 0 where nothing was rounded. ``codes_changed``: share of the
    weight's codes that are others now, None for a float weight.
    """

    path: str
    format: str | None
    update: float
    lost: float
    codes_changed: float | None


@dataclass(frozen=True)
class FuseReport:
    """What fusing did: ``layers``, and ``output_change``, the largest absolute difference of the model's outputs on the
    given samples over their largest magnitude, before against after; None without samples.
    """

    layers: tuple[FusedLayer, ...]
    output_change: float | None


@torch.no_grad()
def fuse(model: nn.Module, *, samples: Any = None) -> FuseReport:
    """Add the active adapter to the weights of its layers, in place, and let it rest.

    Float weights become ``W + scaling * B A``, rounded once. Weights of quantised and packed layers are decoded, added
    to and quantised again, their scales chosen anew; what that costs is in the report. ``samples``: a batch (dict for
    keywords, tuple or list for several arguments, else the one argument) whose outputs are compared. The old weights
    are kept until :func:`commit`, so the model takes more memory, and :func:`unfuse` restores them bit for bit. Save
    the state dict of a fused model after :func:`commit`: before, it holds the adapters too.

    Raises ModelError where no adapter is active, or one is fused already.
    """
    layers = adapters(model)
    refuse_fused(layers, "fusing again")
    active = {path: own for path, own in layers.items() if own.active is not None}
    if not active:
        raise ModelError("lora: no adapter is active; insert one, or choose one with activate")
    before = None if samples is None else _outputs(model, samples)
    report = tuple(_fuse_layer(path, model.get_submodule(path), own) for path, own in active.items())
    change = None
    if before is not None:
        after = _outputs(model, samples)
        largest = max(float(a.abs().max()) for a in before)
        gap = max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True))
        change = gap / largest if largest else gap
    return FuseReport(report, change)


@torch.no_grad()
def unfuse(model: nn.Module) -> None:
    """Undo :func:`fuse`, in place: the weights are the tensors from before it, and the adapter works again.

    Raises ModelError where nothing is fused.
    """
    for path, own in _fused(model, "unfuse").items():
        for name, value in own.kept.attributes.items():
            setattr(model.get_submodule(path), name, value)
        own.kept = None


def commit(model: nn.Module) -> None:
    """Make :func:`fuse` final, in place: adapters and kept weights go, and plain layers of the old names remain.

    Every adapter of the model goes, also those that were not active. Parameters stay frozen as they are; thaw them with
    ``requires_grad_``. Raises ModelError where nothing is fused.
    """
    _fused(model, "commit")
    for path, own in adapters(model).items():
        own.detach(model.get_submodule(path))


def _fused(model: nn.Module, what: str) -> dict[str, Adapters]:
    fused = {path: own for path, own in adapters(model).items() if own.kept is not None}
    if not fused:
        raise ModelError(f"lora: nothing to {what}; fuse comes first")
    return fused


def _fuse_layer(path: str, layer: nn.Module, own: Adapters) -> FusedLayer:
    delta = getattr(own, own.active).delta()
    if isinstance(layer, PackedLayer):
        return _fuse_packed(path, layer, own, delta)
    if isinstance(layer, QuantLinear) and layer.weight_quantiser is not None and layer.weight_quantiser.enabled:
        return _fuse_quantised(path, layer, own, delta)
    old = layer.weight
    own.kept = Kept({"weight": old})
    # A new Parameter: whatever is tied to the old one keeps it.
    layer.weight = nn.Parameter((old.double() + delta).to(old.dtype), requires_grad=False)
    return FusedLayer(path, None, _ratio(delta, old), 0.0, None)


def _fuse_packed(path: str, layer: PackedLinear, own: Adapters, delta: Tensor) -> FusedLayer:
    old = layer.weight
    before = old.decode(torch.float32)
    wanted = before.double() + delta
    new = encode(wanted.to(old.dtype), old.format, axis=old.axis, scale=old.scale)
    own.kept = Kept({"weight": old})
    layer.weight = new
    return _rounded(path, old, new, wanted, before, delta)


def _fuse_quantised(path: str, layer: QuantLinear, own: Adapters, delta: Tensor) -> FusedLayer:
    """The sum goes into the float weight, and a quantiser of its own chooses fixed scales anew."""
    quantiser, weight = layer.weight_quantiser, layer.weight
    old = quantiser.encode(weight.detach())
    before = old.decode(torch.float32)
    wanted = before.double() + delta
    new = encode(wanted.to(weight.dtype), old.format, axis=old.axis, scale=old.scale)
    own.kept = Kept({"weight": weight, "weight_quantiser": quantiser})
    layer.weight = nn.Parameter(wanted.to(weight.dtype), requires_grad=False)
    if quantiser.is_static:
        layer.weight_quantiser = _with_scales(quantiser, new)
    return _rounded(path, old, new, wanted, before, delta)


def _with_scales(quantiser: Quantiser, packed: PackedTensor) -> Quantiser:
    made = Quantiser(quantiser.spec, axis=quantiser.axis, what=quantiser.what)
    has_zeros, has_levels = packed.format.core.has_zeros, packed.format.core.has_levels
    made.set_scales(packed.scales, packed.zeros if has_zeros else None, packed.levels if has_levels else None)
    return made


def _rounded(
    path: str, old: PackedTensor, new: PackedTensor, wanted: Tensor, before: Tensor, delta: Tensor
) -> FusedLayer:
    changed = float((old.unpack() != new.unpack()).double().mean())
    lost = _ratio(new.decode(torch.float32).double() - wanted, delta)
    return FusedLayer(path, str(new.format), _ratio(delta, before), lost, changed)


def _ratio(part: Tensor, whole: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(whole.double()))
    return float(torch.linalg.vector_norm(part.double())) / norm if norm else 0.0


def _outputs(model: nn.Module, batch: Any) -> list[Tensor]:
    """Return the float tensors of the model's output on a batch, in eval mode, which is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        if isinstance(batch, dict):
            out = model(**batch)
        elif isinstance(batch, tuple | list):
            out = model(*batch)
        else:
            out = model(batch)
    finally:
        for module, mode in modes.items():
            module.training = mode
    found = [tensor for tensor in _tensors(out) if tensor.is_floating_point() and tensor.numel()]
    if not found:
        raise ModelError("lora: the model returns no float tensor for these samples")
    return found


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
