"""Texts that classifiers are trained and studied on: a corpus in a folder, or labelled texts of one's own in files."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from octavo.compress import sentiment
from octavo.compress.readers import SST2
from octavo.data.labelled import Split
from octavo.data.labelled_files import class_names, is_json_lines, is_table, read_labelled
from octavo.errors import DataError, SettingError

# Of a file of one's own, a part this large is cut off to choose by, and another to test on; never more than a corpus's.
_PART = 10


def open_corpus(
    data: Path,
    *,
    corpus: str | None = None,
    test: Path | None = None,
    held_out: int | None = None,
    classes: Mapping[str, int] | None = None,
) -> Split:
    """Return the texts of a ``corpus`` in the folder ``data`` (None: sst2), or the labelled texts of the file ``data``.

    ``test``: a file with the texts that are reported; of a corpus they are its own. ``held_out``: so many training
    texts are reported in their place. Without either, a tenth of a file is held out, 2,000 texts at most; as much is
    cut off to choose by. Classes with names have the numbers of ``classes``, a model's, where it has them all; else
    they are numbered in the order of the alphabet.

    Raises SettingError for what does not go together, DataError as the readers, FileNotFoundError for a
    file that is not there.
    """
    if not data.exists() and (is_table(data) or is_json_lines(data)):
        raise FileNotFoundError(errno.ENOENT, "No such file", str(data))
    if data.is_dir() or not data.exists():
        if test is not None:
            raise SettingError(f"--test goes with --data FILE; {data} is the folder of a corpus: leave --test out")
        return sentiment.load(data, corpus or SST2, held_out=held_out)
    if corpus is not None:
        raise SettingError(f"--corpus names the files of a folder; {data} is a file: leave --corpus out")
    if test is not None and held_out is not None:
        raise SettingError("--test and --held-out both say what is reported; give one of them")
    names = class_names(data)
    known = {name.lower(): name for name in classes or {}}
    if names and classes and all(name.lower() in known for name in names):
        names = dict(sorted(classes.items(), key=lambda item: item[1]))
    train = read_labelled(data, names or None)
    if len(names) > len(train) / 2:
        raise DataError(
            f"{data}: {len(names)} classes in {len(train)} texts; accepted are several texts a class. A header line "
            "'label<TAB>text' says which column is which"
        )
    part = max(1, min(sentiment.VALIDATION, len(train) // _PART))
    if test is None:
        reported, held_out = train.pick([]), part if held_out is None else held_out
    else:
        reported = read_labelled(test, names or None)
    split = sentiment.split_texts(train, reported, validation=part, held_out=held_out, where=data)
    if len(set(split.train.labels)) < 2:
        raise DataError(f"{data}: one class alone; accepted are labelled texts of two classes and more")
    missing = sorted(set(range(max(split.train.labels) + 1)) - set(split.train.labels))
    if missing and not names:
        raise DataError(f"{data}: no text has the label {missing[0]}; accepted are labels from 0 on without gaps")
    return replace(split, names=tuple(names))
