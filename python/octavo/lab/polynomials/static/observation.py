"""Records the inputs of a hybrid model's layers while it answers sources token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import DataError, DTypeError, NonFiniteError
from octavo.lab.polynomials.seq2seq import PAD, HybridSeq2Seq, Seq2Seq, State
from octavo.lab.polynomials.seq2seq.generate import greedy
from octavo.lab.polynomials.static.layout import linears, lstms

# Called with the name of a linear layer and its input ``[..., K]``, or of an LSTM and its hidden states ``[..., H]``.
See = Callable[[str, Tensor], None]


def check_hybrid(model: object) -> HybridSeq2Seq:
    """Return the model. Raises DTypeError for anything but a HybridSeq2Seq in floating point."""
    # An integer model is a hybrid one without embeddings: they are in its tables.
    if not isinstance(model, HybridSeq2Seq) or not hasattr(model, "source_embedding"):
        raise DTypeError(f"model is a {type(model).__name__}; accepted is a HybridSeq2Seq")
    return model


@torch.no_grad()
def observe(model: Seq2Seq, batches: Iterable[Tensor], see: See) -> None:
    """Let ``model`` answer sources greedily and show ``see`` what every linear layer and every LSTM reads on the way.

    ``batches``: sources ``[B, S]``, uint8 or int64, padded with 0. Rows are taken in groups of one length, so that
    nothing of the padding is seen. ``see`` gets finite float tensors with at least one element.

    Raises DTypeError for another model, DataError where there is no row, NonFiniteError with the name of the layer, and
    as :meth:`Seq2Seq.generate`.
    """
    hybrid = check_hybrid(model)
    device = next(hybrid.parameters()).device

    def finite(name: str, x: Tensor) -> None:
        if not x.isfinite().all():
            raise NonFiniteError(f"the input of {name} holds NaN or infinity; the model cannot be calibrated")
        if x.numel():
            see(name, x.detach())

    hooks = _watch(hybrid, finite)
    rows = 0
    try:
        for batch in batches:
            for group in _by_length(batch):
                rows += len(group)
                memory = hybrid.encode_checked(group.to(device))
                watched = cast("Seq2Seq", _Watched(hybrid, finite))  # what greedy calls with a cache, it has
                greedy(watched, memory, hybrid.config.max_target, cache=True)
    finally:
        for hook in hooks:
            hook.remove()
    if not rows:
        raise DataError("no row to calibrate on; give at least one batch of sources")


def _by_length(source_BS: Tensor) -> list[Tensor]:
    """Return the rows of each length, cut to it; rows without a token are left out."""
    lengths = (source_BS != PAD).sum(1)
    return [source_BS[lengths == length, :length] for length in lengths.unique().tolist() if length]


def _watch(model: HybridSeq2Seq, see: See) -> list[Any]:
    """Show the inputs of the linear layers and the states of the encoder whenever these are called."""

    def before(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: see(name, inputs[0])

    def after(name: str) -> Callable[[nn.Module, Any, tuple[Tensor, Any]], None]:
        return lambda _, __, outputs: see(name, outputs[0])

    hooks = [model.get_submodule(name).register_forward_pre_hook(before(name)) for name in linears(model.config)]
    encoders = [name for name in lstms(model.config) if name != "decoder"]
    return hooks + [model.get_submodule(name).register_forward_hook(after(name)) for name in encoders]


class _Watched:
    """The decoder of a model, whose hidden states are shown; they go from step to step outside of any module."""

    def __init__(self, model: HybridSeq2Seq, see: See) -> None:
        self._model, self._see = model, see

    def begin(self, memory: dict[str, Tensor], max_length: int) -> State:
        return self._model.begin(memory, max_length)

    def step(self, tokens_B: Tensor, state: State) -> Tensor:
        self._see("decoder", state.cache["hidden"])
        return self._model.step(tokens_B, state)
