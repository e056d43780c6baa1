"""Streams of ids, checked, and the windows and batches that an evaluation makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.errors import DataError

#: First position, end and predicted tokens of a window: inputs are ``[first, end)``, targets one on.
Window = tuple[int, int, int]

_WHOLE = "a stream is whole numbers in one dimension, 0 and more"


def stream_ids(stream: Any) -> Tensor:
    """Return a stream as ids, int64 on the CPU.

    Raises DataError for anything but whole numbers in one dimension: floats, booleans and complex numbers are not cut
    to ids, and no id is below 0.
    """
    if isinstance(stream, str):
        raise DataError("a stream is ids, got a text; octavo.evaluate takes texts with a tokenizer")
    if isinstance(stream, Tensor):
        kind, shape = str(stream.dtype), tuple(stream.shape)
        is_whole = not (stream.is_floating_point() or stream.is_complex() or stream.dtype == torch.bool)
        ids = stream.detach().cpu().long() if is_whole else stream
    else:
        try:
            found = np.asarray(stream)
        except (TypeError, ValueError) as error:
            raise DataError(f"{_WHOLE}: {error}") from None
        kind, shape = str(found.dtype), found.shape
        is_whole = found.dtype.kind in "iu" or (found.size == 0 and found.dtype.kind == "f")  # [] is float64
        if is_whole and found.dtype == np.uint64 and found.size and int(found.max()) > np.iinfo(np.int64).max:
            raise DataError(f"{_WHOLE}, got the id {int(found.max())}")
        ids = torch.from_numpy(found.astype(np.int64)) if is_whole else torch.empty(0)
    if not is_whole or len(shape) != 1:
        raise DataError(f"{_WHOLE}, got {kind} of shape {tuple(shape)}")
    if len(ids) and int(ids.min()) < 0:
        raise DataError(f"{_WHOLE}, got {int(ids.min())} at position {int(ids.argmin())}")
    return ids


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least ``least``. Raises DataError with its name for anything else."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__") or int(value) < least:
        raise DataError(f"{name} is {value!r}; accepted are whole numbers, {least} and more")
    return int(value)


def shortened(ids: Tensor, tokens: int | None) -> Tensor:
    """Return the ids of which ``tokens`` are predicted, all for None. Raises DataError where none is."""
    if tokens is not None:
        ids = ids[: check_whole("tokens", tokens) + 1]
    if len(ids) < 2:
        raise DataError(
            f"a stream of {len(ids)} tokens; accepted are 2 and more, of which all but the first are predicted"
        )
    return ids


def check_positions(model: nn.Module, length: int) -> None:
    """Raise DataError for windows that are longer than a model's table of positions."""
    if length > (most := positions_of(model)):
        raise DataError(
            f"windows of {length} tokens, but {type(model).__name__} has {most:.0f} positions; give context={most:.0f} "
            "or less"
        )


def check_vocabulary(model: Any, ids: Tensor) -> None:
    """Raise DataError for an id that a model has no row for, where the model tells how many it has."""
    table = None
    if callable(given := getattr(model, "get_input_embeddings", None)):
        try:
            table = getattr(given(), "weight", None)
        except NotImplementedError:  # transformers: a model that does not say which of its tables reads ids
            table = None
    config = getattr(model, "config", None)
    known = table.shape[0] if isinstance(table, Tensor) and table.ndim == 2 else getattr(config, "vocabulary", None)
    if isinstance(known, int) and (largest := int(ids.max())) >= known:
        raise DataError(
            f"id {largest} is beyond the {known} ids of {type(model).__name__}; give the ids of its own tokenizer"
        )


def positions_of(model: nn.Module) -> float:
    """Return the tokens of a text that a model of transformers has positions for; infinity where it has no table.

    Tables with a row for padding, as RoBERTa's, give the rows behind it to tokens; those of OPT and BART begin at
    their ``offset``.
    """
    tables = [
        module.weight.shape[0]
        - (0 if module.padding_idx is None else module.padding_idx + 1)
        - int(getattr(module, "offset", 0))
        for path, module in model.named_modules()
        if path.rpartition(".")[2] in ("position_embeddings", "wpe", "embed_positions")
        and hasattr(module, "padding_idx")
        and hasattr(module, "weight")
    ]
    return min(tables, default=math.inf)


def windows_of(length: int, context: int, stride: int) -> Iterator[Window]:
    """Yield first position, end, and predicted tokens of each window; inputs are ``[first, end)``, targets one on."""
    done = 0  # targets 1..done are predicted
    first = 0
    while done < length - 1:
        end = min(first + context, length - 1)
        yield first, end, end - done
        done, first = end, first + stride


def batches_of(windows: list[Window], size: int) -> Iterator[list[Window]]:
    """Yield windows of one length together, at most ``size``, in order."""
    part: list[Window] = []
    for window in windows:
        if part and (len(part) == size or window[1] - window[0] != part[0][1] - part[0][0]):
            yield part
            part = []
        part.append(window)
    if part:
        yield part


def batch_of(ids: Tensor, part: list[Window]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets ``[B, T]`` of windows of one length."""
    inputs = torch.stack([ids[first:end] for first, end, _ in part])
    return inputs, torch.stack([ids[first + 1 : end + 1] for first, end, _ in part])


def device_of(model: nn.Module) -> torch.device:
    """Return where the parameters of a model are."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
