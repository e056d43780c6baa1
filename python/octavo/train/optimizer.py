"""The optimizer: AdamW without weight decay of vectors and scalars, and the check that it has every parameter."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from octavo.errors import DTypeError, OptimizerError
from octavo.storage.arguments import checks_arguments
from octavo.train.train_config import TrainConfig


@checks_arguments
def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW over the parameters of ``model`` that need a gradient.

    Parameters of fewer than 2 dimensions do not decay. The fused kernel of CPU and CUDA is elementwise, so every run on
    the same machine has the same bits. Source: Loshchilov and Hutter 2019.

    Args:
        model: the model to train.
        config: rate, betas, eps and decay.

    Returns:
        The optimizer.

    Raises:
        OptimizerError: if there is no such parameter.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise OptimizerError(
            f"{type(model).__name__} has no parameter that needs a gradient; there is nothing to train"
        )
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def check_parameters(model: nn.Module) -> None:
    """Refuse trained weights narrower than float32: small updates would vanish. Raises DTypeError with the name."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise DTypeError(
                f"{name}: trained weights are float32 (or float64), got {parameter.dtype}; "
                "low precision is the business of TrainConfig.precision"
            )


def check_coverage(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check that ``optimizer`` holds every parameter that needs a gradient exactly once, and nothing else.

    Raises OptimizerError with the name of the first parameter that is missing, held twice or foreign.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(f"optimizer made a {type(optimizer).__name__}; accepted is a torch.optim.Optimizer")
    counts = Counter(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        times = counts.pop(id(parameter), 0)
        if parameter.requires_grad and times != 1:
            raise OptimizerError(f"{name}: held by the optimizer {times} times; every trained parameter is held once")
        if not parameter.requires_grad and times:
            raise OptimizerError(f"{name}: held by the optimizer, but it needs no gradient")
    if counts:
        raise OptimizerError(
            f"{sum(counts.values())} parameters of the optimizer are none of the {len(names)} of the model"
        )
