"""Folders of torchao: MXTensor and NVFP4Tensor, flattened into safetensors.

The metadata of a file has a JSON text for each tensor ``a.weight``: ``_type``, ``_data`` with its attributes, and
``_tensor_data_names``. Tensor ``qdata`` of it is ``a._weight_qdata``. Source: torchao,
``prototype/safetensors/safetensors_support.py``, ``prototype/mx_formats``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError
from octavo.interchange.packing_settings import flag
from octavo.interchange.stored_weights import (
    FLOATS,
    WEIGHT,
    LayerWeight,
    NotHeldError,
    PackedLayer,
    PackedWeights,
    StoredFolder,
)
from octavo.model_folder.quantization_entry import PACK_OTHERWISE
from octavo.storage.reading import member, parse_json, shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

CODES, SCALES, FACTOR, INPUT_FACTOR = "qdata", "scale", "per_tensor_scale", "act_per_tensor_scale"
_MX = {
    "float8_e4m3fn": ("mxfp8e4m3", "float8_e4m3fn", 1), "float8_e5m2": ("mxfp8e5m2", "float8_e5m2", 1),
    "float4_e2m1fn_x2": ("mxfp4", "uint8", 2),
}  # fmt: skip
_TILE = (128, 4)  # rows and columns of swizzled scales
_HALF_EXPONENTS = (103, 142)  # scale codes whose powers of two are float16


@dataclass(frozen=True)
class _BlockWeight(LayerWeight):
    """A weight with scales of blocks. ``swizzled``: they lie in the order of the tensor cores."""

    swizzled: bool

    def scales(self, columns: int) -> Tensor:
        """Return the scales as bytes in rows of blocks of that many columns."""
        import torch

        stored = self.read(SCALES).contiguous().view(torch.uint8)
        rows, blocks = self.shape[0], self.shape[1] // columns
        return _unswizzled(stored, rows, blocks) if self.swizzled else stored


@dataclass(frozen=True)
class MxWeight(_BlockWeight):
    """An MXTensor. ``element``: its dtype in torchao."""

    element: str

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer, values: dict[str, Any], label: str) -> MxWeight:
        """Compare the tensors of a layer with its attributes. Raises ContainerError."""
        element = _dtype(values, "elem_dtype", label, tuple(_MX))
        stored_dtype = _dtype(values, "orig_dtype", label, FLOATS)
        if (block := member(values, "block_size", int, label)) != 32:
            raise ContainerError(f"{label}: block_size is {shown(block)}; read are 32")
        text, stored, each = _MX[element]
        rows, width = layer.matrix(CODES, stored)
        if each * width % 32:
            raise layer.error(CODES, f"{each * width} columns; accepted are multiples of 32")
        swizzled = _scales(layer, values, label, ("float8_e8m0fnu", "uint8"), (rows, each * width // 32))
        kind, shape = f"torchao MXTensor ({text})", (rows, each * width)
        return cls(layer, shape, kind, stored_dtype, folder.reader(layer), swizzled, element)

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in an ``mx`` format. Raises NotHeldError."""

        from octavo.interchange.small_floats import mx_packed

        scales = self.scales(32)
        least, most = _HALF_EXPONENTS
        if self.stored_dtype == "float16" and ((scales < least) | (scales > most)).any():
            raise NotHeldError("scales beyond float16, to which the package rounds them")
        return mx_packed(_MX[self.element][0], self.read(CODES), scales, dtype, columns=self.shape[1])

    def decode(self) -> Tensor:
        """Return the values in the dtype of the tensor."""
        import torch

        from octavo.interchange.small_floats import chunks, e2m1_values

        out = torch.empty(self.shape, dtype=self.dtype)
        codes, exponents = self.read(CODES), self.scales(32)
        steps = torch.where(exponents == 255, torch.nan, torch.exp2(exponents.float() - 127)).to(self.dtype)
        for rows in chunks(self.shape):
            is_pair = self.element == "float4_e2m1fn_x2"
            values = e2m1_values(codes[rows], self.dtype) if is_pair else codes[rows].to(self.dtype)
            out[rows] = values * steps[rows].repeat_interleave(32, 1)
        return out


@dataclass(frozen=True)
class Nvfp4Weight(_BlockWeight):
    """An NVFP4Tensor."""

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer, values: dict[str, Any], label: str) -> Nvfp4Weight:
        """Compare the tensors of a layer with its attributes. Raises ContainerError."""
        stored_dtype = _dtype(values, "orig_dtype", label, FLOATS)
        if (block := member(values, "block_size", int, label)) != 16:
            raise ContainerError(f"{label}: block_size is {shown(block)}; read are 16")
        rows, width = layer.matrix(CODES, "uint8")
        if width % 8:
            raise layer.error(CODES, f"{2 * width} columns; accepted are multiples of 16")
        swizzled = _scales(layer, values, label, ("float8_e4m3fn",), (rows, width // 8))
        if FACTOR in layer.parts:
            layer.check(FACTOR, ("float32",), (), (1,))
        shape = rows, 2 * width
        return cls(layer, shape, "torchao NVFP4Tensor", stored_dtype, folder.reader(layer), swizzled)

    @property
    def _factor(self) -> Tensor | None:
        return self.read(FACTOR) if FACTOR in self.layer.parts else None

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``nvfp4``. Raises NotHeldError."""
        from octavo.interchange.small_floats import nvfp4_packed

        return nvfp4_packed(self.read(CODES), self.scales(16), self._factor, dtype)

    def decode(self) -> Tensor:
        """Return the values in the dtype of the tensor."""
        import torch

        from octavo.interchange.small_floats import nvfp4_values

        scales = self.scales(16).view(torch.float8_e4m3fn)
        return nvfp4_values(self.read(CODES), scales, self._factor).to(self.dtype)


_TENSORS: dict[str, type[MxWeight | Nvfp4Weight]] = {"MXTensor": MxWeight, "NVFP4Tensor": Nvfp4Weight}


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of torchao. Raises ContainerError naming tensor or field."""
    weights: list[LayerWeight] = []
    left: set[str] = set()
    rounds_inputs = False
    for name, text in folder.metadata.items():
        if not text.startswith("{"):
            continue
        label = f"{folder.path}: metadata of tensor {shown(name)}"
        record = parse_json(text, label)
        kind = record.get("_type")
        if kind in (None, "Tensor"):
            continue
        if not isinstance(kind, str) or kind not in _TENSORS:
            raise ContainerError(f"{label}: _type is {shown(kind)}; read are {', '.join(_TENSORS)}; {PACK_OTHERWISE}")
        values = member(record, "_data", dict, label)
        module, _, leaf = name.rpartition(".")
        if leaf != WEIGHT:
            raise ContainerError(f"{label}: of {kind}; read are weights of layers")
        parts = {
            part: entry
            for part in (CODES, SCALES, FACTOR)
            if (entry := folder.entries.get(f"{module}._{leaf}_{part}")) is not None
        }
        stated = member(record, "_tensor_data_names", list, label)
        missing = next((part for part in (CODES, SCALES, *stated) if part not in (*parts, INPUT_FACTOR)), None)
        if missing is not None:
            raise ContainerError(f"{label}: its {shown(missing)} is not in the folder")
        layer = PackedLayer(module, parts, folder.path)
        weights.append(_TENSORS[kind].of(folder, layer, values, label))
        left.add(f"{module}._{leaf}_{INPUT_FACTOR}")
        rounds_inputs = rounds_inputs or values.get("act_quant_kwargs") is not None
    packing = PackedWeights.of(weights, left=left & folder.entries.keys())
    if rounds_inputs:
        packing.sentences.append("inputs of layers are not rounded; torchao rounds them")
    taken = set(packing.taken)
    stray = next((name for name in folder.entries if name.endswith(f"_{CODES}") and name not in taken), None)
    if stray is not None:
        raise ContainerError(f"{folder.path}: tensor {shown(stray)}: the metadata do not say what it is")
    return packing


def _dtype(values: dict[str, Any], key: str, label: str, accepted: tuple[str, ...]) -> str:
    """Return the name of a dtype. Raises ContainerError for another value."""
    record = member(values, key, dict, label)
    name = record.get("_data")
    if name not in accepted:
        raise ContainerError(f"{label}: {key} is {shown(name)}; read are {', '.join(accepted)}")
    return str(name)


def _scales(
    layer: PackedLayer, values: dict[str, Any], label: str, dtypes: tuple[str, ...], shape: tuple[int, int]
) -> bool:
    """Compare the scales of a layer, and return whether they are swizzled. Raises ContainerError."""
    if flag(values, "is_swizzled_scales", label) is not True:
        layer.check(SCALES, dtypes, shape)
        return False
    layer.check(SCALES, dtypes)
    padded = -(-shape[0] // _TILE[0]) * _TILE[0] * -(-shape[1] // _TILE[1]) * _TILE[1]
    stored = tuple(layer.parts[SCALES].shape)
    if math.prod(stored) != padded:
        raise layer.error(SCALES, f"shape {list(stored)}; expected are {padded} swizzled scales of {list(shape)}")
    return True


def _unswizzled(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Return scales in rows. Tiles of 128 rows and 4 columns lie behind each other, each as 32 rows of 4 by 4."""
    high, wide = -(-rows // _TILE[0]), -(-columns // _TILE[1])
    tiles = scales.reshape(high, wide, 32, 4, 4).transpose(2, 3).reshape(high, wide, *_TILE)
    return tiles.transpose(1, 2).reshape(high * _TILE[0], wide * _TILE[1])[:rows, :columns].contiguous()
