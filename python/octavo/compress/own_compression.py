"""The job of compressing a model that a function of the user makes."""

from __future__ import annotations

from typing import Any

from octavo.compress.compress_model import job_of
from octavo.compress.compression_job import Job
from octavo.compress.graph_subjects import made_by
from octavo.errors import ModelError


def own_job(text: str) -> Job:
    """Return the job of ``package.module:function``: it takes nothing and returns a model and its batches.

    A third value is a function of a model that returns its quality on validation data, as
    :func:`octavo.compress_model` takes it; a fourth the same on test data; a fifth the loss of a model on a batch, for
    ``--train``. Inputs alone, as ``octavo graph`` takes them, are one batch. Raises ModelError for anything else.
    """
    made = made_by(text)
    if len(made) > 5:
        raise ModelError(
            f"{text}: it returned {len(made)} values; accepted are a model, batches, evaluate, test and loss"
        )
    for name, value in zip(("evaluate", "test", "loss"), made[2:], strict=False):
        if value is not None and not callable(value):
            raise ModelError(f"{text}: {name} is a {type(value).__name__}; accepted is a function of a model")
    model, data, *functions = made
    evaluate, test, loss = (*functions, None, None, None)[:3]
    return job_of(model, _batches(data), evaluate=evaluate, test=test, loss=loss, name=text)


def _batches(data: Any) -> Any:
    """Return batches: inputs alone, a mapping or a tensor, are one."""
    alone = hasattr(data, "keys") or hasattr(data, "__array__") or not hasattr(data, "__iter__")
    return [data] if alone else data
