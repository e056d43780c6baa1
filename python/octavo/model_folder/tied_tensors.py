"""What is told of tensors that two layers share, and of heads that no longer do."""

from __future__ import annotations

from torch import nn

from octavo.display.numbers import size
from octavo.model_folder.stored_tensors import stored_state
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.tied_weights import Untied
from octavo.recipe.sites import dtype_name
from octavo.tensors.packed_tensor import PackedTensor


def tied_sentences(model: nn.Module) -> tuple[str, ...]:
    """Return a sentence for each weight that layers share, with its format: it is one tensor, counted once."""
    values, ties = stored_state(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    shared: dict[str, list[str]] = {}
    for name, first in ties.items():
        path, of_first = name.rpartition(".")[0], first.rpartition(".")[0]
        if name.endswith("weight") and modules.get(path) is not modules.get(of_first):
            shared.setdefault(first, [first]).append(name)
    return tuple(
        f"tied: {' and '.join(names)} are one tensor, counted once; format {_format(model, first, values[first])}"
        for first, names in shared.items()
    )


def untied_sentences(model: nn.Module, untied: Untied | None) -> tuple[str, ...]:
    """Return a sentence for each head that was untied, with the bytes that its own weight takes as it is stored."""
    values, _ = stored_state(model)
    return tuple(
        f"untied: {head} is a tensor of its own, no longer {table}; format {_format(model, head, values[head])}, "
        f"{size(values[head].nbytes)} more"
        for head, table in ({} if untied is None else untied.tables).items()
    )


def _format(model: nn.Module, name: str, value: object) -> str:
    if isinstance(value, PackedTensor):
        return str(value.format)
    layer = model.get_submodule(name.rpartition(".")[0])
    if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None:
        return f"{layer.weight_quantizer.format}, simulated"
    return dtype_name(value.dtype) if hasattr(value, "dtype") else "unknown"
