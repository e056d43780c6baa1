"""Folders of bitsandbytes: 4 bits (NF4 and its own FP4), and 8 bits.

4 bits: ``weight`` U8 has the elements of the whole tensor, the first of two in the high bits; ``weight.absmax`` has the
largest magnitude of each block, F32, or U8 that ``weight.nested_quant_map`` and ``weight.nested_absmax`` stand for;
``weight.quant_map`` has 16 values; ``weight.quant_state.bitsandbytes__nf4`` is JSON with shape, dtype and blocks.
8 bits: ``weight`` I8 and ``SCB`` F32, the largest magnitude of each row. Source: bitsandbytes, ``functional.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError
from octavo.interchange.stored_weights import (
    FLOATS,
    WEIGHT,
    LayerWeight,
    NotHeldError,
    PackedLayer,
    PackedWeights,
    StoredFolder,
)
from octavo.storage.reading import member, parse_json, shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

ABSMAX, TABLE = "weight.absmax", "weight.quant_map"
NESTED, NESTED_TABLE = "weight.nested_absmax", "weight.nested_quant_map"
STATES = {kind: f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")}
ROWS, _FORMAT = "SCB", "weight_format"
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_MOST_STATE, _MOST_ELEMENTS = 1 << 16, 1 << 40
_CHUNK = 1 << 20  # elements that are decoded at once


@dataclass(frozen=True)
class BnbState:
    """What the JSON of a 4-bit weight says. ``nested_block``, ``offset``: of maxima that are codes."""

    shape: tuple[int, int]
    block: int
    dtype: str
    nested_block: int
    offset: float

    @classmethod
    def read(cls, folder: StoredFolder, layer: PackedLayer, part: str, nested: bool) -> BnbState:
        """Read it. Raises ContainerError naming tensor and field."""
        entry = layer.parts[part]
        if entry.nbytes > _MOST_STATE or entry.dtype != "uint8":
            raise layer.error(
                part, f"{entry.dtype}, {entry.nbytes} bytes; accepted is JSON of up to {_MOST_STATE} bytes"
            )
        label = f"{layer.folder}: tensor {shown(entry.name)}"
        try:
            values: dict[str, Any] = parse_json(folder.data(entry.name).decode("utf-8"), label)
        except UnicodeDecodeError:
            raise layer.error(part, "no UTF-8; accepted is JSON") from None
        shape = member(values, "shape", list, label)
        if len(shape) != 2 or not all(type(one) is int and 0 <= one < _MOST_ELEMENTS for one in shape):
            raise ContainerError(f"{label}: shape is {shown(shape)}; read are matrices")
        block, dtype = member(values, "blocksize", int, label), member(values, "dtype", str, label)
        if block not in _BLOCKS:
            raise ContainerError(f"{label}: blocksize is {shown(block)}; read are {', '.join(map(str, _BLOCKS))}")
        if dtype not in FLOATS:
            raise ContainerError(f"{label}: dtype is {shown(dtype)}; read are {', '.join(FLOATS)}")
        nested_block, offset = 1, 0.0
        if nested:
            nested_block = member(values, "nested_blocksize", int, label)
            offset = float(member(values, "nested_offset", (int, float), label))
            if not 0 < nested_block < _MOST_ELEMENTS:
                raise ContainerError(f"{label}: nested_blocksize is {shown(nested_block)}; accepted are sizes")
        return cls((shape[0], shape[1]), block, dtype, nested_block, offset)


@dataclass(frozen=True)
class Bnb4Weight(LayerWeight):
    """A weight of 4 bits. ``kind``: ``nf4`` or ``fp4``."""

    kind: str
    state: BnbState

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer) -> Bnb4Weight:
        """Compare the tensors of a layer. Raises ContainerError."""
        layer.require(ABSMAX, WEIGHT, TABLE)
        kind = next((kind for kind, part in STATES.items() if part in layer.parts), None)
        if kind is None:
            raise layer.error(ABSMAX, f"no {' or '.join(STATES.values())} is beside it")
        nested = layer.parts[ABSMAX].dtype == "uint8"
        state = BnbState.read(folder, layer, STATES[kind], nested)
        count = state.shape[0] * state.shape[1]
        if count > _MOST_ELEMENTS or math.prod(layer.parts[WEIGHT].shape) != -(-count // 2):
            sizes = f"{list(layer.parts[WEIGHT].shape)} of {list(state.shape)}"
            raise layer.error(WEIGHT, f"shape {sizes}; accepted are {-(-count // 2)} bytes")
        layer.check(WEIGHT, ("uint8",))
        blocks = -(-count // state.block)
        layer.check(ABSMAX, ("float32", "uint8"), (blocks,))
        layer.check(TABLE, ("float32",), (16,))
        if nested:
            layer.require(ABSMAX, NESTED, NESTED_TABLE)
            layer.check(NESTED, ("float32",), (-(-blocks // state.nested_block),))
            layer.check(NESTED_TABLE, ("float32",), (256,))
        text = f"bitsandbytes {kind} (blocks of {state.block}{', nested' if nested else ''})"
        return cls(layer, state.shape, text, state.dtype, folder.reader(layer), kind, state)

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``nf4``. Raises NotHeldError."""
        import torch

        from octavo.tensors.formats import Format
        from octavo.tensors.packed_tensor import PackedTensor

        self._table()
        (rows, columns), block = self.state.shape, self.state.block
        if self.kind != "nf4":
            raise NotHeldError("no format has the table of bitsandbytes' fp4")
        fmt = Format("nf4" if block == 64 else f"nf4/{block}")
        if columns % block:
            raise NotHeldError(f"blocks of {block} go on in the next row; {columns} columns are no multiple")
        maxima = self._maxima()
        halves = maxima.half()
        wrong = (halves.float() != maxima) | ~halves.isfinite()
        if wrong.any():
            place = int(wrong.nonzero()[0])
            raise NotHeldError(f"block {place}: a scale that is no float16, as those of nf4 are")
        if halves.signbit().any():
            raise NotHeldError(f"block {int(halves.signbit().nonzero()[0])}: a scale with a sign")
        data = self.read(WEIGHT).reshape(rows, columns // 2)
        nothing, level = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.float32)
        scales = halves.reshape(rows, columns // block)
        return PackedTensor(fmt, data << 4 | data >> 4, scales, nothing, level, shape=self.state.shape, dtype=dtype)

    def decode(self) -> Tensor:
        """Return the values in the dtype of the state."""
        import torch

        count, block = math.prod(self.shape), self.state.block
        data, table, maxima = self.read(WEIGHT).reshape(-1), self._table(), self._maxima()
        out = torch.empty(count, dtype=self.dtype)
        step = _CHUNK // block * block
        for first in range(0, count, step):
            bytes_ = data[first // 2 : (first + step + 1) // 2]
            codes = torch.stack([bytes_ >> 4, bytes_ & 15], 1).reshape(-1)[: min(step, count - first)]
            scales = maxima[first // block : (first + step) // block].repeat_interleave(block)[: len(codes)]
            out[first : first + len(codes)] = (table[codes.int()] * scales).to(self.dtype)
        return out.reshape(self.shape)

    def _table(self) -> Tensor:
        """Return the values of codes, which the package has. Raises ContainerError where others are stored."""
        import torch

        table = torch.tensor(_TABLES[self.kind])
        if not torch.equal(self.read(TABLE), table):
            raise self.layer.error(TABLE, f"its values are not those of {self.kind}")
        return table

    def _maxima(self) -> Tensor:
        """Return the largest magnitudes of blocks as the package has them, float32."""
        import torch

        maxima = self.read(ABSMAX)
        if maxima.dtype != torch.uint8:
            return maxima
        outer = self.read(NESTED).repeat_interleave(self.state.nested_block)[: len(maxima)]
        return self.read(NESTED_TABLE)[maxima.int()] * outer + torch.tensor(self.state.offset, dtype=torch.float32)


@dataclass(frozen=True)
class Bnb8Weight(LayerWeight):
    """A weight of 8 bits with the largest magnitude of each row."""

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer) -> Bnb8Weight:
        """Compare the tensors of a layer. Raises ContainerError."""
        layer.require(ROWS, WEIGHT)
        rows, columns = layer.matrix(WEIGHT, "int8")
        layer.check(ROWS, ("float32",), (rows,))
        return cls(layer, (rows, columns), "bitsandbytes int8 (rows)", "float32", folder.reader(layer))

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Raise NotHeldError."""
        raise NotHeldError("bitsandbytes rounds each product with a largest magnitude, and again divided by 127")

    def decode(self) -> Tensor:
        """Return the values in float32."""
        import torch

        out = torch.empty(self.shape)
        rows, codes = self.read(ROWS), self.read(WEIGHT)
        step = max(_CHUNK // max(self.shape[1], 1), 1)
        for first in range(0, self.shape[0], step):
            part = slice(first, first + step)
            out[part] = codes[part].float() * rows[part].unsqueeze(1) * _INVERSE
        return out


_INVERSE = 7.874015718698502e-3  # 1 / 127 as the package has it
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)  # twelfths
_TABLES = {"nf4": _NF4, "fp4": tuple(sign * one / 12 for sign in (1, -1) for one in _FP4)}


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of bitsandbytes. Raises ContainerError naming tensor or field."""
    suffixes = (WEIGHT, ABSMAX, TABLE, NESTED, NESTED_TABLE, *STATES.values(), ROWS, _FORMAT)
    weights: list[LayerWeight] = []
    for layer in folder.layers(suffixes, WEIGHT).values():
        dtype = layer.parts[WEIGHT].dtype
        if ABSMAX in layer.parts:
            weights.append(Bnb4Weight.of(folder, layer))
        elif ROWS in layer.parts:
            weights.append(Bnb8Weight.of(folder, layer))
        elif dtype in ("uint8", "int8"):
            raise layer.error(WEIGHT, f"{dtype}, no {ABSMAX if dtype == 'uint8' else ROWS} is beside it")
        elif layer.parts.keys() != {WEIGHT}:
            part = next(part for part in layer.parts if part != WEIGHT)
            raise layer.error(part, f"beside a weight of {dtype}, which is not packed")
    return PackedWeights.of(weights)
