"""WeightBuffers: the parts of a packed weight as buffers of its layer, dense codes or sparse ones."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import ShapeError
from octavo.nn.format_layer import FormatLayer
from octavo.nn.stored_scales import format_bytes
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.sparse_codes import SparseCodes, bitmap_shape, code_bytes, of_parts, popcount, refuse_others
from octavo.tensors.tensor_parts import part_specs

PARTS = ("codes", "scales", "zeros", "levels")
_OPTIONAL = {"weight_scales": "scale_type", "weight_zeros": "has_zeros", "weight_levels": "has_levels"}
FORMAT = "weight_format"
BITMAP, STARTS = "weight_bitmap", "weight_starts"  # buffers of sparse codes alone


class WeightBuffers(FormatLayer):
    """A layer with the buffers ``weight_codes``, ``weight_scales``, ``weight_zeros`` and ``weight_levels``.

    And ``weight_format``, the text of the format as bytes, for packages that load tensors by the names of buffers.
    Of sparse codes also ``weight_bitmap``, and ``weight_starts``, which follows from it and is in no state dict. Parts
    that the format does not have are empty tensors, attributes and no buffers: nothing saves, moves or sends them.
    """

    format: Format
    weight_codes: Tensor
    weight_scales: Tensor
    weight_zeros: Tensor
    weight_levels: Tensor
    _rows: int
    _width: int

    def _hold(self, weight: PackedTensor) -> None:
        """Take the parts of a weight as buffers."""
        held = dict(zip((*(f"weight_{part}" for part in PARTS), BITMAP), weight.held_parts, strict=False))
        for name in lacking(weight.format.core):
            self._take_empty(name, held.pop(name))
        codes = held["weight_codes"]
        held[FORMAT] = format_bytes(weight.format.text).to("cpu" if codes.is_meta else codes.device)
        self._take_buffers(held, weight.sparse)

    def _take_empty(self, name: str, part: Tensor) -> None:
        """Keep a part that the format does not have as an attribute."""
        self._buffers.pop(name, None)
        vars(self)[name] = part

    def _part(self, name: str) -> Tensor:
        """Return a part of the weight; an empty one is on the device of the codes."""
        held = self._buffers
        if (part := held.get(name)) is not None:
            return part
        empty: Tensor = getattr(self, name)
        codes = cast("Tensor", held["weight_codes"])
        # Other packages move buffers by their names. Two questions for the CPU, which take less time than the devices.
        if not (empty.is_cpu and codes.is_cpu) and empty.device != codes.device:
            empty = torch.empty_like(empty, device=codes.device)
            self._take_empty(name, empty)
        return empty

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read a pickle, also one of a version that had empty parts as buffers."""
        super().__setstate__(state)  # type: ignore[no-untyped-call] # torch's has no types
        for name in lacking(self.format.core):
            if name in self._buffers:
                self._take_empty(name, cast("Tensor", self._buffers[name]))
        self._buffers.setdefault(FORMAT, format_bytes(self.format.text).to(self.weight_codes.device))

    def _take_buffers(self, held: dict[str, Tensor], sparse: SparseCodes | None) -> None:
        if sparse is None:
            self._buffers.pop(BITMAP, None)
            self._buffers.pop(STARTS, None)
        else:
            held = {**held, STARTS: sparse.starts}
        for name, tensor in held.items():
            if name in self._buffers:
                self._buffers[name] = tensor
            else:
                vars(self).pop(name, None)
                self.register_buffer(name, tensor, persistent=name != STARTS)

    @property
    def is_sparse(self) -> bool:
        """Whether codes that are 0 are left out."""
        return BITMAP in self._buffers

    @property
    def sparse_codes(self) -> SparseCodes | None:
        """The codes that are not 0, over the layer's own buffers; None where codes are dense."""
        held = cast("dict[str, Tensor]", self._buffers)
        return SparseCodes(held["weight_codes"], held[BITMAP], held[STARTS]) if BITMAP in held else None

    def _make_room(self, codes: Any, bitmap: Any) -> None:
        """Hold codes as a state dict has them, dense or so many that are not 0, to be filled."""
        if not isinstance(codes, Tensor) or not (self.is_sparse or isinstance(bitmap, Tensor)):
            return
        at, fmt = self.weight_codes.device, self.format.core
        if isinstance(bitmap, Tensor):
            refuse_others(fmt)
            size = bitmap_shape(self._rows, self._width)
            starts = torch.zeros(size[0] + 1, dtype=torch.int64, device=at)
            empty = torch.empty(codes.numel(), dtype=torch.uint8, device=at)
            sparse = SparseCodes(empty, torch.zeros(size, dtype=torch.int64, device=at), starts)
            self._take_buffers({"weight_codes": sparse.codes, BITMAP: sparse.bitmap}, sparse)
        else:
            dense = part_specs(fmt, (self._rows, self._width), 1)[0][2]
            self._take_buffers({"weight_codes": torch.empty(dense, dtype=torch.uint8, device=at)}, None)

    def _count_starts(self) -> None:
        """Find where panels of sparse codes start. Raises ShapeError where the bitmap does not fit the codes."""
        codes, bitmap = self.weight_codes, cast("Tensor", self._buffers[BITMAP])
        nonzero = popcount(bitmap)
        if codes.numel() != code_bytes(nonzero, self.format.width):
            raise ShapeError(
                f"sparse codes: the bitmap tells of {nonzero} codes that are not 0, in {codes.numel()} bytes"
            )
        self._buffers[STARTS] = of_parts(codes, bitmap, nonzero, self._rows, self._width).starts


def lacking(format: _core.Format) -> list[str]:
    """Return the names of the parts that no weight of a format has."""
    return [name for name, attribute in _OPTIONAL.items() if not getattr(format, attribute)]
