"""Values that no argument expects: of wrong kinds, empty, extreme, of other devices, and texts that no file holds."""

import math
from pathlib import Path

import numpy as np
import torch


class NoRepr:
    """An object whose text is an error: a message about it must not be one."""

    def __repr__(self):
        raise ZeroDivisionError("no text")

    __str__ = __repr__


class Anything:
    """A class that is called with anything."""

    def __init__(self, *_, **__):
        pass


def some(folder: Path) -> list:
    """A handful, for calls that take long where they are right."""
    return [None, -1, math.nan, "\ud800", [None], NoRepr(), torch.ones(3, device="meta")]


def few(folder: Path) -> list:
    """One value of every class of faults; new ones at every call, for a function may change or use up what it is given."""
    return [
        None, True, -1, 0, 2**70, math.nan, math.inf, "", "\ud800", "a\0b", b"int8", [], {}, [None], {1: object()},
        NoRepr(), Anything, torch.empty(0), torch.ones(3, device="meta"), np.array(["x"]), folder / "full",
    ]  # fmt: skip


def many(folder: Path) -> list:
    """All of them."""
    return [
        *few(folder), False, 1, -(2**70), 2**63, 10**400, 1e308, -math.inf, -0.5, 0.5, 1j, "x", "日本", "x" * 5000, "int8",
        b"\xff\xfe", bytearray(3), (), [[]], ["\ud800"], ["x", "x"], [math.nan], {"a": NoRepr()}, {"\ud800": 1}, set(), object(), print,
        lambda *_, **__: None, iter(()), iter([object()]), range(3), torch.ones(2, 3, dtype=torch.int8),
        torch.full((2, 3), math.nan), torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 3), torch.nn.Linear(2, 2, device="meta"),
        torch.nn.Identity(), np.ones(3), np.float32("nan"), np.int64(-3), torch.float32, torch.device("meta"), folder / "missing" / "x",
        str(folder / "junk"), folder / "junk", Path("a\0b"), Path("\ud800"), Exception("x"), ...,
    ]  # fmt: skip
