"""The classes that PEFT puts around packed and simulated layers: its own, but for what they read of the base layer.

This file imports PEFT, and is imported where PEFT is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from peft.tuners.lora import layer as theirs
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.lora.fuse import with_scales_of
from octavo.nn import PackedEmbedding, PackedLayer, QuantEmbedding, Quantizer, QuantLayer, rounded_weights
from octavo.nn.float_layers import float_layer, is_convolution
from octavo.nn.packed_layer import has_transposed_weight
from octavo.ops.codec import encode

_REWRITING = ("pissa", "corda", "olora", "loftq", "lora_ga")  # initialisations that change the weight of the base
_VARIANTS = ((), ("use_dora",), ("alora_invocation_tokens",))  # these read the weight of the base, or nothing of it


class _OnFormats:
    """What adapters on linear layers and on embeddings share."""

    merged_adapters: list[str]
    get_base_layer: Any
    lora_magnitude_vector: Any

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        if isinstance(module, PackedEmbedding | QuantEmbedding):
            return module.num_embeddings, module.embedding_dim
        if is_convolution(module):
            return module.in_channels, module.out_channels  # type: ignore[return-value] # numbers
        if isinstance(module, PackedLayer):
            return module._width, module._rows
        assert isinstance(module, QuantLayer)
        rows, width = module.weight_matrix().shape
        return width, rows

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        """The variants of PEFT that leave the weight of the base layer alone."""
        all_of_them: dict[tuple[str, ...], Any] = super().lora_variants  # type: ignore[misc]
        return {names: all_of_them[names] for names in _VARIANTS if names in all_of_them}

    def update_layer(self, adapter_name: str, r: int, lora_alpha: int, config: Any, **options: Any) -> None:
        """Add an adapter. Raises ModelError for an initialisation that would rewrite codes."""
        base, start = self.get_base_layer(), str(config.init_lora_weights).lower()
        if isinstance(base, PackedLayer) and start.startswith(_REWRITING):
            raise ModelError(
                f"{base.what}: init_lora_weights={config.init_lora_weights!r} rewrites the weight of the base, whose "
                "codes stay as they are; accepted are True, False, 'gaussian', 'orthogonal' and 'eva'"
            )
        self.fan_in_fan_out = has_transposed_weight(base)
        with self._readable(config.use_dora):
            super().update_layer(adapter_name, r, lora_alpha, config=config, **options)  # type: ignore[misc]
        magnitude = self.lora_magnitude_vector[adapter_name].weight if config.use_dora else None
        if magnitude is not None and not magnitude.is_meta and bool((magnitude == 0).any()):
            zeros, name = int((magnitude == 0).sum()), getattr(base, "what", type(base).__name__)
            raise ModelError(
                f"{name}: use_dora=True divides by norms of the weight, {zeros} of which are 0 in its format; leave "
                "the layer out of target_modules, or use_dora out"
            )

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add adapters to a simulated weight, whose fixed scales are chosen anew. Raises ModelError for codes."""
        base = self.get_base_layer()
        if isinstance(base, PackedLayer):
            raise ModelError(
                f"{base.what}: merging rounds the sum of weight and update to '{base.format}' again; "
                "merged, report = octavo.peft.merge(model) does that and tells what is lost, "
                "octavo.peft.merge(model, recipe) packs the merged weights in other formats"
            )
        if not isinstance(base, QuantLayer):
            super().merge(safe_merge=safe_merge, adapter_names=adapter_names)  # type: ignore[misc]
            return
        if not self.merged_adapters:
            vars(self)["_unmerged"] = _own_tensors(base)
            for parameter in _parameters(base):
                parameter.data = parameter.data.clone()
        super().merge(safe_merge=safe_merge, adapter_names=adapter_names)  # type: ignore[misc]
        quantizer = base.weight_quantizer
        if quantizer is not None and quantizer.is_static and self.merged_adapters:
            base.weight_quantizer = _with_new_scales(quantizer, base.weight_matrix().detach())

    def unmerge(self) -> None:
        """Give the layer the weight, bias and scales back that it had, bit for bit."""
        before = vars(self).pop("_unmerged", None)
        if not self.merged_adapters or before is None:
            super().unmerge()  # type: ignore[misc] # warns
            return
        self.merged_adapters.clear()
        base = self.get_base_layer()
        tensors, base.weight_quantizer = before
        for parameter, tensor in zip(_parameters(base), tensors, strict=True):
            parameter.data = tensor

    def _readable(self, whole: bool) -> AbstractContextManager[None]:
        """Let PEFT read the weight as it is multiplied, where the base has no Parameter or its norm is taken."""
        base = self.get_base_layer()
        return rounded_weights() if whole or isinstance(base, PackedLayer) else nullcontext()


class _OnConvolution(_OnFormats):
    """Adapters on packed convolutions, whose geometry PEFT reads of a float layer."""

    base_layer: nn.Module

    def __init__(self, base_layer: nn.Module, *arguments: Any, **options: Any) -> None:
        """Read the shape of the kernel off the decoded weight."""
        with rounded_weights():
            super().__init__(base_layer, *arguments, **options)  # type: ignore[call-arg]

    @contextmanager
    def _readable(self, whole: bool) -> Iterator[None]:
        packed = self.base_layer
        assert isinstance(packed, PackedLayer)
        self.base_layer = float_layer(packed)
        try:
            yield
        finally:
            self.base_layer = packed


class LoraConv1d(_OnConvolution, theirs.Conv1d):
    """Adapters on a packed convolution of one dimension."""


class LoraConv2d(_OnConvolution, theirs.Conv2d):
    """Adapters on a packed convolution of two dimensions."""


class LoraConv3d(_OnConvolution, theirs.Conv3d):
    """Adapters on a packed convolution of three dimensions."""


#: Classes of adapters on convolutions, by the name of the float layer.
CONVOLUTIONS: dict[str, type[Any]] = {"Conv1d": LoraConv1d, "Conv2d": LoraConv2d, "Conv3d": LoraConv3d}


class LoraLinear(_OnFormats, theirs.Linear):
    """Adapters on a packed or simulated linear layer, those that stand for a Conv1D among them."""


class LoraEmbedding(_OnFormats, theirs.Embedding):
    """Adapters on a packed or simulated embedding."""


def _parameters(base: QuantLayer) -> list[Tensor]:
    """Weight and bias of a simulated layer, before rounding."""
    bias = base._own_bias()
    return [base._own("weight")] if bias is None else [base._own("weight"), bias]


def _own_tensors(base: QuantLayer) -> tuple[list[Tensor], Quantizer | None]:
    """What merging changes in a simulated layer."""
    return [parameter.data for parameter in _parameters(base)], base.weight_quantizer


def _with_new_scales(quantizer: Quantizer, matrix: Tensor) -> Quantizer:
    return with_scales_of(quantizer, encode(matrix, quantizer.format, scale=quantizer.spec.scale))
