"""Heads whose weight is the table of an embedding: one tensor, or one of their own where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from octavo.errors import ModelError
from octavo.nn.registry import kind_of

#: What configurations of transformers call it that a head has the rows of the embedding.
TIED_FIELD = "tie_word_embeddings"


@dataclass(frozen=True)
class Untied:
    """Heads with a weight of their own. ``tables``: the weight of the embedding, by the name of that of the head.

    ``nbytes``: bytes of the new weights, as they are. ``undo``: ties them again.
    """

    tables: Mapping[str, str]
    nbytes: int
    undo: Callable[[], None] = field(repr=False)

    def __str__(self) -> str:
        """Return the sentence for people."""
        names = ", ".join(f"{head} of {table}" for head, table in self.tables.items())
        return f"untied: {names}; {self.nbytes:,} bytes more before packing"


def tied_heads(model: nn.Module) -> dict[str, str]:
    """Return the names of the weights of layers that multiply by the table of an embedding, each with the table's."""
    tables: dict[int, str] = {}
    heads: dict[str, int] = {}
    for path, module in model.named_modules():
        weight, kind = module._parameters.get("weight"), kind_of(module)
        if weight is None or kind is None:
            continue
        name = f"{path}.weight" if path else "weight"
        if kind.is_lookup:
            tables.setdefault(id(weight), name)
        else:
            heads[name] = id(weight)
    return {name: tables[key] for name, key in heads.items() if key in tables}


def untie_heads(model: nn.Module) -> Untied:
    """Give heads that have the table of an embedding a weight of their own, with the same values, in place.

    Configurations of transformers say so afterwards, and nothing ties the two again. Raises ModelError for a model
    without such a head.
    """
    tables = tied_heads(model)
    if not tables:
        raise ModelError(
            f"{type(model).__name__}: no layer multiplies by the table of an embedding, so there is nothing to untie; "
            "leave untie out"
        )
    steps: list[Callable[[], None]] = []
    untie_configurations(model, steps)
    nbytes = 0
    for name in tables:
        layer = model.get_submodule(name.rpartition(".")[0])
        weight = layer._parameters["weight"]
        assert weight is not None  # it is one of two names of a tensor
        own = nn.Parameter(
            torch.empty_like(weight) if weight.is_meta else weight.detach().clone(), weight.requires_grad
        )
        layer._parameters["weight"] = own
        steps.append(_putting(layer._parameters, "weight", weight))
        nbytes += own.nbytes

    def undo() -> None:
        for step in reversed(steps):
            step()

    return Untied(tables, nbytes, undo)


def untie_configurations(model: nn.Module, steps: list[Callable[[], None]]) -> None:
    """Let configurations of transformers say that no head is tied; ``steps`` gets calls that undo it."""
    for module in model.modules():
        config = vars(module).get("config")
        if getattr(config, TIED_FIELD, False) is True:
            setattr(config, TIED_FIELD, False)
            steps.append(_setting(config, TIED_FIELD))
        keys = vars(module).get("all_tied_weights_keys")
        if isinstance(keys, dict):
            others = {name: table for name, table in keys.items() if not _is_tie_of_weights(name)}
            vars(module)["all_tied_weights_keys"] = others
            steps.append(_putting(vars(module), "all_tied_weights_keys", keys))


def _is_tie_of_weights(name: str) -> bool:
    return name.rpartition(".")[2] == "weight"


def _putting(place: Any, key: str, value: Any) -> Callable[[], None]:
    return lambda: place.update({key: value})


def _setting(config: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(config, name, True)
