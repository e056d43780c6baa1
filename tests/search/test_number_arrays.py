"""Numbers of tables: whole ones from any array that holds them, and a refusal that names the value."""

import numpy as np
import pytest
from octavo.errors import ConfigError, DataError
from octavo.search.number_arrays import number_array


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "float32", "float64", "bool"])
def test_whole_numbers_of_every_dtype_are_taken(dtype):
    given = np.ones((2, 3), dtype)
    found = number_array(given, "nbytes", whole=True)
    assert found.dtype == np.int64 and (found == 1).all() and not np.shares_memory(found, given)


@pytest.mark.parametrize(
    ("value", "named"),
    [(0.5, "0.5"), (float("nan"), "nan"), (float("inf"), "inf"), (-1e300, "-1e"), (2.0**63, "9.2"), (2**63, "92233")],
)
def test_other_numbers_are_refused_by_value(value, named):
    with pytest.raises(DataError, match=rf"nbytes has the value {named}.*whole numbers of 64 bits"):
        number_array([[value]], "nbytes", whole=True)


@pytest.mark.parametrize("given", [["1"], [2**64], [[1], [1, 2]], [1j], [None]])
def test_what_holds_no_numbers_is_refused(given):
    with pytest.raises(ConfigError, match="loss is a list"):
        number_array(given, "loss", whole=True, error=ConfigError)
