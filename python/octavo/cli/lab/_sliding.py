"""Options of commands that validate with a sliding window beside the exact loss."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.errors import SettingError

_KINDS = ("plain", "paged")
_STRIDE = 32

ValidationOption = Annotated[
    str,
    typer.Option(
        "--validation",
        metavar="NAME",
        help="plain, or paged: also the loss of a sliding window, whose keys and values are kept.",
    ),
]
StrideOption = Annotated[
    int | None, typer.Option(metavar="N", help="Of --validation paged: positions computed together.  [default: 32]")
]


def sliding_of(validation: str, stride: int | None) -> int | None:
    """Return the stride of a validation with a sliding window, None for none. Raises SettingError."""
    if validation not in _KINDS:
        raise SettingError(f"--validation is {validation!r}; accepted are {', '.join(_KINDS)}")
    if validation == "plain":
        if stride is not None:
            raise SettingError(f"--stride is {stride} without --validation paged; give both")
        return None
    if stride is not None and stride < 1:
        raise SettingError(f"--stride is {stride}; accepted are whole numbers of at least 1")
    return _STRIDE if stride is None else stride
