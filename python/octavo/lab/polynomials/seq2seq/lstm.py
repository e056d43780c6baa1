"""The classic: LSTM encoder-decoder with additive attention (Bahdanau et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.lab.polynomials.seq2seq.decoder_state import PAD, State, Tensors
from octavo.lab.polynomials.seq2seq.interface import Seq2Seq
from octavo.lab.polynomials.seq2seq.layers import BidirectionalLSTM, lstm_step, padding_mask
from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig


class LSTMSeq2Seq(Seq2Seq):
    """Bidirectional LSTM encoder; LSTM decoder that reads a weighted mean of the encoder's states at every step.

    The weights are ``softmax(v . tanh(W h + U m))`` over the positions m, with h the decoder's state before the step.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.config = config
        both = 2 * config.encoder
        self.source_embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.target_embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.encoder = BidirectionalLSTM(config.embedding, config.encoder)
        self.bridge = nn.Linear(both, 2 * config.hidden)
        self.attention_query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.attention_key = nn.Linear(both, config.hidden)
        self.attention_score = nn.Linear(config.hidden, 1, bias=False)
        self.decoder = nn.LSTM(config.embedding + both, config.hidden, batch_first=True)
        self.output = nn.Linear(config.hidden + both, config.vocabulary)

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return the encoder's states, their keys, the mask and the decoder's first state."""
        states_BSD, ends_BD = self.encoder(self.source_embedding(source_BS), (source_BS != PAD).sum(1))
        hidden, cell = self.bridge(ends_BD).chunk(2, -1)
        mask = padding_mask(source_BS, PAD).flatten(1)
        keys = self.attention_key(states_BSD)
        return {"states": states_BSD, "keys": keys, "mask": mask, "hidden": hidden.tanh(), "cell": cell}

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return logits after each token; the attention needs the state, so steps follow each other here too."""
        state = self.begin(memory, tokens_BT.shape[1])
        return torch.stack([self.step(tokens_B, state) for tokens_B in tokens_BT.unbind(1)], 1)

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token."""
        kept = {name: memory[name] for name in ("states", "keys", "mask")}
        return State(kept, {"hidden": memory["hidden"], "cell": memory["cell"]})

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return the logits of the next."""
        memory, cache = state.memory, state.cache
        query_BH = self.attention_query(cache["hidden"])
        scores_BS = self.attention_score((query_BH[:, None] + memory["keys"]).tanh()).squeeze(-1) + memory["mask"]
        context_BD = (scores_BS.softmax(-1).unsqueeze(1).to(memory["states"].dtype) @ memory["states"]).squeeze(1)
        inputs = torch.cat([self.target_embedding(tokens_B), context_BD], -1)
        cache["hidden"], cache["cell"] = lstm_step(self.decoder, inputs, cache["hidden"], cache["cell"])
        state.length += 1
        return self.output(torch.cat([cache["hidden"], context_BD], -1))
