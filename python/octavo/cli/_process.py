"""The standard streams of the ``octavo`` process: what is printed arrives, or the process says that it did not.

Python's own streams lose output in silence: unbuffered ones where a write takes only some of the bytes or a pipe is
non-blocking, buffered ones where the last flush fails.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from octavo.cli._app import EXIT_ERROR, STDOUT, fail
from octavo.storage.streams import write_all

# What takes the place of closed descriptors, which the next file would get otherwise: standard input cannot be read,
# standard output not be written, standard error is thrown away.
_PLACEHOLDERS = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)


class Output(io.FileIO):
    """A descriptor of this process whose ``write`` takes everything, waiting where it would block.

    ``error`` is the first one; after it all is dropped, since what comes later would arrive without what was lost.
    ``needed`` False is for messages, whose loss is no error.
    """

    def __init__(self, number: int, *, needed: bool) -> None:
        """Write to a descriptor, which stays open."""
        super().__init__(number, "wb", closefd=False)
        self._plain = io.FileIO(number, "wb", closefd=False)
        self._needed = needed
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes of ``data`` and return their number. Raises OSErrors that name the stream."""
        if self.error is None:
            try:
                write_all(self._plain, bytes(data))
            except OSError as error:
                self.error = error
                if self._needed:
                    raise
        return memoryview(data).nbytes

    def check(self) -> None:
        """Raise the error that writing met, or the one with which some network disks wait until a file is closed."""
        if self.error is not None:
            raise self.error
        try:
            os.close(os.dup(self.fileno()))
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from error


def run(command: Callable[[], object]) -> NoReturn:
    """Run a command line and exit with its code, or with 2 where standard output could not be written.

    An error is told in a line, but for the reader of a pipe that has gone, as in ``octavo formats | head``.
    """
    _reserve()
    before = sys.stdout, sys.stderr
    output = _wrap("stdout", needed=True)
    _wrap("stderr", needed=False)
    try:
        sys.exit(_code(command, output))
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _code(command: Callable[[], object], output: Output | None) -> Any:
    """Run a command line, write all of its output and return the exit code."""
    try:
        command()
        code: Any = 0
    except SystemExit as end:
        code = end.code
    except OSError as error:
        if output is None or output.error is None:
            raise
        code = fail(error)
    if output is None:
        return code
    try:
        sys.stdout.flush()
        output.check()
    except OSError as error:
        told = code == EXIT_ERROR or isinstance(error, BrokenPipeError)
        return EXIT_ERROR if told else fail(error)
    return code


def _reserve() -> None:
    """Open what is closed of the three descriptors, so that its use is an error and no file gets its number."""
    for number, flag in enumerate(_PLACEHOLDERS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flag), True)  # it gets the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own


def _wrap(name: str, *, needed: bool) -> Output | None:
    """Let ``sys.stdout`` or ``sys.stderr`` write through :class:`Output`; None where it is not the process's own."""
    number, old = {"stdout": 1, "stderr": 2}[name], getattr(sys, name)
    settings: dict[str, Any] = {"line_buffering": not needed, "errors": "strict" if needed else "backslashreplace"}
    through = False
    if old is not None:
        try:
            if old.fileno() != number or not isinstance(old, io.TextIOWrapper):
                return None
        except (OSError, ValueError):  # a stream in memory
            return None
        with suppress(OSError):
            old.flush()
        settings = {"encoding": old.encoding, "errors": old.errors, "line_buffering": old.line_buffering}
        through = old.write_through
    output = Output(number, needed=needed)
    buffer: Any = output if through else io.BufferedWriter(output)
    setattr(sys, name, io.TextIOWrapper(buffer, **settings, write_through=through))
    return output
