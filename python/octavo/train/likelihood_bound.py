"""Bounds on the loss of models without an exact loss, estimated over random draws; not comparable with exact losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import DataError, ModelError, NonFiniteError
from octavo.storage.arguments import checks_arguments
from octavo.train.loss_guard import LEAK
from octavo.train.model_outputs import evaluating
from octavo.train.token_windows import (
    batch_of,
    batches_of,
    check_vocabulary,
    check_whole,
    device_of,
    shortened,
    stream_ids,
    windows_of,
)

_MAKER = object()  # token by which only likelihood_bound can create a Bound


@dataclass(frozen=True)
class Bound:
    """An upper bound on the loss of a model in nats per token; distinct from :class:`~octavo.train.ValLoss`.

    ``nats``: the mean of ``draws`` estimates. ``error``: its standard error over draws. ``guard``: the largest change
    of a prediction, in nats, when tokens that it must not see were changed.
    """

    nats: float
    error: float
    tokens: int
    context: int
    draws: int
    guard: float
    source_hash: str
    _maker: object = None

    def __post_init__(self) -> None:
        """Refuse a bound that :func:`likelihood_bound` did not estimate."""
        if self._maker is not _MAKER:
            raise DataError("a Bound is made by octavo.train.likelihood_bound alone")


@checks_arguments
def likelihood_bound(
    model: nn.Module,
    stream: Any,
    *,
    context: int,
    tokens: int | None = None,
    draws: int = 4,
    seed: int = 0,
    batch_size: int = 8,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Bound:
    """Return the mean bound on the negative log-likelihood per token of a stream of ids.

    Windows do not overlap; each is estimated several times. First one window is checked: predictions must not change
    when hidden tokens, or later blocks, change.

    Args:
        model: its ``objective`` has ``bound(model, ids, targets, generator)``, an unbiased estimate for every window,
            ``[B]`` nats.
        stream: ids, one dimension.
        context: tokens of a window.
        tokens: most tokens to estimate.
        draws: estimates of each window.
        seed: of the random numbers.
        batch_size: windows of a call.
        progress: called with the finished windows and the number of windows.

    Returns:
        The bound.

    Raises:
        ModelError: for a model without a bound, or one that sees its targets.
        DataError: for a stream without windows.
        NonFiniteError: for NaN.
    """
    objective: Any = getattr(model, "objective", None)
    if not hasattr(objective, "bound"):
        raise ModelError(f"{type(model).__name__} has no bound on its likelihood; octavo.train.exact_nll measures it")
    ids = shortened(stream_ids(stream), tokens)
    context, draws, batch_size = (
        check_whole(name, value) for name, value in (("context", context), ("draws", draws), ("batch_size", batch_size))
    )
    check_vocabulary(model, ids)
    generator = torch.Generator().manual_seed(int(seed))
    windows = list(windows_of(len(ids), context, context))
    device = device_of(model)
    sums: list[list[float]] = []
    with evaluating(model) as (model,):
        objective = model.objective
        guard = _guard(model, objective, ids[: context + 1].to(device))
        if not guard <= LEAK:
            raise ModelError(f"{type(model).__name__}: predictions move by {guard:.2g} nats when hidden tokens change")
        for part in batches_of(windows, batch_size):
            inputs, targets = (some.to(device) for some in batch_of(ids, part))
            estimates = [objective.bound(model, inputs, targets, generator).double().cpu() for _ in range(draws)]
            sums += torch.stack(estimates, 1).tolist()
            progress(len(sums), len(windows))
    means = [math.fsum(row) / draws for row in sums]
    counts = [scored for _, _, scored in windows]
    if not all(map(math.isfinite, means)):
        raise NonFiniteError(f"{type(model).__name__}: its bound becomes NaN or infinity")
    # The error is over draws only, because the windows are fixed: the spread of a window's estimates about their mean.
    squares = [math.fsum((value - mean) ** 2 for value in row) for row, mean in zip(sums, means, strict=True)]
    error = math.sqrt(math.fsum(squares) / (draws * max(draws - 1, 1))) / sum(counts) if draws > 1 else math.inf
    setup = f"bound {context} {len(ids)}".encode()
    source = sha256(setup + ids.numpy().astype("<i8").tobytes()).hexdigest()
    return Bound(math.fsum(means) / sum(counts), error, sum(counts), context, draws, guard, source, _MAKER)


def _guard(model: Any, objective: Any, ids: Tensor) -> float:
    """Return the change of predictions, in nats, when masked tokens, or blocks of the later half, are changed."""
    first, targets = ids[None, :1], ids[None, 1:]
    length = targets.shape[1]
    size = objective.config.block or length
    half = (length // 2) // size * size or length
    masked = torch.arange(length, device=ids.device)[None] % 2 == 0
    changed, later = targets.clone(), targets.clone()
    last = (length - 1) // size * size
    shifted = (targets + 1) % model.config.vocabulary
    changed[:, last:] = torch.where(masked, shifted, targets)[:, last:]  # hidden tokens of the last block
    later[:, half:] = shifted[:, half:]  # whole blocks
    states = [objective.hidden(model, first, some, masked) for some in (targets, changed, later)]
    plain, hidden, after = (model.head.log_probs(one[0]) for one in states)
    moved = [(plain - hidden).abs().max(), (plain - after)[:half].abs().max()]
    if half == length:
        moved = moved[:1]
    return float(torch.stack(moved).max())
