"""Example inputs with which a model can be captured, derived from the signature of its ``forward``."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from octavo.errors import ModelError

LENGTH = 16
_IDS = ("input_ids", "decoder_input_ids", "attention_mask", "token_type_ids")
_PICTURES = ("pixel_values",)
_ONE_LABEL = ("ForSequenceClassification", "ForImageClassification", "ForMultipleChoice")


def example_ids(model: nn.Module) -> Tensor:
    """Return two rows of ids that are 0, int64, on the device of the model."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    return torch.zeros(2, LENGTH, dtype=torch.int64, device=device)


def example_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Return inputs for a model by the names of its ``forward``, on its device.

    They are those of its method ``example_inputs()`` where its class has one; else those that a model of transformers
    takes. Raises ModelError for other models.
    """
    if callable(own := getattr(model, "example_inputs", None)):
        inputs: dict[str, Tensor] = own()
        return inputs
    names = list(inspect.signature(model.forward).parameters)
    config = getattr(model, "config", None)
    decodes = bool(getattr(config, "is_encoder_decoder", False))
    ids = example_ids(model)
    inputs = {}
    for name in names:
        if name == "decoder_input_ids" and not decodes:
            continue
        if name in _IDS and "input_ids" in names:
            inputs[name] = ids.clone()
        elif name in _PICTURES and (size := getattr(config, "image_size", None)):
            side = size if isinstance(size, int) else size[0]
            inputs[name] = torch.empty(2, getattr(config, "num_channels", 3), side, side, device=ids.device)
        elif name == "labels" and inputs and getattr(config, "model_type", None):
            one = any(part in type(model).__name__ for part in _ONE_LABEL)
            inputs[name] = ids[:, 0].clone() if one else ids.clone()
    if not inputs:
        raise ModelError(
            f"{type(model).__name__}: its forward takes {', '.join(names)}, for which no inputs are known; give them "
            "(on the command line package.module:function, which returns model and inputs), or give its class a "
            "method example_inputs, which returns them by name"
        )
    return inputs
