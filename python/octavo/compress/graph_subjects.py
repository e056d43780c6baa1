"""The model and the inputs that ``octavo graph`` captures: by name, by folder, or made by a function of the user."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from octavo.compress.by_name import find
from octavo.compress.text_models import template_of, text_model
from octavo.data.calibration_texts import read_texts
from octavo.data.labelled_files import is_json_lines
from octavo.errors import ModelError
from octavo.graph.example_inputs import example_inputs
from octavo.graph.pipeline import Pipeline
from octavo.late_binding import late
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.save_load import load_model
from octavo.model_folder.structure import KEY, float_problem, read_structure
from octavo.model_folder.subject_registry import subject_of
from octavo.model_folder.weight_files import Checkpoint, held, layers_of, refuse_file

#: Texts that calibrate unless a pass asks for more.
_SAMPLES = 512


def subject(
    text: str, without: Sequence[str] = (), *, values: bool = False, priced: bool = False
) -> tuple[nn.Module, Any]:
    """Return a model in evaluation and inputs for it.

    ``text``: ``polynomials``, ``minilm``, ``smollm2``, the folder of a model, a GGUF file, or
    ``package.module:function``, which takes nothing and returns a model and its inputs, and may add calibration
    batches. Inputs of other models are made up from what their ``forward`` takes, labels included. A folder of packed
    or simulated layers is loaded, and so is another package's file; of a float folder the layers alone, on the meta
    device. ``without``: inputs that are left out. ``values``: load the weights of a float folder, too. ``priced``: a
    recipe will be priced, for which another package's file gives the layers alone: ``octavo pack`` packs it anew.

    Raises ModelError for a function or input that is not there, and a model whose inputs are not known; as
    :func:`octavo.load_model` for folders.
    """
    if _is_function(text):
        model, inputs, _ = _made(text)
    else:
        model = _of_path(find(text), values, priced)
        inputs = example_inputs(model)
    return model, _left(text, inputs, without)


def pipeline_subject(
    text: str,
    pipeline: Pipeline,
    data: Path | None = None,
    without: Sequence[str] = (),
    field: str | None = None,
) -> tuple[nn.Module, Any, Any]:
    """Return the model of :func:`subject` with its weights, inputs for it, and calibration batches, or None.

    ``data``: a file of texts, as :func:`octavo.data.read_texts` takes it with ``field``, which the model's tokenizer
    makes batches of, as many as a pass of ``pipeline`` looks at; of a polynomial model lines ``left=right``. A function
    gives its batches itself, as a third value.

    Raises as :func:`subject`; ModelError for ``data`` of a function or a model that texts are not all that it reads;
    DataError for data that cannot be read.
    """
    if _is_function(text):
        if data is not None:
            raise ModelError(
                f"{text}: texts of --data need a tokenizer, which a function has not; let it return a third value, "
                "calibration batches"
            )
        model, inputs, batches = _made(text)
        return model, _left(text, inputs, without), batches
    texts = None if data is None else read_texts(data, field=field, tokenizer=template_of(find(text), data))
    model, inputs = subject(text, without, values=True)
    if texts is None:
        return model, inputs, None
    texts = texts[: max([_SAMPLES, *(getattr(step.config, "samples", 0) for step in pipeline)])]
    return model, inputs, _batches(text, model, texts, lines=data is not None and not is_json_lines(data))


def _batches(text: str, model: nn.Module, texts: Sequence[str], *, lines: bool) -> list[dict[str, Any]]:
    folder = find(text)
    guest = subject_of(model)
    if guest is not None and (made := guest.batches(folder, model, texts)) is not None:
        return made
    opened = text_model(text, folder, model)
    if opened.task == "other":
        raise ModelError(
            f"{text}: a {type(model).__name__} takes more than texts, or none; name a function that returns the model, "
            "its inputs and calibration batches: package.module:function"
        )
    return opened.batches(texts, lines=lines)


def _is_function(text: str) -> bool:
    return ":" in text and not Path(text).exists()


def _left(text: str, inputs: Any, without: Sequence[str]) -> Any:
    """Return inputs without those of the names ``without``. Raises ModelError for a name that is not there."""
    if not without:
        return inputs
    if not isinstance(inputs, Mapping):
        raise ModelError(f"{text}: its inputs have no names to leave {without[0]!r} out by; return a mapping of them")
    if wrong := [name for name in without if name not in inputs]:
        raise ModelError(f"{text}: no input is called {wrong[0]!r}; its inputs are {', '.join(inputs)}")
    return {name: value for name, value in inputs.items() if name not in without}


def _made(text: str) -> tuple[nn.Module, Any, Any]:
    made = made_by(text)
    if len(made) > 3:
        raise ModelError(
            f"{text}: it returned {len(made)} values; accepted are a model, its inputs and calibration batches"
        )
    model, inputs, *batches = made
    return model, inputs, *(batches or [None])


def made_by(text: str) -> tuple[Any, ...]:
    """Return what ``package.module:function`` makes: a model, and more.

    Raises ModelError for a module or function that is not there, and for anything but a tuple that begins with a model.
    """
    place, _, name = text.partition(":")
    if not place:
        raise ModelError(f"{text}: no module before the colon; give package.module:function")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = import_module(place)
    except ImportError as error:
        raise ModelError(f"{text}: {error}; name a module of this folder or an installed one") from None
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"{text}: {place} has no function {name!r} that makes a model and its inputs")
    if inspect.isfunction(function):
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise ModelError(f"{text}: it is called without arguments: {error}") from None
    made = function()
    if not isinstance(made, tuple) or len(made) < 2 or not isinstance(made[0], nn.Module):
        raise ModelError(f"{text}: it returned a {type(made).__name__}; return a model and its inputs, as a pair")
    return made


def _of_path(path: Path, values: bool, priced: bool) -> nn.Module:
    if late("foreign_reader")(path) is None:
        refuse_file(path)
        loaded = values or (held(path) and _is_changed(Checkpoint.open(path)))
    else:
        loaded = values or not priced
    if loaded:
        return load_model(path)
    # All on one device: small tables of a skeleton have values.
    return skeleton(path).eval().to("meta")


def _is_changed(source: Checkpoint) -> bool:
    """Whether a folder's layers are not those of its class: packed, simulated, or with normalizations folded in."""
    text = source.metadata().get(KEY)
    return bool(layers_of(source)) or (
        text is not None and float_problem(read_structure(source.files[0], text)) is not None
    )
