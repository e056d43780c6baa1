"""Options of commands that train until a loss is reached, and the table that they print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from octavo.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.lab.language.language_config import Until
    from octavo.lab.language.time_to_loss import TimeToLoss

UntilOption = Annotated[
    float | None, typer.Option(metavar="LOSS", help="End at the first exact validation of at most so many nats.")
]
EveryOption = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="Of --until: tokens between validations.  [default: 37 in a run]"),
]
InARowOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Of --until: go on to N such validations in a row; 3 make a claim.  [default: 1]"),
]


def until_of(loss: float | None, every: int | None, in_a_row: int | None) -> Until | None:
    """Return where the runs of a command end; None for the end of their tokens. Raises SettingError, ConfigError."""
    from octavo.lab.language.language_config import Until

    if loss is not None:
        for option, value in (("--validate-every", every), ("--in-a-row", in_a_row)):
            if value is not None and value < 1:
                raise SettingError(f"{option} is {value}; accepted are whole numbers of at least 1")
        return Until(loss=loss, every=every, in_a_row=1 if in_a_row is None else in_a_row)
    for option, value in (("--validate-every", every), ("--in-a-row", in_a_row)):
        if value is not None:
            raise SettingError(f"{option} is {value} without --until; give the loss, such as --until 3.3821")
    return None


def show_time_to_loss(stdout: Console, timed: TimeToLoss) -> None:
    """Print the validations of a run as a table, where it reached its loss, and the benchmark's baseline."""
    from octavo.display.console import print_table, table
    from octavo.lab.language.time_to_loss_text import sentences, table_of

    header, rows = table_of(timed)
    shown = table(*header)
    for cells in rows:
        shown.add_row(*cells)
    print_table(stdout, shown)
    for label, text in sentences(timed):
        stdout.print(f"{label:18} {text}", soft_wrap=True)
