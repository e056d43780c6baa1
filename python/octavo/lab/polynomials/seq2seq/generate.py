"""Greedy and beam search over any model of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from octavo.lab.polynomials.seq2seq.decoder_state import END, PAD, START, State, Tensors

if TYPE_CHECKING:
    from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig


class Decoder(Protocol):
    """What a search asks of a model: :class:`octavo.lab.polynomials.seq2seq.Seq2Seq` says what each returns."""

    config: Seq2SeqConfig

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return the logits of the token after each."""

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token."""

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Return the logits of the token after one a row."""


class _Whole:
    """The uncached way with the interface of the cached one: every token is computed from all before it."""

    def __init__(self, model: Decoder) -> None:
        self.decode = model.decode

    def begin(self, memory: Tensors, max_length: int) -> State:
        rows = next(iter(memory.values()))
        return State(memory, {"tokens": torch.empty((len(rows), 0), dtype=torch.long, device=rows.device)})

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        tokens_BT = torch.cat([state.cache["tokens"], tokens_B[:, None]], 1)
        state.cache["tokens"] = tokens_BT
        return self.decode(state.memory, tokens_BT)[:, -1]


def _log_probabilities(logits_BV: Tensor) -> Tensor:
    """Return log-probabilities in float32; pad and start are no answers, so they have none."""
    logits = logits_BV.float().clone()
    logits[:, :END] = -torch.inf
    return logits.log_softmax(-1)


def greedy(model: Decoder, memory: Tensors, max_length: int, *, cache: bool) -> tuple[Tensor, Tensor]:
    """Take the most likely token until every row has ended; rows that have ended are computed no further."""
    decoder = model if cache else _Whole(model)
    state = decoder.begin(memory, max_length)
    device = next(iter(memory.values())).device
    total = len(next(iter(memory.values())))
    rows = torch.arange(total, device=device)  # the rows that go on
    tokens = torch.full((total, max_length), PAD, dtype=torch.long, device=device)
    scores = torch.zeros(total, device=device)
    latest = torch.full((total,), START, dtype=torch.long, device=device)
    for position in range(max_length):
        if not len(rows):
            break
        found, latest = _log_probabilities(decoder.step(latest, state)).max(-1)
        tokens[rows, position] = latest
        scores[rows] += found
        going = (latest != END).nonzero().squeeze(1)
        if len(going) < len(rows):
            rows, latest, state = rows[going], latest[going], state.select(going)
    return tokens[:, : int((tokens != PAD).sum(1).max()) if total else 0], scores


def beam_search(model: Decoder, memory: Tensors, max_length: int, beam: int, *, cache: bool) -> tuple[Tensor, Tensor]:
    """Keep the ``beam`` most likely hypotheses of each row; scores are sums of log-probabilities, not normalized.

    A hypothesis that has ended stays in the beam with its score; a row is done when all its hypotheses have ended.
    Equal scores: the earlier hypothesis, then the lower token, wins.
    """
    decoder = model if cache else _Whole(model)
    first = next(iter(memory.values()))
    total, device, vocabulary = len(first), first.device, model.config.vocabulary
    state = decoder.begin(memory, max_length).select(torch.arange(total, device=device).repeat_interleave(beam))
    tokens = torch.full((total, beam, max_length), PAD, dtype=torch.long, device=device)
    scores = torch.full((total, beam), -torch.inf, device=device)
    scores[:, 0] = 0  # all hypotheses of a row are equal at the start: one counts
    ended = torch.zeros((total, beam), dtype=torch.bool, device=device)
    latest = torch.full((total * beam,), START, dtype=torch.long, device=device)
    only_pad = torch.full((vocabulary,), -torch.inf, device=device)
    only_pad[PAD] = 0
    base = torch.arange(total, device=device)[:, None] * beam
    for position in range(max_length):
        if not total or ended.all():
            break
        found = _log_probabilities(decoder.step(latest, state)).view(total, beam, vocabulary)
        found = torch.where(ended[..., None], only_pad, found)
        candidates = (scores[..., None] + found).flatten(1)
        scores, chosen = candidates.sort(dim=1, descending=True, stable=True)
        scores, chosen = scores[:, :beam], chosen[:, :beam]
        parent, token = chosen // vocabulary, chosen % vocabulary
        tokens = tokens.gather(1, parent[..., None].expand(-1, -1, max_length))
        tokens[:, :, position] = token
        ended = ended.gather(1, parent) | (token == END)
        latest = token.flatten()
        state = state.select((base + parent).flatten())
    best = tokens[:, 0]
    return best[:, : int((best != PAD).sum(1).max()) if total else 0], scores[:, 0]
