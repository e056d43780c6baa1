"""Building a model without the memory of its weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from octavo.errors import ContainerError, ModelError
from octavo.model_folder.hf_loading import CONFIG, extent_of, foreign, known, load_config
from octavo.model_folder.size_limits import Extent
from octavo.prune.sizes import KEY as SIZES
from octavo.prune.sizes import shrink

if TYPE_CHECKING:
    from octavo.model_folder.weight_files import Checkpoint

M = TypeVar("M", bound=nn.Module)

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
    """Allocates weights on the meta device, and does not fill them; counts them, where an extent is given."""

    def __init__(self, extent: Extent | None) -> None:
        super().__init__()
        self._extent = extent

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        filled = args[0] if args else kwargs.get("tensor")
        if isinstance(filled, Tensor) and filled.is_meta and func.__name__ in _FILLERS:
            return filled
        if func in _ALLOCATORS and kwargs.get("device") is None:
            kwargs["device"] = torch.device("meta")
            made = func(*args, **kwargs)
            if self._extent is not None:
                self._extent.weights(made)
            return made
        if self._extent is not None:
            self._extent.check_call(func, args, kwargs)
        return func(*args, **kwargs)


def build(factory: Callable[[], M], extent: Extent | None = None) -> M:
    """Return what ``factory`` makes, with weights that take no memory.

    ``extent``: what it may allocate. Raises ModelError for what is no module, ContainerError beyond the extent.
    """
    with _WithoutWeights(extent), nullcontext() if extent is None else extent.watched():
        model = factory()
    if not isinstance(model, nn.Module):
        raise ModelError(f"model: the factory returned a {type(model).__name__}; accepted is a torch.nn.Module")
    return model


def build_from_config(folder: Path, architecture: str, source: Checkpoint | None) -> nn.Module:
    """Return the architecture of transformers that ``folder`` describes, with weights that take no memory.

    ``source``: where the weights lie that the model is for; sizes beyond theirs are refused before they cost anything.
    No code from the folder runs. Raises ModelError where transformers is missing, ContainerError where the folder's
    configuration or architecture is none of its own.
    """
    if not (folder / CONFIG).exists():
        raise ModelError(
            f"{folder}: no config.json of transformers; give load_model the model, or a function making it"
        )
    config, values = load_config(folder)
    found = known(folder, lambda transformers: model_class(transformers, architecture), architecture)
    if found is None:
        raise ContainerError(f"{folder}: transformers has no model {architecture!r}; give load_model the model")
    if not isinstance(config, found.config_class):
        raise ContainerError(f"{folder}: config.json is of a {type(config).__name__}, which no {architecture} takes")
    return build_class(folder, found, config, extent_of(source, folder, values))


def build_class(folder: Path, architecture: Any, config: Any, extent: Extent) -> nn.Module:
    """Return a class of transformers built from its configuration. Raises ContainerError where that fails."""
    with foreign(folder / CONFIG, extent.values):
        model = build(lambda: architecture(config), extent)
    sizes = getattr(config, SIZES, None)
    return model if sizes is None else shrink(model, sizes, str(folder / CONFIG))


def drop_pooler(model: nn.Module, names: Collection[str]) -> bool:
    """Leave out the pooler of an encoder whose checkpoint has none, as ``add_pooling_layer=False`` does.

    ``names``: of the tensors that there are. Returns whether the model has lost it.
    """
    optional = "add_pooling_layer" in inspect.signature(type(model).__init__).parameters
    if not optional or model._modules.get("pooler") is None or any(name.startswith("pooler.") for name in names):
        return False
    model._modules["pooler"] = None
    return True


def model_class(transformers: Any, name: str) -> Any:
    """Return a model of transformers by its name; None for another thing of that name."""
    found: Any = getattr(transformers, name, None)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    return found if is_model and isinstance(found.config_class, type) else None
