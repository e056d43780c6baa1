"""LSTM, GRU and RNN of torch, and their cells, as layers: two linear layers for each layer and direction.

``ih_l0`` multiplies the inputs of all time steps at once, ``hh_l0`` the hidden state of each, ``hr_l0`` projects the
output of an LSTM with ``proj_size``; those of the other direction end with ``_reverse``. Gates are computed in the
order of torch's own code on the CPU: with float layers every bit is that of torch without oneDNN, which sums in another
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from octavo.nn.rewriting import Origin, Rewriting, bare_copy, linear_of, register_rewriting

State = tuple[Tensor, ...]
_CACHES = ("_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights")  # of torch: other references
_SEQUENCES = (nn.LSTM, nn.GRU, nn.RNN)
_CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)


def lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return hidden state and cell after a step. ``x``, ``h``: products of input and hidden state, four gates each."""
    enter, forget, cell, leave = (h + x).chunk(4, 1)
    after = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * after.tanh(), after


def gru_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the hidden state after a step. ``x``, ``h``: products of input and hidden state, three gates each."""
    size = state[0].shape[1]
    # Sums of both gates, cut afterwards: torch's sigmoid of a row that is part of a longer one has other last bits.
    reset, update = (h[:, : 2 * size] + x[:, : 2 * size]).chunk(2, 1)
    reset, update, x_new, h_new = reset.sigmoid(), update.sigmoid(), x[:, 2 * size :], h[:, 2 * size :]
    new = (x_new + h_new * reset).tanh()
    return ((state[0] - new) * update + new,)


def tanh_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the hidden state after a step of an Elman network with tanh."""
    return ((h + x).tanh(),)


def relu_step(x: Tensor, h: Tensor, state: State) -> State:
    """Return the hidden state after a step of an Elman network with ReLU."""
    return ((h + x).relu(),)


_STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": lstm_step,
    "GRU": gru_step,
    "RNN_TANH": tanh_step,
    "RNN_RELU": relu_step,
}


class RecurrentLayers(nn.Module):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` made of linear layers; options and their attributes are those of torch."""

    mode: str
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bidirectional: bool
    batch_first: bool
    dropout: float

    def flatten_parameters(self) -> None:
        """Do nothing: weights of layers lie where they lie."""

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Tensor | PackedSequence, Any]:
        """Return the outputs of the last layer, and the state of every layer after the last step.

        Args:
            input: ``[T, B, in]``, ``[B, T, in]`` with ``batch_first``, ``[T, in]``, or packed sequences.
            hx: the first state, ``[layers * directions, B, hidden]``; of an LSTM a pair. None: zeros.

        Returns:
            Outputs as ``input`` is laid out, and the state as ``hx`` is.

        Raises:
            ValueError: for an input of another number of dimensions.
        """
        if isinstance(input, PackedSequence):
            x, sizes, order, back = input.data, input.batch_sizes.tolist(), input.sorted_indices, input.unsorted_indices
            ordered = [part if order is None else part.index_select(1, order) for part in self._first(x, sizes[0], hx)]
            y, state = self._layers(x, sizes, ordered)
            outputs = PackedSequence(y, input.batch_sizes, order, back)
            return outputs, self._state([part if back is None else part.index_select(1, back) for part in state])
        if input.dim() not in (2, 3):
            raise ValueError(f"{self.mode}: expected input to be 2-D or 3-D, got {input.dim()}-D")
        alone, batch_axis = input.dim() == 2, 0 if self.batch_first else 1
        x = input.unsqueeze(batch_axis) if alone else input
        x = x.transpose(0, 1) if self.batch_first else x
        first = self._first(x, x.shape[1], _each(hx, lambda part: part.unsqueeze(1)) if alone else hx)
        y, state = self._layers(x.flatten(0, 1), [x.shape[1]] * len(x), first)
        y = y.unflatten(0, (len(x), x.shape[1]))
        y = y.transpose(0, 1) if self.batch_first else y
        if alone:
            return y.squeeze(batch_axis), self._state([part.squeeze(1) for part in state])
        return y, self._state(state)

    def _first(self, x: Tensor, batch: int, hx: Any) -> list[Tensor]:
        """The first state as a list: hidden, and the cell of an LSTM."""
        if hx is not None:
            return [*hx] if self.mode == "LSTM" else [hx]
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]
        return [torch.zeros(count, batch, size, dtype=x.dtype, device=x.device) for size in sizes]

    def _state(self, parts: Sequence[Tensor]) -> Any:
        return tuple(parts) if self.mode == "LSTM" else parts[0]

    def _layers(self, x: Tensor, sizes: Sequence[int], first: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Run all layers over the rows of all steps ``[sum(sizes), in]``. Return outputs and states."""
        last: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in ("", "_reverse") if self.bidirectional else ("",):
                state = tuple(part[len(last)] for part in first)
                y, state = self._direction(x, sizes, state, f"l{layer}{suffix}")
                outputs.append(y)
                last.append(state)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                x = functional.dropout(x, self.dropout, self.training)
        return x, [torch.stack(parts) for parts in zip(*last, strict=True)]

    def _direction(self, x: Tensor, sizes: Sequence[int], first: State, name: str) -> tuple[Tensor, State]:
        """Run one layer in one direction. Sequences that are longer come first in each step, as packed ones lie."""
        products = self.get_submodule(f"ih_{name}")(x).split(list(sizes))
        hidden, step, project = self.get_submodule(f"hh_{name}"), _STEPS[self.mode], self._modules.get(f"hr_{name}")
        backward = name.endswith("_reverse")
        outputs: list[Tensor] = []
        ended: list[State] = []  # of sequences that were shorter than those still running
        state = tuple(part[: sizes[-1] if backward else sizes[0]] for part in first)
        for time in reversed(range(len(sizes))) if backward else range(len(sizes)):
            running = len(state[0])
            if sizes[time] < running:
                ended.append(tuple(part[sizes[time] :] for part in state))
                state = tuple(part[: sizes[time]] for part in state)
            elif sizes[time] > running:  # backward: a longer step begins sequences
                state = tuple(
                    torch.cat([part, more[running : sizes[time]]]) for part, more in zip(state, first, strict=True)
                )
            h, *cell = step(products[time], hidden(state[0]), state)
            state = (h if project is None else project(h), *cell)
            outputs.append(state[0])
        if backward:
            outputs.reverse()
        if ended:
            state = tuple(torch.cat([*parts]) for parts in zip(state, *reversed(ended), strict=True))
        return torch.cat(outputs), state


class RecurrentCell(nn.Module):
    """``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell`` made of the linear layers ``ih`` and ``hh``."""

    mode: str
    hidden_size: int

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """Return the state after a step.

        Args:
            input: ``[B, in]`` or ``[in]``.
            hx: the state before, ``[B, hidden]`` or ``[hidden]``; of an LSTM a pair. None: zeros.

        Returns:
            The state, as ``hx`` is.

        Raises:
            ValueError: for an input of another number of dimensions.
        """
        if input.dim() not in (1, 2):
            raise ValueError(f"{self.mode} cell: expected input to be 1-D or 2-D, got {input.dim()}-D")
        alone, is_pair = input.dim() == 1, self.mode == "LSTM"
        x = input[None] if alone else input
        if hx is None:
            zeros = torch.zeros(len(x), self.hidden_size, dtype=x.dtype, device=x.device)
            state: State = (zeros, zeros) if is_pair else (zeros,)
        else:
            state = tuple(part[None] if alone else part for part in (hx if is_pair else (hx,)))
        modules: Mapping[str, Any] = self._modules
        after = _STEPS[self.mode](modules["ih"](x), modules["hh"](state[0]), state)
        after = tuple(part[0] for part in after) if alone else after
        return after if is_pair else after[0]


def _each(hx: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if hx is None:
        return None
    return tuple(change(part) for part in hx) if isinstance(hx, tuple | list) else change(hx)


# --- the rewritings ---------------------------------------------------------------------------------------------------


def _fits(module: nn.Module, classes: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module is of one of torch's classes, none of its subclasses, with parameters of its own alone."""
    if type(module) not in classes or "forward" in vars(module) or module._modules:
        return False
    parameters = [value for value in module._parameters.values() if value is not None]
    return len(parameters) == len(dict(_names(module))) and not module._buffers


def _names(module: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of each parameter, and that of the tensor of a layer that it is."""
    for name, value in module._parameters.items():
        if value is None:
            continue
        role, _, rest = name.partition("_")
        if role in ("weight", "bias") and rest:
            yield name, f"{rest}.{role}"


def _origins(module: nn.Module) -> dict[str, Origin]:
    shapes = {name: tuple(module.get_parameter(name).shape) for name, _ in _names(module)}
    return {name: Origin(shapes[name], (part,), shapes[name]) for name, part in _names(module)}


def _build(module: Any, parts: Mapping[str, nn.Parameter], cls: type[nn.Module]) -> nn.Module:
    new = bare_copy(module, cls, tuple(module._parameters))
    for name in _CACHES:
        vars(new).pop(name, None)
    if not hasattr(module, "mode"):
        vars(new)["mode"] = _mode_of_cell(module)
    for name in dict.fromkeys(part.rpartition(".")[0] for part in parts):
        new.add_module(name, linear_of(parts[f"{name}.weight"], parts.get(f"{name}.bias")).train(module.training))
    return new


def _mode_of_cell(module: nn.Module) -> str:
    if isinstance(module, nn.RNNCell):
        return f"RNN_{module.nonlinearity.upper()}"
    return "LSTM" if isinstance(module, nn.LSTMCell) else "GRU"


register_rewriting(
    Rewriting(
        "recurrent layers",
        lambda module: _fits(module, _SEQUENCES),
        _origins,
        lambda module, parts: _build(module, parts, RecurrentLayers),
    )
)
register_rewriting(
    Rewriting(
        "recurrent cell",
        lambda module: _fits(module, _CELLS),
        _origins,
        lambda module, parts: _build(module, parts, RecurrentCell),
    )
)
