"""Repaired copies: the edits of findings are applied to a copy of the checkpoint, which appears whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from octavo.errors import OctavoError
from octavo.interchange.check.findings import ByteEdit, Edit, Finding, JsonEdit
from octavo.storage import files, folders
from octavo.storage.outputs import check_output
from octavo.storage.reading import INDEX_BYTES, read_json


def write_repaired(source: Path, out: Path, findings: Iterable[Finding], *, overwrite: bool = False) -> list[Finding]:
    """Write a copy of a checkpoint with every exact repair.

    Args:
        source: file or folder, which stays as it is.
        out: file or folder to write.
        findings: of which those with edits are repaired.
        overwrite: replace what is at ``out``.

    Returns:
        The findings that were repaired.

    Raises:
        ContainerError: for an output that lies in the source, or is a folder where the source is a file.
        FileExistsError: for an output that is there, unless ``overwrite``.
        OctavoError: for a repair of a configuration beside a file.
        OSError: as the system gives it.
    """
    repaired = [one for one in findings if one.edits]
    edits = [edit for one in repaired for edit in one.edits]
    check_output(source, out, is_folder=source.is_dir(), overwrite=overwrite)
    if source.is_dir():
        with folders.whole(out, overwrite=overwrite) as folder:
            for item in sorted(source.iterdir()):
                if item.is_dir():
                    shutil.copytree(item, folder / item.name)
                else:
                    shutil.copyfile(item, folder / item.name)
            _apply(edits, folder)
        return repaired
    if any(isinstance(edit, JsonEdit) for edit in edits):
        raise OctavoError(f"{source}: the repair is in a configuration beside it; check the whole folder")
    with files.whole(out) as written, source.open("rb") as original:
        shutil.copyfileobj(original, written, 1 << 20)
        _write([edit for edit in edits if isinstance(edit, ByteEdit)], written)
    return repaired


def _apply(edits: list[Edit], folder: Path) -> None:
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file.name, []).append(edit)
    for name, mine in by_file.items():
        texts = [edit for edit in mine if isinstance(edit, JsonEdit)]
        if texts:
            content = read_json(folder / name, INDEX_BYTES, finite=False)
            for edit in texts:
                _set(content, edit.keys, edit.value)
            (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _apply_bytes([edit for edit in mine if isinstance(edit, ByteEdit)], folder / name)


def _set(table: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value


def _apply_bytes(edits: list[ByteEdit], path: Path) -> None:
    if not edits:
        return
    with open(path, "r+b") as file:
        _write(edits, file)


def _write(edits: list[ByteEdit], file: IO[bytes]) -> None:
    for edit in edits:
        file.seek(edit.offset)
        file.write(edit.data)
