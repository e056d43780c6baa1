"""Folders of AWQ in the order of its gemm kernels: 4 bits, eight columns in a word, scales and zero points by groups.

Nibble i of word c of ``qweight``, I32 ``[columns, rows / 8]``, belongs to row ``8c + (0, 2, 4, 6, 1, 3, 5, 7)[i]``, and
so in ``qzeros``, I32 ``[groups, rows / 8]``; ``scales`` are ``[groups, rows]``. Source: AutoAWQ,
``awq/utils/packing_utils.py``, ``awq/modules/linear/gemm.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import ContainerError
from octavo.interchange.packing_settings import text, whole
from octavo.interchange.stored_weights import FLOATS, LayerWeight, PackedLayer, PackedWeights, StoredFolder
from octavo.model_folder.quantization_entry import PACK_OTHERWISE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.interchange.integer_groups import IntegerGroups
    from octavo.tensors.packed_tensor import PackedTensor

CODES, ZEROS, SCALES = "qweight", "qzeros", "scales"
_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the eight rows of a word, in their order
_CHUNK = 1 << 17  # words that are unpacked at once


@dataclass(frozen=True)
class AwqWeight(LayerWeight):
    """A weight of AWQ. ``group``: columns of a group; None for the whole row."""

    group: int | None

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer, group: int) -> AwqWeight:
        """Compare the tensors of a layer. ``group``: as stated. Raises ContainerError."""
        layer.require(CODES, ZEROS, SCALES)
        columns, words = layer.matrix(CODES, "int32")
        groups, rows = layer.matrix(SCALES, *FLOATS)
        if rows != 8 * words:
            raise layer.error(SCALES, f"{rows} rows; {CODES} has {words} words of eight, as gemm kernels have them")
        layer.check(ZEROS, ("int32",), (groups, words))
        size = columns if group == -1 else group
        if size < 1 or groups != -(-columns // size):
            raise layer.error(SCALES, f"{groups} groups; {columns} columns by group_size {group} have others")
        kind = f"awq (4-bit, {'rows' if group == -1 else f'groups of {group}'})"
        dtype = layer.parts[SCALES].dtype
        return cls(layer, (rows, columns), kind, dtype, folder.reader(layer), None if group == -1 else group)

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``uint4``. Raises NotHeldError."""
        return self._integers().packed(dtype)

    def decode(self) -> Tensor:
        """Return the values in the dtype of the scales."""
        return self._integers().decoded()

    def _integers(self) -> IntegerGroups:
        import torch

        from octavo.interchange.integer_groups import IntegerGroups

        rows, columns = self.shape
        words, step = self.read(CODES), max(_CHUNK // max(columns, 1), 1)
        stream = torch.empty(rows // 8, 8, -(-columns // 2), dtype=torch.uint8)
        for first in range(0, rows // 8, step):
            lines = words[:, first : first + step].t().contiguous()
            for place, nibble in enumerate(_NIBBLES):
                codes = (lines >> 4 * nibble & 15).to(torch.uint8)
                codes = torch.nn.functional.pad(codes, (0, columns % 2))
                stream[first : first + step, place] = codes[:, ::2] | codes[:, 1::2] << 4
        stream = stream.reshape(rows, -(-columns // 2))
        zeros = _codes(self.read(ZEROS)).to(torch.int16).t().contiguous()
        return IntegerGroups(stream, 4, (rows, columns), self.read(SCALES).t().contiguous(), zeros, self.group)


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of AWQ. Raises ContainerError naming tensor or field."""
    values, label = folder.settings, folder.label
    for key in ("version", "format", "checkpoint_format"):  # of AutoAWQ, transformers and GPTQModel
        text(values, key, label, "gemm", ("gemm",))
    text(values, "backend", label, "autoawq", ("autoawq", "auto", "gptqmodel"))
    bits = whole(values, ("bits", "w_bit"), label, 4)
    if bits != 4:
        raise ContainerError(f"{label}: bits is {bits}; read are 4; {PACK_OTHERWISE}")
    group = whole(values, ("group_size", "q_group_size"), label, 128)
    layers = folder.layers((CODES, ZEROS, SCALES), CODES)
    return PackedWeights.of(AwqWeight.of(folder, layer, group) for layer in layers.values())


def _codes(words: Tensor) -> Tensor:
    """Return words ``[n, rows / 8]`` as codes ``[n, rows]``, uint8."""
    import torch

    shifts = 4 * torch.tensor(_NIBBLES, dtype=torch.int32)
    return (words.unsqueeze(2) >> shifts & 15).to(torch.uint8).flatten(1)
