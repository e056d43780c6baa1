"""Checkpoint files: written whole or not at all, checked when read.

``checkpoints/step-00001000.pt`` is a dict of tensors and plain values, for ``torch.load(weights_only=True)``. It is
written under another name, flushed to the disk and renamed, so a file of that name is complete unless the disk failed.
A digest over the whole content finds damage that torch.load does not notice, such as a flipped bit in a weight.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from octavo.errors import CheckpointError
from octavo.nn.former_names import current_names
from octavo.storage import files
from octavo.storage.reading import check_regular
from octavo.train.checkpoint_outline import check_content, check_frame

FOLDER = "checkpoints"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})\.pt")
_ACCEPTED = "tensors, numbers, texts, None, and dicts, lists and tuples of them"


def path_of(run: Path, step: int) -> Path:
    """Return the file of the checkpoint after ``step`` updates of the run in folder ``run``."""
    return run / FOLDER / f"step-{step:08d}.pt"


def available(run: Path) -> list[Path]:
    """Return the checkpoints of the run in folder ``run``, newest first."""
    found = ((_NAME.fullmatch(file.name), file) for file in (run / FOLDER).glob("step-*.pt"))
    return [file for _, file in sorted(((int(m[1]), file) for m, file in found if m), reverse=True)]


def save(run: Path, step: int, content: Mapping[str, Any], *, keep: int) -> Path:
    """Write ``content`` as the checkpoint after ``step`` updates, then delete all but the newest ``keep``.

    ``content``: dicts, lists and tuples (read back as lists) of tensors, numbers, texts and None. Returns the file.
    Raises CheckpointError for anything else, OSError naming the file where the disk takes no more; older ones stay.
    """
    target = path_of(run, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    held = _to_cpu({"format": FORMAT, "step": step, **content})
    with files.whole(target) as file:
        disk = _Disk(file)
        try:
            torch.save({**held, "digest": digest(held)}, cast("IO[bytes]", disk))
        finally:
            if disk.error is not None:
                raise disk.error from None
    _drop(run, keep)
    return target


def load(file: Path) -> dict[str, Any]:
    """Read a checkpoint, tensors on the CPU. Raises CheckpointError if it is damaged, OSError if it does not open."""
    nbytes = check_regular(file, CheckpointError).st_size
    with open(file, "rb") as opened:
        try:
            check_frame(opened, nbytes)
            content = torch.load(opened, map_location="cpu", weights_only=True)
            check_content(content, nbytes)
            saved = content.pop("digest")
            number = content["format"]
        except MemoryError:
            raise
        except Exception as error:  # a damaged file makes torch.load raise anything at all, OSError included
            raise CheckpointError(f"{file}: damaged, or no checkpoint: {type(error).__name__}") from error
    if number != FORMAT:
        raise CheckpointError(f"{file}: checkpoint format {number!r}; this version reads {FORMAT}")
    if saved != digest(content):
        raise CheckpointError(f"{file}: damaged: its content does not have the digest that was written with it")
    return _as_of_today(content)


def _as_of_today(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint under the names that Octavo has used since 0.1."""
    if "optimiser" in content:
        content["optimizer"] = content.pop("optimiser")
    for name in ("model", "average"):
        if isinstance(content.get(name), dict):
            content[name] = current_names(content[name])
    return content


def load_newest(run: Path) -> tuple[Path, dict[str, Any]] | None:
    """Read the newest checkpoint of a run that is whole, or None if there is none at all.

    A damaged one is passed over with a warning that names it. Raises CheckpointError if all are damaged.
    """
    found = available(run)
    for file in found:
        try:
            return file, load(file)
        except CheckpointError as error:
            warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
    if found:
        raise CheckpointError(
            f"{run / FOLDER}: none of {len(found)} checkpoints can be read; the newest is {found[0].name}"
        )
    return None


def tidy(run: Path, newest: Path | None, *, keep: int) -> None:
    """Remove what a killed process left half written, or did not come to delete: all but the newest ``keep``.

    Damaged files newer than ``newest`` are put out of the way before.
    """
    files.sweep(run)
    files.sweep(run / FOLDER)
    for file in available(run):
        if file == newest:
            break
        file.rename(file.with_name(file.name + ".damaged"))
    _drop(run, keep)


def _drop(run: Path, keep: int) -> None:
    for old in available(run)[keep:]:
        old.unlink()


def digest(content: Any) -> str:
    """Return the SHA-256, in hexadecimal, of nested dicts, lists and tuples of tensors and plain values, on the CPU."""
    state = hashlib.sha256()
    _feed(state, content)
    return state.hexdigest()


class _Disk:
    """A file for torch.save that keeps the first error of a write: torch would raise a RuntimeError in its place."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: memoryview | bytes) -> int:
        if self.error is None:
            try:
                return self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        pass


def _feed(state: Any, item: Any) -> None:
    if isinstance(item, Tensor):
        state.update(f"tensor {item.dtype} {tuple(item.shape)} ".encode())
        state.update(item.detach().contiguous().flatten().view(torch.uint8).numpy())
    elif isinstance(item, Mapping):
        state.update(f"dict {len(item)} ".encode())
        for key, value in item.items():
            state.update(f"{key!r} ".encode())
            _feed(state, value)
    elif isinstance(item, list | tuple):
        state.update(f"list {len(item)} ".encode())
        for value in item:
            _feed(state, value)
    else:
        state.update(f"{item!r} ".encode())


def _to_cpu(item: Any) -> Any:
    """Return nested content with tensors on the CPU and plain containers, or refuse what could not be read back."""
    if isinstance(item, Tensor):
        return item.detach().cpu()
    if isinstance(item, Mapping):
        return {key: _to_cpu(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_to_cpu(value) for value in item]
    if item is not None and type(item) not in (bool, int, float, str):
        raise CheckpointError(f"a checkpoint cannot hold a {type(item).__name__}; accepted: {_ACCEPTED}")
    return item
