"""A small Transformer encoder-decoder (Vaswani et al. 2017), norms before the branches, learned positions."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.lab.polynomials.seq2seq.decoder_state import PAD, State, Tensors
from octavo.lab.polynomials.seq2seq.interface import Seq2Seq
from octavo.lab.polynomials.seq2seq.key_value_cache import append, slabs
from octavo.lab.polynomials.seq2seq.layers import Attention, FeedForward, causal_mask, padding_mask, stack
from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig


class EncoderLayer(nn.Module):
    """Self-attention over the whole source, then feed-forward."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layer."""
        super().__init__()
        self.self_norm = nn.LayerNorm(config.hidden)
        self.self_attention = Attention(config.hidden, config.hidden, config.heads)
        self.feedforward_norm = nn.LayerNorm(config.hidden)
        self.feedforward = FeedForward(config.hidden, config.feedforward)

    def forward(self, x_BSD: Tensor, mask: Tensor) -> Tensor:
        """Apply to all positions."""
        normed = self.self_norm(x_BSD)
        x_BSD = x_BSD + self.self_attention(normed, *self.self_attention.project(normed), mask)
        return x_BSD + self.feedforward(self.feedforward_norm(x_BSD))


class DecoderLayer(nn.Module):
    """Self-attention over the tokens so far, cross-attention to the source, feed-forward."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layer."""
        super().__init__()
        self.self_norm = nn.LayerNorm(config.hidden)
        self.self_attention = Attention(config.hidden, config.hidden, config.heads)
        self.cross_norm = nn.LayerNorm(config.hidden)
        self.cross_attention = Attention(config.hidden, config.hidden, config.heads)
        self.feedforward_norm = nn.LayerNorm(config.hidden)
        self.feedforward = FeedForward(config.hidden, config.feedforward)

    def finish(self, x_BTD: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Everything behind the self-attention; ``keys`` and ``values`` are the source's."""
        x_BTD = x_BTD + self.cross_attention(self.cross_norm(x_BTD), keys, values, mask)
        return x_BTD + self.feedforward(self.feedforward_norm(x_BTD))


class TransformerSeq2Seq(Seq2Seq):
    """``layers`` encoder layers and as many decoder layers, all of width ``hidden``."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        """Make the layers; embeddings and positions are drawn from N(0, 0.02)."""
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.target_embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.source_positions = nn.Embedding(config.max_source, config.hidden)
        self.target_positions = nn.Embedding(config.max_target, config.hidden)
        self.encoder = stack(EncoderLayer(config) for _ in range(config.layers))
        self.memory_norm = nn.LayerNorm(config.hidden)
        self.decoder = stack(DecoderLayer(config) for _ in range(config.layers))
        self.output_norm = nn.LayerNorm(config.hidden)
        self.output = nn.Linear(config.hidden, config.vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return keys and values of every decoder layer's cross-attention, and the mask."""
        mask = padding_mask(source_BS, PAD)
        x_BSD = self.source_embedding(source_BS) + self.source_positions.weight[: source_BS.shape[1]]
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask)
        memory = {"mask": mask}
        normed = self.memory_norm(x_BSD)
        for number, reader in enumerate(self.decoder):
            memory[f"keys{number}"], memory[f"values{number}"] = reader.cross_attention.project(normed)
        return memory

    def decode(self, memory: Tensors, tokens_BT: Tensor) -> Tensor:
        """Return logits after each token, all positions at once."""
        length = tokens_BT.shape[1]
        mask = causal_mask(length, tokens_BT.device)
        x_BTD = self.target_embedding(tokens_BT) + self.target_positions.weight[:length]
        for number, layer in enumerate(self.decoder):
            normed = layer.self_norm(x_BTD)
            x_BTD = x_BTD + layer.self_attention(normed, *layer.self_attention.project(normed), mask)
            x_BTD = layer.finish(x_BTD, memory[f"keys{number}"], memory[f"values{number}"], memory["mask"])
        return self.output(self.output_norm(x_BTD))

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token."""
        heads = [layer.self_attention.heads for layer in self.decoder]
        return State(memory, slabs(memory["keys0"], heads, self.config.hidden // self.config.heads, max_length))

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return the logits of the next."""
        memory = state.memory
        x_B1D = (self.target_embedding(tokens_B) + self.target_positions.weight[state.length])[:, None]
        for number, layer in enumerate(self.decoder):
            normed = layer.self_norm(x_B1D)
            keys, values = append(state, number, *layer.self_attention.project(normed))
            x_B1D = x_B1D + layer.self_attention(normed, keys, values)
            x_B1D = layer.finish(x_B1D, memory[f"keys{number}"], memory[f"values{number}"], memory["mask"])
        state.length += 1
        return self.output(self.output_norm(x_B1D))[:, 0]
