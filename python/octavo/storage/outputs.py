"""The place of an output, looked at before the work begins: nothing is replaced unasked, no input is written over."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ContainerError


def check_output(source: Path, out: Path, *, is_folder: bool, overwrite: bool) -> None:
    """Refuse a place where an output cannot go.

    Args:
        source: input; one that is not there is not looked at.
        out: place of the output; an empty folder is no obstacle to a folder.
        is_folder: whether the output is a folder, else a file.
        overwrite: replace what is there.

    Raises:
        ContainerError: for a folder in the place of a file or the reverse, and for a place in the input.
        FileExistsError: for an output that is there, without ``overwrite``.
    """
    if source.exists() and out.resolve().is_relative_to(source.resolve()):
        raise ContainerError(f"{out}: the output would lie in the input {source}; give another output")
    if not out.exists():
        return
    if out.is_dir() != is_folder:
        there, wanted = ("a folder", "a file") if out.is_dir() else ("a file", "a folder")
        raise ContainerError(f"{out}: {there}; the output is {wanted}, give another")
    if not overwrite and not (is_folder and not any(out.iterdir())):
        raise FileExistsError(f"{out} exists; give --force (overwrite=True) to replace it, or another output")
