"""The model and the inputs that ``octavo graph`` captures: by name, by folder, or made by a function of the user."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from octavo.errors import ModelError
from octavo.folder.folded_layers import FOLDED
from octavo.folder.save_load import load_model
from octavo.folder.structure import KEY, read_structure
from octavo.folder.undescribed import skeleton
from octavo.folder.weight_files import Checkpoint, held, layers_of
from octavo.graph.example_inputs import example_inputs
from octavo.systems.by_name import find


def subject(text: str, without: Sequence[str] = (), *, values: bool = False) -> tuple[nn.Module, Any]:
    """Return a model in evaluation and inputs for it.

    ``text``: ``polynomials``, ``minilm``, the folder of a model, or ``package.module:function``, which takes nothing
    and returns a model and its inputs. Inputs of a model by name or folder are made up from what its ``forward`` takes,
    labels included. A folder of packed or simulated layers is loaded; of a float one the layers alone, on the meta
    device. ``without``: inputs that are left out. ``values``: load the weights of a float folder, too.

    Raises ModelError for a function or input that is not there, and a model whose inputs are not known; as
    :func:`octavo.load_model` for folders.
    """
    if ":" in text and not Path(text).exists():
        model, inputs = _made(text)
    else:
        model = _of_folder(find(text), values)
        inputs = example_inputs(model)
    if not without:
        return model, inputs
    if not isinstance(inputs, Mapping):
        raise ModelError(f"{text}: its inputs have no names to leave {without[0]!r} out by; return a mapping of them")
    if wrong := [name for name in without if name not in inputs]:
        raise ModelError(f"{text}: no input is called {wrong[0]!r}; its inputs are {', '.join(inputs)}")
    return model, {name: value for name, value in inputs.items() if name not in without}


def _made(text: str) -> tuple[nn.Module, Any]:
    made = made_by(text)
    if len(made) != 2:
        raise ModelError(f"{text}: it returned {len(made)} values; return a model and its inputs, as a pair")
    return made[0], made[1]


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


def _of_folder(path: Path, values: bool) -> nn.Module:
    if path.is_file():
        raise ModelError(f"{path}: a file of weights; give the folder of the model, {path.parent}")
    if values or (held(path) and _is_changed(Checkpoint.open(path))):
        return load_model(path)
    # All on one device: small tables of a skeleton have values.
    return skeleton(path).eval().to("meta")


def _is_changed(source: Checkpoint) -> bool:
    """Whether a folder's layers are not those of its class: packed, simulated, or with normalizations folded in."""
    text = source.metadata().get(KEY)
    return bool(layers_of(source)) or (text is not None and FOLDED in read_structure(source.files[0], text))
