"""The recorded vectors are those of the definition that stands beside them, bit for bit."""

import ml_dtypes
import numpy as np
import ocp_mx
import pytest


@pytest.mark.parametrize("name", ocp_mx.ELEMENTS)
def test_the_recorded_vectors_are_those_of_the_definition(name):
    vectors = ocp_mx.recorded()
    assert len(ocp_mx.recorded_cases()) == 7 and len(vectors) == 7 * (1 + 3 * len(ocp_mx.ELEMENTS))
    for case in ocp_mx.recorded_cases():
        for part, array in ocp_mx.convert(vectors[f"inputs.{case}"], name)._asdict().items():
            wanted = vectors[f"{name}.{case}.{part}"]
            assert array.dtype == wanted.dtype and array.shape == wanted.shape
            assert np.array_equal(array.view(np.uint8), wanted.view(np.uint8)), f"{case}: {part}"


def test_every_number_of_an_element_converts_to_itself():
    """With the largest number in its block, which fixes the scale at 1."""
    for name, element in ocp_mx.ELEMENTS.items():
        if element.dtype is None:
            numbers = np.arange(-127, 128) / 64
        else:
            codes = np.arange(2 ** ml_dtypes.finfo(element.dtype).bits, dtype=np.uint8)
            numbers = codes.view(element.dtype).astype(np.float32)
        numbers = numbers[np.isfinite(numbers)]
        for start in range(0, len(numbers), ocp_mx.BLOCK - 1):
            block = np.zeros(ocp_mx.BLOCK, np.float32)
            part = numbers[start : start + ocp_mx.BLOCK - 1]
            block[: len(part)], block[-1] = part, element.largest
            assert np.array_equal(ocp_mx.convert(block, name).values, block), name
