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

#: Texts of similar length per batch, and the most tokens of a text.
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

    ``model``: called with the output of ``tokenizer``, it returns scores ``[B, classes]``, as a tensor or ``.logits``.
    ``tokenizer``: one of transformers. ``max_tokens``: longer texts are truncated. Texts of similar length form a
    batch; a text's result does not depend on the others, except for the order of sums. The model runs in evaluation
    mode, without gradients.

    Raises ModelError for a model without scores of classes, DataError for labels that are no class, naming the text,
    CalibrationError for a batch that the model cannot take, naming batch and layer.
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
    """Raise DataError for the first label that is not one of a model's classes."""
    for number, label in enumerate(data.labels, 1):
        if not 0 <= label < classes:
            raise DataError(f"text {number} has the label {label}; {name} has the classes 0 to {classes - 1}")


def _ids(tokenizer: Tokenizer, texts: list[str], longest: int) -> dict[str, Any]:
    """Return the encoding of texts by a tokenizer of transformers. Raises DataError for another tokenizer."""
    try:
        encoding = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    except (TypeError, ValueError) as error:
        raise DataError(f"the tokenizer, a {type(tokenizer).__name__}, refuses a text: {error}") from None
    if not isinstance(encoding, Mapping):
        raise DataError(f"the tokenizer gave a {type(encoding).__name__}; accepted is a tokenizer of transformers")
    return dict(encoding)


def _scores(model: nn.Module, output: Any, rows: int) -> Tensor:
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor) and isinstance(output, Mapping):
        scores = output.get("logits")
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != rows:
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(output).__name__
        raise ModelError(
            f"{type(model).__name__}: {rows} texts gave {shape}; accepted are scores [texts, classes], as a tensor or "
            "as .logits: labelled texts need a classifier"
        )
    return scores
