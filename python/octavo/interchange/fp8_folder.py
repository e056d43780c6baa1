"""Folders of FP8 as DeepSeek and Qwen publish them: E4M3 codes, and a float scale for each square block of a weight.

``weight`` is E4M3 ``[rows, columns]``; ``weight_scale_inv``, a factor in spite of its name, is F32, BF16 or E8M0, one
for each block of ``weight_block_size`` (128 by 128), or one of the whole weight where that is null.
``activation_scale`` is for inputs. Source: DeepSeek-V3, ``inference/kernel.py``; transformers,
``integrations/finegrained_fp8.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError
from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.interchange.e4m3_weight import CODES, E4m3Weight
from octavo.interchange.packing_settings import text
from octavo.interchange.stored_weights import FLOATS, WEIGHT, LayerWeight, PackedLayer, PackedWeights, StoredFolder
from octavo.storage.reading import shown

if TYPE_CHECKING:
    from torch import Tensor

METHOD = "fp8"
SCALE, _INPUTS = "weight_scale_inv", "activation_scale"
_EXPONENTS = ("float8_e8m0fnu", "uint8")
_DEFAULT_BLOCK, _MOST = (128, 128), 1 << 20


@dataclass(frozen=True)
class Fp8Weight(E4m3Weight):
    """A weight of E4M3 with scales of blocks or of the whole."""

    scale_part = SCALE

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer, block: tuple[int, int] | None) -> Fp8Weight:
        """Compare the tensors of a layer. Raises ContainerError."""
        rows, columns = layer.matrix(WEIGHT, CODES)
        layer.require(WEIGHT, SCALE)
        scheme = WeightScheme(8, "float", True, "tensor" if block is None else "block", block=block)
        shapes = ((), (1,), (1, 1)) if block is None else (scheme.scale_shape(rows, columns),)
        layer.check(SCALE, (*FLOATS, *_EXPONENTS), *shapes)
        kind = f"fp8 ({'one scale' if block is None else 'blocks of {} by {}'.format(*block)})"
        return cls(layer, (rows, columns), kind, "float32", folder.reader(layer), scheme)

    def scales(self) -> Tensor:
        """Return the factors in float32."""
        import torch

        scales = self.read(SCALE)
        if self.layer.parts[SCALE].dtype in _EXPONENTS:
            exponents = scales.view(torch.uint8).to(torch.int32) - 127
            numbers = torch.ldexp(torch.ones(exponents.shape), exponents)
            scales = numbers.masked_fill(exponents == 128, float("nan"))
        return scales.float().reshape((1,) if self.scheme.block is None else scales.shape)


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of FP8. Raises ContainerError naming tensor or field."""
    settings, label = folder.settings, folder.label
    text(settings, "fmt", label, "e4m3", ("e4m3", CODES))
    text(settings, "expert_dtype", label, METHOD, (METHOD,))
    block = _block(settings, label)
    weights: list[LayerWeight] = []
    for layer in folder.layers((WEIGHT, SCALE), WEIGHT).values():
        dtype = layer.parts[WEIGHT].dtype
        if dtype == CODES:
            weights.append(Fp8Weight.of(folder, layer, block))
        elif SCALE in layer.parts:
            raise layer.error(WEIGHT, f"{dtype} with {SCALE} beside it; read is {CODES}")
    left = {name for name in folder.entries if name.rpartition(".")[2] == _INPUTS}
    sentences = ["inputs of layers are not rounded; the folder has scales to round them"] if left else []
    return PackedWeights.of(weights, sentences, left)


def _block(settings: Mapping[str, Any], label: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block; None for one scale of the whole weight. Raises ContainerError."""
    value = settings.get("weight_block_size", _DEFAULT_BLOCK)
    if value is None:
        return None
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(size) is int and 0 < size <= _MOST for size in value):
        raise ContainerError(f"{label}: weight_block_size is {shown(value)}; read are two sizes of a block, and null")
    return value[0], value[1]
