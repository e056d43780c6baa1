"""Arguments are what their annotations say; the error names function, argument, value and what is accepted."""

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import octavo
import pytest
import torch
from octavo.errors import DataError, DTypeError, NonFiniteError, SettingError
from octavo.storage.arguments import check, check_fields, checks_arguments, is_finite
from torch import nn

FITS = [
    (int, 3), (int, np.int64(3)), (float, 3), (float, np.float32(0.5)), (float, float("inf")), (str, "日本"), (bool, True), (None, None),
    (int | None, None), (str | os.PathLike[str], "a"), (str | os.PathLike[str], Path("a")), (str | os.PathLike[str], os.fsdecode(b"\xff")),
    (Literal["a", 1], "a"), (tuple[int, ...], (1, 2)), (tuple[int, ...], [1, 2]), (tuple[int, str], (1, "a")), (Sequence[str], ["a"]),
    (Iterable[str], iter(["a"])), (Iterable[Any], torch.ones(2)), (Mapping[str, int], {"a": 1}), (Callable[[int], int], abs),
    (nn.Module, nn.Identity()), (type[Any], int), (Any, object()), (float | Mapping[str, float], {"a": 0.5}),
]  # fmt: skip

FAULTS = [
    (int, True, DTypeError, "True; accepted is a whole number"),
    (int, 1.0, DTypeError, "1.0; accepted is a whole number"),
    (int, 2**63, SettingError, "accepted are -9223372036854775808 to"),
    (float, "1", DTypeError, "'1'; accepted is a number"),
    (float, float("nan"), NonFiniteError, "accepted are numbers"),
    (float, 10**400, SettingError, "float64"),
    (float, torch.ones(()), DTypeError, "a Tensor; accepted is a number"),
    (str, b"a", DTypeError, "b'a'; accepted is a text"),
    (str, "a\ud800", DataError, "column 2: half of a surrogate pair"),
    (int | None, "a", DTypeError, "'a'; accepted is a whole number or None"),
    (str | os.PathLike[str], "a\0b", DataError, "a path holds no NUL"),
    (str | os.PathLike[str], Path("\ud800"), DataError, "half of a surrogate pair"),
    (str | os.PathLike[str], 3, DTypeError, "3; accepted is a text or a path"),
    (Literal["a", "b"], "c", SettingError, "'c'; accepted are 'a', 'b'"),
    (Literal["a", "b"], ["a"], SettingError, "a list; accepted are 'a', 'b'"),
    (Sequence[str], "abc", DTypeError, "'abc'; accepted is a sequence of texts"),
    (Sequence[str], ["a", 3], DTypeError, "an item of f: x is 3; accepted is a text"),
    (tuple[int, str], (1,), DTypeError, "holds 1 values"),
    (Mapping[str, int], {"a": "b"}, DTypeError, r"f: x\['a'\] is 'b'; accepted is a whole number"),
    (Mapping[str, int], {1: 1}, DTypeError, "a key of f: x is 1"),
    (Mapping[str, float], 1, DTypeError, "1; accepted is a mapping of texts to numbers"),
    (Iterable[str], {1: 1}, DTypeError, "an item of f: x is 1"),
    (Callable[[int], int], 3, DTypeError, "3; accepted is a function"),
    (nn.Module, "bert", DTypeError, "'bert'; accepted is a torch.nn.Module"),
    (float | Mapping[str, float], {"a": "b"}, DTypeError, r"f: x\['a'\] is 'b'; accepted is a number"),
]


@pytest.mark.parametrize(("kind", "value"), FITS)
def test_what_an_annotation_says_is_accepted(kind, value):
    check(value, kind, "f: x")


@pytest.mark.parametrize(("kind", "value", "error", "told"), FAULTS)
def test_anything_else_is_refused(kind, value, error, told):
    with pytest.raises(error, match=told):
        check(value, kind, "f: x")


@checks_arguments
def function(number: int, /, *rest: str, text: str = None, **options: float) -> tuple:  # noqa: RUF013 - its default is right
    """Its docstring."""
    return number, rest, text, options


def test_the_function_is_as_it_was():
    assert function(1, "a", text="b", more=0.5) == (1, ("a",), "b", {"more": 0.5})
    assert function(1, text=None) == (1, (), None, {})
    assert function.__doc__ == "Its docstring." and list(inspect.signature(function).parameters) == [
        "number",
        "rest",
        "text",
        "options",
    ]


@pytest.mark.parametrize(
    ("call", "told"),
    [(lambda: function("1"), "function: number is '1'"), (lambda: function(1, 2), "function: rest is 2"),
     (lambda: function(1, text=2), "function: text is 2"), (lambda: function(1, more="a"), "function: more is 'a'")],
)  # fmt: skip
def test_every_kind_of_parameter_is_checked_and_named(call, told):
    with pytest.raises(DTypeError, match=told):
        call()


def test_missing_arguments_are_told_as_python_tells_them():
    with pytest.raises(TypeError, match=r"function\(\) missing 1 required positional argument: 'number'"):
        function()


@dataclass(frozen=True)
class Fields:
    number: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self):
        check_fields(self)


def test_fields_of_dataclasses_are_checked():
    assert Fields(1, ("a",)).number == 1
    with pytest.raises(DTypeError, match="Fields: number is 'a'; accepted is a whole number"):
        Fields("a")
    with pytest.raises(DTypeError, match="an item of Fields: names is 1"):
        Fields(names=(1,))


def test_numbers_that_float64_holds_are_finite():
    assert all(map(is_finite, (0, -1.5, np.float32(2), 10**300)))
    assert not any(map(is_finite, (True, None, "1", 1j, float("nan"), float("inf"), np.float32("inf"), 10**400)))


def test_warnings_name_the_line_of_the_caller():
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 4))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        octavo.quantize_model(model, "type:Linear int8", progress=False)
    assert [warning.filename for warning in seen] == [__file__]


def test_importing_the_package_reads_no_annotations():
    code = "import octavo, sys; print('octavo.storage.arguments' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
