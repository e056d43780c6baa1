"""Models on the meta device, whose tensors have shapes and no values."""

from __future__ import annotations

from torch import nn

from octavo.errors import ModelError


def refuse_meta(model: nn.Module, what: str) -> None:
    """Refuse a model with a parameter or buffer on the meta device: there are no values that ``what`` could read.

    Raises ModelError naming the first such tensor.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ModelError(
                f"{name}: on the meta device, without values; {what} needs them: load the weights first, with "
                'from_pretrained or octavo.load_model, or give every tensor a value after model.to_empty(device="cpu")'
            )
