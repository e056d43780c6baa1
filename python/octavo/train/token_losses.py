"""The loss of every token under a causal model: from its scores, or from its own losses, which are checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContractError, DataError, ModelError
from octavo.train.token_windows import device_of

# Tolerance of sums of probabilities: rounding of float32 exponentials over a vocabulary.
_UNNORMALIZED = 1e-4
# Scores that are normalized at once: float64 copies have at most 32 MB.
_SCORES = 1 << 22


def gives_losses(model: nn.Module) -> bool:
    """Whether a model computes its own losses: it has methods ``nll`` and ``log_probs``."""
    return callable(getattr(model, "nll", None)) and callable(getattr(model, "log_probs", None))


def token_losses(model: Any, inputs_BT: Tensor, targets_BT: Tensor, *, largest: int = 0) -> Tensor:
    """Return the loss of every target, ``[B, T]`` float64 on the CPU.

    ``largest``: an id that the model must have a score for. Raises ModelError for a model without scores or losses,
    DataError for ids or lengths beyond its tables.
    """
    device = device_of(model)
    try:
        if gives_losses(model):
            return _own(model, model.nll(inputs_BT.to(device), targets_BT.to(device)), targets_BT)
        output = model(inputs_BT.to(device))
    except IndexError as error:
        raise DataError(
            f"{type(model).__name__} has no row for an id up to {int(inputs_BT.max())} or for a position of "
            f"{inputs_BT.shape[1]} ({error}); give the ids of its own tokenizer, or a smaller context"
        ) from None
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor) or scores.ndim != 3 or scores.shape[:2] != inputs_BT.shape:
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(output).__name__
        raise ModelError(
            f"{type(model).__name__}: ids {tuple(inputs_BT.shape)} gave {shape}; accepted are scores of the next "
            "token, [batch, tokens, vocabulary], as a tensor or as .logits"
        )
    if max(largest, int(targets_BT.max())) >= scores.shape[-1]:
        largest = max(largest, int(targets_BT.max()))
        raise DataError(f"id {largest} is beyond the {scores.shape[-1]} scores of {type(model).__name__}")
    wanted = targets_BT.flatten().to(scores.device)
    losses = [
        torch.logsumexp(some, -1) - some.gather(-1, want[:, None]).squeeze(-1) for some, want in _rows(scores, wanted)
    ]
    return torch.cat(losses).view(targets_BT.shape).cpu()


def normalized_losses(
    model: nn.Module, log_probs_BTV: Tensor, targets_BT: Tensor, step: float, *, largest: int = 0
) -> Tensor:
    """Return the losses from a model's log-probabilities, in the form of :func:`token_losses`.

    ``step``: relative step of the model's floats. ``largest``: as in :func:`token_losses`. Raises ContractError for a
    position whose probabilities do not sum to 1 over the whole vocabulary, DataError for targets beyond it.
    """
    if (largest := max(largest, int(targets_BT.max()))) >= log_probs_BTV.shape[-1]:
        raise DataError(f"id {largest} is beyond the {log_probs_BTV.shape[-1]} probabilities of {type(model).__name__}")
    allowed, losses = max(_UNNORMALIZED, 8 * step), []
    for some, want in _rows(log_probs_BTV, targets_BT.flatten().to(log_probs_BTV.device)):
        totals = some.exp().sum(-1)
        worst = float(totals[(totals - 1).abs().nan_to_num(math.inf).argmax()])
        if not abs(worst - 1) <= allowed:
            raise ContractError(
                f"normalization: probabilities of {type(model).__name__} add up to {worst:.6g}; a head that is "
                "normalized gives 1"
            )
        losses.append(-some.gather(-1, want[:, None]).squeeze(-1))
    return torch.cat(losses).view(targets_BT.shape).cpu()


def movement(one: Tensor, other: Tensor) -> Tensor:
    """Return the absolute difference of losses: 0 for equal infinities, infinity for NaN."""
    return torch.where(one == other, 0.0, (one - other).abs()).nan_to_num(math.inf)


def step_of(model: nn.Module) -> float:
    """Return the relative step of the floats that a model computes with: 1/128 for bfloat16, 1.2e-7 for float32."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if torch.is_autocast_enabled(kind := device_of(model).type):
        dtypes.add(torch.get_autocast_dtype(kind))
    return max((torch.finfo(one).eps for one in dtypes & {torch.bfloat16, torch.float16}), default=2**-23)


def _own(model: Any, losses: Any, targets_BT: Tensor) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape != targets_BT.shape:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ModelError(
            f"{type(model).__name__}: nll of targets {tuple(targets_BT.shape)} gave {shape}; accepted is a loss each"
        )
    return losses.double().cpu()


def _rows(scores_BTV: Tensor, wanted_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of rows of scores, float64, with the ids that are looked up in them."""
    rows = scores_BTV.flatten(0, 1)
    step = max(1, _SCORES // rows.shape[-1])
    return ((some.double(), want) for some, want in zip(rows.split(step), wanted_N.split(step), strict=True))
