"""Decoding: the model fed one token at a time, with the state that its mixers keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, ShapeError
from octavo.lab.language.gpt.gpt_network import GPT, check_ids
from octavo.lab.language.gpt.mixing_context import MixingContext


@dataclass
class DecodingState:
    """What a model keeps between two tokens: one state a mixer, the last ids ``[B]``, and the number of its document.

    ``ffns``: states of feed-forward networks that read the context, None of others. ``length``: tokens so far.
    """

    mixers: list[Any]
    ffns: list[Any]
    length: int = 0
    last_B: Tensor | None = None
    document_B: Tensor | None = None


def first_state(model: GPT, batch: int) -> DecodingState:
    """Return the state before the first token of ``batch`` sequences. Raises ModelError for a mixer without steps."""
    device = next(model.parameters()).device
    mixers: list[Any] = []
    ffns: list[Any] = []
    block: Any
    for block in model.blocks:
        if not hasattr(block.mixer, "step"):
            raise ModelError(f"{type(block.mixer).__name__} has no step; it runs on whole sequences alone")
        mixers.append(block.mixer.first_state(batch, device))
        reads = getattr(block.ffn, "reads_context", False)
        ffns.append(block.ffn.first_state(batch, device) if reads else None)
    return DecodingState(mixers, ffns)


def step(model: GPT, ids_B: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
    """Return the log-probabilities of the token after ``ids_B``, ``[B, V]``, and the new state.

    Equal to the last position of a pass over all tokens so far, but for the order of sums. ``state`` is used up.
    """
    if ids_B.ndim != 1:
        raise ShapeError(f"ids have shape {tuple(ids_B.shape)}; accepted is [batch], a token of every sequence")
    check_ids(ids_B[:, None], model.config.vocabulary)
    told_B1 = _document(model, ids_B, state)
    here = torch.tensor([state.length], device=ids_B.device)
    told_now = None if told_B1 is None else told_B1[:, -1:]
    context = MixingContext(here, told_now, ids_BT=ids_B[:, None], embed=model.embedding)
    x_B1D = _embedded(model, ids_B, state, told_B1)

    def mix(layer: int, around: MixingContext, normed_B1D: Tensor) -> Tensor:
        mixer: Any = model.blocks[layer].mixer
        mixed_BD, state.mixers[layer] = mixer.step(normed_B1D[:, 0], state.mixers[layer], around)
        return mixed_BD[:, None]

    def feed(layer: int, around: MixingContext, normed_B1D: Tensor) -> Tensor:
        block: Any = model.blocks[layer]
        if not getattr(block.ffn, "reads_context", False):
            fed_B1D: Tensor = block.ffn(normed_B1D)
            return fed_B1D
        fed_BD, state.ffns[layer] = block.ffn.step(normed_B1D[:, 0], state.ffns[layer], around)
        return fed_BD[:, None]

    x_B1D = model._through_blocks(x_B1D, ids_B[:, None], context, mix, feed)
    new = DecodingState(state.mixers, state.ffns, state.length + 1, ids_B, None if told_B1 is None else told_B1[:, -1])
    return model.head.log_probs(model.final_norm(x_B1D[:, 0])), new


def _document(model: GPT, ids_B: Tensor, state: DecodingState) -> Tensor | None:
    """Return the document numbers of the last token and this one, ``[B, 2]``, of this one alone at the start."""
    if not model.config.keep_documents:
        return None
    begins_B = torch.eq(ids_B, model.config.end_of_text or 0).long()
    if state.document_B is None:
        return begins_B[:, None]
    return torch.stack([state.document_B, state.document_B + begins_B], 1)


def _embedded(model: GPT, ids_B: Tensor, state: DecodingState, told: Tensor | None) -> Tensor:
    """Return the vector of the token, ``[B, 1, D]``, which may depend on the token before."""
    if state.last_B is None or not getattr(model.embedding, "looks_back", False):
        return model.embedding(ids_B[:, None], None if told is None else told[:, -1:])
    return model.embedding(torch.stack([state.last_B, ids_B], 1), told)[:, 1:]
