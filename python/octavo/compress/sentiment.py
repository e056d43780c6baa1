"""Corpora of sentiment with an honest split.

The reported test texts are a file of their own, or are held out of training. Validation texts, which choose, are cut
from training, too; neither is ever trained on. Calibration texts are drawn from what is left.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from octavo.compress.readers import SST2, corpus
from octavo.data.labelled import Sentences, Split
from octavo.errors import DataError

VALIDATION = 2000


def load(
    folder: Path | str, name: str = SST2, *, validation: int = VALIDATION, held_out: int | None = None, seed: int = 0
) -> Split:
    """Read a corpus in a folder, and cut ``validation`` texts, and ``held_out`` ones to test on, from training.

    Which ones is decided by ``seed`` alone. ``held_out`` None: the corpus's own test texts are reported. They are
    trained on in neither case: a training text that is one of the others, to the letter, is dropped.

    Raises SettingError for an unknown corpus, DataError and OSErrors as its reader, and DataError if too few texts are
    left.
    """
    known = corpus(name)
    train, test = known.part(folder, "train"), known.part(folder, "test")
    split = split_texts(train, test, validation=validation, held_out=held_out, seed=seed, where=folder)
    return replace(split, names=known.names)


def split_texts(
    train: Sentences,
    test: Sentences,
    *,
    validation: int = VALIDATION,
    held_out: int | None = None,
    seed: int = 0,
    where: Path | str = "texts",
) -> Split:
    """Cut ``validation`` texts, and ``held_out`` ones to test on, from ``train``, as :func:`load` does.

    ``where``: what errors name. Raises DataError if too few texts are left.
    """
    cut = validation + (held_out or 0)
    if validation < 1 or (held_out is not None and held_out < 1) or not cut < len(train):
        also = "" if held_out is None else f" and {held_out} held out"
        raise DataError(
            f"{validation} validation texts{also}; accepted are 1 to {len(train) - 1}, fewer than there are"
        )
    order = np.random.default_rng(seed).permutation(len(train)).tolist()
    chosen = train.pick(sorted(order[:validation]))
    kept = train.pick(sorted(order[validation:cut]))
    outside = {*chosen.texts, *kept.texts, *test.texts}
    rest = [row for row in sorted(order[cut:]) if train.texts[row] not in outside]
    tested = test if held_out is None else kept
    if not rest or max(tested.labels) > max(train.labels[row] for row in rest):
        raise DataError(f"{where}: {len(rest)} training texts are left, and the test labels must occur among them")
    return Split(train.pick(rest), chosen, tested, held_out is not None)
