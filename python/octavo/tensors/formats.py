"""Format: what a number may be. Thin over ``octavo._core``, where formats are parsed and defined."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from octavo import _core
from octavo.errors import FormatError, ShapeError
from octavo.storage.reading import shown
from octavo.tensors import foreign_names


@lru_cache(maxsize=4096)
def core(text: str) -> _core.Format:
    """Return the core's format of a text, parsed once. Raises FormatError."""
    try:
        return _core.Format(text)
    except UnicodeEncodeError:
        raise FormatError(f"{text!a} is no format: half of a surrogate pair, which is no character") from None
    except FormatError:
        if near := foreign_names.suggestion(text):
            raise FormatError(f"unknown format '{text}'; did you mean {near}?") from None
        raise


class Format:
    """A number format: an element and the number of elements that share a scale.

    ``Format("mxint8")``, ``Format("int4:g32")``, ... Immutable, comparable and hashable; ``Format(str(f)) == f``.
    The grammar is section 1 of FORMATS.md, the arithmetic section 3. Raises FormatError naming the part that is wrong
    and the nearest valid spelling.
    """

    __slots__ = ("core", "text")

    core: _core.Format
    text: str

    def __init__(self, text: str) -> None:
        """Parse ``text``."""
        if not isinstance(text, str):
            raise FormatError(f"a format is a text such as 'mxint8', got {type(text).__name__}")
        parsed = core(text)
        object.__setattr__(self, "core", parsed)
        object.__setattr__(self, "text", str(parsed))

    @staticmethod
    def parse(text: Format | str) -> Format:
        """Return the format of a text; a Format is returned as it is."""
        return text if isinstance(text, Format) else Format(text)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: formats are immutable."""
        raise AttributeError(f"Format is immutable; cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        """Refuse: formats are immutable."""
        raise AttributeError(f"Format is immutable; cannot delete {name!r}")

    def __str__(self) -> str:
        """Return the shortest text of the format."""
        return self.text

    def __repr__(self) -> str:
        """Return ``Format('mxint8')``."""
        return f"Format({self.text!r})"

    def __eq__(self, other: object) -> bool:
        """Compare with another Format."""
        return isinstance(other, Format) and other.text == self.text

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(("octavo.Format", self.text))

    def __reduce__(self) -> str | tuple[type[Format], tuple[str]]:
        """Pickle as the text."""
        return Format, (self.text,)

    @property
    def family(self) -> str:
        """Family name, such as ``mxint``, ``minifloat`` or ``bfp``."""
        return self.core.family

    @property
    def width(self) -> int:
        """Bits of one code, without scales."""
        return self.core.width

    @property
    def bits(self) -> float:
        """Bits per element with the scales' share, in the limit of long rows."""
        return self.core.bits

    def bits_per_element(self, k: int) -> float:
        """Bits per element with the scales' share, for a row (``:tensor``: a tensor) of ``k`` elements.

        Raises ShapeError for what is no number of elements.
        """
        try:
            return self.core.bits_per_element(k)
        except (OverflowError, TypeError) as error:
            raise ShapeError(
                f"'{self}': a row of {shown(k)} elements; accepted are whole numbers of at least 0"
            ) from error

    def nbytes(self, shape: tuple[int, ...], axis: int = -1) -> int:
        """Bytes of a tensor of this shape: codes, scales, zero points, padding. Raises ShapeError."""
        try:
            return self.core.nbytes(list(shape), axis)
        except (OverflowError, TypeError) as error:
            raise ShapeError(
                f"'{self}': shape {shown(shape)} along axis {shown(axis)}; accepted are whole numbers from 0 that fit "
                "memory"
            ) from error

    @property
    def block(self) -> int | None:
        """Elements that share a scale; None for none, a row or a tensor (see ``granularity``)."""
        return self.core.block

    @property
    def granularity(self) -> str:
        """What shares a scale: ``none``, ``tensor``, ``channel`` (a row along the axis) or ``block``."""
        return self.core.granularity

    @property
    def scale_type(self) -> str | None:
        """Storage type of a scale: ``float32``, ``float16``, ``e8m0``, ``e4m3``, ``int8`` (fraction bits) or None."""
        return self.core.scale_type

    @property
    def is_block(self) -> bool:
        """True where the scale rules ``ceil`` and ``mse`` apply."""
        return self.core.is_block

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest finite value at scale 1."""
        return self.core.range

    @property
    def smallest(self) -> float:
        """Smallest positive value at scale 1."""
        return self.core.smallest

    def values(self) -> list[float]:
        """Every value an encoder writes at scale 1, ascending. Raises FormatError above 16 bits."""
        return [value for _, value in self.core.values()]

    def codes(self) -> list[tuple[int, float]]:
        """Every ``(code, value)`` an encoder writes at scale 1, by value. Raises FormatError above 16 bits."""
        return self.core.values()


def formats() -> list[Format]:
    """List one or more formats of every family; the grammar has many more (FORMATS.md section 1)."""
    return [Format(text) for text in _core.formats()]


def parse_formats(text: str, read: Callable[[str], Any] = Format) -> list[Any]:
    """Read formats separated by commas, such as ``mxint8,fixed8:channel,mse,nf4``: options keep their comma.

    ``read`` reads one: Format, or what reads more than a format. Raises FormatError naming the one that is wrong.
    """
    values: list[Any] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            continue
        if values and ":" in str(values[-1]):
            try:
                values[-1] = read(f"{values[-1]},{piece}")
                continue
            except FormatError:
                pass
        values.append(read(piece))
    if not values:
        raise FormatError("no format given; give one or more, separated by commas")
    return list(dict.fromkeys(values))
