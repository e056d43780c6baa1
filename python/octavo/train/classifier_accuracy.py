"""The accuracy of a classifier on labelled texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_numbered
from octavo.data.labelled import Sentences
from octavo.errors import DataError, ModelError
from octavo.train.measurement import Measurement, share_of
from octavo.train.model_outputs import evaluating

#: Texts of about one length that are read together, and tokens of a text at most.
BATCH, LONGEST = 32, 256

Tokenizer = Callable[..., Any]


def classifier_accuracy(
    model: nn.Module,
    data: Sentences,
    tokenizer: Tokenizer,
    *,
    max_tokens: int = LONGEST,
    batch_size: int = BATCH,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Measurement:
    """Return the share of texts whose best class is their label, with Wilson's 95 % interval.

    ``model``: called with what ``tokenizer`` gives, it returns scores ``[B, classes]``, as a tensor or ``.logits``.
    ``tokenizer``: one of transformers. ``max_tokens``: of a text, the rest of which is not read. Texts of alike length
    are read together; a text's value does not depend on the others, but for the order of sums. Evaluation mode, without
    gradients.

    Raises ModelError for a model that gives no scores of classes, DataError for labels that are none of them, naming
    the text, CalibrationError for a batch that the model cannot take, naming batch and layer.
    """
    if not len(data):
        raise DataError("accuracy needs labelled texts, got none")
    longest = min(max_tokens, getattr(tokenizer, "model_max_length", max_tokens))
    order = sorted(range(len(data)), key=lambda row: (len(data.texts[row]), row))
    right = [False] * len(data)
    done = 0
    with evaluating(model) as (model,):
        for number, start in enumerate(range(0, len(order), batch_size)):
            rows = order[start : start + batch_size]
            batch = _ids(tokenizer, [data.texts[row] for row in rows], longest)
            scores = _scores(model, call_numbered(model, batch, number, "batch"), len(rows))
            labels = torch.tensor([data.labels[row] for row in rows])
            if not number:
                _check_labels(data, scores.shape[-1], type(model).__name__)
            for row, equal in zip(rows, (scores.argmax(-1).cpu() == labels).tolist(), strict=True):
                right[row] = equal
            done += len(rows)
            progress(done, len(order))
    return share_of("accuracy", right, data.digest(), setup={"max_tokens": longest})


def _check_labels(data: Sentences, classes: int, name: str) -> None:
    """Raise DataError for the first label that is none of a model's classes."""
    for number, label in enumerate(data.labels, 1):
        if not 0 <= label < classes:
            raise DataError(f"text {number} has the label {label}; {name} has the classes 0 to {classes - 1}")


def _ids(tokenizer: Tokenizer, texts: list[str], longest: int) -> dict[str, Any]:
    """Return what a tokenizer of transformers makes of texts. Raises DataError for another one."""
    try:
        found = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    except (TypeError, ValueError) as error:
        raise DataError(f"the tokenizer, a {type(tokenizer).__name__}, refuses a text: {error}") from None
    if not isinstance(found, Mapping):
        raise DataError(f"the tokenizer gave a {type(found).__name__}; accepted is a tokenizer of transformers")
    return dict(found)


def _scores(model: nn.Module, given: Any, rows: int) -> Tensor:
    scores = given if isinstance(given, Tensor) else getattr(given, "logits", None)
    if not isinstance(scores, Tensor) and isinstance(given, Mapping):
        scores = given.get("logits")
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != rows:
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(given).__name__
        raise ModelError(
            f"{type(model).__name__}: {rows} texts gave {shape}; accepted are scores [texts, classes], as a tensor or "
            "as .logits: labelled texts need a classifier"
        )
    return scores
