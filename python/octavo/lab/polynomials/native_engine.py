"""The engine: exported models run natively, without torch.

``Engine.load()`` is the model that comes with the package, ``Engine.load(folder)`` one that
:mod:`octavo.lab.polynomials.export` wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol, get_args, overload

from octavo import _core
from octavo.cuda.device_names import parse_device, torch_device
from octavo.errors import ContainerError, DataError, DTypeError, SettingError
from octavo.lab.polynomials.shipped import shipped_folder
from octavo.late_binding import late
from octavo.model_folder.model_config import refuse_compacted, stated_kind
from octavo.storage.arguments import check, checks_arguments
from octavo.storage.files import path_text, whole
from octavo.storage.reading import shown
from octavo.storage.streams import read_first, read_some, write_all

Precision = Literal["float", "bfloat16", "integer"]
Route = Literal["auto", "general", "fused"]
Form = Literal["text", "pairs", "json"]

# Most threads of a pool, and most tokens of a vocabulary.
_MOST = 256


@dataclass(frozen=True)
class Summary:
    """The result of a stream: ``lines`` answered, of which ``failed`` had an error."""

    lines: int = 0
    failed: int = 0


class _AnswerStream(Protocol):
    """Lines on their way through an engine; numbers are counted from 1."""

    def push(self, bytes: bytes | None, /) -> None: ...
    def run(self) -> tuple[int, bytes, list[tuple[int, str]]]: ...


class Engine:
    """A loaded sequence-to-sequence model that expands lines. Threads may share one, and children of ``fork`` use it.

    An answer depends on its line alone: not on the lines beside it, nor on the number of threads.
    """

    # Bytes of a stream read at once: about a block of lines.
    _chunk = 1 << 17

    def __init__(self, core: _core._Engine, path: Path) -> None:
        """Wrap a loaded engine; :meth:`load` makes one. Raises DTypeError for other objects."""
        if not isinstance(core, _core._Engine):
            raise DTypeError(f"core is a {type(core).__name__}; use Engine.load")
        self._core, self._path = core, path

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        precision: Precision = "float",
        route: Route = "auto",
        threads: int | None = None,
        device: object = "cpu",
    ) -> Engine:
        """Load a model folder; None is the model that comes with the package.

        ``precision``: ``float`` runs the weights of the folder, whose tensors may be packed in any format; ``bfloat16``
        runs them with factors rounded to bfloat16 where the processor has AMX or AVX-512 BF16, as ``float`` elsewhere;
        ``integer`` the static int8 variant that ``config.json`` names, greedy only. ``route``: ``fused`` is kernels
        written for the shipped architecture, ``general`` runs every architecture, ``auto`` the fused ones where there
        are some. A beam always takes the general route. ``threads``: None for ``octavo``'s setting, by default all
        cores.

        ``device``: ``cpu`` is the native engine; ``cuda`` or ``cuda:N`` runs the shipped architecture with PyTorch on a
        GPU, greedily, in ``float`` or in ``bfloat16``, in tiles that are CUDA graphs. The first use of each of the five
        sizes of tiles captures its graph.

        Raises CudaUnavailableError, before all else, where there is no such GPU, ContainerError naming file and tensor
        or field for everything that an exporter would not write, SettingError for options that are unknown or that
        device or model do not allow, OctavoError where the package comes without a model, OSErrors.
        """
        if threads is not None and (type(threads) is not int or not 1 <= threads <= _MOST):
            raise SettingError(f"threads is {shown(threads)}; accepted is a whole number from 1 to {_MOST}, or None")
        for option, value, known in (("precision", precision, Precision), ("route", route, Route)):
            if not isinstance(value, str) or value not in get_args(known):
                raise SettingError(f"unknown {option} {shown(value)}; accepted are {', '.join(get_args(known))}")
        place = None if parse_device(device)[0] == "cpu" else torch_device(device)
        folder = shipped_folder() if path is None else Path(path_text(path))
        if place is not None:
            return late("load_cuda_engine")(folder, place, precision, route, threads or 0)
        refuse_compacted(folder, "the engine")
        try:
            return cls(_core._Engine.load(folder, precision, route, threads or 0), folder)
        except ContainerError as error:
            found = stated_kind(folder)
            if "seq2seq" in found:
                raise
            raise ContainerError(
                f"{folder}: {found}; the engine expands with kind 'seq2seq', which octavo lab train polynomials writes "
                f"(text encoders: octavo.TextEncoder): {error}"
            ) from None

    @property
    def config(self) -> dict[str, Any]:
        """The fields of :class:`octavo.lab.polynomials.seq2seq.Seq2SeqConfig`."""
        return self._core.config

    @property
    def precision(self) -> str:
        """``float``, ``bfloat16`` or ``integer``."""
        return self._core.precision

    @property
    def route(self) -> str:
        """``fused`` or ``general``: what greedy expansion runs on."""
        return self._core.route

    @property
    def prepared_nbytes(self) -> int:
        """Bytes of prepared weights, beside the packed ones of the file.

        The fused kernels prepare theirs at load; the general route at most 4 MiB at its first products.
        """
        return self._core.prepared_nbytes

    @property
    def device(self) -> str:
        """The device of the model: ``cpu``, or a GPU such as ``cuda:0``."""
        return "cpu"

    @overload
    def expand(self, lines: Iterable[str], *, beam: int = 1, errors: Literal["raise"] = "raise") -> list[str]: ...
    @overload
    def expand(self, lines: Iterable[str], *, beam: int = 1, errors: Literal["return"]) -> list[str | DataError]: ...
    def expand(self, lines: Iterable[str], *, beam: int = 1, errors: str = "raise") -> Any:
        """Return the answer to every line.

        ``beam``: hypotheses kept a line; 1 is greedy. ``errors``: ``raise`` a DataError that names the first line that
        is empty, too long or has a character the model does not know, or ``return`` a DataError in the place of each.

        Raises SettingError for a beam outside 1 to the vocabulary, or above 1 with precision integer or on a GPU.
        """
        if not isinstance(errors, str) or errors not in ("raise", "return"):
            raise SettingError(f"errors is {shown(errors)}; accepted are 'raise' and 'return'")
        rows = _lines(lines)
        halves = _halves(rows)
        for place in halves:
            rows[place] = ""  # it cannot reach Rust; an empty line has no answer either
        found, failures = self._expand(rows, self._check_beam(beam))
        failures = [(place, halves.get(place, reason)) for place, reason in failures]
        if failures and errors == "raise":
            place, reason = failures[0]
            raise DataError(f"line {place + 1}: {reason}")
        if not failures:
            return found
        answers: list[str | DataError] = list(found)
        for place, reason in failures:
            answers[place] = DataError(reason)
        return answers

    @checks_arguments
    def expand_file(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        beam: int = 1,
        format: Form = "text",
        failed: Callable[[int, str], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Summary:
        """Expand the lines of one file into another, in order and in bounded memory.

        ``format``: ``text`` is the answer alone, ``pairs`` ``line=answer``, ``json`` an object a line. A line with an
        error leaves an empty one, or an object with ``error``; ``failed`` is called with its number, counted from 1,
        and the reason. ``progress`` is called with the numbers of lines answered and bytes read so far.

        The target appears when all is done, and not at all after an error or Ctrl-C; a file that is there is replaced.
        Raises SettingError as :meth:`expand` and for an unknown format, OSErrors.
        """
        options: dict[str, Any] = {"beam": beam, "format": format, "failed": failed, "progress": progress}
        with open(source, "rb") as reader, whole(target) as writer:
            return self.expand_stream(reader, writer, **options)

    def expand_stream(
        self,
        reader: IO[bytes],
        writer: IO[bytes],
        *,
        beam: int = 1,
        format: Form = "text",
        failed: Callable[[int, str], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Summary:
        """Expand the lines of a binary stream into another, as :meth:`expand_file` does for files.

        What has been read is answered before more is waited for. Ctrl-C is heard about once a second. Both streams may
        be raw or buffered, non-blocking, slow: all answers are written, or an OSError says up to which line they are.
        A mark of UTF-8 (BOM) at the beginning is skipped.
        """
        check(failed, Callable | None, "failed")
        check(progress, Callable | None, "progress")
        check(format, str, "format")
        stream = self._stream(self._check_beam(beam), format)
        lines = errors = nbytes = 0
        read = read_first
        while True:
            chunk = read(reader, self._chunk)
            read = read_some
            nbytes += len(chunk)
            stream.push(chunk or None)
            while (done := stream.run())[0]:
                count, answers, failures = done
                _write(writer, answers, lines)
                lines, errors = lines + count, errors + len(failures)
                for number, reason in failures:
                    if failed is not None:
                        failed(number, reason)
                if progress is not None:
                    progress(lines, nbytes)
            if not chunk:
                return Summary(lines, errors)

    def __repr__(self) -> str:
        """The folder and what runs it."""
        architecture, place = self.config["architecture"], "" if self.device == "cpu" else f", device={self.device!r}"
        return f"Engine({str(self._path)!r}, {architecture}, precision={self.precision!r}, route={self.route!r}{place})"

    def _check_beam(self, beam: int) -> int:
        if type(beam) is not int or not 1 <= beam <= _MOST:
            raise SettingError(f"beam is {shown(beam)}; accepted is a whole number from 1 to the vocabulary")
        return beam

    def _expand(self, rows: list[str], beam: int) -> tuple[list[str], list[tuple[int, str]]]:
        """Return an answer a line, and places (from 0) and reasons of those that have none."""
        return self._core.expand(rows, beam)

    def _stream(self, beam: int, form: str) -> _AnswerStream:
        return _core._EngineStream(self._core, beam, form)


def _lines(lines: Iterable[str]) -> list[str]:
    if isinstance(lines, str):
        raise DTypeError("lines is a string; pass a list of strings")
    try:
        rows = list(lines)
    except TypeError as error:
        raise DTypeError(f"lines is a {type(lines).__name__}; accepted is a list of strings") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str):
            raise DTypeError(f"line {number} is a {type(row).__name__}; accepted are strings")
    return rows


def _halves(rows: list[str]) -> dict[int, str]:
    """Return places and reasons of the lines with half of a surrogate pair."""
    found = {}
    for place, row in enumerate(rows):
        if not row.isascii():
            try:
                row.encode()
            except UnicodeEncodeError as error:
                found[place] = f"column {error.start + 1}: half of a surrogate pair, which is no character"
    return found


def _write(writer: IO[bytes], answers: bytes, lines: int) -> None:
    """Write the answers behind those to ``lines`` lines. An OSError says from which line on they are lost."""
    try:
        write_all(writer, answers)
    except OSError as error:
        if error.errno is None:
            raise
        lost = f"{error.strerror}; answers from line {lines + 1:,} on could not be written"
        raise OSError(error.errno, lost, error.filename) from error
