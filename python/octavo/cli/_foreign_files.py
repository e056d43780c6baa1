"""Files of other packages in the place of model folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def folder_of(model: str, *, packed: bool) -> Iterator[str]:
    """Give a model as it was named; of another package's file a temporary model folder, with notes about it on stderr.

    ``packed``: leave packed what a format holds, else decode everything. Raises as
    :meth:`octavo.interchange.conversion.Conversion.write`.
    """
    from octavo.display.console import console
    from octavo.display.progress import progress
    from octavo.interchange.conversion import as_folder
    from octavo.interchange.foreign_readers import reader_of
    from octavo.storage.named_models import resolved

    path = resolved(model)
    reader = reader_of(path)
    if reader is None:
        yield model
        return
    with as_folder(reader.open(path), packed=packed, bar=progress) as (folder, notes):
        for note in notes:
            console(stderr=True).print(f"{model}: {note}")
        yield str(folder)
