"""Batches and answers of the study of memory, as both of its processes write and read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

TOP = 3  # highest scores that are compared, in order
INPUTS, ANSWERS = "inputs.safetensors", "answers.safetensors"


def flat(inputs: list[Any]) -> dict[str, Tensor]:
    """Return batches as tensors by name: ``NUMBER.KEY`` of mappings, ``NUMBER.POSITION`` of tuples."""
    parts = (batch.items() if isinstance(batch, Mapping) else enumerate(batch) for batch in inputs)
    return {f"{number}.{key}": tensor.contiguous() for number, items in enumerate(parts) for key, tensor in items}


def batches(tensors: Mapping[str, Tensor]) -> list[Any]:
    """Return what :func:`flat` was given."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        found.setdefault(int(number), {})[key] = tensor
    ordered = [found[number] for number in sorted(found)]
    return [tuple(b[key] for key in sorted(b)) if "0" in b else b for b in ordered]


def highest(output: Any) -> Tensor:
    """Return the classes, or next tokens, of the three highest scores, in order, ``[texts or tokens, 3]``.

    Fewer where there are fewer classes.
    """
    scores = output if isinstance(output, Tensor) else output.logits
    return scores.topk(min(TOP, scores.shape[-1])).indices.flatten(0, -2)
