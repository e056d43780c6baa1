"""The exact loss of a causal language model: the one place where it is computed.

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
from octavo.train.model_outputs import evaluating, measured_copy, weights_at_fault
from octavo.train.token_losses import gives_losses, token_losses
from octavo.train.token_windows import (
    Window,
    batch_of,
    batches_of,
    check_positions,
    check_vocabulary,
    check_whole,
    shortened,
    stream_ids,
    vocabulary_of,
    windows_of,
)

# Windows of a call, and of two or more the most scores: 134 MB in float32.
_BATCH, _SCORES = 8, 1 << 25

_MAKER = object()  # token by which only exact_nll can create a ValLoss


@dataclass(frozen=True)
class ValLoss:
    """The mean loss of a language model on a stream of tokens; only :func:`exact_nll` creates one.

    ``nats``: per token. ``bits_per_byte``: of the text, if its bytes are known. ``tokens``: number of predicted tokens.
    ``context``, ``stride``: of the windows. ``guard``: the largest change of a loss, in nats, when later tokens and
    other windows were changed; None if nothing could be changed. ``source_hash``: SHA-256 of the tokens and the window
    settings; losses are comparable only if it is equal. ``window_nats``, ``window_tokens``: of every window, for
    intervals and paired differences. ``checked``: how much of the evaluation the guard repeated.
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
        """Refuse a loss that :func:`exact_nll` did not measure."""
        if self._maker is not _MAKER:
            raise DataError("a ValLoss is made by octavo.train.exact_nll alone")

    @property
    def perplexity(self) -> float:
        """``exp`` of the nats per token."""
        return math.exp(self.nats)

    @checks_arguments
    def minus(self, other: ValLoss) -> float:
        """Return the difference to another loss on the same tokens and windows.

        Args:
            other: the loss to subtract.

        Returns:
            Nats per token.

        Raises:
            DataError: for a loss on other tokens or windows.
        """
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
    batch_size: int | None = None,
    leaks: Literal["refuse", "report"] = "refuse",
    guard_calls: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ValLoss:
    """Return the mean negative log-likelihood per token of a stream of ids under a causal model.

    A model with methods ``nll(ids, targets)`` and ``log_probs(ids)``, such as those of :mod:`octavo.lab.language.gpt`,
    computes its own losses, from a head that need not score the whole vocabulary. Training objectives are not used. The
    model runs in evaluation mode, without gradients; modes and random numbers are restored.

    A guard (:mod:`octavo.train.loss_guard`) repeats losses with less context: windows of the whole stream with other
    ids from a cut on, in other rows, beside other windows, or alone, before and after they are scored. Losses must stay
    within 0.001 nats, in bfloat16 and float16 within their rounding; a model's own losses must be those of
    probabilities that sum to 1. A model that carries state from window to window declares it
    (:class:`octavo.train.loss_guard.StreamState`).

    Args:
        model: called with ids ``[B, T]`` int64, it returns scores ``[B, T, V]`` of the next token, as a tensor or as
            ``.logits``; they are normalized here, in float64.
        stream: ids, one dimension.
        context: tokens of a window.
        stride: distance between windows; if it is less than ``context``, a window predicts its last ``stride`` tokens,
            each from at least ``context - stride`` tokens. Default: ``context``.
        tokens: most tokens to predict.
        nbytes: bytes of the text that the whole stream encodes.
        batch_size: windows of a call; default: 8, or fewer where their scores would take much memory, but at least 2.
        leaks: ``refuse`` a model whose losses change, which sees the future, other windows, or earlier calls;
            ``report`` returns the change instead, for formats whose scales span whole tensors.
        guard_calls: most model calls of the guard; default: 40, or a twentieth of the scoring calls if that is more.
        progress: called with the finished windows and the number of windows.

    Returns:
        The loss, with the loss of each window.

    Raises:
        DataError: for an invalid stream, number or window, and for ids and lengths beyond the model's tables.
        ModelError: for a model that returns no scores, is refused, or is trained on a bound of its loss.
        ContractError: for an unnormalized head or for losses that contradict it.
        NonFiniteError: for NaN.

    Example:
        >>> class Uniform(nn.Module):
        ...     def forward(self, ids):
        ...         return torch.zeros(*ids.shape, 8)
        >>> loss = octavo.train.exact_nll(Uniform(), torch.randint(0, 8, (50,)), context=16)
        >>> round(loss.nats, 4), loss.tokens  # the logarithm of 8
        (2.0794, 49)
    """
    whole = stream_ids(stream)
    context = check_whole("context", context)
    stride = context if stride is None else check_whole("stride", stride)
    if stride > context:
        raise DataError(f"context is {context} and stride {stride}; accepted are strides from 1 up to the context")
    for name, value in (("batch_size", batch_size), ("guard_calls", guard_calls), ("nbytes", nbytes)):
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
    setup = f"{context} {stride} {len(ids)}" + (" read on" if reads_on else "")
    source = sha256(setup.encode() + ids.numpy().astype("<i8").tobytes()).hexdigest()
    parts = list(batches_of(windows, 1 if reads_on else batch_size or _together(model, min(context, len(ids) - 1))))
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


def _together(model: nn.Module, length: int) -> int:
    """Return the windows of a call: fewer where a vocabulary is large, but two: the guard changes one beside others."""
    scores = 0 if gives_losses(model) else length * (vocabulary_of(model) or 0)
    return _BATCH if not scores else max(min(_BATCH, _SCORES // scores), 2)


@contextmanager
def _from_the_start(state: StreamState | None) -> Iterator[None]:
    """Reset the state of a model that carries state between windows, and restore it afterwards."""
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
    """Return the sum of the losses of each window. Raises NonFiniteError."""
    sums = [row[-scored:].sum().item() for row, (_, _, scored) in zip(losses_BT, part, strict=True)]
    if not all(map(math.isfinite, sums)):
        raise NonFiniteError(
            f"{type(model).__name__}: its scores become NaN or infinity on tokens {part[0][0]} and on; "
            f"{weights_at_fault(model)}"
        )
    return sums
