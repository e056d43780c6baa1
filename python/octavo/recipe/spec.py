"""Spec and LayerPlan, the result of a recipe: the format of each tensor of a layer, and the choice of its scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.errors import FormatError
from octavo.tensors.formats import Format

ROLES = ("weight", "input", "output", "bias")
METHODS = ("minmax", "quantile", "mse", "kl", "lsq", "gptq", "hqq")
BLOCK_RULES = ("floor", "ceil", "mse")

_QUANTILE = 0.999


@dataclass(frozen=True)
class Calibration:
    """A method to choose scales from data.

    ``minmax``, ``quantile`` (``argument``: the share of magnitudes kept, 0 to 1), ``mse`` (least squared error), ``kl``
    (least relative entropy of histograms), ``lsq`` (learned in training, started from ``mse``); for weights also
    ``gptq`` (error feedback over calibration inputs) and ``hqq`` (half-quadratic, no data).
    Raises FormatError for another method or argument.
    """

    method: str
    argument: float | None = None

    def __post_init__(self) -> None:
        """Check the method and its argument."""
        if self.method not in METHODS:
            raise FormatError(f"unknown calibration {self.method!r}; accepted are {', '.join(METHODS)}")
        if self.method == "quantile":
            share = _QUANTILE if self.argument is None else self.argument
            if not 0 < share <= 1:
                raise FormatError(f"calibration 'quantile:{share:g}': the share lies above 0 and up to 1")
            object.__setattr__(self, "argument", float(share))
        elif self.argument is not None:
            raise FormatError(f"calibration '{self.method}' takes no argument, got {self.argument:g}")

    def __str__(self) -> str:
        """Return the text of the calibration, such as ``quantile:0.999``."""
        if self.argument is None:
            return self.method
        short = f"{self.argument:g}"
        return f"{self.method}:{short if float(short) == self.argument else repr(self.argument)}"


class _Int32(Format):
    """The integers of an accumulator: a bias of 32 bits whose scale is that of the products, ``s_x * s_w``.

    No codec writes it: the scale belongs to the input and the weight.
    """

    __slots__ = ()

    def __init__(self) -> None:
        """Take the name; the core does not know it."""
        object.__setattr__(self, "core", None)
        object.__setattr__(self, "text", "int32")

    def __reduce__(self) -> str:
        """Pickle as the one there is."""
        return "INT32"

    @property
    def family(self) -> str:
        """``int``."""
        return "int"

    @property
    def width(self) -> int:
        """32."""
        return 32

    @property
    def bits(self) -> float:
        """32."""
        return 32.0

    @property
    def granularity(self) -> str:
        """``none``: it has no scale of its own."""
        return "none"

    @property
    def block(self) -> None:
        """None."""
        return None

    @property
    def is_block(self) -> bool:
        """False."""
        return False

    @property
    def scale_type(self) -> None:
        """None."""
        return None

    def nbytes(self, shape: tuple[int, ...], axis: int = -1) -> int:
        """Four bytes an element."""
        return 4 * math.prod(shape)


INT32 = _Int32()
"""The format of a bias on the integer path; the text ``int32`` in recipes."""


@dataclass(frozen=True)
class Spec:
    """The format of one tensor and how its scales are chosen.

    ``calibration`` None: from the tensor itself, each time, by the codec's own rule (dynamic). ``scale``: the rule of
    block scales, ``floor``, ``ceil`` or ``mse``.
    """

    format: Format
    calibration: Calibration | None = None
    scale: str = "floor"

    def __post_init__(self) -> None:
        """Check the rule of block scales."""
        if self.scale not in BLOCK_RULES:
            raise FormatError(f"unknown scale rule {self.scale!r}; accepted are {', '.join(BLOCK_RULES)}")
        if self.scale != "floor" and not self.format.is_block:
            raise FormatError(f"'{self.format}' has no block scale for the rule {self.scale!r} to choose")

    def __str__(self) -> str:
        """Return ``FORMAT``, ``FORMAT@CALIBRATION`` or ``FORMAT@RULE``."""
        choice = self.calibration or (None if self.scale == "floor" else self.scale)
        return str(self.format) if choice is None else f"{self.format}@{choice}"


@dataclass(frozen=True)
class LayerPlan:
    """The specs of the tensors of one module; None where a tensor stays as it is."""

    weight: Spec | None = None
    input: Spec | None = None
    output: Spec | None = None
    bias: Spec | None = None

    def __bool__(self) -> bool:
        """Tell whether any tensor is quantized."""
        return any(getattr(self, role) is not None for role in ROLES)
