"""Checks of untrusted checkpoints: of the file before torch reads it, of the content before a run resumes from it.

A digest shows that a file is undamaged, not that Octavo wrote it. Therefore sizes, types and names are checked too.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from octavo.errors import CheckpointError, OctavoError
from octavo.storage.reading import shown
from octavo.train.run_counters import LATER, State, Window

# Globals that the pickle in a checkpoint may name: tensors, and the dict of hooks that torch stores with each.
_NAMES = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
# Limits of the pickle's steps and values: far more than a model of a hundred thousand tensors needs.
_STEPS, _VALUES = 8_000_000, 4_000_000
_WHOLE = {"step", "tokens", "unimproved", "reached", "best_step", "skipped", "timed_updates", "timed_tokens"}
_NUMBERS = {"best", "loss", "unit", "loss_sum", "seconds"}


def check_frame(opened: IO[bytes], nbytes: int) -> None:
    """Refuse files that :func:`torch.save` does not write for plain content. Raises ValueError, or errors of zipfile.

    The file must be a zip of uncompressed members that together are no larger than the file, which excludes zip bombs,
    with one pickle that refers to no globals but tensors.
    """
    if opened.read(4) != b"PK\x03\x04":
        raise ValueError("no zip of torch.save")
    with zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("members are compressed")
        if sum(member.file_size for member in members) > nbytes:
            raise ValueError("members are larger than the file")
        pickles = [member for member in members if member.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{len(pickles)} pickles")
        with archive.open(pickles[0]) as pickled:
            for number, (step, argument, _) in enumerate(pickletools.genops(pickled)):
                if number > _STEPS:
                    raise ValueError(f"more than {_STEPS} steps")
                if step.name == "GLOBAL" and argument not in _NAMES and not _is_storage(str(argument)):
                    raise ValueError(f"names {shown(argument)}")
                if step.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
                    raise ValueError(f"step {step.name}")
    opened.seek(0)


def _is_storage(name: str) -> bool:
    module, _, storage = name.partition(" ")
    return module == "torch" and storage.endswith("Storage") and storage.isalnum()


def check_content(content: Any, nbytes: int) -> None:
    """Refuse content that :func:`octavo.train.checkpoint.save` does not write. Raises ValueError.

    Accepted are dicts, lists and tuples of dense tensors and plain values, no more than a file of ``nbytes`` can hold.
    Otherwise a tensor that repeats one stored number, or a list that contains itself, could exhaust the memory.
    """
    waiting, values, nbytes_of_tensors = [content], 0, 0
    while waiting:
        item = waiting.pop()
        values += 1
        if values > _VALUES:
            raise ValueError(f"more than {_VALUES} values")
        if type(item) is dict:
            waiting += [*item.keys(), *item.values()]
        elif type(item) in (list, tuple):
            waiting += item
        elif type(item) is Tensor:
            nbytes_of_tensors += item.numel() * item.element_size()
            if (
                item.layout != torch.strided
                or item.device.type != "cpu"
                or item.is_quantized
                or nbytes_of_tensors > 2 * nbytes
            ):
                raise ValueError("tensors that are not dense, or larger than the file")
        elif item is not None and type(item) not in (bool, int, float, str):
            raise ValueError(f"a {type(item).__name__}")


def check_outline(file: Path, content: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse content without one of the ``names``, or with parts of another type. Raises CheckpointError."""
    for name in ("step", *names):
        if name not in content:
            raise CheckpointError(f"{file}: {name} is missing")
    step, states = content["step"], content["random"]
    if type(step) is not int or step < 0:
        raise CheckpointError(f"{file}: step is {shown(step)}; accepted are whole numbers of at least 0")
    for name in ("config", "state", "clock", "model", "optimizer", "scaler"):
        if not isinstance(content[name], dict):
            raise CheckpointError(f"{file}: {name} is {shown(content[name])}; accepted is a dict")
    if not isinstance(states, list) or not states or not all(map(_is_random, states)):
        raise CheckpointError(f"{file}: random is not what random_state gives, one state a process")
    check_state(file, content["state"])


def _is_random(state: Any) -> bool:
    """Whether a state is safe for numpy, which does not check the position before it reads there."""
    numpy = state.get("numpy") if isinstance(state, dict) else None
    if not isinstance(numpy, dict):
        return False
    keys, position = numpy.get("keys"), numpy.get("position")
    is_keys = isinstance(keys, Tensor) and keys.dtype == torch.int64 and keys.shape == (624,)
    return is_keys and type(position) is int and 0 <= position <= 624


def check_alike(
    file: Path, content: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, average: Any
) -> None:
    """Refuse tensors whose shape or dtype differs from the tensors they replace. Raises CheckpointError."""
    _check_alike(file, "model", content["model"], model.state_dict())
    if average is not None:
        _check_alike(file, "average", content["average"], average.state_dict())
    saved, own = content["optimizer"], optimizer.state_dict()
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or not isinstance(saved.get("state"), dict):
        raise CheckpointError(f"{file}: optimizer is {shown(saved)}; accepted are its state and its param_groups")
    if len(groups) == len(own["param_groups"]):  # torch refuses others
        for number, (group, wanted) in enumerate(zip(groups, own["param_groups"], strict=True)):
            _check_group(file, f"optimizer.param_groups.{number}", group, wanted)
    if isinstance(optimizer, torch.optim.Adam):  # AdamW, too; others may keep state of any shape
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, state in saved["state"].items():
            _check_moments(file, f"optimizer.state.{shown(number)}", number, state, parameters)


def _check_group(file: Path, where: str, group: Any, own: Mapping[str, Any]) -> None:
    _check_alike(file, where, group, own)
    for name, value in own.items():  # torch adds boolean options that its older versions lacked
        if name not in group and value is not None and not isinstance(value, bool):
            raise CheckpointError(f"{file}: {where}.{name} is missing")
    for name in group.keys() - own.keys():
        _check_alike(file, f"{where}.{name}", group[name], 1.0)  # the rate that the schedule begins with


def _check_moments(file: Path, where: str, number: Any, state: Any, parameters: list[nn.Parameter]) -> None:
    if type(number) is not int or not 0 <= number < len(parameters):
        raise CheckpointError(f"{file}: {where} is of no parameter; there are {len(parameters)}")
    for name in ("step", "exp_avg", "exp_avg_sq", *(state if isinstance(state, dict) else ())):
        value = state.get(name) if isinstance(state, dict) else None
        shape = torch.Size() if name == "step" else parameters[number].shape
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape != shape:
            raise CheckpointError(f"{file}: {where}.{name} does not fit its parameter, of shape {tuple(shape)}")


def check_state(file: Path, state: Mapping[str, Any]) -> None:
    """Refuse a state whose fields are missing, unknown or of another type. Raises CheckpointError."""
    for where, table, cls in (("state", state, State), ("state.window", state.get("window"), Window)):
        names = {field.name for field in fields(cls)}
        if not isinstance(table, dict) or table.keys() | (LATER & names) != names:
            raise CheckpointError(
                f"{file}: {where} is {shown(table)}; accepted is a dict of {', '.join(sorted(names))}"
            )
        for name, value in table.items():
            optional = cls is State and name in ("best", "best_step", "loss", "unit", "metrics")
            fine = (
                (value is None and optional)
                or (name in _WHOLE and type(value) is int and value >= 0)
                or (name in _NUMBERS and type(value) in (int, float))
                or (name in ("metrics", "counts") and _is_numbers(value))
                or name == "window"
            )
            if not fine:
                raise CheckpointError(f"{file}: {where}.{name} is {shown(value)}; accepted is what a run counts")


@contextmanager
def foreign_values(file: Path) -> Iterator[None]:
    """Turn exceptions of the parts of a run over foreign values into CheckpointError."""
    try:
        yield
    except (OctavoError, OSError, MemoryError):
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{file}: does not fit this run: {type(error).__name__}: {message}") from error


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and (number is None or type(number) in (int, float)) for key, number in value.items()
    )


def _check_alike(file: Path, where: str, saved: Any, own: Any) -> None:
    """Compare the types of values under the names that both have; the parts themselves compare the names."""
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping):
            raise CheckpointError(f"{file}: {where} is {shown(saved)}; accepted is a dict")
        for name in own:
            if name in saved:
                _check_alike(file, f"{where}.{name}", saved[name], own[name])
    elif isinstance(own, Tensor):
        if not isinstance(saved, Tensor) or saved.dtype != own.dtype or saved.shape != own.shape:
            actual = f"{saved.dtype} {tuple(saved.shape)}" if isinstance(saved, Tensor) else shown(saved)
            raise CheckpointError(
                f"{file}: does not fit this model: {where} is {actual}, not {own.dtype} {tuple(own.shape)}"
            )
    elif isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(own):
            raise CheckpointError(f"{file}: {where} is {shown(saved)}; accepted is a list of {len(own)}")
        for number, (one, wanted) in enumerate(zip(saved, own, strict=True)):
            _check_alike(file, f"{where}.{number}", one, wanted)
    else:
        number = type(own) in (int, float)
        fine = type(saved) in (int, float) and math.isfinite(saved) if number else saved == own
        if not fine:
            raise CheckpointError(f"{file}: {where} is {shown(saved)}; accepted is a value like {own!r}")
