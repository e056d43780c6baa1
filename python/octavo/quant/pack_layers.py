"""pack_model: replaces simulated layers by packed ones, which have the same outputs and hold codes."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from octavo.errors import ModelError, OctavoError
from octavo.nn import PackedEmbedding, PackedLayer, QuantLayer
from octavo.nn.masks import Masks
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import M
from octavo.nn.own_forward import OwnForward
from octavo.nn.registry import kind_of
from octavo.nn.replace_modules import copy_with, replace_modules
from octavo.storage.arguments import checks_arguments
from octavo.tensors.packed_tensor import PackedTensor


@checks_arguments
def pack_model(model: M, *, sparse: bool = False, inplace: bool = False) -> M:
    """Return the model with its quantized weights as codes: the layers of :func:`octavo.quantize_model`, in bytes.

    Every simulated layer whose weight has a format becomes a packed one of the same path, mode and hooks; its dense
    weight goes. Outputs are those of the simulated model in evaluation: bit for bit on the integer path, else in
    float32 up to the order in which products are summed, and its effect where that tips the rounding of a later input.
    In bfloat16 and float16 weights are multiplied as their codes stand for them, not rounded to that dtype before.
    Weights that are tied and have one format are packed once and stay shared. Layers that round only activations stay
    as they are. Source: FORMATS.md sections 5 and 6.

    Args:
        model: a model of :func:`octavo.quantize_model`.
        sparse: leave out codes that are 0 where that takes fewer bytes, as in weights that were pruned. Products of few
            rows read such codes as they are where the machine has a kernel, others expand them first
            (:func:`octavo.explain`). Tables of embeddings keep all codes.
        inplace: replace layers in ``model`` itself; else ``model`` stays as it is. Dense weights are copied in neither
            case.

    Returns:
        The packed model.

    Raises:
        ModelError: where there is nothing to pack, for tensors on the meta device, or for a layer that cannot be
            packed; names the layer and the way out.
        DTypeError: for an object that is no module.
        NonFiniteError: for weights that are not finite, before the model is changed.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).eval()
        >>> quantized = octavo.quantize_model(model, "int4:g32")
        >>> packed = octavo.pack_model(quantized)
        >>> packed[0].packed_weight
        PackedTensor('int4:g32', shape=(128, 64), dtype=float32, axis=1, nbytes=4608, bits_per_element=4.5)
        >>> x = torch.randn(2, 64)
        >>> torch.allclose(packed(x), quantized(x), rtol=1e-5, atol=1e-6)
        True
    """
    layers = {
        path: layer for path, layer in model.named_modules() if isinstance(layer, QuantLayer) and _has_weight(layer)
    }
    if not layers:
        raise ModelError(
            f"{type(model).__name__}: no simulated layer with a quantized weight; octavo.quantize_model makes them"
        )
    refuse_meta(model, "pack_model")
    packed: dict[int, nn.Module] = {}
    shared: dict[int, list[PackedLayer]] = {}
    for path, layer in layers.items():
        packed_layer = pack_layer(path or type(layer).__name__, layer)
        share_codes(packed_layer, shared.setdefault(id(layer._own("weight")), []))
        packed[id(layer)] = packed_layer
    for twins in shared.values() if sparse else ():
        leave_out_zeros(twins)
    # A lone layer alone becomes one of another class.
    return cast("M", replace_modules(model, packed) if inplace else copy_with(model, packed))


def _has_weight(layer: QuantLayer) -> bool:
    return layer.weight_quantizer is not None


def share_codes(layer: PackedLayer, twins: list[PackedLayer]) -> None:
    """Give a packed layer the codes of one of ``twins``, packed from the same weight, if they are equal; add it."""
    twin = next((other for other in twins if other.packed_weight == layer.packed_weight), None)
    if twin is not None:
        layer.weight = twin.packed_weight
    twins.append(layer)


def leave_out_zeros(twins: list[PackedLayer]) -> None:
    """Make codes sparse, where that takes fewer bytes, in layers packed from the same weight, none of them a table."""
    if any(isinstance(layer, PackedEmbedding) for layer in twins):
        return
    pairs: list[tuple[Tensor, PackedTensor]] = []
    for layer in twins:
        codes = layer.weight_codes
        weight = next((weight for known, weight in pairs if known is codes), None)
        if weight is None:
            weight = layer.packed_weight.to_sparse(if_smaller=True)
            pairs.append((codes, weight))
        layer.weight = weight


def pack_layer(path: str, layer: QuantLayer) -> PackedLayer:
    """Return the packed form of a simulated layer with a quantized weight. Raises ModelError naming what it drops."""
    kind = kind_of(layer)
    if kind is None or kind.packed is None:
        raise ModelError(f"{path}: a {type(layer).__name__} has no packed form; keep it in the recipe")
    keeps_parts = isinstance(layer, OwnForward)  # whose packed form keeps what its forward may use
    extra = next((name for name, part in layer.named_children() if _is_dropped(name, part, keeps_parts)), None)
    if extra is not None:
        first = "octavo.prune.fold_model writes its zeros" if isinstance(getattr(layer, extra), Masks) else (
            "fuse and commit adapters first, or insert them after"
        )  # fmt: skip
        raise ModelError(f"{path}: packing would drop its submodule {extra!r}; {first}")
    own = sorted((layer._parameters.keys() - {"weight", "bias"}) | layer._buffers.keys())
    if own and not keeps_parts:
        raise ModelError(
            f"{path}: packing would drop its tensors {', '.join(own)}; keep it in the recipe, or hold them in a module "
            "around it"
        )
    try:
        return kind.packed.from_layer(layer, what=path)
    except OctavoError as error:
        raise error if str(error).startswith(path) else type(error)(f"{path}: {error}") from None


def _is_dropped(name: str, part: nn.Module, keeps_parts: bool) -> bool:
    """Whether packing would drop a submodule of a layer: masks and adapters are no part of a packed one."""
    if name.endswith("_quantizer"):
        return False
    return not keeps_parts or isinstance(part, Masks) or name == "adapter"
