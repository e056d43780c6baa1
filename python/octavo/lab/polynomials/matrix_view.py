"""A polynomial model whose every matrix is a layer of its own: LSTMs as two linear layers and the step between them.

Recipes, sensitivities and solvers know linear layers and embeddings. The view shares all parameters with the model and
has its outputs; :func:`tensor_name` says which tensor of the model a parameter of the view is.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from octavo.lab.polynomials.seq2seq import Seq2Seq
from octavo.nn import PackedLayer
from octavo.tensors.packed_tensor import PackedTensor

# Names of the view's layers in an LSTM, and the suffixes of the LSTM's own tensors.
_PARTS = {"input": "ih_l0", "hidden": "hh_l0"}


class SteppedLSTM(nn.Module):
    """A one-layer LSTM, batch first, of an ``input`` and a ``hidden`` linear layer; gates in torch's order."""

    def __init__(self, lstm: nn.LSTM) -> None:
        """Take the parameters of ``lstm``, which are shared."""
        super().__init__()
        self.input, self.hidden = (_linear(lstm, suffix) for suffix in _PARTS.values())

    def forward(self, x_BTD: Tensor, first: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, None]:
        """Return the hidden states ``[B, T, H]`` from ``first`` (``[1, B, H]`` each) on, as ``nn.LSTM`` does."""
        gates_BTG = self.input(x_BTD)
        width = gates_BTG.shape[-1] // 4
        zeros = gates_BTG.new_zeros(len(x_BTD), width)
        hidden, cell = (zeros, zeros) if first is None else (first[0][0], first[1][0])
        states = []
        for gates_BG in gates_BTG.unbind(1):
            hidden, cell = self._next(gates_BG, hidden, cell)
            states.append(hidden)
        return torch.stack(states, 1), None

    def step(self, x_BD: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state after one more input."""
        return self._next(self.input(x_BD), hidden_BH, cell_BH)

    def _next(self, gates_BG: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, candidate, leave = (gates_BG + self.hidden(hidden_BH)).chunk(4, -1)
        cell_BH = forget.sigmoid() * cell_BH + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * cell_BH.tanh(), cell_BH


def _linear(lstm: nn.LSTM, suffix: str) -> nn.Linear:
    weight, bias = getattr(lstm, f"weight_{suffix}"), getattr(lstm, f"bias_{suffix}")
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = weight, bias
    return layer


def matrix_view(model: Seq2Seq) -> nn.Module:
    """Return a model with the parameters and outputs of ``model``, LSTMs as :class:`SteppedLSTM`; for ``forward``."""
    memo = {id(parameter): parameter for parameter in model.parameters()}
    view = copy.deepcopy(model, memo)
    for path, module in list(view.named_modules()):
        if isinstance(module, nn.LSTM):
            parent, _, name = path.rpartition(".")
            setattr(view.get_submodule(parent), name, SteppedLSTM(module))
    return view.eval()


def tensor_name(name: str, model: nn.Module) -> str:
    """Return the tensor of ``model`` that a parameter of its view is: ``decoder.input.weight``, ``weight_ih_l0``."""
    path, _, leaf = name.rpartition(".")
    parent, _, part = path.rpartition(".")
    if part in _PARTS and isinstance(model.get_submodule(parent), nn.LSTM):
        return f"{parent}.{leaf}_{_PARTS[part]}"
    return name


def view_tensors(view: nn.Module, model: nn.Module) -> dict[str, Tensor | PackedTensor]:
    """Return the tensors of a view, packed where its layers are, by their names in ``model`` and in its order."""
    found: dict[str, Tensor | PackedTensor] = {
        tensor_name(name, model): value.detach() for name, value in view.named_parameters()
    }
    for path, layer in view.named_modules():
        if isinstance(layer, PackedLayer):
            found[tensor_name(f"{path}.weight", model)] = layer.packed_weight
            if isinstance(bias := getattr(layer, "bias", None), Tensor):
                found[tensor_name(f"{path}.bias", model)] = bias.detach()
    return {name: found[name] for name in model.state_dict()}
