"""The integer layers: what they compute is defined by integers, so that every implementation gives the same bits.

Products are summed in float64, which holds them exactly: 53 bits for sums below 2^31. Letters of shapes: B rows, S
positions, K inputs, R rows of the weight, H units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.lab.polynomials.static.layout import largest
from octavo.tensors.packed_tensor import PackedTensor


def to_codes(x: Tensor, scale: Tensor, bits: int = 8) -> Tensor:
    """Return ``clamp(round(x * fl32(1 / scale)), -L, L)``, half to even; float32 that holds whole numbers.

    L is 127 for 8 ``bits``, 32767 for 16.
    """
    return (x.float() * scale.reciprocal()).round().clamp(-largest(bits), largest(bits))


class IntegerLinear(nn.Module):
    """A linear layer with int8 weights, int8 or int16 inputs and int32 sums.

    ``weight``: ``int8:channel`` [R, K]. ``bias``: int32 [R], in units of ``input_scale`` times the row's scale.
    ``input_scale``: float32 []. ``input_bits``: int32 [], 8 or 16.
    """

    _codes_KR: Tensor
    _scales_R: Tensor
    _bias_R: Tensor
    _input_scale: Tensor

    def __init__(self, weight: PackedTensor, bias: Tensor, input_scale: Tensor, input_bits: Tensor) -> None:
        """Keep the parts."""
        super().__init__()
        self.input_bits = int(input_bits)
        self.register_buffer("_codes_KR", weight.codes.view(torch.int8).T.double())
        self.register_buffer("_scales_R", input_scale * weight.scales[:, 0])
        self.register_buffer("_bias_R", bias.double())
        self.register_buffer("_input_scale", input_scale.clone())

    def accumulate(self, x: Tensor) -> Tensor:
        """Return the int32 sums ``[..., R]`` of an input ``[..., K]``."""
        return (to_codes(x, self._input_scale, self.input_bits).double() @ self._codes_KR + self._bias_R).to(
            torch.int32
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 ``[..., R]``."""
        return self.accumulate(x).float() * self._scales_R


class IntegerGates(nn.Module):
    """The four gates of an LSTM before their functions.

    ``weight_hh``: ``int8:channel`` [4H, H]. ``table``: int32 [V, 4H], what a token adds. ``state_scale``: float32 [].
    """

    _codes_KR: Tensor
    _scales_R: Tensor
    _table_VR: Tensor
    _state_scale: Tensor

    def __init__(self, weight_hh: PackedTensor, table: Tensor, state_scale: Tensor) -> None:
        """Keep the parts."""
        super().__init__()
        self.register_buffer("_codes_KR", weight_hh.codes.view(torch.int8).T.double())
        self.register_buffer("_scales_R", state_scale * weight_hh.scales[:, 0])
        self.register_buffer("_table_VR", table.double())
        self.register_buffer("_state_scale", state_scale.clone())

    def accumulate(self, tokens_B: Tensor, hidden_BH: Tensor) -> Tensor:
        """Return the int32 sums ``[B, 4H]``."""
        products = to_codes(hidden_BH, self._state_scale).double() @ self._codes_KR
        return (products + self._table_VR[tokens_B]).to(torch.int32)

    def forward(self, tokens_B: Tensor, hidden_BH: Tensor) -> Tensor:
        """Return float32 ``[B, 4H]``: enter, forget, candidate, leave."""
        return self.accumulate(tokens_B, hidden_BH).float() * self._scales_R


class IntegerLSTM(nn.Module):
    """An LSTM over tokens, one layer, one direction; hidden state and cell are float32."""

    def __init__(self, weight_hh: PackedTensor, table: Tensor, state_scale: Tensor) -> None:
        """Make the gates."""
        super().__init__()
        self.gates = IntegerGates(weight_hh, table, state_scale)

    def step(self, tokens_B: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden state and cell after one more token."""
        enter, forget, candidate, leave = self.gates(tokens_B, hidden_BH).chunk(4, -1)
        cell = forget.sigmoid() * cell_BH + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * cell.tanh(), cell

    def forward(self, tokens_BS: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> Tensor:
        """Return the hidden state after every token, ``[B, S, H]``."""
        states = []
        for tokens_B in tokens_BS.unbind(1):
            hidden_BH, cell_BH = self.step(tokens_B, hidden_BH, cell_BH)
            states.append(hidden_BH)
        return torch.stack(states, 1)
