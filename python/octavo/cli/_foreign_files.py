"""GGUF files in the place of model folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def folder_of(model: str, *, packed: bool) -> Iterator[str]:
    """Give a model as it was named; of a GGUF file a temporary model folder, with notes about it on stderr.

    ``packed``: leave packed what a format holds, else decode everything. Raises as
    :meth:`octavo.interchange.gguf_folder.Conversion.write`.
    """
    from octavo.display.console import console
    from octavo.interchange.gguf_folder import as_folder, is_gguf

    if not is_gguf(model):
        yield model
        return
    with as_folder(model, packed=packed) as (folder, notes):
        for note in notes:
            console(stderr=True).print(f"{model}: {note}")
        yield str(folder)
