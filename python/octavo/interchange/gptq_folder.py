"""Folders of GPTQ, versions 1 and 2: words of codes down the columns, scales and zero points by groups.

Row n of a weight is the code stream in column n of ``qweight``, I32 ``[columns * bits / 32, rows]``. ``qzeros``, I32
``[groups, rows * bits / 32]``, has the zero points of a group, less 1 in version 1; ``scales`` are ``[groups, rows]``,
and ``g_idx`` has the group of each column. Source: AutoGPTQ, ``nn_modules/qlinear``; GPTQModel, ``utils/model.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import ContainerError
from octavo.interchange.packing_settings import flag, text, whole
from octavo.interchange.stored_weights import FLOATS, LayerWeight, PackedLayer, PackedWeights, StoredFolder
from octavo.model_folder.quantization_entry import PACK_OTHERWISE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.interchange.integer_groups import IntegerGroups
    from octavo.tensors.packed_tensor import PackedTensor

CODES, ZEROS, SCALES, ORDER = "qweight", "qzeros", "scales", "g_idx"
_BITS = (2, 3, 4, 8)
_VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True)
class GptqSettings:
    """``bits``, ``group``: of all layers; 0 where layers have their own, -1 for a group of the whole row.

    ``version``: what is taken from zero points where they are stored is ``2 - version``. ``symmetric``: as stated.
    """

    bits: int
    group: int
    version: int
    symmetric: bool
    label: str

    @classmethod
    def read(cls, folder: StoredFolder) -> GptqSettings:
        """Read them. Raises ContainerError naming a field."""
        values, label = folder.settings, folder.label
        key = "checkpoint_format" if values.get("checkpoint_format") is not None else "format"
        version = _VERSIONS[text(values, key, label, "gptq", tuple(_VERSIONS))]
        if flag(values, "is_marlin_format", label):
            raise ContainerError(f"{label}: is_marlin_format is true; read is false; {PACK_OTHERWISE}")
        text(values, "pack_dtype", label, "int32", ("int32",))
        varied = bool(values.get("dynamic"))
        bits, group = whole(values, ("bits",), label, 0), whole(values, ("group_size",), label, 0)
        if bits not in (0, *_BITS) and not varied:
            raise ContainerError(f"{label}: bits is {bits}; read are {', '.join(map(str, _BITS))}; {PACK_OTHERWISE}")
        if group < -1:
            raise ContainerError(f"{label}: group_size is {group}; accepted are -1 and sizes")
        symmetric = flag(values, "sym", label, False) is True and not varied
        return cls(0 if varied else bits, 0 if varied else group, version, symmetric, label)


@dataclass(frozen=True)
class GptqWeight(LayerWeight):
    """A weight of GPTQ. ``group``: columns of a group; None for the whole row."""

    bits: int
    group: int | None
    settings: GptqSettings

    @classmethod
    def of(cls, folder: StoredFolder, layer: PackedLayer, settings: GptqSettings) -> GptqWeight:
        """Compare the tensors of a layer. Raises ContainerError."""
        layer.require(CODES, ZEROS, SCALES)
        words, rows = layer.matrix(CODES, "int32")
        groups = layer.matrix(SCALES, *FLOATS)[0]
        layer.check(SCALES, FLOATS, (groups, rows))
        width = layer.matrix(ZEROS, "int32")[1]
        fitting = [bits for bits in _BITS if width == -(-rows * bits // 32)]
        bits = settings.bits if settings.bits in fitting else 0 if settings.bits or not fitting else fitting[0]
        if not bits:
            wanted = settings.bits or "2, 3, 4 or 8"
            raise layer.error(ZEROS, f"{width} words of {rows} zero points; expected are those of {wanted} bits")
        layer.check(ZEROS, ("int32",), (groups, width))
        columns, rest = divmod(32 * words, bits)
        if rest:
            raise layer.error(CODES, f"{words} words a column; codes of {bits} bits do not fill them")
        group = _group_of(layer, settings, columns, groups)
        if ORDER in layer.parts:
            layer.check(ORDER, ("int32", "int64"), (columns,), (0,))
        size = "rows" if group is None else f"groups of {group}"
        kind = f"gptq (v{settings.version}, {bits}-bit, {size})"
        dtype = layer.parts[SCALES].dtype
        return cls(layer, (rows, columns), kind, dtype, folder.reader(layer), bits, group, settings)

    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight in ``uintW``, or with a bit more in ``intW``. Raises NotHeldError, ContainerError."""
        return self._integers().packed(dtype)

    def decode(self) -> Tensor:
        """Return the values in the dtype of the scales. Raises ContainerError."""
        return self._integers().decoded()

    def _integers(self) -> IntegerGroups:
        from octavo.interchange.integer_groups import IntegerGroups
        from octavo.interchange.packed_words import rows_of_words

        rows, columns = self.shape
        stream = rows_of_words(self.read(CODES).t().contiguous(), columns, self.bits, dense=True)
        scales = self.read(SCALES).t().contiguous()
        return IntegerGroups(stream, self.bits, (rows, columns), scales, self._zeros(), self.group, self._order())

    def _zeros(self) -> Tensor:
        """Return zero points as int16, ``[rows, groups]``."""
        import torch

        from octavo.interchange.packed_words import rows_of_words, unpack_codes

        stream = rows_of_words(self.read(ZEROS).contiguous(), self.shape[0], self.bits, dense=True)
        stored = unpack_codes(stream, self.shape[0], self.bits).to(torch.int16)
        middle, less = 1 << self.bits - 1, 2 - self.settings.version
        other = middle - (1 - less)  # what the other version stores of a symmetric weight
        if self.settings.symmetric and stored.numel() and bool((stored == other).all()):
            raise self.layer.error(
                ZEROS,
                f"all are {other} where sym is true; version {self.settings.version} stores {middle - less}; "
                f"octavo check {self.layer.folder} --fix OUT writes the folder with its true checkpoint_format",
            )
        return (stored + less).t().contiguous()

    def _order(self) -> Tensor | None:
        """Return the groups of the columns where they are not those beside each other."""
        import torch

        if ORDER not in self.layer.parts or not self.layer.parts[ORDER].shape[0]:
            return None
        order, groups = self.read(ORDER).long(), self.layer.parts[SCALES].shape[0]
        if not 0 <= int(order.min()) <= int(order.max()) < groups:
            raise self.layer.error(ORDER, f"groups {int(order.min())} to {int(order.max())}; there are {groups}")
        if torch.equal(order, torch.arange(len(order)) // (self.group or len(order))):
            return None
        return order


def weights_of(folder: StoredFolder) -> PackedWeights:
    """Find the weights of a folder of GPTQ. Raises ContainerError naming tensor or field."""
    settings = GptqSettings.read(folder)
    layers = folder.layers((CODES, ZEROS, SCALES, ORDER), CODES)
    return PackedWeights.of(GptqWeight.of(folder, layer, settings) for layer in layers.values())


def _group_of(layer: PackedLayer, settings: GptqSettings, columns: int, groups: int) -> int | None:
    """Return the columns of a group; None for those of a row. Raises ContainerError."""
    if settings.group > 0:
        if groups != -(-columns // settings.group):
            raise layer.error(SCALES, f"{groups} groups; {columns} columns by group_size {settings.group} have others")
        return settings.group
    if settings.group == -1 or groups == 1:
        if groups != 1:
            raise layer.error(SCALES, f"{groups} groups; by group_size -1 there is 1")
        return None
    if not groups or columns % groups:
        raise layer.error(SCALES, f"{groups} groups; {columns} columns have none of one size")
    return columns // groups
