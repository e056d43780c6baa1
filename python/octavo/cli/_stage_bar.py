"""The bar of work that has stages, such as counting and merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stage_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Yield what moves a bar: called with a stage, what is done of it, and its whole."""
    from octavo.display.progress import Bar

    with Bar("", 1.0, unit="share") as bar:
        yield lambda stage, done, total: bar.move(done / max(1, total), text=stage)
