"""Adapters of PEFT added to packed weights, which are packed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import ModelError, NonFiniteError, OctavoError
from octavo.lora.fuse import FusedLayer, FuseReport, largest_change, outputs_of, ratio, rounded_layer
from octavo.nn import PackedLayer
from octavo.nn.float_layers import float_layer, has_float_layer, matrix_of
from octavo.nn.replace_modules import replace_modules
from octavo.nn.tied_weights import untie_configurations
from octavo.ops.codec import encode
from octavo.peft.prepare_config import base_of, imported
from octavo.quant.apply_recipe import quantize_model
from octavo.quant.pack_layers import pack_model
from octavo.recipe import Recipe
from octavo.storage.arguments import checks_arguments
from octavo.tensors.packed_tensor import PackedTensor


@torch.no_grad()
@checks_arguments
def merge(
    model: nn.Module,
    recipe: Any = None,
    *,
    adapters: Sequence[str] | None = None,
    samples: Any = None,
    calibration: Any = None,
) -> tuple[nn.Module, FuseReport]:
    """Return the base of a model of PEFT with its adapters in the weights, and what rounding them lost.

    Weights of packed layers are decoded, the update is added as PEFT adds it, and the sum is rounded: to the format of
    the layer, with new scales, or as ``recipe`` says, for which all packed linear layers and embeddings become float
    first. Float and simulated layers are merged by PEFT. The model is used up, as by ``merge_and_unload``; after an
    error in the packed layers it is unchanged.

    Args:
        model: a model of ``peft.get_peft_model``.
        recipe: what to pack the merged weights in; None for the formats they have.
        adapters: names of the adapters to merge; None for the active ones.
        samples: a batch whose outputs are compared before and after: a dict for keywords, a tuple or list for several
            arguments, else the one argument.
        calibration: batches for a recipe that calibrates.

    Returns:
        The model, and a report, which has for each packed layer the size of the update, that of its rounding error
        and the share of codes that changed.

    Raises:
        ModelError: for a model without adapters of PEFT, for an adapter that it has not, and for ``calibration``
            without ``recipe``.
        NonFiniteError: if a sum is NaN or infinite; names the layer.
        FormatError: for a recipe that cannot be read.
        PackageError: without PEFT.

    Example:
        >>> import peft
        >>> packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(64, 64)), "int8:g32"))
        >>> config = octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=["0"], init_lora_weights=False))
        >>> merged, report = octavo.peft.merge(peft.get_peft_model(packed, config))
        >>> merged[0].weight.format, report.layers[0].path, report.layers[0].lost < 0.1
        (Format('int8:g32'), '0', True)
    """
    imported()
    base = base_of(model)
    layers = dict(_adapted(base))
    if not layers or not hasattr(model, "merge_and_unload"):
        raise ModelError(f"merge: {type(model).__name__}: no adapters of PEFT; peft.get_peft_model inserts them")
    names = sorted({name for layer in layers.values() for name in layer.lora_alpha})
    if missing := next((name for name in adapters or () if name not in names), None):
        raise ModelError(f"merge: no adapter {missing!r}; the model has {', '.join(names)}")
    if recipe is None and calibration is not None:
        raise ModelError("merge: calibration is for a recipe; give recipe= too")
    recipe = None if recipe is None else Recipe.of(recipe)
    before = None if samples is None else _outputs(model, samples)
    sums = [
        _sum(path, layer, adapters) for path, layer in layers.items() if isinstance(layer.get_base_layer(), PackedLayer)
    ]
    packed = [None if recipe is not None else _packed_again(one) for one in sums]
    untied = _shares_codes(base, sums)
    replace_modules(base, {id(layers[one.path]): one.packed if recipe is None else one.summed for one in sums})
    for one, weight in zip(sums, packed, strict=True):
        if weight is not None:
            _take(one, weight)
    merged: nn.Module = cast("Any", model).merge_and_unload(safe_merge=True, adapter_names=adapters)
    if untied:
        untie_configurations(merged, [])
    if recipe is not None:
        merged = _packed_as(merged, recipe, calibration)
    effects = tuple(_effect(one, merged.get_submodule(one.path)) for one in sums)
    return merged, FuseReport(effects, None if before is None else largest_change(before, _outputs(merged, samples)))


@dataclass(frozen=True)
class _Sum:
    """A packed layer with adapters: ``old`` weight, and the float layer with the sum, of which ``wanted`` is a copy."""

    path: str
    packed: PackedLayer
    old: PackedTensor
    summed: nn.Module
    wanted: Tensor


def _outputs(model: nn.Module, samples: Any) -> list[Tensor]:
    try:
        return outputs_of(model, samples)
    except OctavoError as error:
        raise type(error)(f"merge: samples: {error}") from None


def _adapted(base: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers of PEFT with low-rank adapters, by path."""
    from peft.tuners.lora.layer import LoraLayer

    for path, module in base.named_modules():
        if isinstance(module, LoraLayer):
            yield path, module


def _sum(path: str, layer: Any, adapters: Sequence[str] | None) -> _Sum:
    """Let PEFT merge adapters into a float layer of the packed weight; ``layer`` stays as it is."""
    packed: PackedLayer = layer.get_base_layer()
    if not has_float_layer(packed):
        raise ModelError(f"merge: {path}: a {type(packed).__name__} has no float layer here; take its adapter off")
    summed = float_layer(packed)
    theirs: Any = next(cls for cls in type(layer).__mro__ if cls.__module__.startswith("peft."))
    layer.base_layer = summed
    try:
        theirs.merge(layer, safe_merge=True, adapter_names=adapters)
    except ValueError as error:
        raise NonFiniteError(f"merge: {path}: {error}") from None
    except RuntimeError as error:  # a bias of an adapter, and none in the layer
        raise ModelError(f"merge: {path}: {error}") from None
    finally:
        layer.base_layer = packed
        layer.merged_adapters.clear()
    return _Sum(path, packed, packed.packed_weight, summed, matrix_of(summed, packed).clone())


def _packed_again(one: _Sum) -> PackedTensor:
    """Return the sum in the format of the layer."""
    old = one.old
    try:
        return encode(one.wanted, old.format, axis=old.axis, scale=old.scale).to(dtype=old.dtype)
    except OctavoError as error:
        raise type(error)(f"merge: {one.path}: {error}") from None


def _take(one: _Sum, weight: PackedTensor) -> None:
    """Give a packed layer the weight and bias of the sum."""
    before = one.packed.float_bias()
    one.packed.weight = weight
    bias = one.summed._parameters.get("bias")
    if before is not None and bias is not None and not torch.equal(bias, before.float()):
        one.packed.set_float_bias(bias)


def _shares_codes(base: nn.Module, sums: Sequence[_Sum]) -> bool:
    """Whether a layer with adapters has the codes of another, which it will have no more."""
    owners = Counter(id(layer.weight_codes) for layer in base.modules() if isinstance(layer, PackedLayer))
    return any(owners[id(one.packed.weight_codes)] > 1 for one in sums)


def _packed_as(model: nn.Module, recipe: Any, calibration: Any) -> nn.Module:
    """Return a model whose packed layers became float, packed as a recipe says."""
    weights: dict[int, nn.Parameter] = {}
    new: dict[int, nn.Module] = {}
    for layer in model.modules():
        if isinstance(layer, PackedLayer) and has_float_layer(layer):
            new[id(layer)] = plain = float_layer(layer, weights.get(id(layer.weight_codes)))
            weights.setdefault(id(layer.weight_codes), cast("nn.Parameter", plain.weight))
    model = replace_modules(model, new)
    quantized = quantize_model(model, recipe, calibration=calibration, inplace=True, progress=False)
    return pack_model(quantized, inplace=True)


def _effect(one: _Sum, layer: nn.Module) -> FusedLayer:
    """Return what merging did to a layer."""
    before = one.old.decode(torch.float32)
    wanted = one.wanted.double()
    if isinstance(layer, PackedLayer):
        return rounded_layer(one.path, one.old, layer.packed_weight, wanted, before, wanted - before)
    return FusedLayer(one.path, None, ratio(wanted - before, before), 0.0, None)
