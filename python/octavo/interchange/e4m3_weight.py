"""Weights of E4M3 codes with float scales of any package, read as ``float-quantized`` of compressed-tensors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.interchange.stored_weights import WEIGHT, LayerWeight, NotHeldError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.interchange.compressed_tensors_weights import CompressedWeight
    from octavo.tensors.packed_tensor import PackedTensor

CODES = "float8_e4m3fn"
"""Dtype of the codes."""


@dataclass(frozen=True)
class E4m3Weight(LayerWeight):
    """A weight of E4M3. ``scheme``: what its scales belong to; ``scale_part``: the part of the layer that has them."""

    scheme: WeightScheme
    scale_part: ClassVar[str]

    @abstractmethod
    def scales(self) -> Tensor:
        """Return the scales in the shape of the scheme, of the dtype that the weight is decoded to."""

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight where scales are 1 or powers of two. Raises NotHeldError."""
        carried = self._floats().carry(dtype)
        if isinstance(carried, str):
            raise NotHeldError(carried)
        return carried

    def decode(self) -> Tensor:
        """Return the values in the dtype of the scales: exact, but for products with scales of many bits."""
        return self._floats().decode()

    def _floats(self) -> CompressedWeight:
        from octavo.interchange import compressed_tensors_layout as layouts
        from octavo.interchange.compressed_tensors_weights import CompressedWeight

        rows, columns = self.shape
        entry = replace(self.layer.parts[self.scale_part], dtype=self.stored_dtype)
        parts = {WEIGHT: self.layer.parts[WEIGHT], layouts.SCALE: entry}
        layout = layouts.Layout(self.layer.name, layouts.FLOATS, (rows, columns), parts, self.layer.folder, self.scheme)

        def read(part: str) -> Tensor:
            return self.read(WEIGHT) if part == WEIGHT else self.scales()

        return CompressedWeight(layout, read)
