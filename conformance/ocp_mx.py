"""The MX formats of OCP, written down for reading: every block by itself, one operation after another.

OCP Microscaling Formats (MX) v1.0: section 5 has the formats, section 6.3 the conversion. Element types are cast by
ml_dtypes, which knows nothing of blocks; numbers are powers of two and exact multiples, so float64 rounds nothing else.

``python conformance/ocp_mx.py`` converts the recorded inputs again and writes ``vectors/ocp_mx.safetensors``.
"""

from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

VECTORS = Path(__file__).parent / "vectors" / "ocp_mx.safetensors"
BLOCK = 32
E8M0_BIAS = 127


class Element(NamedTuple):
    """An element type: the exponent of its largest number, that number, and its type in ml_dtypes (None: MXINT8)."""

    emax: int
    largest: float
    dtype: type | None


ELEMENTS = {
    "mxfp8e5m2": Element(15, 57344.0, ml_dtypes.float8_e5m2),
    "mxfp8e4m3": Element(8, 448.0, ml_dtypes.float8_e4m3fn),
    "mxfp6e3m2": Element(4, 28.0, ml_dtypes.float6_e3m2fn),
    "mxfp6e2m3": Element(2, 7.5, ml_dtypes.float6_e2m3fn),
    "mxfp4": Element(2, 6.0, ml_dtypes.float4_e2m1fn),
    "mxint8": Element(0, 127 / 64, None),
}


class Converted(NamedTuple):
    """Scale codes, one a block; element codes, one a byte; and the values that both stand for."""

    scales: np.ndarray
    codes: np.ndarray
    values: np.ndarray


def convert(x: np.ndarray, name: str) -> Converted:
    """Convert finite float32 values, whose last axis has whole blocks of 32."""
    blocks = [convert_block(block, ELEMENTS[name]) for block in x.reshape(-1, BLOCK).astype(np.float64)]
    scales, codes, values = zip(*blocks, strict=True)
    return Converted(
        np.array(scales, np.uint8),
        np.concatenate(codes).reshape(x.shape),
        np.concatenate(values).astype(np.float32).reshape(x.shape),
    )


def convert_block(block: np.ndarray, element: Element) -> Converted:
    """Section 6.3: the scale is the largest power of two in the block over that of the element type."""
    largest = np.abs(block).max()
    exponent = -E8M0_BIAS  # of a block of zeros
    if largest > 0:
        exponent = max(int(np.frexp(largest)[1]) - 1 - element.emax, -E8M0_BIAS)
    numbers = np.clip(np.ldexp(block, -exponent), -element.largest, element.largest)  # saturating
    if element.dtype is None:
        integers = np.rint(numbers * 64) + 0.0  # ties to even; two's complement has one zero
        codes, rounded = integers.astype(np.int8).view(np.uint8), integers / 64
    else:
        cast = numbers.astype(np.float32).astype(element.dtype)  # ties to even, subnormals kept
        codes, rounded = cast.view(np.uint8), cast.astype(np.float64)
    return Converted(exponent + E8M0_BIAS, codes, np.ldexp(rounded, exponent))


def recorded() -> dict[str, np.ndarray]:
    """The recorded vectors: ``inputs.CASE``, and ``FORMAT.CASE.scales``, ``.codes`` and ``.values``."""
    return load_file(VECTORS)


def recorded_cases() -> list[str]:
    """Names of the recorded inputs."""
    return [name.removeprefix("inputs.") for name in recorded() if name.startswith("inputs.")]


def record() -> None:
    """Convert the recorded inputs again."""
    cases = recorded_cases()
    tensors = {name: x for name, x in recorded().items() if name.startswith("inputs.")}
    for name in ELEMENTS:
        for case in cases:
            for part, array in convert(tensors[f"inputs.{case}"], name)._asdict().items():
                tensors[f"{name}.{case}.{part}"] = array
    save_file(tensors, VECTORS)


if __name__ == "__main__":
    record()
