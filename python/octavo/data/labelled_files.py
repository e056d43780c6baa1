"""Files of labelled texts as people have them: tables of two columns, and JSON objects, one a line."""

from __future__ import annotations

import codecs
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from octavo.data._files import DAMAGED, XZ, Source
from octavo.data.labelled import Sentences
from octavo.errors import DataError
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import parse_json, shown

#: Fields of JSON objects that hold a text.
TEXT_FIELDS = ("text", "sentence", "content", "review")
_LABELS = ("label", "labels", "class")
_ACCEPTED = "lines 'label<TAB>text' or 'text<TAB>label' (.tsv), or JSON objects with 'text' and 'label' (.jsonl)"
_MOST = 999_999  # a label, where no model says less
#: Bytes of a text that is read at once, decompressed: tokens take 40 bytes each in Python.
TEXT_BYTES = 1 << 27


@checks_arguments
def read_labelled(
    path: Path | str, classes: Mapping[str, int | str] | None = None, *, field: str | None = None
) -> Sentences:
    r"""Read a file of labelled texts, compressed (``.xz``, ``.gz``) or plain, in UTF-8.

    A name that ends in ``.jsonl`` or ``.json`` holds JSON objects, one a line, with ``text`` (or ``sentence``,
    ``content``) and ``label``; any other is a table of two columns with a tab between them. A header line with the word
    ``label`` says which column is which; without one the labels are the column of whole numbers, else the last. Labels
    are whole numbers from 0 on, or names. Empty lines are skipped.

    Args:
        path: file to read.
        classes: numbers of names (a model's ``label2id``), names first where both could be; default: names are numbered
            in the order of the alphabet.
        field: field of the text in JSON objects, in place of those names.

    Returns:
        Texts and labels.

    Raises:
        DataError: has the file, the line and what is accepted there.
        OSError: where the file cannot be read.

    Example:
        >>> _ = Path("reviews.tsv").write_text("a fine film\tpositive\na dull one\tnegative\n")
        >>> octavo.data.read_labelled("reviews.tsv").labels
        (1, 0)
    """
    path = Path(path)
    if field is not None and not is_json_lines(path):
        raise DataError(f"{path}: the field {field!r} is of JSON objects, one a line; give a path that ends in .jsonl")
    rows = _objects(path, field) if is_json_lines(path) else _columns(path)
    if not rows:
        raise DataError(f"{path}: no labelled text; accepted are {_ACCEPTED}")
    labels = _numbered(path, rows, classes)
    return Sentences(tuple(text for _, text, _ in rows), labels)


@checks_arguments
def class_names(path: Path | str) -> dict[str, int]:
    """Return the names of the classes in a file of labelled texts, numbered in the order of the alphabet.

    Empty where all labels are whole numbers. Raises as :func:`read_labelled`.
    """
    path = Path(path)
    labels = {label for _, _, label in (_objects(path) if is_json_lines(path) else _columns(path))}
    return {} if all(map(_is_whole, labels)) else {name: number for number, name in enumerate(sorted(labels))}


def is_json_lines(path: Path) -> bool:
    """Whether the name of a file, compressed or plain, says that it holds JSON objects."""
    return _plain(path).suffix in (".jsonl", ".json")


def is_table(path: Path) -> bool:
    """Whether the name of a file, compressed or plain, says that it holds a table with tabs."""
    return _plain(path).suffix in (".tsv", ".tab")


def _plain(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in (".xz", ".gz") else path


def _objects(path: Path, field: str | None = None) -> list[tuple[int, str, str]]:
    rows, names = [], TEXT_FIELDS if field is None else (field,)
    for number, line in text_lines(path, "JSON objects, one a line"):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        record = parse_json(line, where, error=DataError)
        text = next((record[name] for name in names if isinstance(record.get(name), str)), None)
        label = next((record[name] for name in _LABELS if isinstance(record.get(name), str | int)), None)
        if text is None or label is None or isinstance(label, bool):
            raise DataError(
                f"{where} is {shown(json.dumps(record))}; accepted are objects with {names[0]!r} and 'label'"
            )
        rows.append((number, text, str(label)))
    return rows


def _columns(path: Path) -> list[tuple[int, str, str]]:
    cut: list[tuple[int, list[str]]] = []
    for number, line in text_lines(path, _ACCEPTED):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != 2:
            raise DataError(f"{path}: line {number} has {len(cells)} columns; accepted are {_ACCEPTED}")
        cut.append((number, cells))
    heads = [cell.strip().lower() for cell in cut[0][1]] if cut else []
    if any(head in _LABELS for head in heads):
        place = next(place for place, head in enumerate(heads) if head in _LABELS)
        cut = cut[1:]
    else:
        place = 0 if all(_is_whole(cells[0]) for _, cells in cut) else 1
    return [(number, cells[1 - place].strip(), cells[place].strip()) for number, cells in cut]


def _numbered(
    path: Path, rows: Sequence[tuple[int, str, str]], classes: Mapping[str, int | str] | None
) -> tuple[int, ...]:
    labels = [label for _, _, label in rows]
    for name, number in (classes or {}).items():
        if not _is_whole(str(number)):
            raise DataError(f"classes[{shown(name)}] is {shown(number)}; accepted are whole numbers")
    named = {label for label in labels if not (_is_whole(label) and int(label) < 0)}  # -1: of no class
    names: Mapping[str, int | str] = classes or {name: place for place, name in enumerate(sorted(named))}
    # Values of a configuration may be texts.
    alike = {name.lower(): int(number) for name, number in names.items()}
    # Where numbers name classes, as stars of reviews may, names go first.
    if all(map(_is_whole, labels)) and not (classes and all(label.lower() in alike for label in labels)):
        most = max(alike.values()) if classes else _MOST
        for number, _, label in rows:
            if not 0 <= int(label) <= most:
                known = f"the model's classes are 0 to {most}" if classes else f"accepted are 0 to {most}"
                raise DataError(f"{path}: line {number} has the label {label[:40]}; {known}")
        return tuple(map(int, labels))
    for number, _, label in rows:
        if label.lower() not in alike:
            known = ", ".join(list(names)[:8])
            raise DataError(f"{path}: line {number} has the label {label[:40]!r}; the model's classes are {known}")
    return tuple(alike[label.lower()] for label in labels)


def _is_whole(text: str) -> bool:
    text = text.strip().removeprefix("-")
    return text.isascii() and text.isdigit() and len(text) < 19


def text_lines(path: Path, accepted: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of UTF-8 with their numbers, from 1 on; lines end at a line feed alone.

    Raises DataError for a file that is no text, with what it is, for other bytes than UTF-8, and for more than
    ``TEXT_BYTES``, compressed or not; OSErrors.
    """
    text, _ = next(text_beginnings(path, TEXT_BYTES, accepted))
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r")


def text_beginnings(
    path: Path, nbytes: int, accepted: str = "a text in UTF-8", way_out: str = "give a smaller file"
) -> Iterator[tuple[str, bool]]:
    """Yield the beginning of a text, and whether it is the whole, twice as long every time, from ``nbytes`` on.

    No more of the file is read, or decompressed, than what is yielded. ``way_out``: from a text that is longer than
    ``TEXT_BYTES``. Raises as :func:`text_lines`.
    """
    content = b""
    with Source(path) as source:
        if path.suffix == ".xz" and source.first[: len(XZ)] != XZ:
            raise DataError(f"{path}: not an xz file; name it without .xz if it is plain text")
        try:
            with source.text() as file:
                while True:
                    wanted = min(nbytes, TEXT_BYTES)
                    content += file.read(wanted - len(content))
                    is_whole = len(content) < wanted or not file.peek(1)
                    if not is_whole and wanted == TEXT_BYTES:
                        raise DataError(f"{path}: more than {TEXT_BYTES:,} bytes of text; {way_out}")
                    yield _decoded(path, content, accepted, is_whole), is_whole
                    if is_whole:
                        return
                    nbytes *= 2
        except DAMAGED as error:
            raise DataError(f"{path}: compressed data is damaged or cut off: {error}") from None


def _decoded(path: Path, content: bytes, accepted: str, is_whole: bool) -> str:
    """Return a text; of a beginning without the part of a character at its end."""
    content = content.removeprefix(BOM_UTF8)
    try:
        return codecs.utf_8_decode(content, "strict", is_whole)[0]
    except UnicodeDecodeError as error:
        bad = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}: line {bad} is not UTF-8; accepted are {accepted}") from None


def read_text_file(
    path: Path | str,
    enough: Callable[[str], bool] | None = None,
    *,
    nbytes: int = TEXT_BYTES,
    way_out: str = "give a smaller file",
) -> str:
    """Read a plain text in UTF-8, compressed (``.xz``, ``.gz``) or not, whole or as much of it as is ``enough``.

    ``nbytes``: that are read first; twice as many where they are not enough. ``way_out``: from a text of more than
    ``TEXT_BYTES``. Raises DataError naming the line, OSError.
    """
    text = ""
    for beginning, is_whole in text_beginnings(Path(path), nbytes, way_out=way_out):
        text = "\n".join(line.removesuffix("\r") for line in beginning.split("\n"))
        if is_whole or enough is None or enough(text):
            break
    if not text.strip():
        raise DataError(f"{path}: no text in it")
    return text
