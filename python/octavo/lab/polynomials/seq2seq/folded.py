"""The shipped architecture for generating on a GPU: weights folded, the decoder a loop of fixed length.

The folds leave the function as it is in real arithmetic; they are computed in float64 and rounded once:

- embedding, input matrix and both biases of an LSTM are one table by token;
- gain and bias of a norm go into the layers that read it, the scale of attention scores into its queries;
- the bias of keys adds the same to all scores of a query, which softmax ignores: it is dropped;
- softmax sums to one, so the bias of values goes through the output matrix into the output's bias;
- pad and start are never answers: their logits are a constant far below all others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError
from octavo.lab.polynomials.seq2seq.decoder_state import END, PAD, START, State, Tensors
from octavo.lab.polynomials.seq2seq.hybrid import HybridSeq2Seq
from octavo.lab.polynomials.seq2seq.interface import Seq2Seq
from octavo.lab.polynomials.seq2seq.key_value_cache import append, slabs
from octavo.lab.polynomials.seq2seq.layers import Attention, last, lstm_parameters, padding_mask, reverse, stack
from octavo.prune.sizes import KEY as SIZES

# The logit of what is no answer; finite, so that no sum with it is NaN.
NEVER = -1e30


class FoldedHybrid(Seq2Seq):
    """A :class:`HybridSeq2Seq` that only generates: no gradients, no :meth:`decode`.

    ``dtype``: of weights, products and activations, float32 or bfloat16; cells of LSTMs are float32 in both.
    """

    encoder_table: Tensor
    encoder_recurrent: Tensor
    decoder_table: Tensor
    decoder_recurrent: Tensor

    def __init__(self, model: HybridSeq2Seq, dtype: torch.dtype = torch.float32) -> None:
        """Fold the weights of ``model``, which stays as it is."""
        super().__init__()
        if SIZES in vars(model):
            raise ModelError(
                "heads or neurons were taken out of this network; octavo.load_model runs it, not this engine"
            )
        self.config = model.config
        blocks = model.blocks
        encoder, embedding = model.encoder, model.source_embedding
        directions = [_recurrent(embedding, lstm) for lstm in (encoder.forwards, encoder.backwards)]
        self._keep("encoder_table", torch.cat([table for table, _ in directions]), dtype)
        self._keep("encoder_recurrent", torch.stack([matrix for _, matrix in directions]), dtype)
        crosses = [_attention(block.cross_attention, block.cross_norm, model.memory_norm) for block in blocks]
        self.memory = _linear(torch.cat([kept for _, _, kept, _ in crosses]), None, dtype)
        self.bridge = _linear(_weight(model.bridge), _bias(model.bridge), dtype)
        table, matrix = _recurrent(model.target_embedding, model.decoder)
        self._keep("decoder_table", table, dtype)
        self._keep("decoder_recurrent", matrix, dtype)
        query, bias, kept, output = _attention(model.self_attention, model.self_norm, model.self_norm)
        self.self_input = _linear(torch.cat([query, kept]), functional.pad(bias, (0, len(kept))), dtype)
        self.self_output = _linear(*output, dtype)
        self.queries = stack(_linear(query, bias, dtype) for query, bias, _, _ in crosses)
        self.mixers = stack(_linear(*output, dtype) for _, _, _, output in crosses)
        forwards = [(block.feedforward, block.feedforward_norm) for block in blocks]
        self.expands = stack(_linear(*_normed(layer.expand, norm), dtype) for layer, norm in forwards)
        self.contracts = stack(_linear(_weight(layer.contract), _bias(layer.contract), dtype) for layer, _ in forwards)
        weight, bias = _normed(model.output, model.output_norm)
        weight[:END], bias[:END] = 0, NEVER
        self.output = _linear(weight, bias, dtype)
        self.epsilon = model.output_norm.eps
        self.to(model.output.weight.device).eval()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.decoder_table.device

    def encode(self, source_BS: Tensor) -> Tensors:
        """Return keys and values of every block's cross-attention, the mask, and the decoder's first state."""
        states_BSD, ends_BD = self._run_encoder(source_BS, (source_BS != PAD).sum(1))
        hidden, cell = self.bridge(ends_BD).chunk(2, -1)
        memory = {"mask": padding_mask(source_BS, PAD).to(states_BSD.dtype)}
        memory |= {"hidden": hidden.tanh(), "cell": cell.float()}
        parts = self._split(self.memory(self._norm(states_BSD)), 2 * self.config.layers)
        for number in range(self.config.layers):
            memory[f"keys{number}"] = parts[2 * number].contiguous()
            memory[f"values{number}"] = parts[2 * number + 1].contiguous()
        return memory

    def begin(self, memory: Tensors, max_length: int) -> State:
        """Return the state before the first token."""
        kept = {name: value for name, value in memory.items() if name not in ("hidden", "cell")}
        cache = slabs(memory["hidden"], [self.config.heads], self.config.hidden // self.config.heads, max_length)
        return State(kept, {"hidden": memory["hidden"], "cell": memory["cell"], **cache})

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        """Take in one token a row and return the logits of the next."""
        cache = state.cache
        gates = functional.embedding(tokens_B, self.decoder_table).addmm_(cache["hidden"], self.decoder_recurrent)
        cache["hidden"], cache["cell"] = _cell(gates, cache["cell"])
        x_BD = cache["hidden"]
        query, key, value = self._split(self.self_input(self._norm(x_BD))[:, None], 3)
        keys, values = append(state, 0, key, value)
        x_BD = x_BD + self.self_output(_attend(query, keys, values))
        state.length += 1
        layers = zip(self.queries, self.mixers, self.expands, self.contracts, strict=True)
        for number, (ask, mix, expand, contract) in enumerate(layers):
            (query,) = self._split(ask(self._norm(x_BD))[:, None], 1)
            memory = state.memory
            x_BD = x_BD + mix(_attend(query, memory[f"keys{number}"], memory[f"values{number}"], memory["mask"]))
            x_BD = x_BD + contract(expand(self._norm(x_BD)).relu_())
        return self.output(self._norm(x_BD))

    @torch.no_grad()
    def generate_fixed(self, source_BS: Tensor) -> Tensor:
        """Return the greedy target of each row, tokens ``[B, max_target]`` (uint8, padded), after as many steps.

        The kernels and their shapes depend on the shape of ``source_BS`` alone and nothing waits for the device, so
        that the whole can be captured into a CUDA graph. The tokens are those of :meth:`generate`.
        """
        source_BS = source_BS.long()
        state = self.begin(self.encode(source_BS), self.config.max_target)
        latest = torch.full_like(source_BS[:, 0], START)
        found = []
        for _ in range(self.config.max_target):
            latest = self.step(latest, state).argmax(-1)
            found.append(latest)
        tokens_BT = torch.stack(found, 1)
        ends = (tokens_BT == END).cumsum(1)
        behind = functional.pad(ends, (1, 0))[:, :-1] > 0
        return tokens_BT.masked_fill(behind, PAD).to(torch.uint8)

    def _run_encoder(self, source_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return states of both directions ``[B, S, 2 units]`` and the last ones; both run as one batched product."""
        mirrored = reverse(source_BS[..., None], lengths_B)[..., 0] + self.config.vocabulary
        tokens_S2B = torch.stack([source_BS, mirrored]).permute(2, 0, 1)
        shape = (2, len(source_BS), self.config.encoder)
        hidden = self.encoder_table.new_zeros(shape)
        cell = torch.zeros(shape, dtype=torch.float32, device=hidden.device)
        states = []
        for tokens_2B in tokens_S2B:
            gates = functional.embedding(tokens_2B, self.encoder_table).baddbmm_(hidden, self.encoder_recurrent)
            hidden, cell = _cell(gates, cell)
            states.append(hidden)
        ahead, back = torch.stack(states, 2)
        ends = [last(direction, lengths_B) for direction in (ahead, back)]
        return torch.cat([ahead, reverse(back, lengths_B)], -1), torch.cat(ends, -1)

    def _norm(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], eps=self.epsilon)

    def _split(self, x_BTD: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return each of ``parts`` as heads, ``[B, heads, T, width / heads]``."""
        return x_BTD.unflatten(-1, (parts, self.config.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def _keep(self, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
        self.register_buffer(name, tensor.to(dtype))


def _cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden state, in the dtype of ``gates``, and cell. Order of gates: enter, forget, leave, candidate."""
    units = cell.shape[-1]
    enter, forget, leave = gates[..., : 3 * units].sigmoid().chunk(3, -1)
    cell = forget * cell + enter * gates[..., 3 * units :].tanh()
    return (leave * cell.tanh()).to(gates.dtype), cell


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mixed values ``[B, D]`` of one query a row."""
    scores = query @ keys.transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) @ values).flatten(1)


# --- folds, in float64 ----------------------------------------------------------------------------------------------


def _weight(layer: nn.Linear | nn.Embedding | nn.LayerNorm) -> Tensor:
    return layer.weight.detach().double()


def _bias(layer: nn.Linear | nn.LayerNorm) -> Tensor:
    return layer.bias.detach().double()


def _linear(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], len(weight), bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    return layer


def _normed(layer: nn.Linear, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return weight and bias of ``layer`` for input that lacks gain and bias of ``norm``."""
    weight = _weight(layer)
    return weight * _weight(norm), _bias(layer) + weight @ _bias(norm)


def _recurrent(embedding: nn.Embedding, lstm: nn.LSTM) -> tuple[Tensor, Tensor]:
    """Return what each token adds to the gates ``[V, 4 units]`` and the matrix of the hidden state, gates last."""
    inputs, hidden, input_bias, hidden_bias = (part.detach().double() for part in lstm_parameters(lstm))
    table = _weight(embedding) @ inputs.T + input_bias + hidden_bias
    enter, forget, candidate, leave = torch.arange(table.shape[1], device=table.device).chunk(4)
    order = torch.cat([enter, forget, leave, candidate])
    return table[:, order], hidden.T[:, order].contiguous()


def _attention(
    attention: Attention, asking: nn.LayerNorm, asked: nn.LayerNorm
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return weight and bias of the queries, the weight of keys and values, weight and bias of the output."""
    query, bias = _normed(attention.query, asking)
    scale = 1 / math.sqrt(len(query) // attention.heads)
    key, _ = _normed(attention.key, asked)
    value, value_bias = _normed(attention.value, asked)
    output = _weight(attention.output)
    return query * scale, bias * scale, torch.cat([key, value]), (output, _bias(attention.output) + output @ value_bias)
