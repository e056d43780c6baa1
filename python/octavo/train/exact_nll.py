"""The loss of a causal language model: the one place where it is made.

Every token is predicted once, from what precedes it in its window; scores are normalized and summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from octavo.errors import ContractError, DataError, ModelError, NonFiniteError
from octavo.train.model_outputs import evaluating

# A position may move by so many nats when later tokens change: the order of sums in wider products.
LEAK = 1e-3
# Sums of float32 exponentials over a vocabulary differ from 1 by so much.
UNNORMALIZED = 1e-4
# Scores that are normalized at once: float64 copies stay at 32 MB.
_SCORES = 1 << 22
_BATCH = 8

_MAKER = object()  # exact_nll alone makes a ValLoss


@dataclass(frozen=True)
class ValLoss:
    """The mean loss of a language model on a stream of tokens; :func:`exact_nll` alone makes one.

    ``nats``: a token. ``bits_per_byte``: of the text, where its bytes were given. ``tokens``: predicted, each once.
    ``context``, ``stride``: of the windows. ``guard``: nats by which a position moved when later tokens were changed;
    None where it was not looked for. ``source_hash``: SHA-256 of the tokens and of what was predicted how; losses with
    different ones do not compare. ``window_nats``, ``window_tokens``: of every window, for intervals and paired
    differences.
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
    _maker: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a loss that was not measured here."""
        if self._maker is not _MAKER:
            raise DataError("a ValLoss is made by octavo.train.exact_nll alone")

    @property
    def perplexity(self) -> float:
        """``exp`` of the nats a token."""
        return math.exp(self.nats)

    def minus(self, other: ValLoss) -> float:
        """Return the difference in nats a token. Raises DataError for a loss on other tokens or windows."""
        if self.source_hash != other.source_hash:
            raise DataError(
                "losses of other tokens or windows do not compare; measure both with the same stream, context and "
                "stride"
            )
        return self.nats - other.nats


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
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> ValLoss:
    """Return the mean negative log-likelihood of a stream of ids, a token, under a causal model.

    ``model``: called with ids ``[B, T]`` int64, it gives scores ``[B, T, V]`` of the next token, as a tensor or as
    ``.logits``; they are normalized here, in float64. A model with methods ``nll(ids, targets)`` and
    ``log_probs(ids)``, as those of :mod:`octavo.models.gpt`, gives its own losses instead, from a head that need not
    look at the whole vocabulary; on one window they are checked: probabilities add up to 1, and losses are those of
    its probabilities. No objective of training is asked. ``stream``: ids, one dimension. ``context``: tokens that a
    window shows. ``stride``: how far the next window begins; where less than ``context``, a window predicts its last
    ``stride`` tokens, all of them with ``context - stride`` tokens before and more. ``tokens``: predicted at most.
    ``nbytes``: of the text that the whole stream encodes. ``leaks``: before the work, the later half of a window is
    replaced by other ids; a model whose losses in the earlier half move by more than 0.001 nats sees the future, and
    is refused or, where its formats choose scales over whole tensors, reported. ``progress``: called with the windows
    done and their number.

    Evaluation mode, without gradients; modes and random numbers are as before afterwards. Raises DataError for a
    stream, context or stride that make no window, ModelError for a model that gives no scores, sees the future, or
    is trained on a bound of its loss,
    ContractError for a head that is not normalized or losses that are not its own, NonFiniteError for NaN.
    """
    ids = stream_ids(stream)
    stride = context if stride is None else stride
    if context < 1 or not 1 <= stride <= context:
        raise DataError(f"context is {context} and stride {stride}; accepted are 1 and more, the stride up to context")
    if tokens is not None:
        ids = ids[: tokens + 1]
    if len(ids) < 2:
        raise DataError(
            f"a stream of {len(ids)} tokens; accepted are 2 and more, of which all but the first are predicted"
        )
    windows = list(windows_of(len(ids), context, stride))
    if hasattr(getattr(model, "objective", None), "bound"):
        raise ModelError(
            f"{type(model).__name__} is trained on a bound and has no exact loss; octavo.train.likelihood_bound "
            "and octavo eval estimate the bound"
        )
    with evaluating(model) as (model,):
        if _gives_losses(model):
            _check_head(model, ids, context)
        guard = _leak(model, ids, context)
        if guard is not None and guard > LEAK and leaks == "refuse":
            raise ModelError(
                f"{type(model).__name__}: losses move by {guard:.2g} nats when later tokens change: it sees the "
                "future. Where only formats of inputs do, whose scales span whole tensors, give leaks='report'"
            )
        sums: list[float] = []
        for part in batches_of(windows, batch_size):
            sums += _losses(model, ids, part)
            progress(len(sums), len(windows))
    counts = tuple(scored for _, _, scored in windows)
    nats = math.fsum(sums) / sum(counts)
    told = f"{context} {stride} {len(ids)}".encode()
    source = sha256(told + ids.numpy().astype("<i8").tobytes()).hexdigest()
    share = sum(counts) / max(len(stream_ids(stream)) - 1, 1)
    bits = None if nbytes is None else nats * sum(counts) / math.log(2) / (nbytes * share)
    means = tuple(total / count for total, count in zip(sums, counts, strict=True))
    return ValLoss(nats, bits, sum(counts), context, stride, guard, source, means, counts, _MAKER)


def stream_ids(stream: Any) -> Tensor:
    """Return a stream as ids, int64 on the CPU. Raises DataError for anything but whole numbers in one dimension."""
    if isinstance(stream, str):
        raise DataError("a stream is ids, got a text; octavo.evaluate takes texts with a tokenizer")
    try:
        ids = stream if isinstance(stream, Tensor) else torch.from_numpy(np.asarray(stream).astype(np.int64))
    except (TypeError, ValueError) as error:
        raise DataError(f"a stream is whole numbers in one dimension: {error}") from None
    if ids.ndim != 1 or ids.is_floating_point():
        raise DataError(f"a stream is whole numbers in one dimension, got {ids.dtype} of shape {tuple(ids.shape)}")
    return ids.detach().cpu().long()


def windows_of(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield first position, end, and predicted tokens of each window; inputs are ``[first, end)``, targets one on."""
    done = 0  # targets 1..done are predicted
    first = 0
    while done < length - 1:
        end = min(first + context, length - 1)
        yield first, end, end - done
        done, first = end, first + stride


def batches_of(windows: list[tuple[int, int, int]], size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield windows of one length together, at most ``size``, in order."""
    part: list[tuple[int, int, int]] = []
    for window in windows:
        if part and (len(part) == size or window[1] - window[0] != part[0][1] - part[0][0]):
            yield part
            part = []
        part.append(window)
    if part:
        yield part


def _losses(model: nn.Module, ids: Tensor, part: list[tuple[int, int, int]]) -> list[float]:
    inputs = torch.stack([ids[first:end] for first, end, _ in part])
    targets = torch.stack([ids[first + 1 : end + 1] for first, end, _ in part])
    losses = _token_losses(model, inputs, targets)
    found = [row[-scored:].sum().item() for row, (_, _, scored) in zip(losses, part, strict=True)]
    if not all(map(math.isfinite, found)):
        raise NonFiniteError(f"{type(model).__name__}: its scores become NaN or infinity on tokens {part[0][0]} and on")
    return found


def _gives_losses(model: nn.Module) -> bool:
    return callable(getattr(model, "nll", None)) and callable(getattr(model, "log_probs", None))


def _check_head(model: Any, ids: Tensor, context: int) -> None:
    """Check on one window that the probabilities of a model add up to 1, and that its losses are theirs."""
    device = device_of(model)
    length = min(context, len(ids) - 1)
    inputs, targets = ids[None, :length].to(device), ids[None, 1 : length + 1].to(device)
    log_probs = model.log_probs(inputs).double()
    if (largest := int(ids.max())) >= log_probs.shape[-1]:
        raise DataError(f"id {largest} is beyond the {log_probs.shape[-1]} probabilities of {type(model).__name__}")
    totals = log_probs.exp().sum(-1).flatten()
    worst = float(totals[(totals - 1).abs().nan_to_num(math.inf).argmax()])
    if not abs(worst - 1) <= UNNORMALIZED:
        raise ContractError(
            f"normalization: probabilities of {type(model).__name__} add up to {worst:.6g}; a head that is normalized "
            "gives 1"
        )
    own = -log_probs.gather(-1, targets[..., None])[..., 0]
    off = float((model.nll(inputs, targets).double() - own).abs().max())
    if not off <= LEAK:
        raise ContractError(
            f"one loss: nll of {type(model).__name__} differs by {off:.3g} nats from its own log_probs; smoothing, an "
            "auxiliary or a sampled loss has got into evaluation"
        )


def device_of(model: nn.Module) -> torch.device:
    """Return where the parameters of a model are."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _token_losses(model: Any, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the loss of every target, ``[B, T]`` float64."""
    device = device_of(model)
    if _gives_losses(model):
        return model.nll(inputs_BT.to(device), targets_BT.to(device)).double().cpu()
    given = model(inputs_BT.to(device))
    scores = given if isinstance(given, Tensor) else getattr(given, "logits", None)
    if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[:2] != inputs_BT.shape:
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(given).__name__
        raise ModelError(
            f"{type(model).__name__}: ids {tuple(inputs_BT.shape)} gave {shape}; accepted are scores of the next "
            "token, [batch, tokens, vocabulary], as a tensor or as .logits"
        )
    if (largest := int(targets_BT.max())) >= scores.shape[-1]:
        raise DataError(f"id {largest} is beyond the {scores.shape[-1]} scores of {type(model).__name__}")
    rows, wanted = scores.flatten(0, 1), targets_BT.flatten().to(scores.device)
    step = max(1, _SCORES // rows.shape[-1])
    losses = [
        torch.logsumexp(some.double(), -1) - some.double().gather(-1, want[:, None]).squeeze(-1)
        for some, want in zip(rows.split(step), wanted.split(step), strict=True)
    ]
    return torch.cat(losses).view(targets_BT.shape).cpu()


def _leak(model: nn.Module, ids: Tensor, context: int) -> float | None:
    """Return the nats by which the losses of a window's earlier half move when its later half is other ids."""
    length = min(context, len(ids) - 1)
    half = length // 2
    if half < 1 or length - half < 1:
        return None
    inputs, targets = ids[None, :length], ids[None, 1 : length + 1]
    changed = inputs.clone()
    changed[0, half:] = ids[:length].flip(0)[: length - half]  # ids that the model knows
    if torch.equal(changed, inputs):
        changed[0, half:] = inputs[0, 0]
    before = _token_losses(model, inputs, targets)[0, :half]
    after = _token_losses(model, changed, targets)[0, :half]
    return float((before - after).abs().max())
