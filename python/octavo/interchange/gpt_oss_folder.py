"""Folders of gpt-oss: MXFP4 experts, ``*_blocks`` U8 ``[..., rows, blocks, 16]`` and ``*_scales`` U8 for 32 columns.

The float model has one tensor of all experts, transposed, ``[experts, columns, rows]``. The blocks are matrices, which
a layer for each expert multiplies as they are. Source: transformers, ``integrations/mxfp4.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.interchange.stored_weights import LayerWeight, NotHeldError, PackedLayer, PackedWeights, StoredFolder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

BLOCKS, SCALES = "blocks", "scales"
_LIMIT = 253  # scale codes from which the largest element leaves bfloat16


@dataclass(frozen=True)
class ExpertWeight(LayerWeight):
    """The weight of one expert, as its layer has it: the transpose of what the float model has.

    ``number``: of the expert.
    """

    number: int

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``mxfp4``. Raises NotHeldError."""
        import torch

        from octavo.tensors.formats import Format
        from octavo.tensors.packed_tensor import PackedTensor

        codes, scales = (self.read(part)[self.number] for part in (BLOCKS, SCALES))
        if scales.numel() and int(scales.max()) >= _LIMIT:
            code = int(scales.max())
            raise NotHeldError(f"scale code {code}; up to {_LIMIT - 1} gpt-oss and mxfp4 mean the same")
        nothing, level = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.float32)
        codes, scales = codes.flatten(1).contiguous(), scales.contiguous()
        return PackedTensor(Format("mxfp4"), codes, scales, nothing, level, shape=self.shape, dtype=dtype)

    def decode(self) -> Tensor:
        """Return the values in bfloat16."""
        import torch

        from octavo.interchange.small_floats import e2m1_values

        blocks, scales = (self.read(part)[self.number] for part in (BLOCKS, SCALES))
        values = e2m1_values(blocks.flatten(1), self.dtype).unflatten(1, (-1, 32))
        return torch.ldexp(values, scales.int().unsqueeze(2) - 127).flatten(1)


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

    def matrices(self) -> Sequence[ExpertWeight]:
        """Return the weight of each expert."""
        count, columns, rows = self.shape
        return [
            ExpertWeight(self.layer, (rows, columns), self.type, self.stored_dtype, self.read, number)
            for number in range(count)
        ]

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Raise NotHeldError."""
        raise NotHeldError("the model has one tensor of all experts, which no packed layer multiplies")

    def decode(self) -> Tensor:
        """Return the values in bfloat16."""
        import torch

        out = torch.empty(self.shape, dtype=self.dtype)
        for expert in self.matrices():
            out[expert.number] = expert.decode().t()
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
