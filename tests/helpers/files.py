"""What a folder holds, and files of kinds that are refused."""

import io
import tarfile
from pathlib import Path


def entry_names(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by relative path."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def tar() -> bytes:
    """An archive with one empty file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return file.getvalue()
