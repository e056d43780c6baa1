"""The configurations of each family of formats that a study compares before it reports the best of them."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.errors import FormatError, SettingError
from octavo.recipe import Recipe

RULES = ("floor", "ceil", "mse")
_GROUPS = (32, 128)
_BLOCKS = (16, 32)
_EXPONENTS = range(1, 6)  # more would leave no mantissa that matters, and span binades that no layer uses
# Exponent of the largest value. Weights of trained layers lie below 1 or 2, inputs of layers below some tens: formats
# without a scale need their bias moved there.
_TOPS = {"weight": (-3, -1, 1), "input": (0, 2, 4)}

FAMILIES = (
    "fixed", "int", "uint", "minifloat", "denorm", "log", "binary", "ternary", "bfp", "bm", "blog", "mxint", "mxfp",
    "nvfp", "nf",
)  # fmt: skip


def weights(family: str, width: int) -> list[str]:
    """Return what weights may be given at an element width, ``FORMAT`` or ``FORMAT@CHOICE``; none where there is none.

    Raises SettingError for an unknown family.
    """
    return _accepted(family, width, "weight")


def inputs(family: str, width: int) -> list[str]:
    """Return what inputs of layers may be given at an element width. Raises SettingError for an unknown family."""
    return _accepted(family, width, "input")


def _accepted(family: str, width: int, role: str) -> list[str]:
    if family not in FAMILIES:
        raise SettingError(f"unknown family {family!r}; accepted are {', '.join(FAMILIES)}")
    found = []
    for text in dict.fromkeys(_texts(family, width, role)):
        try:
            Recipe.parse(f"type:Linear {role}={text}")
        except FormatError:
            continue  # a width that the family lacks, or a choice that is none for this role
        found.append(text)
    return found


def _texts(family: str, width: int, role: str) -> Iterator[str]:
    match family:
        case "fixed":
            yield from _calibrated(f"fixed{width}", role)
            yield from _calibrated(f"fixed{width}:channel", role)
        case "int" | "uint":
            yield from _calibrated(f"{family}{width}", role)
            yield from _calibrated(f"{family}{width}:channel", role)
            for group in _GROUPS:
                yield from _calibrated(f"{family}{width}:g{group}", role)
        case "minifloat":
            for exponent in _EXPONENTS[: width - 1]:
                for top in _TOPS[role]:
                    yield f"e{exponent}m{width - 1 - exponent}b{2**exponent - 1 - top}"
        case "denorm":
            for exponent in _EXPONENTS[: width - 2]:
                for top in _TOPS[role]:
                    yield f"denorm{width}e{exponent}b{2**exponent - 1 - top}"
        case "log":
            for top in _TOPS[role]:
                yield f"log{width}b{2 ** (width - 1) - 1 - top}"
        case "binary":
            # Element bits are residual levels.
            yield from (f"binary{width if width > 1 else ''}{option}" for option in ("", ":channel"))
        case "ternary":
            if width == 2:
                yield from ("ternary", "ternary:channel")
        case "bfp" | "blog":
            for block in _BLOCKS:
                yield from _ruled(f"{family}{width}/{block}")
        case "bm":
            for exponent in _EXPONENTS[: width - 2]:
                for block in _BLOCKS:
                    yield from _ruled(f"bm{width}e{exponent}/{block}")
        case "mxint":
            yield from _ruled(f"mxint{width}")
        case "mxfp":
            shapes = {8: ("8e4m3", "8e5m2"), 6: ("6e2m3", "6e3m2"), 4: ("4",)}
            for shape in shapes.get(width, ()):
                yield from _ruled(f"mxfp{shape}")
        case "nvfp":
            yield from _ruled(f"nvfp{width}")
        case "nf":
            yield from (f"nf{width}/{block}" for block in (*_BLOCKS, 128))


def _calibrated(text: str, role: str) -> Iterator[str]:
    """Scales of the tensor at hand, of least squared error, and for inputs without the largest in a thousand."""
    yield text
    yield f"{text}@mse"
    if role == "input":
        yield from (f"{text}@minmax", f"{text}@quantile:0.999")


def _ruled(text: str) -> Iterator[str]:
    yield from (f"{text}@{rule}" for rule in RULES)
