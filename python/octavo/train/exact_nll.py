"""The loss of a causal language model: the one place where it is made.

Every token is predicted once, from what precedes it in its window; scores are normalized and summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from torch import Tensor, nn

from octavo.errors import DataError, ModelError, NonFiniteError
from octavo.nn.meta_tensors import refuse_meta
from octavo.storage.arguments import checks_arguments
from octavo.train.loss_guard import Checked, LossGuard, StreamState
from octavo.train.model_outputs import evaluating, measured_copy
from octavo.train.token_losses import token_losses
from octavo.train.token_windows import (
    Window,
    batch_of,
    batches_of,
    check_positions,
    check_vocabulary,
    check_whole,
    shortened,
    stream_ids,
    windows_of,
)

_BATCH = 8

_MAKER = object()  # exact_nll alone makes a ValLoss


@dataclass(frozen=True)
class ValLoss:
    """The mean loss of a language model on a stream of tokens; :func:`exact_nll` alone makes one.

    ``nats``: a token. ``bits_per_byte``: of the text, where its bytes were given. ``tokens``: predicted, each once.
    ``context``, ``stride``: of the windows. ``guard``: nats by which a loss moved at most when later tokens and other
    windows were changed; None where nothing could be. ``source_hash``: SHA-256 of the tokens and of what was predicted
    how; losses with different ones do not compare. ``window_nats``, ``window_tokens``: of every window, for intervals
    and paired differences. ``checked``: how much of the evaluation the guard made again.
    """

    nats: float
    bits_per_byte: float | None
    tokens: int
    context: int
    stride: int
    guard: float | None
    source_hash: str
    window_nats: tuple[float, ...] = field(repr=False)
    window_tokens: tuple[int, ...] = field(repr=False)
    checked: Checked = field(default=Checked(0, 0, 0, 0), compare=False)
    _maker: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a loss that was not measured here."""
        if self._maker is not _MAKER:
            raise DataError("a ValLoss is made by octavo.train.exact_nll alone")

    @property
    def perplexity(self) -> float:
        """``exp`` of the nats a token."""
        return math.exp(self.nats)

    @checks_arguments
    def minus(self, other: ValLoss) -> float:
        """Return the difference in nats a token. Raises DataError for a loss on other tokens or windows."""
        if self.source_hash != other.source_hash:
            raise DataError(
                "losses of other tokens or windows do not compare; measure both with the same stream, context and "
                "stride"
            )
        return self.nats - other.nats


@checks_arguments
def exact_nll(
    model: nn.Module,
    stream: Any,
    *,
    context: int,
    stride: int | None = None,
    tokens: int | None = None,
    nbytes: int | None = None,
    batch_size: int = _BATCH,
    leaks: Literal["refuse", "report"] = "refuse",
    guard_calls: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ValLoss:
    """Return the mean negative log-likelihood of a stream of ids, a token, under a causal model.

    ``model``: called with ids ``[B, T]`` int64, it gives scores ``[B, T, V]`` of the next token, as a tensor or as
    ``.logits``; they are normalized here, in float64. A model with methods ``nll(ids, targets)`` and
    ``log_probs(ids)``, as those of :mod:`octavo.lab.language.gpt`, gives its own losses instead, from a head that need
    not look at the whole vocabulary. No objective of training is asked. ``stream``: ids, one dimension. ``context``:
    tokens that a window shows. ``stride``: how far the next window begins; where less than ``context``, a window
    predicts its last ``stride`` tokens, all of them with ``context - stride`` tokens before and more. ``tokens``:
    predicted at most. ``nbytes``: of the text that the whole stream encodes. ``progress``: called with the windows
    done and their number.

    Meanwhile a guard (:mod:`octavo.train.loss_guard`) makes losses again from less: windows of the whole stream, with
    other ids from a cut on, in other rows and beside other windows, alone, before and after they are scored. They must
    stay within 0.001 nats, in bfloat16 and float16 within their rounding; own losses must be those of probabilities
    that add up to 1. ``leaks``: a model whose losses move sees the future, other windows, or what it read before, and
    is refused; where its formats choose scales over whole tensors, ``report`` tells by how much instead.
    ``guard_calls``: of the model at most; for None 40, or a twentieth of those that score where that is more. A model
    that reads on from window to window says so (:class:`octavo.train.loss_guard.StreamState`).

    Evaluation mode, without gradients; modes and random numbers are as before afterwards. Raises DataError for a
    stream, numbers or windows that are none, ids and lengths that the model has no rows for; ModelError for a model
    that gives no scores, is refused, or is trained on a bound of its loss; ContractError for a head that is not
    normalized or losses that are not its own; NonFiniteError for NaN.
    """
    whole = stream_ids(stream)
    context, batch_size = check_whole("context", context), check_whole("batch_size", batch_size)
    stride = context if stride is None else check_whole("stride", stride)
    if stride > context:
        raise DataError(f"context is {context} and stride {stride}; accepted are strides from 1 up to the context")
    for name, value in (("guard_calls", guard_calls), ("nbytes", nbytes)):
        if value is not None:
            check_whole(name, value)
    refuse_meta(model, "exact_nll")
    ids = shortened(whole, tokens)
    windows = list(windows_of(len(ids), context, stride))
    if hasattr(getattr(model, "objective", None), "bound"):
        raise ModelError(
            f"{type(model).__name__} is trained on a bound and has no exact loss; octavo.train.likelihood_bound "
            "and octavo eval estimate the bound"
        )
    check_positions(model, min(context, len(ids) - 1))
    check_vocabulary(model, ids)
    reads_on = StreamState.of(model) is not None
    told = f"{context} {stride} {len(ids)}" + (" read on" if reads_on else "")
    source = sha256(told.encode() + ids.numpy().astype("<i8").tobytes()).hexdigest()
    parts = list(batches_of(windows, 1 if reads_on else batch_size))
    fresh = None if reads_on else measured_copy(model)
    largest = int(ids.max())
    with evaluating(model) as (model,), _from_the_start(StreamState.of(model)):
        guard = LossGuard(
            model, ids, parts, refuse=leaks == "refuse", seed=int(source[:15], 16), calls=guard_calls, fresh=fresh
        )
        sums: list[float] = []
        for number, part in enumerate(parts):
            guard.before(number)
            inputs, targets = batch_of(ids, part)
            losses = token_losses(model, inputs, targets, largest=largest)
            sums += _sums(model, losses, part)
            guard.after(losses)
            progress(len(sums), len(windows))
        guard.finish()
    counts = tuple(scored for _, _, scored in windows)
    nats = math.fsum(sums) / sum(counts)
    share = sum(counts) / max(len(whole) - 1, 1)
    bits = None if nbytes is None else nats * sum(counts) / math.log(2) / (nbytes * share)
    means = tuple(total / count for total, count in zip(sums, counts, strict=True))
    return ValLoss(nats, bits, sum(counts), context, stride, guard.moved, source, means, counts, guard.checked, _MAKER)


@contextmanager
def _from_the_start(state: StreamState | None) -> Iterator[None]:
    """Let a model that reads on begin a stream; its state is as before afterwards."""
    if state is None:
        yield
        return
    before = state.read()
    state.write(None)
    try:
        yield
    finally:
        state.write(before)


def _sums(model: nn.Module, losses_BT: Tensor, part: Sequence[Window]) -> list[float]:
    """Return the sum of the losses that each window predicts. Raises NonFiniteError."""
    found = [row[-scored:].sum().item() for row, (_, _, scored) in zip(losses_BT, part, strict=True)]
    if not all(map(math.isfinite, found)):
        raise NonFiniteError(f"{type(model).__name__}: its scores become NaN or infinity on tokens {part[0][0]} and on")
    return found
