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
    """A number format: an element, and the number of elements that share a scale.

    Immutable, comparable and hashable; ``Format(str(f)) == f``.
    Source: FORMATS.md section 1 (grammar) and section 3 (arithmetic).

    Args:
        text: such as ``mxint8``, ``int4:g32``, ``e4m3`` or ``fixed8.4``.

    Raises:
        FormatError: names the part of the text that is wrong, and the nearest valid spelling.

    Example:
        >>> mxfp4 = octavo.Format("mxfp4")  # OCP MX 1.0: E2M1 elements, an E8M0 scale for each 32
        >>> mxfp4.values()
        [-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        >>> mxfp4.bits, mxfp4.block, mxfp4.scale_type
        (4.25, 32, 'e8m0')
        >>> octavo.Format("mxfp6e3m3")
        Traceback (most recent call last):
        octavo.errors.FormatError: unknown format 'mxfp6e3m3'; did you mean 'mxfp6e3m2'?
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
        """Return the format of a text; a Format is returned as it is.

        Args:
            text: a format or its text.

        Returns:
            The format.

        Raises:
            FormatError: as the class.

        Example:
            >>> octavo.Format.parse("int8:g32")
            Format('int8:g32')
        """
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

        Args:
            k: elements of the row, from 0.

        Returns:
            Bits; a short last block has a scale of its own.

        Raises:
            ShapeError: for anything else than a number of elements.

        Example:
            >>> int4 = octavo.Format("int4:g32")  # a float16 scale for each 32
            >>> int4.bits_per_element(64), int4.bits_per_element(33)
            (4.5, 4.96...)
        """
        try:
            return self.core.bits_per_element(k)
        except (OverflowError, TypeError) as error:
            raise ShapeError(
                f"'{self}': a row of {shown(k)} elements; accepted are whole numbers of at least 0"
            ) from error

    def nbytes(self, shape: tuple[int, ...], axis: int = -1) -> int:
        """Bytes of a tensor of this shape: codes, scales, zero points, padding.

        Args:
            shape: logical shape.
            axis: axis that rows, groups and blocks run along.

        Returns:
            Bytes in memory and on disk (FORMATS.md section 5).

        Raises:
            ShapeError: for a shape or axis that does not fit.

        Example:
            >>> octavo.Format("int4:g32").nbytes((4096, 4096))  # 4.5 bits an element
            9437184
        """
        try:
            return self.core.nbytes(list(shape), axis)
        except (OverflowError, TypeError) as error:
            raise ShapeError(
                f"'{self}': shape {shown(shape)} along axis {shown(axis)}; accepted are whole numbers from 0 that fit "
                "memory"
            ) from error

    @property
    def block(self) -> int | None:
        """Number of elements that share a scale; None for none, a row or a tensor (:attr:`granularity`)."""
        return self.core.block

    @property
    def granularity(self) -> str:
        """Elements that share a scale: ``none``, ``tensor``, ``channel`` (a row along the axis) or ``block``."""
        return self.core.granularity

    @property
    def scale_type(self) -> str | None:
        """Storage type of a scale, ``float32``, ``float16``, ``e8m0``, ``e4m3``, ``int8`` (fraction bits) or None."""
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
        """Every value an encoder writes at scale 1, ascending.

        Returns:
            The values, each once.

        Raises:
            FormatError: above 16 bits.

        Example:
            >>> octavo.Format("int3").values()
            [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
        """
        return [value for _, value in self.core.values()]

    def codes(self) -> list[tuple[int, float]]:
        """Every code an encoder writes at scale 1, and its value.

        Returns:
            Pairs ``(code, value)``, ascending by value.

        Raises:
            FormatError: above 16 bits.

        Example:
            >>> octavo.Format("int3").codes()[:3]  # two's complement
            [(5, -3.0), (6, -2.0), (7, -1.0)]
        """
        return self.core.values()


def formats() -> list[Format]:
    """List one or more formats of every family; the grammar has many more.

    Source: FORMATS.md section 1.

    Returns:
        Formats, by family.

    Example:
        >>> [str(format) for format in octavo.formats() if format.family == "mxfp"]  # the floats of OCP MX 1.0
        ['mxfp8e4m3', 'mxfp8e5m2', 'mxfp6e3m2', 'mxfp6e2m3', 'mxfp4']
    """
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
