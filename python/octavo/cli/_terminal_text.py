"""Texts of a model on standard output."""

from __future__ import annotations

import sys


def write_text(text: str) -> None:
    """Write UTF-8, whatever the locale says; control characters pass as the model gave them to a pipe alone."""
    shown = text
    if sys.stdout.isatty():
        shown = "".join(one if one in "\n\t" or one.isprintable() else "�" for one in text)
    sys.stdout.buffer.write(shown.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()
