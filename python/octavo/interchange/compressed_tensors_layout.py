"""Tensors of compressed-tensors by the weights that they make, from names, dtypes and shapes. torch is not loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ContainerError
from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.storage.reading import shown
from octavo.tensors import container
from octavo.tensors.tensor_entry import TensorEntry

PACKED, WEIGHT, SCALE, ZERO, GLOBAL, SHAPE, ORDER = (
    "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape",
    "weight_g_idx",
)  # fmt: skip
_OF_WEIGHT = {PACKED, SCALE, ZERO, GLOBAL, SHAPE, ORDER}
_OF_ACTIVATIONS = {
    f"{role}_{part}" for role in ("input", "output", "q", "k", "v") for part in ("scale", "zero_point", "global_scale")
}
WORDS, BYTES, FLOATS, MXFP8, MXFP6, MXFP4, NVFP4 = (
    "words", "bytes", "floats", "mxfp8", "mxfp6", "mxfp4", "nvfp4"
)  # fmt: skip
_OF_FORM = {
    WORDS: ("pack-quantized",), BYTES: ("int-quantized", "naive-quantized"),
    FLOATS: ("float-quantized", "naive-quantized"), MXFP8: ("mxfp8-quantized",), MXFP6: ("mxfp6-pack-quantized",),
    MXFP4: ("mxfp4-pack-quantized",), NVFP4: ("nvfp4-pack-quantized",),
}  # fmt: skip
_BITS = {FLOATS: (8,), MXFP8: (8,), MXFP6: (6,), MXFP4: (4,), NVFP4: (4,)}
_SCALES = {
    MXFP8: ("uint8", "float8_e8m0fnu"), MXFP6: ("uint8", "float8_e8m0fnu"), MXFP4: ("uint8", "float8_e8m0fnu"),
    NVFP4: ("float8_e4m3fn",),
}  # fmt: skip
_FLOATS = ("float32", "float16", "bfloat16")
_MOST = 1 << 40  # as for shapes of a container


@dataclass(frozen=True)
class Layout:
    """The tensors of a weight. ``layer``: name of its layer in the file. ``parts``: by what they are.

    ``dense``: of words, whether codes lie in them without gaps. ``file``: for errors.
    """

    layer: str
    form: str
    shape: tuple[int, int]
    parts: Mapping[str, TensorEntry]
    file: str
    scheme: WeightScheme | None = None
    format: str = ""
    dense: bool = True

    @property
    def name(self) -> str:
        """Name that the float weight would have."""
        return f"{self.layer}.{WEIGHT}"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(entry.nbytes for entry in self.parts.values())

    def error(self, part: str, problem: str) -> ContainerError:
        """Return the error of a tensor."""
        return ContainerError(f"{self.file}: tensor {shown(f'{self.layer}.{part}')}: {problem}")


def group_tensors(
    entries: Iterable[TensorEntry], integers: Callable[[str], tuple[int, ...]], file: str
) -> tuple[dict[str, Layout], list[str]]:
    """Return the layouts of packed weights, by the names of the float weights, and the names of scales of activations.

    ``integers``: values of a small tensor of integers. Raises ContainerError naming a tensor whose dtype or shape is
    not one of a packed weight.
    """
    layers: dict[str, dict[str, TensorEntry]] = {}
    activations = []
    for entry in entries:
        layer, _, part = entry.name.rpartition(".")
        if part in _OF_WEIGHT or part == WEIGHT:
            layers.setdefault(layer, {})[part] = entry
        elif part in _OF_ACTIVATIONS:
            activations.append(entry.name)
    layouts = {}
    for layer, parts in layers.items():
        if parts.keys() == {WEIGHT}:
            continue
        if PACKED not in parts and WEIGHT in parts and parts[WEIGHT].dtype in _FLOATS:
            activations += [entry.name for part, entry in parts.items() if part != WEIGHT]  # of a weight not packed yet
            continue
        layout = _layout(layer, parts, integers, file)
        layouts[layout.name] = layout
    return layouts, activations


def settle(layout: Layout, scheme: WeightScheme, stated: str, version: str | None) -> Layout:
    """Return a layout with its scheme, its parts checked. Raises ContainerError naming tensor and field.

    ``stated``: the format by the configuration. ``version``: of compressed-tensors, where words may be read both ways.
    """
    rows, columns = layout.shape
    expected = _OF_FORM[layout.form]
    part = PACKED if PACKED in layout.parts else WEIGHT
    if stated not in (*expected, "mixed-precision", "dense"):
        raise layout.error(part, f"of {' or '.join(expected)}, by the configuration {stated}")
    kind = "int" if layout.form in (WORDS, BYTES) else "float"
    if scheme.kind != kind or scheme.bits not in _BITS.get(layout.form, range(1, 9)):
        raise layout.error(part, f"of {layout.form}; by the configuration the weight is {scheme}")
    if layout.form in (MXFP4, MXFP6, MXFP8, NVFP4):
        wanted = 16 if layout.form == NVFP4 else 32
        if scheme.group_size != wanted:
            raise layout.error(SCALE, f"of {layout.form}; group_size is {scheme.group_size}, expected {wanted}")
    dense = layout.form != WORDS or _is_dense(layout, scheme.bits, version)
    _check(layout, SCALE, _SCALES.get(layout.form, _FLOATS), [scheme.scale_shape(rows, columns)])
    if SHAPE in layout.parts and layout.form != WORDS:
        raise layout.error(SHAPE, f"of {layout.form}, whose shape is that of the codes")
    if layout.form == NVFP4:
        if GLOBAL in layout.parts:
            _check(layout, GLOBAL, _FLOATS, [(1,)])
    elif GLOBAL in layout.parts:
        raise layout.error(GLOBAL, f"of {layout.form}, which has none")
    if ORDER in layout.parts:
        _check(layout, ORDER, ("int32", "int64"), [(columns,)])
    _check_zeros(layout, scheme, dense)
    return Layout(layout.layer, layout.form, layout.shape, layout.parts, layout.file, scheme, stated, dense)


def version_is_dense(version: str | None) -> bool:
    """Whether a release of compressed-tensors packs words without gaps: 0.18 and later, and where none is named."""
    numbers = (version or "").split(".")[:2]
    return not all(number.isdecimal() for number in numbers) or [int(number) for number in numbers] >= [0, 18]


def read_integers(path: Path, entry: TensorEntry) -> tuple[int, ...]:
    """Return the values of a small tensor of integers in a file. Raises ContainerError."""
    sizes = {"int64": 8, "int32": 4}
    if entry.dtype not in sizes or math.prod(entry.shape) > 8:
        raise ContainerError(
            f"{path}: tensor {shown(entry.name)}: {entry.dtype} {list(entry.shape)}; accepted are up to 8 integers"
        )
    data, size = container.plain_bytes(path, entry.name), sizes[entry.dtype]
    return tuple(int.from_bytes(data[at : at + size], "little", signed=True) for at in range(0, len(data), size))


def word_count(count: int, bits: int, *, dense: bool) -> int:
    """Return the words of 32 bits that ``count`` codes take: without gaps, or as releases before 0.18 packed them."""
    return -(-count * bits // 32) if dense else -(-count // (32 // bits))


def _layout(
    layer: str, parts: Mapping[str, TensorEntry], integers: Callable[[str], tuple[int, ...]], file: str
) -> Layout:
    first = Layout(layer, "", (0, 0), parts, file)
    codes = parts.get(PACKED, parts.get(WEIGHT))
    if codes is None:
        raise first.error(next(iter(parts)), "no weight is beside it")
    if PACKED in parts and WEIGHT in parts:
        raise first.error(PACKED, f"{WEIGHT} is beside it; keep one of them")
    part = PACKED if PACKED in parts else WEIGHT
    if len(codes.shape) != 2:
        raise first.error(part, f"shape {list(codes.shape)}; read are matrices")
    if SCALE not in parts:
        raise first.error(part, f"no {SCALE} is beside it")
    rows, width = codes.shape
    form, shape = _form(first, codes.dtype, part), (rows, width)
    if form == WORDS:
        if SHAPE not in parts:
            raise first.error(part, f"no {SHAPE} is beside it")
        stated = integers(parts[SHAPE].name)
        if len(stated) != 2 or stated[0] != rows or not 0 <= stated[1] < _MOST:
            raise first.error(SHAPE, f"{shown(list(stated))}; {part} is {[rows, width]}")
        shape = rows, stated[1]
    elif form in (NVFP4, MXFP4):
        shape = rows, 2 * width
    elif form == MXFP6:
        if width % 3:
            raise first.error(part, f"shape {[rows, width]}; of 6 bits a row has a multiple of 3 bytes")
        shape = rows, 4 * width // 3
    return Layout(layer, form, shape, parts, file)


def _form(layout: Layout, dtype: str, part: str) -> str:
    scale = layout.parts[SCALE]
    is_shared = scale.dtype in _SCALES[MXFP4]
    if part == WEIGHT:
        forms = {"int8": BYTES, "float8_e4m3fn": MXFP8 if is_shared else FLOATS}
        if dtype not in forms:
            raise layout.error(part, f"{dtype} with {SCALE} beside it; read are int8 and float8_e4m3fn")
        return forms[dtype]
    if dtype == "int32":
        return WORDS
    if dtype != "uint8":
        raise layout.error(part, f"{dtype}; read are int32 and uint8")
    if not is_shared:
        return NVFP4
    width, groups = layout.parts[PACKED].shape[1], scale.shape[-1] if scale.shape else 0
    return MXFP6 if width == 24 * groups and groups else MXFP4


def _check(layout: Layout, part: str, dtypes: Iterable[str], shapes: list[tuple[int, ...]]) -> None:
    entry = layout.parts[part]
    shape = tuple(entry.shape)
    is_single = shapes == [(1,)] and shape in ((), (1, 1))
    if entry.dtype not in dtypes or (shape not in shapes and not is_single):
        accepted = " or ".join(str(list(shape)) for shape in shapes)
        raise layout.error(part, f"{entry.dtype} {list(shape)}; expected is {', '.join(dtypes)} {accepted}")


def _is_dense(layout: Layout, bits: int, version: str | None) -> bool:
    width, columns = layout.parts[PACKED].shape[1], layout.shape[1]
    sizes = {dense: word_count(columns, bits, dense=dense) for dense in (True, False)}
    if width not in sizes.values():
        raise layout.error(
            PACKED,
            f"{width} words a row; {columns} codes of {bits} bits are {sizes[True]}, before 0.18 {sizes[False]}",
        )
    return version_is_dense(version) if sizes[True] == sizes[False] else width == sizes[True]


def _check_zeros(layout: Layout, scheme: WeightScheme, dense: bool) -> None:
    """Refuse zero points of other sizes; those of a symmetric weight are 0, in whatever form."""
    if scheme.symmetric:
        return
    if ZERO not in layout.parts:
        part = PACKED if PACKED in layout.parts else WEIGHT
        raise layout.error(part, f"no {ZERO} is beside it, and symmetric is false")
    rows, columns = layout.shape
    shape = scheme.scale_shape(rows, columns)
    if layout.form == WORDS and scheme.strategy in ("group", "channel"):
        _check(layout, ZERO, ("int32",), [(word_count(rows, scheme.bits, dense=dense), shape[1])])
    else:
        _check(layout, ZERO, ("int8",), [shape])
