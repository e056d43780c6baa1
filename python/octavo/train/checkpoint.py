"""Checkpoint files: written atomically, verified when read.

``checkpoints/step-00001000.pt`` is a dict of tensors and plain values, for ``torch.load(weights_only=True)``. It is
written under another name, flushed to the disk and renamed, so a file of that name is complete unless the disk failed.
A digest of the whole content detects damage that torch.load does not notice, such as a flipped bit in a weight.
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
    matches = ((_NAME.fullmatch(file.name), file) for file in (run / FOLDER).glob("step-*.pt"))
    return [file for _, file in sorted(((int(m[1]), file) for m, file in matches if m), reverse=True)]


def save(run: Path, step: int, content: Mapping[str, Any], *, keep: int) -> Path:
    """Write ``content`` as the checkpoint after ``step`` updates, then delete all but the newest ``keep``.

    ``content``: dicts, lists and tuples (read back as lists) of tensors, numbers, texts and None. Returns the file.
    Raises CheckpointError for other types, OSError naming the file if the disk is full; older checkpoints stay then.
    """
    target = path_of(run, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    state = _to_cpu({"format": FORMAT, "step": step, **content})
    with files.whole(target) as file:
        disk = _Disk(file)
        try:
            torch.save({**state, "digest": digest(state)}, cast("IO[bytes]", disk))
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
        except Exception as error:  # torch.load may raise anything for a damaged file, including OSError
            raise CheckpointError(f"{file}: damaged, or no checkpoint: {type(error).__name__}") from error
    if number != FORMAT:
        raise CheckpointError(f"{file}: checkpoint format {number!r}; this version reads {FORMAT}")
    if saved != digest(content):
        raise CheckpointError(f"{file}: damaged: its content does not have the digest that was written with it")
    return _as_of_today(content)


def _as_of_today(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint with former names replaced by current ones."""
    if "optimiser" in content:
        content["optimizer"] = content.pop("optimiser")
    for name in ("model", "average"):
        if isinstance(content.get(name), dict):
            content[name] = current_names(content[name])
    return content


def load_newest(run: Path) -> tuple[Path, dict[str, Any]] | None:
    """Read the newest undamaged checkpoint of a run; None if the run has no checkpoint.

    Damaged checkpoints are skipped with a warning that names them. Raises CheckpointError if all are damaged.
    """
    checkpoints = available(run)
    for file in checkpoints:
        try:
            return file, load(file)
        except CheckpointError as error:
            warnings.warn(f"{error}; going back to the checkpoint before it", stacklevel=2)
    if checkpoints:
        raise CheckpointError(
            f"{run / FOLDER}: none of {len(checkpoints)} checkpoints can be read; the newest is {checkpoints[0].name}"
        )
    return None


def tidy(run: Path, newest: Path | None, *, keep: int) -> None:
    """Remove incomplete files of a killed process, and all checkpoints but the newest ``keep``.

    Damaged files newer than ``newest`` are renamed first.
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
    """A file for torch.save that records the first write error, which torch would replace by a RuntimeError."""

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
    """Return nested content with tensors on the CPU and plain containers. Raises CheckpointError for other types."""
    if isinstance(item, Tensor):
        return item.detach().cpu()
    if isinstance(item, Mapping):
        return {key: _to_cpu(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_to_cpu(value) for value in item]
    if item is not None and type(item) not in (bool, int, float, str):
        raise CheckpointError(f"a checkpoint cannot hold a {type(item).__name__}; accepted: {_ACCEPTED}")
    return item
