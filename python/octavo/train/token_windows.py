"""Streams of ids, with checks, and the windows and batches of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.errors import DataError

#: First position, end and predicted tokens of a window: inputs are ``[first, end)``, targets ``[first + 1, end + 1)``.
Window = tuple[int, int, int]

_WHOLE = "a stream is whole numbers in one dimension, 0 and more"


def stream_ids(stream: Any) -> Tensor:
    """Return a stream as ids, int64 on the CPU.

    Raises DataError for anything but whole numbers of at least 0 in one dimension; floats, booleans and complex numbers
    are not converted.
    """
    if isinstance(stream, str):
        raise DataError("a stream is ids, got a text; octavo.evaluate takes texts with a tokenizer")
    if isinstance(stream, Tensor):
        kind, shape = str(stream.dtype), tuple(stream.shape)
        is_whole = not (stream.is_floating_point() or stream.is_complex() or stream.dtype == torch.bool)
        ids = stream.detach().cpu().long() if is_whole else stream
    else:
        try:
            array = np.asarray(stream)
        except (TypeError, ValueError) as error:
            raise DataError(f"{_WHOLE}: {error}") from None
        kind, shape = str(array.dtype), array.shape
        is_whole = array.dtype.kind in "iu" or (array.size == 0 and array.dtype.kind == "f")  # [] is float64
        if is_whole and array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
            raise DataError(f"{_WHOLE}, got the id {int(array.max())}")
        ids = torch.from_numpy(array.astype(np.int64)) if is_whole else torch.empty(0)
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
    """Return the first ids, of which ``tokens`` are predicted; None: all ids. Raises DataError for fewer than 2 ids."""
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
    """Raise DataError for an id beyond the model's vocabulary, if the model's vocabulary is known."""
    known = vocabulary_of(model)
    if known is not None and (largest := int(ids.max())) >= known:
        raise DataError(
            f"id {largest} is beyond the {known} ids of {type(model).__name__}; give the ids of its own tokenizer"
        )


def vocabulary_of(model: Any) -> int | None:
    """Return the number of ids that a model knows; None where it does not say."""
    table = None
    if callable(accessor := getattr(model, "get_input_embeddings", None)):
        try:
            table = getattr(accessor(), "weight", None)
        except NotImplementedError:  # transformers: a model that does not say which of its tables reads ids
            table = None
    config = getattr(model, "config", None)
    shape = tuple(getattr(table, "shape", ()))  # of a tensor, or of a packed one
    known = shape[0] if len(shape) == 2 else getattr(config, "vocabulary", None)
    return known if isinstance(known, int) else None


def positions_of(model: nn.Module) -> float:
    """Return the number of positions of a model of transformers; infinity without a table of positions.

    In tables with a padding row, such as RoBERTa's, only the rows after it count; in those of OPT and BART the rows
    from ``offset`` on.
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
    """Yield the windows of a stream of ``length`` ids, in order."""
    done = 0  # targets 1..done are predicted
    first = 0
    while done < length - 1:
        end = min(first + context, length - 1)
        yield first, end, end - done
        done, first = end, first + stride


def batches_of(windows: list[Window], size: int) -> Iterator[list[Window]]:
    """Yield batches of at most ``size`` consecutive windows of the same length."""
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
    """Return the device of a model's parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
