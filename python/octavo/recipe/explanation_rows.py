"""The rows of an explanation: tensors that a rule reached, parameters that none did, and totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

UNNAMED, KEPT = "no rule names it", "kept by a rule"
"""Why a parameter that could have a format stays as it is."""


@dataclass(frozen=True)
class Row:
    """A tensor that a rule reached. ``format`` None: it is kept. ``bits`` per element, scales included.

    ``calibration``: method, rule of block scales, or ``dynamic``: scales from each tensor that comes. ``rule`` decided,
    ``overrode`` are the rules it won over. ``tied_to``: the tensor that the rule matched, where both are one parameter.
    ``last_group``: elements of the last group of each row, where the format's groups do not divide it.
    """

    module: str
    role: str
    shape: tuple[int, ...] | None
    format: str | None
    bits: float | None
    calibration: str | None
    rule: str
    overrode: tuple[str, ...] = ()
    tied_to: str | None = None
    last_group: int | None = None


@dataclass(frozen=True)
class Unreached:
    """A parameter that stays as it is because no rule matches it, or none can."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


@dataclass(frozen=True)
class Totals:
    """Sizes of all parameters, each counted once however often it is shared. Bits are per element."""

    parameters: int
    quantized: int
    bytes_before: int
    bytes_after: int
    bits_of_quantized: float | None
    bits_of_all: float | None
    inputs: int
    outputs: int


class Explained(Protocol):
    """What tables are made of."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The tensors that a rule reached."""
        ...

    @property
    def unreached(self) -> tuple[Unreached, ...]:
        """The parameters that no rule reached."""
        ...

    @property
    def totals(self) -> Totals:
        """Sizes of all parameters."""
        ...

    @property
    def tied(self) -> tuple[str, ...]:
        """Sentences about weights that layers share."""
        ...

    @property
    def without_model(self) -> str | None:
        """Why tensors alone are packed, where a model was expected."""
        ...
