"""The model and the inputs that ``octavo graph`` captures: by name, by folder, or made by a function of the user."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.folder.save_load import load_model
from octavo.folder.undescribed import skeleton
from octavo.folder.weight_files import Checkpoint, held, layers_of
from octavo.systems.by_name import find

LENGTH = 16
_IDS = ("input_ids", "decoder_input_ids", "attention_mask", "token_type_ids")
_PICTURES = ("pixel_values",)
_ONE_LABEL = ("ForSequenceClassification", "ForImageClassification", "ForMultipleChoice")


def subject(text: str, without: Sequence[str] = ()) -> tuple[nn.Module, Any]:
    """Return a model in evaluation and inputs for it.

    ``text``: ``polynomials``, ``minilm``, the folder of a model, or ``package.module:function``, which takes nothing
    and returns a model and its inputs. Inputs of a model by name or folder are made up from what its ``forward`` takes,
    labels included. A folder of packed or simulated layers is loaded; of a float one the layers alone, on the meta
    device. ``without``: inputs that are left out.

    Raises ModelError for a function or input that is not there, and a model whose inputs are not known; as
    :func:`octavo.load_model` for folders.
    """
    if ":" in text and not Path(text).exists():
        model, inputs = _made(text)
    else:
        model = _of_folder(find(text))
        inputs = example_inputs(model)
    if not without:
        return model, inputs
    if not isinstance(inputs, Mapping):
        raise ModelError(f"{text}: its inputs have no names to leave {without[0]!r} out by; return a mapping of them")
    if wrong := [name for name in without if name not in inputs]:
        raise ModelError(f"{text}: no input is called {wrong[0]!r}; its inputs are {', '.join(inputs)}")
    return model, {name: value for name, value in inputs.items() if name not in without}


def _made(text: str) -> tuple[nn.Module, Any]:
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
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise ModelError(f"{text}: it returned a {type(made).__name__}; return a model and its inputs, as a pair")
    return made


def _of_folder(path: Path) -> nn.Module:
    if path.is_file():
        raise ModelError(f"{path}: a file of weights; give the folder of the model, {path.parent}")
    if held(path) and layers_of(Checkpoint.open(path)):
        return load_model(path)
    # All on one device: small tables of a skeleton have values.
    return skeleton(path).eval().to("meta")


def example_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Return inputs for a network of ours or of transformers, by what its ``forward`` takes, on the model's device.

    Raises ModelError for other models.
    """
    names = list(inspect.signature(model.forward).parameters)
    config = getattr(model, "config", None)
    decodes = bool(getattr(config, "is_encoder_decoder", False))
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    ids = torch.zeros(2, LENGTH, dtype=torch.int64, device=device)
    found: dict[str, Tensor] = {}
    if names[:2] == ["source_BS", "target_BT"]:
        return {name: ids.clone() for name in names[:2]}
    for name in names:
        if name == "decoder_input_ids" and not decodes:
            continue
        if name in _IDS and "input_ids" in names:
            found[name] = ids.clone()
        elif name in _PICTURES and (size := getattr(config, "image_size", None)):
            side = size if isinstance(size, int) else size[0]
            found[name] = torch.empty(2, getattr(config, "num_channels", 3), side, side, device=device)
        elif name == "labels" and found and getattr(config, "model_type", None):
            one = any(part in type(model).__name__ for part in _ONE_LABEL)
            found[name] = torch.zeros(2, dtype=torch.int64, device=device) if one else ids.clone()
    if not found:
        raise ModelError(
            f"{type(model).__name__}: its forward takes {', '.join(names)}, for which no inputs are known; give "
            "package.module:function, which returns the model and its inputs"
        )
    return found
