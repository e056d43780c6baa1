"""Linear layers that read one input and are computed as one product: queries, keys and values of attention."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Joint:
    """The common product of several layers: their weights lie behind each other in one block of memory.

    The first layer that is called with an input computes all of them; the others take theirs when they are called with
    the same tensor. Each thread has results of its own.
    """

    def __init__(self, parts: Sequence[JoinedLinear]) -> None:
        """Take layers of one input size, dtype and device; all of them with a bias, or none."""
        self.parts = tuple(parts)
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._waiting: dict[int, tuple[Tensor, int, list[Tensor | None]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out memory and results: copies are joined at their first call."""
        return {"parts": self.parts, "_weight": None, "_bias": None, "_waiting": {}}

    def output(self, number: int, x: Tensor) -> Tensor:
        """Return the output of one layer, ``[..., in]`` to ``[..., out]``."""
        thread = threading.get_ident()
        held = self._waiting.get(thread)
        if held is not None and held[0] is x and held[1] == _version(x) and held[2][number] is not None:
            found = held[2][number]
            held[2][number] = None
            if not any(result is not None for result in held[2]):
                del self._waiting[thread]
            assert found is not None
            return found
        weight, bias = self._joined()
        results: list[Tensor | None] = list(
            F.linear(x, weight, bias).split([part.out_features for part in self.parts], -1)
        )
        made, results[number] = results[number], None
        self._waiting[thread] = (x, _version(x), results)
        assert made is not None
        return made

    def _joined(self) -> tuple[Tensor, Tensor | None]:
        """Return weight and bias of all layers; joined anew where a layer has got another weight since."""
        if not _lies(self._weight, [part.weight for part in self.parts]):
            self._weight = _join([part.weight for part in self.parts])
        biases = [part.bias for part in self.parts]
        if biases[0] is None:
            return self._weight, None
        if not _lies(self._bias, biases):
            self._bias = _join(biases)
        return self._weight, self._bias  # type: ignore[return-value]


def _version(x: Tensor) -> int:
    """Return a number that a change of the tensor in place changes; tensors of inference mode count none."""
    return -1 if x.is_inference() else x._version


def _lies(whole: Tensor | None, parts: Sequence[Tensor]) -> bool:
    """Whether tensors are the rows of ``whole``, in their order."""
    if whole is None or whole.dtype != parts[0].dtype:
        return False
    place = whole.data_ptr()
    for part in parts:
        if part.data_ptr() != place:
            return False
        place += part.nbytes
    return True


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Move tensors behind each other in one block of memory, which is returned."""
    with torch.inference_mode(False), torch.no_grad():
        whole = torch.cat([part.detach() for part in parts])
        start = 0
        for part in parts:
            part.data = whole[start : start + len(part)]
            start += len(part)
    return whole


class JoinedLinear(nn.Linear):
    """A linear layer whose product is computed with those of its :class:`Joint`, where no weight needs a gradient.

    Weight, bias and their names are its own. While gradients of weights are taken, and while ``torch.export`` or
    ``torch.compile`` look, it is an ``nn.Linear``.
    """

    joint: Joint
    number: int

    def forward(self, input: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        trains = torch.is_grad_enabled() and any(part.weight.requires_grad for part in self.joint.parts)
        if trains or type(input) is not Tensor or input.is_meta or torch.compiler.is_compiling():
            return F.linear(input, self.weight, self.bias)
        return self.joint.output(self.number, input)

    def single(self) -> nn.Linear:
        """Return a plain layer of the same parameters, hooks and mode."""
        made = nn.Linear.__new__(nn.Linear)
        made.__dict__.update({name: value for name, value in vars(self).items() if name not in ("joint", "number")})
        return made


def join_layers(layers: Sequence[nn.Linear]) -> list[JoinedLinear]:
    """Return layers of the same parameters that are computed as one product."""
    made = []
    for layer in layers:
        part = JoinedLinear.__new__(JoinedLinear)
        part.__dict__.update(vars(layer))
        made.append(part)
    joint = Joint(made)
    for number, part in enumerate(made):
        vars(part)["joint"], vars(part)["number"] = joint, number
    return made
