"""octavo.evaluate: the one place where the quality of a model is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from torch import nn

from octavo.data.batches import Batches
from octavo.data.calibration_texts import text_ids
from octavo.data.labelled import Sentences
from octavo.errors import DataError, DTypeError, SettingError
from octavo.nn.meta_tensors import refuse_meta
from octavo.storage.arguments import checks_arguments
from octavo.train.classifier_accuracy import LONGEST, classifier_accuracy
from octavo.train.exact_nll import ValLoss, exact_nll
from octavo.train.intervals import weighted_mean
from octavo.train.measurement import Measurement
from octavo.train.model_agreement import agreement

#: Default tokens of a language model's window, if neither the caller nor the model sets fewer.
CONTEXT = 1024


@checks_arguments
def evaluate(
    model: nn.Module,
    data: Any,
    *,
    tokenizer: Any = None,
    against: nn.Module | None = None,
    context: int | None = None,
    stride: int | None = None,
    tokens: int | None = None,
    max_tokens: int = LONGEST,
    samples: int | None = None,
    leaks: Literal["refuse", "report"] = "refuse",
    guard_calls: int | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurement:
    """Measure a model: perplexity on a text, accuracy on labelled texts, or agreement with another model.

    - **Perplexity** of a causal model, where ``data`` is a text or ids in one dimension. Every token but the first is
      predicted once, in windows (:func:`octavo.train.exact_nll`).
    - **Accuracy** of a classifier, where ``data`` is labelled texts.
    - **Agreement**, where ``against`` is another model: of scores (KL in nats, with the share of equal best classes) or
      of embeddings (cosine).

    Args:
        model: the model; its modes are as before afterwards.
        data: a text or ids; a :class:`octavo.data.Sentences` or a list of ``(text, label)`` pairs; or, with
            ``against``, batches for both models or texts.
        tokenizer: of transformers or :mod:`octavo.data`, for texts.
        against: the other model of an agreement.
        context: tokens of a window; default: the limit of the model's configuration, up to 1024.
        stride: tokens between the beginnings of windows; default: ``context``.
        tokens: most tokens to predict.
        max_tokens: length at which labelled texts are truncated.
        samples: most samples of an agreement.
        leaks: ``refuse`` a model whose losses depend on tokens that they must not see, or ``report`` the dependence.
        guard_calls: most model calls of that check; default: 40, or a twentieth of the other calls.
        progress: called with done and total.

    Returns:
        The number, its 95 % interval, and the value of every example, so that differences can be paired.

    Raises:
        DTypeError: for another kind of model, tokenizer or data.
        DataError: for data that does not fit, or without its tokenizer.
        ModelError: for a model with other outputs, or that sees the tokens it predicts.
        SettingError: for options of a perplexity without one.

    Example:
        >>> class Uniform(nn.Module):
        ...     def forward(self, ids):
        ...         return torch.zeros(*ids.shape, 8)
        >>> result = octavo.evaluate(Uniform(), torch.randint(0, 8, (50,)), context=16)
        >>> print(f"{result.metric} {result.value:.3f} on {result.count} tokens")
        perplexity 8.000 on 49 tokens
    """
    for one in (model, *(() if against is None else (against,))):
        refuse_meta(one, "evaluate")
    if tokenizer is not None and not callable(tokenizer) and not hasattr(tokenizer, "encode"):
        raise DTypeError(
            f"tokenizer is a {type(tokenizer).__name__}; accepted are those of transformers and octavo.data"
        )
    windows = [
        name
        for name, value in (
            ("context", context),
            ("stride", stride),
            ("tokens", tokens),
            ("leaks", None if leaks == "refuse" else leaks),
            ("guard_calls", guard_calls),
        )
        if value is not None
    ]
    if windows and (against is not None or _labelled(data) is not None):
        raise SettingError(f"{', '.join(windows)}: of a perplexity, not of agreement or accuracy; leave out")
    if against is not None:
        return agreement(model, against, Batches(data, samples, tokenizer=tokenizer), progress=progress)
    if (labelled := _labelled(data)) is not None:
        if tokenizer is None:
            raise DataError("labelled texts need the model's tokenizer; give tokenizer=")
        return classifier_accuracy(model, labelled, tokenizer, max_tokens=max_tokens, progress=progress)
    ids, nbytes = data, None
    if isinstance(data, str):
        if tokenizer is None:
            raise DataError("a text needs the model's tokenizer; give tokenizer=, or the ids themselves")
        ids, nbytes = text_ids(tokenizer, data), len(data.encode())
    elif not _is_stream(data):
        raise DataError(
            f"data is a {type(data).__name__}; accepted are a text, ids in one dimension, labelled texts, or, with "
            "against=, batches"
        )
    length = context_of(model) if context is None else context
    loss = exact_nll(
        model, ids, context=length, stride=stride, tokens=tokens, nbytes=nbytes, leaks=leaks, guard_calls=guard_calls,
        progress=progress,
    )  # fmt: skip
    return perplexity_of(loss)


def perplexity_of(loss: ValLoss) -> Measurement:
    """Return a loss as a perplexity, with its interval over windows and the nats of each window."""
    nats, half = weighted_mean(loss.window_nats, loss.window_tokens)
    low, high = (None, None) if half is None else (math.exp(nats - half), math.exp(nats + half))
    details = {"nats": loss.nats} | ({} if loss.bits_per_byte is None else {"bits_per_byte": loss.bits_per_byte})
    setup = {"context": loss.context, "stride": loss.stride, "windows": len(loss.window_nats)}
    return Measurement(
        "perplexity", loss.perplexity, low, high, "min", loss.tokens, loss.window_nats, loss.source_hash,
        tuple(map(float, loss.window_tokens)), details, setup, {"moved": loss.guard, **asdict(loss.checked)},
    )  # fmt: skip


def context_of(model: nn.Module, most: int = CONTEXT) -> int:
    """Return the context length of a model's configuration, ``most`` at most."""
    config = getattr(model, "config", None)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "block_size"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return min(value, most)
    return most


def _labelled(data: Any) -> Sentences | None:
    if isinstance(data, Sentences):
        return data
    if not isinstance(data, list | tuple) or not data:
        return None
    pairs = [pair for pair in data if isinstance(pair, tuple | list) and len(pair) == 2]
    if len(pairs) < len(data) or not all(isinstance(a, str) and isinstance(b, int) for a, b in pairs):
        return None
    return Sentences(tuple(text for text, _ in pairs), tuple(label for _, label in pairs))


def _is_stream(data: Any) -> bool:
    if hasattr(data, "ndim"):
        return data.ndim == 1
    return isinstance(data, Iterable) and not isinstance(data, bytes) and all(isinstance(item, int) for item in data)
