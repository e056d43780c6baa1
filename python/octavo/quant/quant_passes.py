"""Quantizing and packing as passes of a pipeline of :mod:`octavo.graph`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octavo.errors import CalibrationError
from octavo.graph.model_passes import Pass, PassInputs, TransformReport
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.apply_recipe import quantize_model
from octavo.quant.pack_layers import pack_model
from octavo.recipe import Recipe


@dataclass(frozen=True)
class QuantizeConfig:
    """``recipe``: its text. ``samples``: of the calibration batches, the most that are used."""

    recipe: str
    samples: int = 512

    def __post_init__(self) -> None:
        """Read the recipe once. Raises FormatError, CalibrationError."""
        object.__setattr__(self, "recipe", str(Recipe.of(self.recipe)))
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise CalibrationError(f"samples is {self.samples!r}; accepted are whole numbers of at least 1")


@dataclass(frozen=True)
class PackConfig:
    """``sparse``: leave out codes that are 0 where that takes fewer bytes."""

    sparse: bool = False


def _quantize(model: nn.Module, config: QuantizeConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    quantized = quantize_model(
        model, config.recipe, calibration=pass_inputs.calibration, samples=config.samples, inplace=True, progress=False
    )
    rows = []
    for path, layer in quantized.named_modules():
        if isinstance(layer, QuantLayer):
            formats = {role: quantizer.format for role, quantizer in layer.role_quantizers().items()}
            texts = (str(formats[role]) if role in formats else None for role in ("weight", "input", "output"))
            rows.append((path, type(layer).__name__, *texts))
    return quantized, TransformReport(("layer", "class", "weight", "input", "output"), tuple(rows))


def _pack(model: nn.Module, config: PackConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    packed = pack_model(model, sparse=config.sparse, inplace=True)
    rows = tuple(
        (path, type(layer).__name__, str(layer.format), layer.packed_weight.nbytes)
        for path, layer in packed.named_modules()
        if isinstance(layer, PackedLayer)
    )
    return packed, TransformReport(("layer", "class", "format", ">bytes"), rows)


QUANTIZE = Pass("quantize", "quantization", QuantizeConfig, _quantize)
PACK = Pass("pack", "pack", PackConfig, _pack)
