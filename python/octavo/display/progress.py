"""Progress of long work: one bar on stderr where that is a terminal, nothing or plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from octavo.display.console import console, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

Unit = Literal["parts", "bytes", "share"]
Report = Callable[[str, int, int], None]
"""Called with the name of a stage, its finished parts, and their number; 0 where that is not known."""


class Bar:
    """The bar that Octavo draws: label, share, remaining time and a text. Nothing where stderr is no terminal.

    ``total``: in ``unit``: parts, bytes, or a share of 1; None where it is not known. ``kept``: the bar stays on the
    screen after its end.
    """

    def __init__(
        self, label: str = "", total: float | None = None, *, unit: Unit = "parts", done: float = 0, kept: bool = False,
        tells_time: bool = True,
    ) -> None:  # fmt: skip
        """Appear. ``tells_time``: with the remaining time, by the parts before."""
        self._bar: RichProgress | None = None
        if not sys.stderr.isatty():
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        measure = {"parts": MofNCompleteColumn, "bytes": DownloadColumn, "share": TaskProgressColumn}[unit]
        self._bar = Progress(
            *((TextColumn("{task.description}", markup=False),) if label else ()),
            BarColumn(bar_width=24),
            measure(),
            *((TimeRemainingColumn(),) if tells_time else ()),
            TextColumn("{task.fields[text]}", markup=False),
            console=console(stderr=True),
            transient=not kept,
        )
        self._task = self._bar.add_task(label, total=total, completed=int(done), text="")
        self._bar.start()

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal that shows it."""
        return self._bar is not None

    def move(self, done: float | None = None, *, advance: float | None = None, text: str | None = None) -> None:
        """Set or advance the finished work, and the text."""
        if self._bar is not None:
            fields: dict[str, Any] = {} if text is None else {"text": printable(text)}
            self._bar.update(self._task, completed=done, advance=advance, **fields)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text)

    def stop(self) -> None:
        """Take the bar away, or leave it as it is where it is kept."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self.stop()


@contextmanager
def progress(task: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Show a bar over bytes: yields what is called with the name of each finished tensor and its bytes."""
    with Bar(task, total, unit="bytes") as bar:
        yield lambda name, nbytes: bar.move(advance=nbytes, text=name)


@contextmanager
def milestones(errors: Console) -> Iterator[Callable[..., None]]:
    """Show the state of long work: yields ``tell(text, share=None)``, where ``share`` of it, 0 to 1, is done.

    On a terminal a bar with the last text beside it; elsewhere each text is a line.
    """
    with Bar("", 1.0, unit="share") as bar:

        def tell(text: str, share: float | None = None) -> None:
            if bar.is_shown:
                bar.move(share, text=text)
            else:
                errors.print(text)

        yield tell


@contextmanager
def paced_milestones(errors: Console) -> Iterator[Callable[[str, float], None]]:
    """Show the state of long work with share, remaining time and memory: yields ``tell(text, share)``.

    Elsewhere than on a terminal each new text is a line, and so is every twentieth of the work.
    """
    pace, last = Pace(), ("", 0)
    with Bar("", 1.0, unit="share", tells_time=False) as bar:

        def tell(text: str, share: float) -> None:
            nonlocal last
            facts = ", ".join(one for one in (remaining_text(pace.left(share)), memory_text()) if one)
            line = f"{text} ({facts})" if facts else text
            if bar.is_shown:
                bar.move(share, text=line)
            elif (text, int(20 * share)) != last:
                errors.print(f"{share:4.0%} {line}", soft_wrap=True)
            last = text, int(20 * share)

        yield tell


class Pace:
    """Estimates the time that is left from the shares of work that were told, and when.

    What takes no time, because it was kept from an earlier run, counts for nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now."""
        self._clock = clock
        self._share, self._time = 0.0, clock()
        self._worked, self._seconds = 0.0, 0.0

    def left(self, share: float) -> float | None:
        """Return the seconds that are left when so much is done; None while a twentieth was not worked for yet."""
        now = self._clock()
        step, seconds = share - self._share, now - self._time
        usual = self._seconds / self._worked if self._worked else 0.0
        if step > 0 and seconds > _NO_TIME * usual * step:
            self._worked += step
            self._seconds += seconds
            self._share, self._time = share, now
        elif step > 0:
            self._share, self._time = share, now
        if self._worked < _FIRST:
            return None
        return self._seconds / self._worked * (1 - share)


# Of its usual time, what takes less was kept from before; and the share of the work that shows how long it takes.
_NO_TIME, _FIRST = 0.02, 0.05


def remaining_text(seconds: float | None) -> str:
    """Return a remaining time as people say it; nothing where it is not known."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(round(seconds / 5) * 5, 5)} s left"
    return f"{round(seconds / 60)} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def memory_text() -> str:
    """Return the memory of this process, mapped files aside; nothing where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return ""
    lines = [line.split() for line in status.splitlines() if line.startswith("RssAnon:")]
    return f"{int(lines[0][1]) / 1e6:.1f} GB" if lines else ""


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done beside a spinner: yields what is called with the next text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text  # whose brackets are no markup

    with console(stderr=True).status(Text(printable(first))) as shown:
        yield lambda text: shown.update(Text(printable(text)))


class Stages:
    """The stages of work on a model. ``how``: True for a bar, False for nothing, or a :data:`Report`."""

    def __init__(self, how: bool | Report) -> None:
        """Say nothing yet."""
        self._how = how

    def tell(self, text: str) -> None:
        """Print a line where a bar would be shown."""
        if self._how is True and sys.stderr.isatty():
            console(stderr=True).print(text, soft_wrap=True)

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
        elif how:
            with Bar(label, total or None) as bar:
                yield lambda: bar.move(advance=1)
        else:
            yield lambda: None
