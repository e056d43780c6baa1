"""The interface of all sequence-to-sequence models, for training and for generating."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import DTypeError, ShapeError
from octavo.lab.polynomials.seq2seq.decoder_state import START, State, Tensors
from octavo.lab.polynomials.seq2seq.generate import beam_search, greedy
from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig
from octavo.nn.direct_weight_access import rounded_weights


class Seq2Seq(nn.Module):
    """Base of the models: logits for given targets, one step of generation, and generation itself.

    Source and target are rows of ids (int64 or uint8), padded with 0 at their ends; a target ends with the end token.
    """

    octavo_kind = "seq2seq"
    config: Seq2SeqConfig

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return what the decoder needs of the source, each tensor with rows first."""
        raise NotImplementedError

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return logits ``[B, T, V]`` of the token after each of ``tokens_BT``, which begin with the start token."""
        raise NotImplementedError

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token, with room for ``max_length`` tokens."""
        raise NotImplementedError

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return logits ``[B, V]`` of the next; ``state`` is changed."""
        raise NotImplementedError

    def example_inputs(self) -> dict[str, Tensor]:
        """Return a source and a target of ids that are 0, to capture the model with."""
        from octavo.graph.example_inputs import example_ids  # graph loads torch.export

        return {"source_BS": example_ids(self), "target_BT": example_ids(self)}

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Return logits ``[B, T, V]`` of every target token, given those before it (teacher forcing).

        Raises ShapeError for other shapes and rows longer than the configuration allows, DTypeError for other dtypes.
        """
        self._check("target", target_BT, self.config.max_target)
        if len(source_BS) != len(target_BT):
            raise ShapeError(f"source has {len(source_BS)} rows and target {len(target_BT)}")
        tokens_BT = functional.pad(target_BT.long(), (1, 0), value=START)[:, :-1]
        return self.decode(self.encode_checked(source_BS), tokens_BT)

    @torch.no_grad()
    @rounded_weights()  # the positions are read past their layers, and nothing here is a forward
    def generate(
        self, source_BS: Tensor, *, max_length: int | None = None, beam: int = 1, cache: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the most likely target of each row, tokens ``[B, T]`` (int64, padded), and its log-probability [B].

        ``beam``: hypotheses kept a row; 1 is greedy. ``cache``: keep keys, values and states of earlier tokens;
        without it each token is computed from all before it, with the same result. Ends when all rows have.
        ``max_length``: tokens at most, the end token included; default: the configuration's.
        """
        longest = self.config.max_target if max_length is None else max_length
        if not 1 <= longest <= self.config.max_target:
            raise ShapeError(f"max_length is {longest}; accepted are 1 to {self.config.max_target}")
        if not 1 <= beam <= self.config.vocabulary:
            raise ShapeError(f"beam is {beam}; accepted are 1 to {self.config.vocabulary}, the vocabulary")
        memory = self.encode_checked(source_BS)
        if beam == 1:
            return greedy(self, memory, longest, cache=cache)
        return beam_search(self, memory, longest, beam, cache=cache)

    def encode_checked(self, source_BS: Tensor) -> Tensors:
        """Check the source at the door, then :meth:`encode` it."""
        self._check("source", source_BS, self.config.max_source)
        return self.encode(source_BS.long())

    def _check(self, name: str, ids: Tensor, longest: int) -> None:
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= longest:
            raise ShapeError(
                f"{name} has shape {tuple(ids.shape)}; accepted are rows of 1 to {longest} ids, [B, length]"
            )
        if ids.dtype not in (torch.uint8, torch.int64):
            raise DTypeError(f"{name} has dtype {ids.dtype}; accepted are uint8 and int64")

    @property
    def parameter_count(self) -> int:
        """Trained numbers."""
        return sum(p.numel() for p in self.parameters())
