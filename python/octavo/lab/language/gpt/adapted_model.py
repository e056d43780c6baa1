"""Test-time training: a model that is trained on the neighbours of what it has scored, window by window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from octavo.lab.language.gpt.chunk_store import ChunkStore
from octavo.lab.language.gpt.next_token import IGNORED

Trained = Callable[[Tensor], object]


class AdaptedModel(nn.Module):
    """A model whose losses are those of weights that follow the text: ``nll`` and ``log_probs`` as the model's own.

    A window is scored chunk after chunk. When a chunk is scored, one step of gradient descent with ``rate`` is made on
    its ``neighbours`` in ``store``; the next chunk is scored with those weights. Every window begins with the model's
    weights, and they are as before afterwards. No token is trained on before it is scored: neighbours are of other
    documents, and found with scored tokens alone. Source: Hardt and Sun 2024.
    """

    def __init__(self, model: Any, store: ChunkStore, *, neighbours: int = 2, rate: float = 1e-2) -> None:
        """Keep the parts. ``model.nll`` and ``model.head`` are those of a GPT."""
        super().__init__()
        self.model, self.store, self.count, self.rate = model, store, neighbours, rate
        self.watch: Trained = lambda tokens: None
        """Called with the tokens ``[N, T]`` of every step, before it is made."""

    def nll(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the loss of every target, ``[B, T]`` float32, under the weights of its moment."""
        rows = []
        for ids_T, targets_T in zip(ids_BT, targets_BT, strict=True):
            wanted = targets_T
            rows.append(self._walked(ids_T, lambda h, part, wanted=wanted: self.model.head.nll(h, wanted[part])))
        return torch.stack(rows)

    def log_probs(self, ids_BT: Tensor) -> Tensor:
        """Return log-probabilities of the next token, ``[B, T, V]`` float32."""
        return torch.stack([self._walked(ids_T, lambda h, part: self.model.head.log_probs(h)) for ids_T in ids_BT])

    # Evaluation runs without gradients, and its tensors may be of no use for them: steps are made outside, on copies.
    @torch.inference_mode(False)
    def _walked(self, ids_T: Tensor, score: Callable[..., Tensor]) -> Tensor:
        ids_T = ids_T.clone()
        chunk, weights = self.store.chunk, [one for one in self.model.parameters() if one.requires_grad]
        kept = [one.detach().clone() for one in weights]
        found = []
        try:
            for start in range(0, len(ids_T), chunk):
                part = slice(start, min(start + chunk, len(ids_T)))
                with torch.no_grad():
                    found.append(score(self.model.hidden(ids_T[None, : part.stop])[0, part], part))
                if part.stop < len(ids_T):
                    self._train(weights, ids_T[: part.stop])
        finally:
            with torch.no_grad():
                for one, before in zip(weights, kept, strict=True):
                    one.copy_(before)
        return torch.cat(found)

    def _train(self, weights: list[Tensor], seen_T: Tensor) -> None:
        tokens_BUkC, _ = self.store.neighbours(seen_T[None], self.count)
        tokens_kC = tokens_BUkC[0, -1]
        tokens_kC = tokens_kC[(tokens_kC >= 0).any(1)]
        if not len(tokens_kC):
            return
        self.watch(tokens_kC)
        ids, targets = tokens_kC[:, :-1].clamp_min(0), tokens_kC[:, 1:]
        with torch.enable_grad():
            hidden = self.model.hidden(ids)
            real = targets != IGNORED
            loss = self.model.head.nll(hidden[real], targets[real]).mean()
            slopes = torch.autograd.grad(loss, weights, allow_unused=True)
        with torch.no_grad():
            for one, slope in zip(weights, slopes, strict=True):
                if slope is not None:
                    one.sub_(slope, alpha=self.rate)
