"""Shared by all commands: errors printed in one line, and common options."""

from __future__ import annotations

import signal
import warnings
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from octavo.errors import FormatError, InterruptedRun, OctavoError, OctavoWarning

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.model_folder.weight_files import Checkpoint
    from octavo.recipe import Recipe

EXIT_ERROR = 2
# What OSErrors of standard output have as their file.
STDOUT = "standard output"


class Commands(TyperGroup):
    """The group of commands: an expected error becomes one line on stderr and exit code 2, a signal 130 or 143."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None
        except InterruptedRun as error:
            if not error.told:
                typer.echo(str(error), err=True)
            raise typer.Exit(128 + error.signal) from None
        except (OctavoError, OSError, MemoryError) as error:
            gone = isinstance(error, BrokenPipeError) and error.filename in (None, STDOUT)
            if gone or ctx.params.get("debug"):
                raise  # `octavo formats | head` ends quietly
            raise typer.Exit(fail(error)) from None


def fail(error: Exception) -> int:
    """Say an error in a line on stderr and return the exit code."""
    from octavo.display.console import printable

    typer.echo(f"error: {printable(message(error))}", err=True)
    return EXIT_ERROR


def terminate(number: int, frame: FrameType | None) -> None:
    """End as SIGTERM does, and on the way remove what is being written: 143 is the exit code."""
    raise SystemExit(128 + number)


def message(error: Exception) -> str:
    """Return an error in one line; a system error as ``FILE: no such file or directory``."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return " ".join(str(error).split()) or "out of memory"


def tell_warnings() -> None:
    """Show our warnings of this process in one line on stderr, as errors, without the place in the source."""
    others = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        from octavo.display.console import printable

        if issubclass(category, OctavoWarning):
            typer.echo(f"warning: {printable(' '.join(str(message).split()))}", err=True)
        else:
            others(message, category, *place, **more)

    warnings.showwarning = show


def read_recipe(given: str) -> Recipe:
    """Return the recipe of a text, or of a file ``NAME.toml``. Raises FormatError, also for one without rules."""
    from octavo.recipe import Recipe

    recipe = Recipe.of(Path(given) if given.endswith(".toml") else given)
    if not recipe:
        raise FormatError("the recipe has no rules; give one, such as 'mxint8'")
    return recipe


def tell_left_behind(source: Checkpoint, stdout: Console) -> None:
    """Name the files of a folder that were not copied, since they tell what was measured with its weights."""
    from octavo.model_folder.companion_files import measurements

    if source.is_folder and (left := measurements(source.folder)):
        stdout.print(f"left behind, for it was measured with the weights of {source.path}: {', '.join(left)}")


def _print_version(wanted: bool) -> None:
    if wanted:
        from octavo import __version__

        typer.echo(f"octavo {__version__}")
        raise typer.Exit


version = Annotated[
    bool, typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="Where to write.")]
