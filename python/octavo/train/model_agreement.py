"""The agreement of two models: a quality that needs no labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.data.batches import Batches, arguments_of, call_numbered, tensors_in
from octavo.errors import ModelError, NonFiniteError
from octavo.tensors.fixed_order import one_thread
from octavo.train.measurement import Measurement, digest_of, mean_of
from octavo.train.model_outputs import evaluating, read_output, weights_at_fault
from octavo.train.unpadded_samples import unpadded

_NEIGHBOURS = 5000  # most embeddings whose neighbours are compared: the table of similarities has at most 200 MB


def agreement(
    model: nn.Module,
    reference: nn.Module,
    batches: Batches,
    *,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurement:
    """Return the agreement of ``model`` with ``reference`` on the same batches.

    For scores: metric ``KL``, the mean of KL(reference || model) in nats over texts, or over tokens for scores of
    tokens; ``details``: ``top1``, the share with the same best class. For embeddings: metric ``cosine``, the mean
    cosine; ``details``: ``least``, and ``nearest``, the share with the same nearest neighbour. All in float64;
    intervals are Student's over the rows.

    Raises ModelError for models whose outputs differ in shape, NonFiniteError for NaN, CalibrationError for batches
    that a model cannot take, naming batch and layer.
    """
    kinds: set[str] = set()
    mine: list[Tensor] = []
    theirs: list[Tensor] = []
    values: list[float] = []
    same = 0
    parts: list[bytes] = []
    batches = unpadded(reference, batches)
    with evaluating(model, reference) as (model, reference), one_thread():
        for number, batch in enumerate(batches):
            parts += [_bytes(tensor) for tensor in tensors_in(arguments_of(reference, batch))]
            kind, before = read_output(call_numbered(reference, batch, number, "batch"), batch)
            other, after = read_output(call_numbered(model, batch, number, "batch"), batch)
            if kind != other or before.shape != after.shape:
                raise ModelError(
                    f"batch {number}: {other} {tuple(after.shape)} of {type(model).__name__}, {kind} "
                    f"{tuple(before.shape)} of {type(reference).__name__}: models agree only on the same outputs"
                )
            kinds.add(kind)
            if kind == "embedding":
                mine.append(functional.normalize(after, dim=-1))
                theirs.append(functional.normalize(before, dim=-1))
                values += (mine[-1] * theirs[-1]).sum(-1).tolist()
            else:
                before, after = before.log_softmax(-1), after.log_softmax(-1)
                values += (before.exp() * (before - after)).nan_to_num(nan=math.nan, neginf=0).sum(-1).tolist()
                same += int((before.argmax(-1) == after.argmax(-1)).sum())
            progress(number + 1, len(batches))
    if not all(map(math.isfinite, values)):
        raise NonFiniteError(
            f"{type(model).__name__} or {type(reference).__name__} gives NaN or infinity on these batches; "
            f"{weights_at_fault(model, reference)}"
        )
    examples = digest_of(parts)
    if kinds == {"embedding"}:
        details = {"least": min(values), **_nearest(torch.cat(mine), torch.cat(theirs))}
        return mean_of("cosine", values, "max", examples, details=details)
    return mean_of("KL", values, "min", examples, details={"top1": same / len(values)})


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return str(tuple(plain.shape)).encode() + plain.flatten().view(torch.uint8).numpy().tobytes()


def _nearest(mine: Tensor, theirs: Tensor) -> dict[str, float]:
    """Return the share of rows with the same nearest other row; nothing for one row or too many."""
    if not 1 < len(mine) <= _NEIGHBOURS:
        return {}
    neighbors = []
    for rows in (mine, theirs):
        similar = rows @ rows.T
        similar.fill_diagonal_(-2.0)
        neighbors.append(similar.argmax(-1))
    return {"nearest": (neighbors[0] == neighbors[1]).double().mean().item()}
