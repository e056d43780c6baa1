"""Building a model without the memory of its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octavo.errors import ContainerError, ModelError

# What layers allocate their weights with. Other constructors (arange, zeros, ...) make the small tables that a model
# computes for itself and no file holds, such as positions: they must have values.
_ALLOCATORS = {
    torch.empty, torch.empty_strided, torch.rand, torch.randn, torch.normal,
}  # fmt: skip


# What layers fill their weights with. On the meta device they do nothing, but torch loads its compiler to do it: 150 MB
# of memory and a second.
_FILLERS = {
    "constant_", "fill_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "trunc_normal_", "uniform_",
    "xavier_normal_", "xavier_uniform_", "zero_", "zeros_",
}  # fmt: skip


class _WithoutWeights(TorchFunctionMode):
    """Allocates weights on the meta device, and does not fill them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        filled = args[0] if args else kwargs.get("tensor")
        if isinstance(filled, Tensor) and filled.is_meta and func.__name__ in _FILLERS:
            return filled
        if func in _ALLOCATORS and kwargs.get("device") is None:
            kwargs["device"] = torch.device("meta")
        return func(*args, **kwargs)


def build(factory: Callable[[], nn.Module]) -> nn.Module:
    """Return what ``factory`` makes, with weights that take no memory. Raises ModelError for what is no module."""
    with _WithoutWeights():
        model = factory()
    if not isinstance(model, nn.Module):
        raise ModelError(f"the factory returned a {type(model).__name__}; accepted is a torch.nn.Module")
    return model


def build_from_config(folder: Path, architecture: str) -> nn.Module:
    """Return the architecture of transformers that ``folder`` describes, with weights that take no memory.

    No code from the folder runs. Raises ModelError where transformers is missing, ContainerError where the folder's
    configuration or architecture is none of its own.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder}: no config.json of transformers; give load_model the model, or a function making it"
        )
    try:
        import transformers
    except ImportError:
        raise ModelError(
            f"{folder}: building a {architecture} needs transformers; install it, or give the model"
        ) from None
    found = getattr(transformers, architecture, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ContainerError(f"{folder}: transformers has no model {architecture!r}; give load_model the model")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise ContainerError(f"{folder}: config.json: {error}") from None
    if not isinstance(config, found.config_class):
        raise ContainerError(f"{folder}: config.json is of a {type(config).__name__}, which no {architecture} takes")
    return build(lambda: found(config))
