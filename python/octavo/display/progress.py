"""Showing how far work on a model has come: a bar on a terminal, nothing elsewhere, or a function of the caller's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

# Called with the name of a stage, how many of its parts are done, and how many there are; 0 where that is not known.
Report = Callable[[str, int, int], None]


class Progress:
    """Tells of stages. ``how``: True for a bar on stderr where that is a terminal, False for nothing, or a Report."""

    def __init__(self, how: bool | Report) -> None:
        """Say nothing yet."""
        self._how = how

    def tell(self, text: str) -> None:
        """Print a line where a bar would be shown."""
        if self._how is True and sys.stderr.isatty():
            Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True).print(text)

    @contextmanager
    def stage(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """Yield what is called after each part."""
        done, how = 0, self._how
        if not isinstance(how, bool):

            def advance() -> None:
                nonlocal done
                done += 1
                how(label, done, total)

            yield advance
        elif self._how and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
                task = bar.add_task(label, total=total or None)
                yield lambda: bar.update(task, advance=1)
        else:
            yield lambda: None
