"""Folders of NVIDIA ModelOpt: NVFP4 with a factor of the tensor, and E4M3 with float scales.

NVFP4: ``weight`` U8 has two codes a byte, the first in the low bits, ``weight_scale`` is E4M3 for 16 columns, and
``weight_scale_2`` multiplies all. FP8: ``weight`` is E4M3, ``weight_scale`` a float of the tensor or of each row.
Source: ModelOpt, ``torch/quantization/qtensor`` and ``torch/export``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.interchange.e4m3_weight import CODES, E4m3Weight
from octavo.interchange.packing_settings import text
from octavo.interchange.stored_weights import FLOATS, WEIGHT, LayerWeight, PackedLayer, PackedWeights, StoredFolder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

SCALE, FACTOR = "weight_scale", "weight_scale_2"
_SMOOTHED, _INPUTS, _CACHE = "pre_quant_scale", ("input_scale", "output_scale"), ("k_scale", "v_scale")
_ALGORITHMS = ("nvfp4", "w4a16_nvfp4", "fp8", "fp8_per_channel_per_token", "mixed_precision")


@dataclass(frozen=True)
class ModeloptNvfp4(LayerWeight):
    """A weight of NVFP4."""

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer) -> ModeloptNvfp4:
        """Compare the tensors of a layer. Raises ContainerError."""
        rows, width = layer.matrix(WEIGHT, "uint8")
        layer.require(WEIGHT, SCALE, FACTOR)
        if width % 8:
            raise layer.error(WEIGHT, f"{2 * width} columns; of NVFP4 they are a multiple of 16")
        layer.check(SCALE, (CODES,), (rows, width // 8))
        layer.check(FACTOR, FLOATS, (), (1,), (1, 1))
        return cls(layer, (rows, 2 * width), "modelopt NVFP4", "float32", folder.reader(layer))

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``nvfp4``. Raises NotHeldError."""
        from octavo.interchange.small_floats import nvfp4_packed

        return nvfp4_packed(self.read(WEIGHT), self.read(SCALE), self.read(FACTOR), dtype)

    def decode(self) -> Tensor:
        """Return the values in float32."""
        from octavo.interchange.small_floats import nvfp4_values

        return nvfp4_values(self.read(WEIGHT), self.read(SCALE), self.read(FACTOR))


@dataclass(frozen=True)
class ModeloptFp8(E4m3Weight):
    """A weight of E4M3 with a float scale of the tensor, or one of each row."""

    scale_part = SCALE

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer) -> ModeloptFp8:
        """Compare the tensors of a layer. Raises ContainerError."""
        rows, columns = layer.matrix(WEIGHT, CODES)
        layer.require(WEIGHT, SCALE)
        if FACTOR in layer.parts:
            raise layer.error(FACTOR, "beside codes of E4M3, which have one scale alone")
        layer.check(SCALE, FLOATS, (), (1,), (1, 1), (rows,), (rows, 1))
        by_rows = tuple(layer.parts[SCALE].shape) not in ((), (1,), (1, 1))
        kind = f"modelopt FP8 ({'rows' if by_rows else 'one scale'})"
        dtype = layer.parts[SCALE].dtype
        scheme = WeightScheme(8, "float", True, "channel" if by_rows else "tensor")
        return cls(layer, (rows, columns), kind, dtype, folder.reader(layer), scheme)

    def scales(self) -> Tensor:
        """Return the scales as a column, or one."""
        return self.read(SCALE).reshape((-1, 1) if self.scheme.strategy == "channel" else (1,))


_CODES: dict[str, type[ModeloptNvfp4 | ModeloptFp8]] = {"uint8": ModeloptNvfp4, CODES: ModeloptFp8}


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of ModelOpt. Raises ContainerError naming tensor or field."""
    text(folder.settings, "quant_algo", folder.label, "mixed_precision", _ALGORITHMS)
    weights: list[LayerWeight] = []
    for layer in folder.layers((WEIGHT, SCALE, FACTOR, _SMOOTHED), WEIGHT).values():
        dtype = layer.parts[WEIGHT].dtype
        if _SMOOTHED in layer.parts:
            raise layer.error(_SMOOTHED, "inputs that are multiplied before a layer are not read")
        if dtype in _CODES:
            weights.append(_CODES[dtype].of(folder, layer))
        elif layer.parts.keys() != {WEIGHT}:
            raise layer.error(WEIGHT, f"{dtype} with {SCALE} beside it; read are {' and '.join(_CODES)}")
    left = {name for name in folder.entries if name.rpartition(".")[2] in (*_INPUTS, *_CACHE)}
    sentences = []
    if any(name.endswith(_INPUTS) for name in left):
        sentences.append("inputs of layers are not rounded; the folder has scales to round them")
    if any(name.endswith(_CACHE) for name in left) or folder.settings.get("kv_cache_quant_algo"):
        sentences.append("keys and values are not rounded; the folder is made for rounded ones")
    return PackedWeights.of(weights, sentences, left)
