"""What PEFT must be told of a packed model: the classes of its layers, and which of them are linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from octavo.errors import DTypeError, ModelError, PackageError
from octavo.nn import PackedLinear
from octavo.nn.registry import LayerKind, float_kinds, format_layers
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from peft import LoraConfig

_WRAPPED = ".base_layer"  # what PEFT calls a layer inside its adapters


def prepare(config: LoraConfig) -> LoraConfig:
    """Return a configuration of PEFT whose adapters go on layers of Octavo too; it is changed in place.

    Registers packed and simulated linear layers, those of transformers' ``Conv1D`` among them, and embeddings, and
    packed convolutions; simulated ones PEFT knows. PEFT does not save this: prepare the configuration that
    ``LoraConfig.from_pretrained`` reads, too, and give it to
    ``PeftModel.from_pretrained(model, folder, config=config)``.

    Args:
        config: a ``peft.LoraConfig``.

    Returns:
        The same object.

    Raises:
        PackageError: without PEFT.
        DTypeError: for another kind of object.

    Example:
        >>> import peft
        >>> packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(64, 64)), "nf4"))
        >>> config = peft.LoraConfig(r=4, target_modules=octavo.peft.target_modules(packed))
        >>> model = peft.get_peft_model(packed, octavo.peft.prepare(config))
        >>> model.print_trainable_parameters()
        trainable params: 512 || all params: 576 || trainable%: 88.8889
    """
    package = imported()
    if not isinstance(config, package.LoraConfig):
        raise DTypeError(f"prepare: config is a {type(config).__name__}; accepted is a peft.LoraConfig")
    from octavo.peft.adapter_layers import CONVOLUTIONS, LoraEmbedding, LoraLinear

    adapters: dict[Any, Any] = {cls: LoraLinear for cls in classes(is_linear)} | {
        cls: LoraEmbedding for cls in classes(is_table)
    }
    for kind in float_kinds():
        if kind.packed is not None and kind.name in CONVOLUTIONS:
            adapters[kind.packed] = CONVOLUTIONS[kind.name]
    config._register_custom_module(adapters)
    return config


@checks_arguments
def target_modules(model: nn.Module, *, head: bool = False, embeddings: bool = False) -> list[str]:
    """Return the paths of the packed and simulated linear layers, for ``target_modules=`` of a configuration of PEFT.

    PEFT's own ``"all-linear"`` sees ``nn.Linear`` and ``Conv1D`` alone, and so no packed layer.

    Args:
        model: packed or simulated, with or without adapters of PEFT.
        head: name the layer that computes scores of tokens, too.
        embeddings: name embeddings, too.

    Returns:
        Paths in the model without adapters, in the order of its modules.

    Raises:
        ModelError: for a model without such layers.

    Example:
        >>> model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        >>> octavo.peft.target_modules(octavo.pack_model(octavo.quantize_model(model, "int4:g32")))
        ['1', '3']
    """
    base = base_of(model)
    output = getattr(base, "get_output_embeddings", None)
    scores = innermost(output()) if callable(output) and not head else None
    kinds = classes(is_linear) + (classes(is_table) if embeddings else ())
    every = [path for path, layer in format_layers(base) if isinstance(layer, kinds) and layer is not scores]
    paths = [path.removesuffix(_WRAPPED) for path in every if path]
    if not paths:
        raise ModelError(
            f"{type(base).__name__}: no packed or simulated linear layer; octavo.quantize_model and octavo.pack_model "
            'make them, and for a float model PEFT has target_modules="all-linear"'
        )
    return paths


def is_linear(kind: LayerKind) -> bool:
    """Whether layers of a kind multiply by one matrix."""
    return kind.packed is PackedLinear


def is_table(kind: LayerKind) -> bool:
    """Whether layers of a kind look rows up, one for each id."""
    return kind.is_lookup and kind.is_solved


def classes(fits: Callable[[LayerKind], bool]) -> tuple[type[Any], ...]:
    """Return the simulated and packed classes of the kinds that fit, each once."""
    every = [cls for kind in float_kinds() if fits(kind) for cls in (kind.packed, kind.simulated)]
    return tuple(dict.fromkeys(cls for cls in every if cls is not None))


def imported() -> Any:
    """Return the package PEFT. Raises PackageError where it is not installed."""
    try:
        import peft
    except ImportError:
        raise PackageError("octavo.peft needs PEFT, which is not installed: pip install peft") from None
    return peft


def base_of(model: nn.Module) -> nn.Module:
    """Return the model inside the wrapper of PEFT, whose layers adapters are in; another model as it is."""
    inner = getattr(model, "get_base_model", None)
    base = inner() if callable(inner) else model
    return base if isinstance(base, nn.Module) else model


def innermost(module: Any) -> Any:
    """Return the layer inside the adapters of PEFT."""
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module
