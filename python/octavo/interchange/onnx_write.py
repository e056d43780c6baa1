"""Models as ONNX files of the weights of ``MatMulNBits``: codes, scales and zero points as ONNX Runtime takes them.

The graph has a product for each packed linear layer, with an input and an output of its own, and all other tensors as
initializers. It is no graph of the model: whoever has one takes the initializers from here. Source: ONNX Runtime,
``docs/ContribOperators.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange.conversion_report import ConversionReport, WrittenTensor, progress_of
from octavo.interchange.model_source import ModelSource, model_source
from octavo.interchange.onnx_file import BFLOAT16, FLOAT, FLOAT16, UINT8, Initializer, Product, write_graph
from octavo.interchange.packed_rows import NoTypeError, PackedRows, is_unsigned, pack_codes, rows_of
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from octavo.interchange.conversion_report import Bar
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.model_folder.tensor_names import Placed
    from octavo.recipe import Recipe

_FAMILIES = ("int", "fullrange", "uint", "mxint", "bfp", "fixed", "ternary", "binary")
_DTYPES = {torch.float32: FLOAT, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_NAMES = {FLOAT: "FLOAT", FLOAT16: "FLOAT16", BFLOAT16: "BFLOAT16"}
_LEAST_BLOCK, _MOST_BLOCK, _USUAL_BLOCK = 16, 256, 128
_LINEAR = "PackedLinear"
_WAY_OUT = "--decode writes the same values as floats, --recipe 'type:Linear int4:g32' of a float folder packs them"


@dataclass(frozen=True)
class _Layout:
    """How ``MatMulNBits`` stores a matrix. ``has_zeros``: with zero points; else codes are around their middle."""

    rows: int
    columns: int
    bits: int
    block: int
    has_zeros: bool

    @property
    def blocks(self) -> int:
        return -(-self.columns // self.block)


def write_onnx(
    source: Path,
    target: Path,
    *,
    recipe: Recipe | None = None,
    decode: bool = False,
    bar: Bar | None = None,
) -> ConversionReport:
    """Write a model as an ONNX file; arguments and errors are those of :func:`octavo.interchange.convert.convert`."""
    with model_source(source, recipe=recipe, check=partial(_check_plan, decode), bar=bar) as model:
        return _write(model, target, decode, bar)


def _check_plan(decode: bool, model: str, plan: Sequence[TensorReport], config: Mapping[str, Any]) -> None:
    """Refuse a recipe that gives formats which no ``MatMulNBits`` multiplies. Raises FormatError."""
    for report in plan:
        if report.format is not None and not decode:
            try:
                _check_format(Format(report.format))
            except NoTypeError as error:
                raise FormatError(f"{report.name}: '{report.format}': {error}; {_WAY_OUT}") from None


def _write(source: ModelSource, target: Path, decode: bool, bar: Bar | None) -> ConversionReport:
    initializers: list[Initializer] = []
    products: list[Product] = []
    written: list[WrittenTensor] = []
    for name, tensor in source.tensors.items():
        layer: str | None = None
        layout: _Layout | None = None
        reason: str | None = None
        try:
            layer = _linear(name, tensor, source)
            layout = None if layer is None else _layout(tensor)
        except NoTypeError as error:
            if not decode:
                raise FormatError(f"{name}: {error}; {_WAY_OUT}") from None
            reason = str(error)
        if layer is not None and layout is not None and isinstance(tensor, PackedTensor):
            parts, product = _matrix(name, layer, tensor, layout)
            products.append(product)
            kind = f"MatMulNBits, {layout.bits} bits, blocks of {layout.block}"
            row = WrittenTensor(name, name, str(tensor.format), kind, tensor.shape, sum(one.nbytes for one in parts))
        else:
            parts, row = _plain(name, tensor, reason)
        initializers += parts
        written.append(row)
    metadata = {"source": source.path.resolve().name, "model": source.model}
    with progress_of(bar, "writing", sum(one.nbytes for one in initializers)) as done:
        nbytes = write_graph(target, initializers, products, metadata, progress=done)
    return ConversionReport(target, nbytes, written, list(source.notes))


def _linear(name: str, tensor: Placed, source: ModelSource) -> str | None:
    """Return the path of the linear layer that a tensor is the weight of; None of a plain tensor.

    Raises NoTypeError for packed weights of other layers.
    """
    if not isinstance(tensor, PackedTensor):
        return None
    names = [name, *(other for other, first in source.ties.items() if first == name)]
    for one in names:
        path = one.rpartition(".")[0]
        if source.layers.get(path, {}).get("class") == _LINEAR:
            return path
    raise NoTypeError(f"'{tensor.format}', and no weight of a linear layer, which MatMulNBits multiplies")


def _check_format(fmt: Format) -> None:
    """Refuse formats that are no integers times scales. Raises NoTypeError."""
    if fmt.family not in _FAMILIES or fmt.width > 8 or (fmt.family == "binary" and fmt.width > 1):
        raise NoTypeError(f"MatMulNBits has integers of up to 8 bits times scales, which '{fmt}' is not")
    if fmt.block is not None and fmt.block & -fmt.block < _LEAST_BLOCK:
        raise NoTypeError(f"groups of {fmt.block}; MatMulNBits has blocks of {_LEAST_BLOCK} and more")


def _layout(tensor: Placed) -> _Layout:
    """Return how a packed matrix is stored. Raises NoTypeError where it is not."""
    assert isinstance(tensor, PackedTensor)
    fmt = tensor.format
    _check_format(fmt)
    if tensor.ndim != 2 or tensor.axis != 1:
        raise NoTypeError(f"shape {tensor.shape} packed along dimension {tensor.axis}; accepted are rows of a matrix")
    bits = next(bits for bits in (2, 4, 8) if fmt.width <= bits)
    block = _USUAL_BLOCK if fmt.block is None else min(fmt.block & -fmt.block, _MOST_BLOCK)
    rows, columns = tensor.shape
    layout = _Layout(rows, columns, bits, block, fmt.core.has_zeros or is_unsigned(fmt))
    for part in rows_of(tensor):
        part.scales()
    return layout


def _matrix(name: str, layer: str, tensor: PackedTensor, layout: _Layout) -> tuple[list[Initializer], Product]:
    """Return the initializers of a matrix, and the product with it."""
    rows, blocks, bits = layout.rows, layout.blocks, layout.bits
    codes, scales = f"{name}_Q{bits}", f"{name}_scales"
    parts = [
        Initializer(codes, UINT8, (rows, blocks, layout.block * bits // 8), _each(tensor, partial(_codes, layout))),
        Initializer(scales, FLOAT, (rows, blocks), _each(tensor, partial(_scales, layout))),
    ]
    if layout.has_zeros:
        shape = rows, (blocks * bits + 7) // 8
        parts.append(Initializer(f"{name}_zero_points", UINT8, shape, _each(tensor, partial(_zeros, layout))))
    return parts, Product(layer, rows, layout.columns, bits, layout.block, [one.name for one in parts])


def _each(tensor: PackedTensor, part: Callable[[PackedRows], Tensor]) -> Callable[[], Iterator[Tensor]]:
    return lambda: (part(rows) for rows in rows_of(tensor))


def _codes(layout: _Layout, rows: PackedRows) -> Tensor:
    codes = rows.codes() if layout.has_zeros else (rows.integers() + (1 << layout.bits - 1)).to(torch.uint8)
    padded = torch.nn.functional.pad(codes, (0, layout.blocks * layout.block - layout.columns))
    return pack_codes(padded, layout.bits)


def _scales(layout: _Layout, rows: PackedRows) -> Tensor:
    return _blocks(layout, rows, rows.scales()).contiguous().view(torch.uint8)


def _zeros(layout: _Layout, rows: PackedRows) -> Tensor:
    has_own = rows.format.core.has_zeros
    zeros = rows.zeros() if has_own else torch.zeros(len(rows.packed), 1, dtype=torch.int32)
    return pack_codes(_blocks(layout, rows, zeros).to(torch.uint8), layout.bits)


def _blocks(layout: _Layout, rows: PackedRows, groups: Tensor) -> Tensor:
    """Return a value of each group as one of each block, ``[rows, blocks]``."""
    each = -(-(rows.format.block or rows.columns) // layout.block)
    return groups.repeat_interleave(each, 1)[:, : layout.blocks]


def _plain(name: str, tensor: Placed, reason: str | None) -> tuple[list[Initializer], WrittenTensor]:
    """Return the initializer of a tensor that is stored as floats. ``reason``: why a packed one is decoded."""
    if isinstance(tensor, PackedTensor):
        kind, origin = FLOAT, str(tensor.format)
    else:
        origin = str(tensor.dtype).removeprefix("torch.")
        if tensor.dtype not in _DTYPES:
            raise FormatError(f"{name}: dtype {origin}; accepted are float32, float16 and bfloat16")
        kind = _DTYPES[tensor.dtype]
    parts = Initializer(name, kind, tuple(tensor.shape), partial(_float_bytes, tensor))
    note = None if reason is None else f"decoded: {reason}"
    return [parts], WrittenTensor(name, name, origin, _NAMES[kind], parts.shape, parts.nbytes, note=note)


def _float_bytes(tensor: Placed) -> Iterator[Tensor]:
    if isinstance(tensor, PackedTensor):
        values = tensor.decode(torch.float32)
    else:
        values = tensor.tensor() if isinstance(tensor, MergedTensor) else tensor
    yield values.contiguous().flatten().view(torch.uint8)
