"""ONNX files: a graph of initializers and of products of them, written as it streams.

Protocol buffers with the fields that such a graph has. Source: ONNX, ``onnx.proto``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import ContainerError
from octavo.storage import files
from octavo.storage.reading import shown

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.interchange.conversion_report import Progress

FLOAT, UINT8, FLOAT16, BFLOAT16 = 1, 2, 10, 16
"""Types of initializers."""
_WIDTHS = {FLOAT: 4, UINT8: 1, FLOAT16: 2, BFLOAT16: 2}
_MOST_BYTES = 2**31 - 1  # of a message
_IR_VERSION, _OPSET, _DOMAIN, _INT = 10, 21, "com.microsoft", 2
_VARINT, _BYTES = 0, 2  # how a field is stored


@dataclass(frozen=True)
class Initializer:
    """A tensor of a graph. ``parts``: yields its bytes as uint8, in order."""

    name: str
    type: int
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * _WIDTHS[self.type]


@dataclass(frozen=True)
class Product:
    """A ``MatMulNBits`` of a graph: an input of ``columns`` times initializers, which makes ``rows`` of an output.

    ``name``: the input and the output add to it ``.input`` and ``.output``. ``initializers``: names of codes, scales
    and zero points.
    """

    name: str
    rows: int
    columns: int
    bits: int
    block: int
    initializers: Sequence[str]


def write_graph(
    path: str | os.PathLike[str],
    initializers: Sequence[Initializer],
    products: Sequence[Product],
    metadata: Mapping[str, str],
    *,
    progress: Progress | None = None,
) -> int:
    """Write a graph, which appears whole or not at all; return its bytes.

    Raises ContainerError for more than the 2 GiB of a file without others beside it, and for names that appear twice.
    """
    names = [one.name for one in initializers]
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ContainerError(f"initializer {shown(twice)} twice; names in an ONNX file differ")
    heads = [_head(one) for one in initializers]
    graph = b"".join([*map(_node, products), _field(2, b"octavo"), *_ends(products)])
    nbytes = len(graph) + sum(len(head) + one.nbytes for head, one in zip(heads, initializers, strict=True))
    before = _number(1, _IR_VERSION) + _field(2, b"octavo")
    after = b"".join(
        [
            *(_field(8, (_field(1, domain) if domain else b"") + _number(2, version)) for domain, version in
              ((b"", _OPSET), (_DOMAIN.encode(), 1))),
            *(_field(14, _field(1, key.encode()) + _field(2, value.encode())) for key, value in metadata.items()),
        ]
    )  # fmt: skip
    before += _key(7, _BYTES) + _varint(nbytes)
    if (total := len(before) + nbytes + len(after)) > _MOST_BYTES:
        raise ContainerError(f"{os.fspath(path)}: {total} bytes; an ONNX file has up to {_MOST_BYTES}")
    with files.whole(path) as file:
        file.write(before + graph)
        for head, one in zip(heads, initializers, strict=True):
            file.write(head)
            written = sum(file.write(part.contiguous().flatten().numpy().data) for part in one.parts())
            assert written == one.nbytes, f"{one.name}: {written} bytes, {one.nbytes} announced"
            if progress:
                progress(one.name, written)
        file.write(after)
    return total


def _head(one: Initializer) -> bytes:
    """Return an initializer up to its values, which come last."""
    own = b"".join(_number(1, size) for size in one.shape) + _number(2, one.type) + _field(8, one.name.encode())
    own += _key(9, _BYTES) + _varint(one.nbytes)
    return _key(5, _BYTES) + _varint(len(own) + one.nbytes) + own


def _node(product: Product) -> bytes:
    inputs = [f"{product.name}.input", *product.initializers]
    settings = {"K": product.columns, "N": product.rows, "bits": product.bits, "block_size": product.block}
    own = [_field(1, name.encode()) for name in inputs]
    own += [_field(2, f"{product.name}.output".encode()), _field(3, product.name.encode()), _field(4, b"MatMulNBits")]
    own += [
        _field(5, _field(1, key.encode()) + _number(3, value) + _number(20, _INT)) for key, value in settings.items()
    ]
    return _field(1, b"".join([*own, _field(7, _DOMAIN.encode())]))


def _ends(products: Sequence[Product]) -> Iterable[bytes]:
    """Yield the inputs and outputs of a graph."""
    for field, end, sizes in ((11, "input", "columns"), (12, "output", "rows")):
        for product in products:
            dims = _field(1, _field(2, b"tokens")) + _field(1, _number(1, getattr(product, sizes)))
            kind = _field(1, _number(1, FLOAT) + _field(2, dims))
            yield _field(field, _field(1, f"{product.name}.{end}".encode()) + _field(2, kind))


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    """Return a whole number from 0 in groups of 7 bits, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
