"""Calls of CPU kernels past torch's dispatcher, which takes as long as a small product, where nothing listens to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import (  # by name: looking seven of them up at each call takes longer than calling them
    _dispatch_keys,
    _functorch,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    is_grad_enabled,
)
from torch._C._autograd import _profiler_enabled
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

_current_level = _functorch.maybe_current_level


def _keys(tensor: Tensor) -> int:
    """Return the dispatch keys of a tensor as bits."""
    keys: int = _dispatch_keys(tensor).raw_repr()
    return keys


with torch.inference_mode():
    _inference = _keys(torch.empty(0, device="cpu"))
_PLAIN_KEYS = frozenset((_inference, _keys(torch.empty(0, device="cpu"))))
"""Keys of dense CPU tensors with values of their own: neither fake nor wrapped, no view with a negative bit."""


def is_direct(x: Any) -> bool:
    """Whether an op called with ``x`` would run its CPU kernel on plain operands as they are, and nothing besides.

    Not so while torch.compile, torch.export, a trace, a transform, a profiler or a mode of PyTorch watches, where a
    derivative is wanted, and where ``x`` is a tensor of another kind or on another device.
    """
    return not (
        is_dynamo_compiling()  # first: dynamo reads no further
        or type(x) is not Tensor
        or (x.requires_grad and is_grad_enabled())
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _current_level() is not None
        or _is_tracing()
        or _profiler_enabled()
        or _dispatch_keys(x).raw_repr() not in _PLAIN_KEYS
    )


def is_plain(operands: Sequence[Tensor | None]) -> bool:
    """Whether a CPU kernel may read operands as they are: dense CPU tensors without a negative bit, or None."""
    for operand in operands:
        if operand is not None:
            kind = type(operand)
            if (kind is not Tensor and kind is not Parameter) or not operand.is_cpu or operand.is_neg():
                return False
    return True
