"""Folders of gpt-oss: MXFP4 experts, ``*_blocks`` U8 ``[..., rows, blocks, 16]`` and ``*_scales`` U8 for 32 columns.

The float model has one tensor of all experts, transposed, ``[experts, columns, rows]``, which no packed layer
multiplies: the weights are decoded. Source: transformers, ``integrations/mxfp4.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.interchange.stored_weights import LayerWeight, NotHeldError, PackedLayer, PackedWeights, StoredFolder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

BLOCKS, SCALES = "blocks", "scales"


@dataclass(frozen=True)
class ExpertsWeight(LayerWeight):
    """The weight of all experts of a layer."""

    @property
    def name(self) -> str:
        """Name that the float tensor would have."""
        return self.layer.name

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer) -> ExpertsWeight:
        """Compare the tensors of a layer. Raises ContainerError."""
        layer.check(BLOCKS, ("uint8",))
        shape = tuple(layer.parts[BLOCKS].shape)
        if len(shape) != 4 or shape[3] != 16:
            raise layer.error(BLOCKS, f"shape {list(shape)}; read are [experts, rows, blocks, 16]")
        layer.check(SCALES, ("uint8",), shape[:3])
        experts, rows, blocks, _ = shape
        return cls(layer, (experts, 32 * blocks, rows), "MXFP4 of gpt-oss", "bfloat16", folder.reader(layer))

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Raise NotHeldError."""
        raise NotHeldError("the model has one tensor of all experts, which no packed layer multiplies")

    def decode(self) -> Tensor:
        """Return the values in bfloat16."""
        import torch

        from octavo.interchange.small_floats import e2m1_values

        out = torch.empty(self.shape, dtype=self.dtype)
        blocks, scales = self.read(BLOCKS), self.read(SCALES)
        for number in range(self.shape[0]):
            values = e2m1_values(blocks[number].flatten(1), self.dtype).unflatten(1, (-1, 32))
            out[number] = torch.ldexp(values, scales[number].int().unsqueeze(2) - 127).flatten(1).t()
        return out


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of gpt-oss. Raises ContainerError naming tensor."""
    weights = []
    for name, entry in folder.entries.items():
        if not name.endswith(f"_{BLOCKS}"):
            continue
        base = name.removesuffix(f"_{BLOCKS}")
        parts = {BLOCKS: entry}
        if (scales := folder.entries.get(f"{base}_{SCALES}")) is not None:
            parts[SCALES] = scales
        layer = PackedLayer(base, parts, folder.path)
        layer.require(BLOCKS, SCALES)
        weights.append(ExpertsWeight.of(folder, layer))
    return PackedWeights.of(weights)
