"""The fast form of sensitivity: a second-order estimate of the divergence, from one backward pass per batch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from octavo.data.batches import call_numbered
from octavo.data.file_tensors import MOST_HELD, file_tensor
from octavo.display.progress import Stages
from octavo.errors import NonFiniteError
from octavo.nn.model_copies import shared_copy
from octavo.search.layer_groups import LayerGroup
from octavo.search.output_divergence import Reader, not_finite
from octavo.search.rounded_layers import input_of
from octavo.train.concurrent_batches import in_turn, run_batches

_ROWS = 128  # of outputs that are drawn for at once
_PART = 1 << 24  # numbers of a weight that are worked on at once

#: The stage of the backward passes, for progress.
ESTIMATING = "estimating sensitivity"

Rounded = Callable[[LayerGroup, Any], dict[Any, Any] | None]


def fisher_scores(
    model: nn.Module,
    batches: Sequence[Any],
    groups: Sequence[LayerGroup],
    reader: Reader,
    rounded: Rounded,
    specs: Sequence[Any],
    show: Stages,
) -> np.ndarray[Any, Any]:
    """Return ``1/2 sum_i F_ii d_i^2`` of each group and format, float64 ``[groups, formats]``.

    NaN where a group cannot have a format. ``F``: the diagonal of the Fisher information of a row of outputs (for
    cosine and squared error the Gauss-Newton matrix), estimated from one random direction per row. ``d``: the change of
    the weight or of the input.
    Source: LeCun, Optimal Brain Damage (1989), equation 6.
    """
    loss = np.full((len(groups), len(specs)), math.nan)
    weights = [row for row, layers in enumerate(groups) if layers.group.role == "weight"]
    inputs = [row for row, layers in enumerate(groups) if layers.group.role == "input"]
    change = {
        (row, column): quantizers
        for row in inputs
        for column, spec in enumerate(specs)
        if (quantizers := rounded(groups[row], spec)) is not None
    }
    for place in change:
        loss[place] = 0.0
    parameters = {id(s.tensor): s.tensor for row in weights for s in groups[row].unique if s.tensor is not None}
    generator = torch.Generator().manual_seed(0)
    count = 0
    squares = _Squares(parameters)
    copies = _Copies(model, parameters, squares)

    def visit(number: int, batch: Any) -> int:
        own = copies.of_this_thread()
        with torch.enable_grad(), _watched(own, groups, inputs, change, loss):
            rows = reader.rows(call_numbered(own, batch, number), batch)
            if not bool(torch.isfinite(rows.detach()).all()):
                raise NonFiniteError(not_finite(number, model))
            with in_turn("direction"):
                direction = _direction(reader, rows.detach(), generator)
            rows.backward(direction)
        return len(rows)

    with copies.tracked(), show.stage(ESTIMATING, len(batches)) as advance:
        # One batch at a time where squares of changed inputs are summed as they come, and where the activations of
        # several would be too large.
        for seen in run_batches(model, batches, visit, together=not inputs and not squares.are_large):
            count += seen
            advance()
    for place in change:
        loss[place] /= 2 * count
    with show.stage("rounding weights", len(weights) * len(specs)) as advance:
        for row in weights:
            for column, spec in enumerate(specs):
                if (values := rounded(groups[row], spec)) is not None:
                    scores = (squares.score(site, value) for site, value in values.items())
                    loss[row, column] = sum(scores) / (2 * count)
                advance()
    return loss


class _Squares:
    """Sums of squared gradients of parameters, float64; in a mapped file where they are many."""

    def __init__(self, parameters: Mapping[int, Tensor]) -> None:
        """Begin with zeros."""
        nbytes = 8 * sum(parameter.numel() for parameter in parameters.values())
        self.are_large = nbytes > MOST_HELD
        zeros = file_tensor if self.are_large else torch.zeros
        self._sums = {key: zeros((one.numel(),), dtype=torch.float64) for key, one in parameters.items()}

    def add(self, key: int, parameter: Tensor) -> None:
        """Add the gradient of a parameter, or of one that stands for it, and free it."""
        assert parameter.grad is not None  # it was just made
        own = parameter.grad.detach().flatten()
        with in_turn(key):
            for sums, part in zip(self._sums[key].split(_PART), own.split(_PART), strict=True):
                sums.add_(part.double().square_())
        parameter.grad = None

    def score(self, site: Any, value: Tensor) -> float:
        """Return the sum of squared gradients times squared changes of a weight."""
        tensors = self._sums[id(site.tensor)], value, site.tensor.detach()
        parts = zip(*(tensor.flatten().split(_PART) for tensor in tensors), strict=True)
        return sum(float((sums * (new.double() - old.double()).square()).sum()) for sums, new, old in parts)


def _direction(reader: Reader, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Return a gradient with respect to ``rows`` that has the Fisher information as its second moment."""
    return torch.cat([_part_of_direction(reader, part, generator) for part in rows.split(_ROWS)])


def _part_of_direction(reader: Reader, rows: Tensor, generator: torch.Generator) -> Tensor:
    signs = (torch.randint(0, 2, rows.shape, generator=generator) * 2 - 1).to(rows)
    if reader.kind == "kl":
        # diag(p) - p p' = B B' with B = diag(q) (I - q q'), q = sqrt(p). Sampling classes from p has the same second
        # moment, but where one class is nearly certain the others, which matter, would almost never be drawn.
        root = rows.softmax(-1).sqrt()
        return root * (signs - root * (root * signs).sum(-1, keepdim=True))
    if reader.kind == "cosine":
        with torch.enable_grad():
            own = rows.requires_grad_()
            return torch.autograd.grad((normalize(own, dim=-1) * signs).sum(), own)[0]
    return signs * (2 / rows.square().sum(-1, keepdim=True).clamp(min=1e-30)).sqrt()


class _Copies:
    """The model, and for each further thread a copy over the same memory, whose gradients are its own."""

    def __init__(self, model: nn.Module, parameters: Mapping[int, Tensor], squares: _Squares) -> None:
        self._model, self._parameters, self._squares = model, parameters, squares
        self._of_threads: dict[int, nn.Module] = {threading.get_ident(): model}
        self._making = threading.Lock()
        self._stack = ExitStack()

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Take the gradients of the parameters as soon as backward passes inside have them."""
        with self._stack:
            self._stack.enter_context(self._taking(self._model))
            yield

    def of_this_thread(self) -> nn.Module:
        """Return the model of the thread that asks."""
        with self._making:
            thread = threading.get_ident()
            if thread not in self._of_threads:
                copy = self._of_threads[thread] = shared_copy(self._model)
                self._stack.enter_context(self._taking(copy))
            return self._of_threads[thread]

    @contextmanager
    def _taking(self, model: nn.Module) -> Iterator[None]:
        """Compute gradients of only these parameters inside; restore the gradients and flags of all afterwards."""
        pairs = list(zip(self._model.parameters(), model.parameters(), strict=True))
        before = [(own, own.requires_grad, own.grad) for _, own in pairs]
        handles = []
        try:
            for parameter, own in pairs:
                own.requires_grad_(id(parameter) in self._parameters)
                own.grad = None
                if id(parameter) in self._parameters:
                    add = partial(self._squares.add, id(parameter))
                    handles.append(own.register_post_accumulate_grad_hook(add))
            yield
        finally:
            for handle in handles:
                handle.remove()
            for own, wanted, grad in before:
                own.requires_grad_(wanted)
                own.grad = grad


@contextmanager
def _watched(
    model: nn.Module,
    groups: Sequence[LayerGroup],
    inputs: Sequence[int],
    change: dict[tuple[int, int], dict[Any, Any]],
    loss: np.ndarray[Any, Any],
) -> Iterator[None]:
    """Add the squares of gradient times change of every input to ``loss`` during backward passes inside."""

    def see(row: int, site: Any) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            x = input_of(args, kwargs)
            if not x.is_floating_point():
                return None
            # A separate tensor for this layer: its gradient then flows through this layer only.
            own = x.detach().requires_grad_() if not x.requires_grad else x * 1

            def score(grad: Tensor) -> None:
                with torch.no_grad():
                    for (at, column), quantizers in change.items():
                        if at == row:
                            moved = quantizers[site](x.detach()) - x.detach()
                            loss[row, column] += float((grad * moved).double().square().sum())

            own.register_hook(score)
            return ((own, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): own})

        return hook

    handles = [
        model.get_submodule(site.module).register_forward_pre_hook(see(row, site), with_kwargs=True)
        for row in inputs
        for site in groups[row].sites
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
