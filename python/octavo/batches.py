"""Batches and outputs of models: trees of tensors, walked by torch's pytree, and models called on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers in their order; of mappings that torch does not know, such as a
    ``BatchEncoding`` of transformers, too.
    """
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):
            yield from tensors_in(dict(leaf))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree whose leaves are those of ``tree``, each through ``function``; other mappings become dicts."""

    def leaf(item: Any) -> Any:
        return map_leaves(function, dict(item)) if isinstance(item, Mapping) else function(item)

    return tree_map(leaf, tree)


def call_on(model: nn.Module, batch: Any) -> Any:
    """Call a model on a batch: keywords of a mapping, positions of a tuple or list, else the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)
