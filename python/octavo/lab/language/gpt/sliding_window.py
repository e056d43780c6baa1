"""The loss of a language model that reads on with a sliding window: keys and values are kept from stride to stride.

A stride computes its own positions alone. Kept states were made when their own windows were seen, so they still carry
what has left the window: this is no loss of windows computed anew, which :func:`octavo.train.exact_nll` gives.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContractError, DataError, ModelError, NonFiniteError
from octavo.lab.language.gpt.attention_masks import visible
from octavo.lab.language.gpt.gpt_network import GPT
from octavo.lab.language.gpt.mixing_context import MixingContext, documents
from octavo.train.model_outputs import evaluating
from octavo.train.token_windows import check_vocabulary, check_whole, positions_of, shortened, stream_ids

SLIDING = 1e-3
"""Largest difference in nats from a pass over the text under a banded mask: of sums in another order."""


@dataclass(frozen=True)
class SlidingLoss:
    """The mean loss of a sliding window, nats a token; it compares with no loss of windows computed anew.

    ``tokens``: predicted, each once. ``context``: positions that a token sees, its own included. ``stride``: positions
    that are computed together. ``checked``: the largest difference, in nats, from one pass over the first tokens under
    a banded mask. ``source_hash``: SHA-256 of the tokens and both numbers. ``seconds``: of the passes.
    """

    nats: float
    tokens: int
    context: int
    stride: int
    checked: float
    source_hash: str
    seconds: float


def check_sliding(model: nn.Module) -> None:
    """Refuse a model that cannot read on by strides. Raises ModelError naming the part.

    Refused are learned absolute positions, which have no place beyond their table, losses that are bounds, and parts
    that read all earlier positions or whole chunks.
    """
    if not isinstance(model, GPT):
        most = positions_of(model)
        learned = (
            f"has {most:.0f} learned absolute positions" if most < math.inf else "keeps no keys and values by page"
        )
        raise ModelError(
            f"{type(model).__name__} {learned}; accepted by a sliding window are models of the language lab, whose "
            "positions are relative"
        )
    if hasattr(model.objective, "bound"):
        raise ModelError(
            f"{type(model.objective).__name__} has a bound of its loss; a sliding window needs exact losses"
        )
    block: Any
    for number, block in enumerate(model.blocks):
        mixer = block.mixer
        if not getattr(mixer, "reads_on", False):
            raise ModelError(
                f"block {number}: {type(mixer.config).__name__} reads more than the last positions; accepted by a "
                "sliding window are attention, gated convolutions and gated recurrences"
            )
        gate = getattr(block.ffn, "gate", None)
        if getattr(gate, "reads_before", False):
            raise ModelError(
                f"block {number}: the gate of {type(block.ffn.config).__name__} reads all earlier positions; accepted "
                "by a sliding window are gates of the token"
            )


def sliding_nll(
    model: GPT,
    stream: Any,
    *,
    context: int,
    stride: int = 32,
    tokens: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> SlidingLoss:
    """Return the loss of a stream of ids that a model reads on, ``stride`` positions at a time.

    ``stream``: ids, one dimension. Position t sees positions ``t - context + 1`` to t; keys and values of at most
    ``context`` positions are kept. Equal, but for the order of sums, to one pass over the text under a banded mask of
    ``context``, with which the first ``2 * context + stride`` tokens are compared. ``tokens``: limit of the predicted
    tokens. ``progress``: called with the predicted tokens and all of them.

    Raises DataError for an invalid stream or number, ModelError as :func:`check_sliding`, ContractError for losses that
    are not those of the banded mask, NonFiniteError for NaN.
    """
    context, stride = check_whole("context", context), check_whole("stride", stride)
    if stride > context:
        raise DataError(f"context is {context} and stride {stride}; accepted are strides from 1 up to the context")
    check_sliding(model)
    ids = shortened(stream_ids(stream), tokens)
    check_vocabulary(model, ids)
    source = sha256(f"sliding {context} {stride} {len(ids)}".encode() + ids.numpy().astype("<i8").tobytes()).hexdigest()
    parts: list[Tensor] = []
    with evaluating(model) as (network,):
        assert isinstance(network, GPT)
        device = next(network.parameters()).device
        text, begin = ids.to(device)[None], time.perf_counter()
        reader = _Reader(network, text[:, :-1], context)
        for first in range(0, len(ids) - 1, stride):
            end = min(first + stride, len(ids) - 1)
            hidden_SD = reader.read(first, end)[0]
            parts.append(network.head.nll(hidden_SD, text[0, first + 1 : end + 1]).double())
            progress(end, len(ids) - 1)
        losses = torch.cat(parts).cpu()
        seconds = time.perf_counter() - begin
        compared = min(2 * context + stride, len(ids) - 1)
        banded_TD = network.hidden(text[:, :compared], window=context)[0]
        banded = network.head.nll(banded_TD, text[0, 1 : compared + 1]).double().cpu()
    if not bool(losses.isfinite().all()):
        raise NonFiniteError(f"{type(model).__name__}: its scores become NaN or infinity in a sliding window")
    apart = float((losses[:compared] - banded).abs().max())
    if not apart <= SLIDING:
        raise ContractError(
            f"sliding window: a loss differs by {apart:.3g} nats from that of one pass under a banded mask of {context}"
        )
    return SlidingLoss(float(losses.mean()), len(losses), context, stride, apart, source, seconds)


class _Reader:
    """A text that is read on, part after part, with what mixers keep of the positions before."""

    def __init__(self, model: GPT, ids_1T: Tensor, context: int) -> None:
        self._model, self._ids, self._most = model, ids_1T, context - 1
        config = model.config
        self._documents = documents(ids_1T, config.end_of_text or 0) if config.keep_documents else None
        self._rows: list[Any] = [None] * config.layers
        self._origin = 0  # from which positions count
        self._mask_of: tuple[tuple[int, int], Tensor] | None = None

    def read(self, first: int, end: int) -> Tensor:
        """Return the normed hidden states of positions ``first`` to ``end``, ``[1, S, D]``; parts follow each other."""
        model, before = self._model, min(first, self._most)
        ids_1S = self._ids[:, first:end]
        numbers = None if self._documents is None else self._documents[:, first:end]
        back = first - before - self._origin if first - self._origin > 4 * self._most else 0
        self._origin += back
        positions_S = torch.arange(first - self._origin, end - self._origin, device=ids_1S.device)
        mask_SK = self._mask(before, end - first, ids_1S.device) if numbers is None else None
        context = MixingContext(
            positions_S, numbers, self._most + 1, seen_TS=mask_SK, ids_BT=ids_1S, embed=model.embedding
        )

        def mix(layer: int, around: MixingContext, normed_1SD: Tensor) -> Tensor:
            mixer: Any = model.blocks[layer].mixer
            mixed_1SD, self._rows[layer] = mixer.read_on(normed_1SD, self._rows[layer], around, self._most, back)
            out_1SD: Tensor = mixed_1SD
            return out_1SD

        x_1SD = model._through_blocks(self._embedded(first, end), ids_1S, context, mix, model._fed)
        return model.final_norm(x_1SD)

    def _mask(self, before: int, count: int, device: torch.device) -> Tensor:
        """Return what is added to scores, float32: the same for all strides that have as many positions before."""
        if self._mask_of is None or self._mask_of[0] != (before, count):
            order_K = torch.arange(before + count, device=device)
            seen_SK = visible(order_K[before:], order_K, window=self._most + 1)
            added_SK = torch.zeros(seen_SK.shape, device=device).masked_fill(~seen_SK, -math.inf)
            self._mask_of = (before, count), added_SK
        return self._mask_of[1]

    def _embedded(self, first: int, end: int) -> Tensor:
        """Return the vectors of the tokens, which may depend on the token before."""
        back = 1 if first and getattr(self._model.embedding, "looks_back", False) else 0
        numbers = None if self._documents is None else self._documents[:, first - back : end]
        vectors_1SD: Tensor = self._model.embedding(self._ids[:, first - back : end], numbers)
        return vectors_1SD[:, back:]
