"""MASE's settings of one tensor, as a number format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import FormatError
from octavo.tensors.formats import Format

_MXFP = {(4, 3): "mxfp8e4m3", (5, 2): "mxfp8e5m2", (3, 2): "mxfp6e3m2", (2, 3): "mxfp6e2m3", (2, 1): "mxfp4"}


@dataclass
class Settings:
    """The keys of one role (``data_in_width`` is ``width`` of ``data_in``), and what reading them has shown.

    ``where`` names the entry in errors, as in ``linear: data_in``; ``trains``: ``binary_training`` of the entry;
    ``used``: keys that were read; ``notes``: where MASE and Octavo part.
    """

    where: str
    values: Mapping[str, Any]
    trains: bool = True
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def role(self) -> str:
        """``data_in``, ``weight``, ``bias`` or ``data_out``."""
        return self.where.rpartition(": ")[2]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value; None, "None" and "NA" are no value."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value in (None, "None", "none", "NA") else value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a value that is an integer. Raises FormatError."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            told = "missing" if value is None else repr(value)
            hint = "; a list is a space to search, not a setting" if isinstance(value, list | tuple) else ""
            raise FormatError(f"{self.where}_{key} is {told}; accepted is an integer{hint}")
        return value


def read_format(name: str, settings: Settings) -> Format | None:
    """Return the format of MASE's scheme ``name`` with these settings; None where MASE's layer leaves the tensor.

    Raises FormatError naming scheme and key.
    """
    if name not in SCHEMES:
        raise FormatError(f"{settings.where}: scheme {name!r} has no format; accepted are {', '.join(SCHEMES)}")
    text = SCHEMES[name](settings)
    if text is None:
        return None
    try:
        return Format(text)
    except FormatError as error:
        raise FormatError(f"{settings.where}: {name!r} would be '{text}': {error}") from None


def _integer(s: Settings) -> str:
    width = s.integer("width")
    if s.get("frac_width") is None:
        s.notes.append("a fraction that is not given is half the width in MASE")
    s.notes.append(
        "the fraction is set by hand and zeroes whatever is smaller than half a step; 'fixed8' chooses it from the "
        "tensor (weights of a BERT at 8 bits: 37 dB, against 7 dB for 4 fraction bits)"
    )
    return f"fixed{width}.{s.integer('frac_width', width // 2)}"


def _floor(s: Settings) -> str:
    s.notes.append("rounding is to nearest; MASE's integer_floor rounds down")
    return _integer(s)


def _bias(s: Settings) -> str:
    return "" if s.get("exponent_bias") is None else f"b{s.integer('exponent_bias')}"


def _ieee(s: Settings) -> str:
    width, exponent = s.integer("width"), s.integer("exponent_width")
    s.notes.append("MASE does not carry where a mantissa rounds up to the next binade, and lets |x| <= 1e-8 pass")
    text = f"e{exponent}m{width - exponent - 1}{_bias(s)}"
    return f"{text}:finite" if text in ("e4m3", "e5m2") else text  # MASE knows no NaN and no infinity


def _denorm(s: Settings) -> str:
    s.notes.append("MASE clips where a mantissa rounds up to the next binade")
    return f"denorm{s.integer('width')}e{s.integer('exponent_width')}{_bias(s)}"


def _log(s: Settings) -> str:
    s.notes.append("MASE's log has no zero and rounds in the log domain")
    return f"log{s.integer('width')}{_bias(s)}"


def _block(s: Settings, key: str = "block_size") -> int:
    """Return the elements of a block along a row."""
    given = s.get(key)
    sizes = [given] if isinstance(given, int) else list(given or [])
    if not sizes or not all(isinstance(size, int) for size in sizes) or sizes[-1] < 1:
        raise FormatError(f"{s.where}_{key} is {given!r}; accepted are positive integers")
    if any(size != 1 for size in sizes[:-1]):
        s.notes.append(f"blocks run along rows only: {given} becomes {sizes[-1]}")
    return sizes[-1]


def _shared(s: Settings, key: str) -> None:
    if s.integer(key, 8) != 8:
        s.notes.append(f"the shared exponent has 8 bits, {key} is {s.integer(key)}")


def _block_fp(s: Settings) -> str:
    _shared(s, "exponent_width")
    if s.get("exponent_bias") is not None:
        s.notes.append("the shared exponent has no bias of its own")
    s.notes.append("MASE saturates a block whose largest magnitude is a power of two")
    return f"bfp{s.integer('width')}/{_block(s)}"


def _block_minifloat(s: Settings) -> str:
    _shared(s, "exponent_bias_width")
    s.notes.append("the shared bias of MASE's block_minifloat has the wrong sign, and no gradient")
    return f"bm{s.integer('width')}e{s.integer('exponent_width')}/{_block(s)}"


def _block_log(s: Settings) -> str:
    _shared(s, "exponent_bias_width")
    s.notes.append("MASE's block_log has no zero")
    return f"blog{s.integer('width')}/{_block(s)}"


def _mxint(s: Settings) -> str:
    s.notes.append("MASE's mxint lets blocks straddle rows and takes the exponent above, which costs half its range")
    return f"mxint{s.integer('width')}/{_block(s)}"


def _mxint_hardware(s: Settings) -> str:
    _shared(s, "exponent_width")
    s.notes.append("MASE's mxint_hardware rounds down")
    return f"mxint{s.integer('width')}/{_block(s, 'parallelism')}"


def _mxfp(s: Settings) -> str:
    bits = s.integer("exponent_width"), s.integer("frac_width")
    if bits not in _MXFP:
        raise FormatError(
            f"{s.where}: no OCP format has elements e{bits[0]}m{bits[1]}; those are {', '.join(_MXFP.values())}"
        )
    s.notes.append("MASE's mxfp loses carries and most subnormals, 4 to 11 dB")
    return f"{_MXFP[bits]}/{_block(s)}"


def _signs(s: Settings) -> None:
    """Read the keys of signs. Raises FormatError for zeros and ones."""
    for key in ("stochastic", "width", "frac_width"):
        s.get(key)
    if not s.get("bipolar", True):
        raise FormatError(f"{s.where}_bipolar is False: 0 and 1 are no format of Octavo; 'binary' has -a and +a")


def _binary(s: Settings) -> str:
    _signs(s)
    s.notes.append("MASE's binary has no scale; 'binary:channel' gives each row its mean magnitude")
    return "binary:unit"


def _binary_scaling(s: Settings) -> str | None:
    """Signs of inputs, weight and bias: of ``linearBinaryScaling`` the scale is commented out."""
    _signs(s)
    if not s.trains:
        s.notes.append("binary_training is False: MASE rounds nothing, it only clamps weights to -1..1")
        return None
    s.notes.append(
        "MASE's linear layer multiplies by no scale (its convolution has one for the weight, and rounds nothing else); "
        "'binary' gives the tensor its mean magnitude"
    )
    return "binary:unit"


def _binary_residual(s: Settings) -> str | None:
    """Signs of the weight times a scale that is learned; inputs as residual levels, two if nothing is said."""
    _signs(s)
    if s.role == "data_in":
        levels = s.integer("levels", 2)
        if not s.get("residual_sign", True):
            return None
        s.notes.append("MASE learns the magnitude of each residual level; here it is the mean of what is left")
        return f"binary{levels}" if levels > 1 else "binary"
    if s.role != "weight":
        s.notes.append("MASE leaves the bias of binary_residual as it is")
        return None
    if not s.trains:
        s.notes.append("binary_training is False: MASE does not round the weight, it clamps it to -1..1")
        return None
    s.notes.append("MASE learns the scale of the weight's signs; here it is their mean magnitude")
    return "binary"


def _ternary(s: Settings) -> str:
    for key in ("width", "mean", "median", "max"):
        s.get(key)
    return "ternary" if s.get("scaling_factor", True) else "ternary:unit"


SCHEMES: dict[str, Callable[[Settings], str | None]] = {
    "integer": _integer,
    "fixed": _integer,
    "integer_floor": _floor,
    "minifloat_ieee": _ieee,
    "minifloat_denorm": _denorm,
    "log": _log,
    "block_fp": _block_fp,
    "block_minifloat": _block_minifloat,
    "block_log": _block_log,
    "mxint": _mxint,
    "mxint_hardware": _mxint_hardware,
    "mxfp": _mxfp,
    "binary": _binary,
    "binary_scaling": _binary_scaling,
    "binary_residual": _binary_residual,
    "ternary": _ternary,
}
"""MASE's names of schemes, and the text of the format each stands for."""
