"""The shipped architecture on a GPU with kernels of its own: one for the encoder's LSTMs, one for decoding.

PyTorch computes what is one product for all positions: keys and values of the source, and the decoder's first state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, pad

from octavo import _core
from octavo.cuda import device as cuda
from octavo.errors import ShapeError
from octavo.lab.polynomials.seq2seq.folded import FoldedHybrid
from octavo.lab.polynomials.seq2seq.hybrid import HybridSeq2Seq
from octavo.lab.polynomials.seq2seq.seq2seq_config import Seq2SeqConfig
from octavo.ops.codec_cuda import place

# Scores become powers of two.
LOG2_E = 1 / math.log(2)


class FusedHybrid:
    """A :class:`HybridSeq2Seq` that only generates, as :meth:`FoldedHybrid.generate_fixed` does in bfloat16.

    Rounded to bfloat16 are matrices and what they are multiplied with; tables, biases, cells, sums, the residual
    stream, norms and softmax are float32. What encoder and bridge hand to the decoder is bfloat16.
    """

    def __init__(self, model: HybridSeq2Seq, device: torch.device) -> None:
        """Fold the weights of ``model``, which stays as it is, and lay them out for the kernels."""
        self.config, self.device = model.config, device
        folded = FoldedHybrid(model)
        self._sizes, self._epsilon = _sizes(model.config), folded.epsilon
        self._encoder = _packed(*_encoder(folded), device)
        self._decoder = _packed(*_decoder(folded), device)
        given = (folded.memory.weight, folded.bridge.weight, folded.bridge.bias)
        self._memory, self._bridge, self._bridge_bias = (part.to(device, torch.bfloat16) for part in given)

    @staticmethod
    def takes(config: Seq2SeqConfig, device: torch.device) -> bool:
        """Whether there are kernels for a model of these sizes, and a compiler for them."""
        return cuda.is_available() and _core._cuda_seq2seq_scratch(device.index, _sizes(config), 1) is not None

    @torch.no_grad()
    def generate_fixed(self, source_BS: Tensor) -> Tensor:
        """Return the greedy target of each row, tokens ``[B, max_target]`` (uint8, padded); a row of pads has none.

        ``source_BS``: uint8 ``[B, max_source]``, contiguous, padded with 0 at the ends. Nothing waits for the device,
        so that the whole can be captured into a CUDA graph.
        """
        config, rows, on = self.config, len(source_BS), place(self.device)
        given = (source_BS.shape[1:], source_BS.dtype, source_BS.device)
        if given != ((config.max_source,), torch.uint8, self.device) or not source_BS.is_contiguous():
            raise ShapeError(
                f"sources are {source_BS.dtype} {tuple(source_BS.shape)} on {source_BS.device}; "
                f"expected contiguous uint8 [B, {config.max_source}] on {self.device}"
            )
        states = self._empty(rows, config.max_source, 2 * config.encoder)
        ends = self._empty(rows, 2 * config.encoder)
        source, (matrices, vectors) = source_BS.data_ptr(), self._encoder
        _core._cuda_seq2seq_encode(
            on, self._sizes, rows, (matrices.data_ptr(), vectors.data_ptr()), source, states.data_ptr(), ends.data_ptr()
        )
        with torch.autocast(self.device.type, enabled=False):
            memory = linear(layer_norm(states, states.shape[-1:], eps=self._epsilon), self._memory)
            bridged = linear(ends, self._bridge, self._bridge_bias)
        nbytes = _core._cuda_seq2seq_scratch(on[0], self._sizes, rows)
        scratch = torch.empty(nbytes or 0, dtype=torch.uint8, device=self.device)
        tokens_BT = torch.empty((rows, config.max_target), dtype=torch.uint8, device=self.device)
        matrices, vectors = self._decoder
        _core._cuda_seq2seq_decode(
            on, self._sizes, rows, (matrices.data_ptr(), vectors.data_ptr()),
            (source, memory.data_ptr(), bridged.data_ptr()), scratch.data_ptr(), tokens_BT.data_ptr(), self._epsilon,
        )  # fmt: skip
        return tokens_BT

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device)


def fragments(weight_NK: Tensor) -> Tensor:
    """Return a matrix as ``kernels/seq2seq/rows.cu`` reads it: by 8 rows, 32 columns, and a lane's 16 bytes."""
    rows, columns = weight_NK.shape
    # Of a row: tile, place there. Of a column: run, 16 of it, half of those, the lane's word, place in the word.
    apart = weight_NK.view(rows // 8, 8, columns // 32, 2, 2, 4, 2)
    return apart.permute(0, 2, 1, 5, 3, 4, 6).flatten()


def _sizes(config: Seq2SeqConfig) -> tuple[int, ...]:
    return (config.vocabulary, config.encoder, config.hidden, config.heads, config.layers, config.feedforward,
            config.max_source, config.max_target)  # fmt: skip


def _packed(matrices: list[Tensor], vectors: list[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    flat = torch.cat([fragments(matrix) for matrix in matrices])
    return flat.to(device, torch.bfloat16), torch.cat([vector.flatten() for vector in vectors]).to(device)


def _gates(recurrent: Tensor) -> Tensor:
    """Return the matrix of the hidden state ``[units, 4 units]`` with its outputs as rows: by 8 units, then gate."""
    units = len(recurrent)
    return recurrent.T.unflatten(0, (4, units // 8, 8)).transpose(0, 1).reshape(4 * units, units)


def _encoder(model: FoldedHybrid) -> tuple[list[Tensor], list[Tensor]]:
    """Return matrices and vectors of the encoder's LSTMs."""
    return [_gates(recurrent) for recurrent in model.encoder_recurrent], [model.encoder_table]


def _decoder(model: FoldedHybrid) -> tuple[list[Tensor], list[Tensor]]:
    """Return matrices and vectors of the decoder in the kernel's order."""
    width = model.config.hidden
    queries = model.self_input.weight.new_ones(3 * width)
    queries[:width] = LOG2_E
    layers = [(model.self_input.weight * queries[:, None], model.self_input.bias[:width] * LOG2_E),
              (model.self_output.weight, model.self_output.bias)]  # fmt: skip
    blocks = zip(model.queries, model.mixers, model.expands, model.contracts, strict=True)
    for ask, *others in blocks:
        layers.append((ask.weight * LOG2_E, ask.bias * LOG2_E))
        layers += [(layer.weight, layer.bias) for layer in others]
    more = -len(model.output.weight) % 8
    layers.append((pad(model.output.weight, (0, 0, 0, more)), pad(model.output.bias, (0, more))))
    matrices, biases = zip(*layers, strict=True)
    return [_gates(model.decoder_recurrent), *matrices], [model.decoder_table, *biases]
