"""The shipped architecture: bidirectional LSTM encoder; decoder of LSTM cell, self-attention and cross-attention."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.lab.polynomials.seq2seq.decoder_state import PAD, State, Tensors
from octavo.lab.polynomials.seq2seq.interface import Seq2Seq
from octavo.lab.polynomials.seq2seq.key_value_cache import append, slabs
from octavo.lab.polynomials.seq2seq.layers import (
    Attention,
    BidirectionalLSTM,
    FeedForward,
    causal_mask,
    lstm_states,
    lstm_step,
    padding_mask,
    stack,
)
from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig


class Block(nn.Module):
    """``x += cross_attention(norm(x), m)``, then ``x += feedforward(norm(x))``."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.cross_norm = nn.LayerNorm(config.hidden)
        self.cross_attention = Attention(config.hidden, 2 * config.encoder, config.heads)
        self.feedforward_norm = nn.LayerNorm(config.hidden)
        self.feedforward = FeedForward(config.hidden, config.feedforward)

    def forward(self, x_BTD: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Apply to positions of the target; ``keys`` and ``values`` are the source's."""
        x_BTD = x_BTD + self.cross_attention(self.cross_norm(x_BTD), keys, values, mask)
        return x_BTD + self.feedforward(self.feedforward_norm(x_BTD))


class HybridSeq2Seq(Seq2Seq):
    """LSTMs say where a token stands, attention fetches what it needs, and feed-forward networks compute with it.

    Encoder: ``m = norm(lstms(embedding(source)))``, both directions side by side.
    Decoder: ``x = lstm(embedding(tokens))``, begun from the encoder's last states; ``x += self_attention(norm(x))``;
    then ``layers`` blocks of cross-attention to m and feed-forward; logits from ``norm(x)``.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.config = config
        both, hidden = 2 * config.encoder, config.hidden
        self.source_embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.target_embedding = nn.Embedding(config.vocabulary, config.embedding)
        self.encoder = BidirectionalLSTM(config.embedding, config.encoder)
        self.memory_norm = nn.LayerNorm(both)
        self.bridge = nn.Linear(both, 2 * hidden)
        self.decoder = nn.LSTM(config.embedding, hidden, batch_first=True)
        self.self_norm = nn.LayerNorm(hidden)
        self.self_attention = Attention(hidden, hidden, config.heads)
        self.blocks = stack(Block(config) for _ in range(config.layers))
        self.output_norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, config.vocabulary)

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return keys and values of every block's cross-attention, the mask, and the decoder's first state."""
        states_BSD, ends_BD = self.encoder(self.source_embedding(source_BS), (source_BS != PAD).sum(1))
        normed = self.memory_norm(states_BSD)
        hidden, cell = self.bridge(ends_BD).chunk(2, -1)
        memory = {"mask": padding_mask(source_BS, PAD), "hidden": hidden.tanh(), "cell": cell}
        for number, block in enumerate(self.blocks):
            memory[f"keys{number}"], memory[f"values{number}"] = block.cross_attention.project(normed)
        return memory

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return logits after each token, all positions at once."""
        first = (memory["hidden"][None].contiguous(), memory["cell"][None].contiguous())
        x_BTD = lstm_states(self.decoder, self.target_embedding(tokens_BT), first)
        keys, values = self.self_attention.project(normed := self.self_norm(x_BTD))
        mask = causal_mask(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = x_BTD + self.self_attention(normed, keys, values, mask)
        return self._finish(x_BTD, memory)

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token."""
        kept = {name: value for name, value in memory.items() if name not in ("hidden", "cell")}
        cache = slabs(
            memory["hidden"], [self.self_attention.heads], self.config.hidden // self.config.heads, max_length
        )
        return State(kept, {"hidden": memory["hidden"], "cell": memory["cell"], **cache})

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return the logits of the next."""
        cache = state.cache
        x_BD, cell = lstm_step(self.decoder, self.target_embedding(tokens_B), cache["hidden"], cache["cell"])
        cache["hidden"], cache["cell"] = x_BD, cell
        x_B1D = x_BD[:, None]
        keys, values = append(state, 0, *self.self_attention.project(normed := self.self_norm(x_B1D)))
        x_B1D = x_B1D + self.self_attention(normed, keys, values)
        state.length += 1
        return self._finish(x_B1D, state.memory)[:, 0]

    def _finish(self, x_BTD: Tensor, memory: Tensors) -> Tensor:
        """Everything behind the self-attention, which looks at one position at a time."""
        for number, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, memory[f"keys{number}"], memory[f"values{number}"], memory["mask"])
        return self.output(self.output_norm(x_BTD))
