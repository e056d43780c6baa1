"""Outputs of a model as one tensor for comparisons: scores of classes or tokens, or embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from octavo.data.batches import tensors_in
from octavo.errors import DTypeError, ModelError
from octavo.nn.model_copies import shared_copy
from octavo.train.randomness import undisturbed

Kind = Literal["logits", "embedding"]


def read_output(output: Any, batch: Any, *, large: int | None = None) -> tuple[Kind, Tensor]:
    """Return the kind of an output, and its rows for comparison as float64 ``[rows, V]``.

    ``large``: scores of more numbers are float32 instead.

    ``logits`` of a model of transformers, or a tensor, are scores. Scores of three dimensions are scores of tokens,
    without tokens that the batch's ``attention_mask`` (for a decoder ``decoder_attention_mask``) hides.
    ``last_hidden_state`` becomes an embedding: its mean over the tokens of the mask. Raises ModelError for other
    outputs.
    """
    mask = attention_mask(batch) if decoder_mask(batch) is None else decoder_mask(batch)
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.is_floating_point() and logits.ndim >= 2:
        return "logits", rows_of(logits, mask, large=large)
    hidden = getattr(output, "last_hidden_state", None)
    if isinstance(hidden, Tensor) and hidden.ndim == 3:
        return "embedding", mean_over_tokens(hidden, mask).double()
    scores = next((tensor for tensor in tensors_in(output) if tensor.is_floating_point() and tensor.ndim >= 2), None)
    if scores is None:
        raise ModelError(
            f"the model gave a {type(output).__name__} without scores or states; accepted are a tensor, .logits and "
            ".last_hidden_state"
        )
    return "logits", rows_of(scores, mask, large=large)


def attention_mask(batch: Any) -> Tensor | None:
    """Return the ``attention_mask`` of a mapping, or of the first mapping in a tuple or list of inputs and labels."""
    return _named(batch, "attention_mask")


def decoder_mask(batch: Any) -> Tensor | None:
    """Return the ``decoder_attention_mask`` of a mapping, or of the first mapping in a tuple or list."""
    return _named(batch, "decoder_attention_mask")


def _named(batch: Any, name: str) -> Tensor | None:
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    mapping = next((part for part in parts if isinstance(part, Mapping)), None)
    mask = None if mapping is None else mapping.get(name)
    return mask if isinstance(mask, Tensor) else None


def rows_of(scores: Tensor, mask: Tensor | None, *, large: int | None = None) -> Tensor:
    """Return ``[..., V]`` as ``[rows, V]`` of float64; of ``[B, T, V]`` only the tokens of a mask ``[B, T]``.

    ``large``: more numbers than that are float32 instead.
    """
    if mask is not None and scores.ndim == 3 and mask.shape == scores.shape[:2]:
        rows = scores[mask.bool()]
    else:
        rows = scores.flatten(0, -2) if scores.ndim > 1 else scores[None]
    return rows.float() if large is not None and rows.numel() > large else rows.double()


def mean_over_tokens(hidden_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Return the mean over tokens, ``[B, D]``; ``mask_BT`` is 0 at padding, None without padding."""
    if mask_BT is None or mask_BT.shape != hidden_BTD.shape[:2]:
        return hidden_BTD.flatten(1, -2).mean(1)
    mask_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
    return (hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[tuple[nn.Module, ...]]:
    """Yield the models in evaluation mode, without gradients; random numbers are restored afterwards.

    A model in evaluation mode is yielded itself. Of a model in training mode a copy that shares its parameters is
    yielded, so that another thread that trains it does not see its mode change. Models that are compiled, scripted or
    distributed cannot be copied: their own modes change and are restored.
    """
    own = tuple(
        shared_copy(model).eval() if any(module.training for module in model.modules()) and is_plain(model) else model
        for model in models
    )
    modes = {module: module.training for model in own for module in model.modules()}
    for model in own:
        model.eval()
    try:
        with undisturbed(), torch.inference_mode():
            yield own
    finally:
        for module, training in modes.items():
            module.training = training


def measured_copy(model: nn.Module) -> nn.Module | None:
    """Return a copy of a model in evaluation mode that shares its parameters; None if it cannot be copied."""
    if not is_plain(model):
        return None
    try:
        return shared_copy(model).eval()
    except DTypeError:
        return None


_WRAPPERS = ("torch._dynamo", "torch.distributed", "torch.jit", "torch.nn.parallel")


def weights_at_fault(*models: nn.Module) -> str:
    """Return, for a message about outputs that are not finite, the first weight that is not, or where else to look."""
    for model in models:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return f"'{name}' of the {type(model).__name__} holds NaN or infinity"
    return "all weights are finite, so look at the inputs"


def is_plain(model: nn.Module) -> bool:
    """Whether a model consists of plain modules, without process groups and without compiled or scripted code."""
    return not any(
        getattr(module, "_compiled_call_impl", None) is not None
        or any(base.__module__.startswith(_WRAPPERS) for base in type(module).__mro__)
        for module in model.modules()
    )
