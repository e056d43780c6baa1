"""The job of a model that a command names: of a package, of a function of the user, or of a folder that reads texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.compress.by_name import find
from octavo.compress.compress_model import job_of
from octavo.compress.compression_job import Job
from octavo.compress.graph_subjects import made_by
from octavo.compress.text_compression import CALIBRATED, USUAL, Reading, text_job
from octavo.errors import ModelError, SettingError
from octavo.model_folder.model_config import own_model
from octavo.model_folder.subject_registry import subject

_OF_TEXTS = (
    "{model}: --field and --tokens are of texts, and --samples of texts and of a function's batches; leave them out"
)


def named_job(
    model: str,
    data: Path | None = None,
    test: Path | None = None,
    *,
    lines: int,
    reading: Reading = USUAL,
    untie: bool = False,
) -> Job:
    """Return the job of ``polynomials``, ``minilm``, the folder of a model, or ``package.module:function``.

    ``data``, ``test``, ``reading``: as :func:`octavo.compress.text_compression.text_job` takes them. ``lines``: test
    lines of a model that makes its own. Raises OctavoError for a model that is not known, SettingError for a reading of
    texts without texts, and as the functions that make jobs.
    """
    if ":" in model and not Path(model).exists():
        if reading != Reading(samples=reading.samples):
            raise SettingError(_OF_TEXTS.format(model=model))
        return own_job(model, reading.calibrated, untie=untie)
    folder = find(model)
    own = own_model(folder)
    job: Job | None = None if own is None else subject(own.kind).job(model, folder, data, test, lines=lines)
    if job is None:
        return text_job(model, data, test, reading, untie=untie)
    if reading != Reading():
        raise SettingError(_OF_TEXTS.format(model=model))
    if untie:
        raise SettingError(f"{model}: --untie is of language models, whose head may be the table of the embedding")
    return job


def own_job(text: str, samples: int = CALIBRATED, *, untie: bool = False) -> Job:
    """Return the job of ``package.module:function``: it takes nothing and returns a model and its batches.

    A third value is a function of a model that returns its quality on validation data, as
    :func:`octavo.compress_model` takes it; a fourth the same on test data; a fifth the loss of a model on a batch, for
    ``--train``. ``samples``: most samples that calibrate. Inputs alone, as ``octavo graph`` takes them, are one batch.
    Raises ModelError for anything else.
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
    return job_of(
        model, _batches(data), evaluate=evaluate, test=test, loss=loss, name=text, samples=samples, untie=untie
    )


def _batches(data: Any) -> Any:
    """Return batches: inputs alone, a mapping or a tensor, are one."""
    alone = hasattr(data, "keys") or hasattr(data, "__array__") or not hasattr(data, "__iter__")
    return [data] if alone else data
