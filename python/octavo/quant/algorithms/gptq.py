"""Codes chosen by error feedback over the inputs' second moments: GPTQ (Frantar et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DataError, DTypeError, FormatError, NonFiniteError, ShapeError
from octavo.ops.codec import encode
from octavo.quant.algorithms.solution import Solution, Table, checked_rule, checked_weight
from octavo.storage.arguments import checks_arguments
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

ORDERS = ("natural", "descending")

# Groups up to this size choose their scales when they are entered, inside one block; larger ones before.
_LARGEST_ENTERED = 1024
_REFITS = 8  # refits of a real scale that is chosen before
_ROWS = 256  # of H that are compared with its columns at once
_LEAST_DAMP = 1e-8  # where a singular H came without; raised tenfold until it is enough, up to H's mean diagonal


@checks_arguments
def gptq(
    weight: Tensor,
    hessian: Tensor,
    format: Format | str,
    *,
    damp: float = 0.01,
    block: int = 128,
    order: str = "natural",
    scale: str = "floor",
) -> Solution:
    """Quantize a weight so that ``tr((W - Q) H (W - Q)')`` is small, the squared error of a layer's outputs on its
    inputs.

    Never worse than rounding to nearest under the codec's rule: rows that would be are rounded to nearest, as are
    columns whose input was always zero. Natural order chooses the scales of groups up to 1024 when it enters them, from
    the weights as they are then; larger groups, rows, tensors, and any group in descending order have theirs from the
    start. Source: Frantar et al. 2022, GPTQ, in the form of LDLQ (Chee et al. 2023, QuIP).

    Args:
        weight: W, ``[..., K]``, float32, float16 or bfloat16 on the CPU; groups run along K.
        hessian: H, ``[K, K]``, ``X'X`` of the layer's inputs ``[n, K]`` up to a factor.
        format: any format.
        damp: share of H's mean diagonal that is added to it.
        block: columns whose errors are fed back at once; the result depends on it by rounding alone.
        order: of the columns, ``natural`` or ``descending`` by H's diagonal.
        scale: ``floor`` or ``ceil``, the codec's rules, or ``mse``, the scale of least squared error, weighted by the
            cost of a column's error.

    Returns:
        The weight, every element representable, and the scales that encode it.

    Raises:
        ShapeError: for shapes that do not fit.
        DTypeError: for another dtype, device or kind of object.
        FormatError: for an unknown format or option.
        NonFiniteError: for NaN and infinity in either.
        DataError: for H that is not symmetric and positive semidefinite.

    Example:
        >>> weight, x = torch.randn(32, 64), torch.randn(512, 64) @ torch.randn(64, 64)
        >>> solved = octavo.quant.gptq(weight, x.T @ x, "int3:g64")
        >>> nearest = octavo.quantize(weight, "int3:g64")
        >>> errors = [((weight - rounded) @ x.T).norm() for rounded in (nearest, solved.weight)]
        >>> bool(errors[1] < 0.7 * errors[0])
        True
        >>> torch.equal(solved.encode("int3:g64").decode(), solved.weight)
        True
    """
    fmt = Format.parse(format)
    w = checked_weight(weight, "gptq")
    checked_rule(fmt, scale)
    _check_options(damp, block, order)
    return solved(w, Factors(hessian, w.shape[-1], damp=damp, order=order), fmt, block=block, scale=scale)


def solved(weight: Tensor, factors: Factors, fmt: Format, *, block: int = 128, scale: str = "floor") -> Solution:
    """Return what :func:`gptq` does for a Hessian that is factored: layers with the same inputs share one."""
    w = checked_weight(weight, "gptq")
    nearest = encode(w, fmt, scale=checked_rule(fmt, scale))
    if w.numel() == 0:
        return Solution.of(nearest)
    problem = _Problem(w.reshape(-1, w.shape[-1]).to(torch.float32).contiguous(), factors)
    values, table, loss = problem.solve(nearest, block, scale)
    rounded = nearest.decode(torch.float32).view_as(values)
    plain = problem.loss(rounded)
    worse = ~(loss < plain)
    if worse.any():
        if fmt.granularity == "tensor" and not table.equals(nearest):  # rows cannot have scales of their own
            worse.fill_(not math.fsum(loss.tolist()) < math.fsum(plain.tolist()))
        values[worse] = rounded[worse]
        table.take(nearest, worse)
    return Solution.of(table.encode(values.view(w.shape), w.dtype))


def _check_options(damp: float, block: int, order: str) -> None:
    if not (isinstance(damp, int | float) and 0 <= damp < math.inf):
        raise FormatError(f"gptq: damp = {damp!r}; accepted are numbers from 0")
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise FormatError(f"gptq: block = {block!r}; accepted are whole numbers from 1")
    if order not in ORDERS:
        raise FormatError(f"gptq: unknown order {order!r}; accepted are {', '.join(ORDERS)}")


def _checked_hessian(hessian: Tensor, k: int) -> Tensor:
    """Return a copy of H as float64 with a mean diagonal of 1."""
    dense = isinstance(hessian, Tensor) and hessian.layout == torch.strided
    if not dense or not hessian.is_floating_point() or not hessian.is_cpu:
        kind = f"{hessian.dtype} on {hessian.device}" if dense else getattr(hessian, "layout", type(hessian).__name__)
        raise DTypeError(f"gptq: hessian is {kind}; accepted is a dense float tensor on the CPU")
    if tuple(hessian.shape) != (k, k):
        raise ShapeError(f"gptq: hessian has shape {tuple(hessian.shape)}, expected {(k, k)}, the weight's last size")
    moments = hessian.detach().to(torch.float64, copy=True)
    if not torch.isfinite(moments.sum()):
        raise NonFiniteError("gptq: hessian holds NaN or infinity; accepted are finite values")
    diagonal = moments.diagonal()
    if k and diagonal.min() < 0:
        raise DataError(f"gptq: hessian's diagonal holds {diagonal.min():g}; sums of squares are not negative")
    mean = _mean(diagonal) if k else 0.0
    parts = zip(moments.split(_ROWS), moments.T.split(_ROWS), strict=True)  # few copies: H is large of wide layers
    if k and max(float((some - other).abs_().max()) for some, other in parts) > 1e-3 * diagonal.max():
        raise DataError("gptq: hessian is not symmetric; pass X'X of the layer's inputs")
    # Entries that are small beside the diagonal may be what is left where a small square underflowed.
    if k and (alone := moments[diagonal == 0].abs()).numel() and alone.max() > 1e-3 * diagonal.max():
        raise DataError(
            "gptq: hessian is not positive semidefinite: entries beside a zero of its diagonal are not zero; "
            "pass X'X of the layer's inputs"
        )
    return moments.div_(mean) if mean > 0 else moments


class Factors:
    """``H + damping = (I + M) D (I + M)'`` of a Hessian, M strictly upper, in the solving order.

    Raises as :func:`gptq`.
    """

    def __init__(self, hessian: Tensor, k: int, *, damp: float = 0.01, order: str = "natural") -> None:
        """Check and factor H ``[k, k]``."""
        self.hessian = hessian
        moments, self.columns = _checked_hessian(hessian, k), None
        if order == "descending":
            self.columns = moments.diagonal().argsort(descending=True, stable=True)
            moments = moments[self.columns][:, self.columns]
        self.feedback, self.costs, self.damping = _factors(moments, damp)


class _Problem:
    """A weight ``[N, K]`` float32 and the factors of its inputs' Hessian."""

    def __init__(self, weight: Tensor, factors: Factors) -> None:
        """Take the numbers as they are."""
        self.weight, self.columns = weight, factors.columns
        self.feedback, self.costs, self.damping = factors.feedback, factors.costs, factors.damping

    def ordered(self, values: Tensor) -> Tensor:
        """Return values ``[.., K]`` with their columns in the solving order."""
        return values if self.columns is None else values[..., self.columns].contiguous()

    def restored(self, values: Tensor) -> Tensor:
        """Return values in the solving order with their columns as they were."""
        if self.columns is None:
            return values
        out = torch.empty_like(values)
        out[..., self.columns] = values
        return out

    def loss(self, values: Tensor) -> Tensor:
        """Return ``(w - q) H (w - q)'`` of each row, without the damping, float64."""
        errors = self.ordered(self.weight - values).contiguous()
        rows, k = errors.shape
        loss = torch.empty(rows, dtype=torch.float64)
        _core._losses(
            rows, k, errors.data_ptr(), self.feedback.data_ptr(), self.costs.data_ptr(), self.damping, loss.data_ptr()
        )
        return loss

    def solve(self, nearest: PackedTensor, block: int, scale: str) -> tuple[Tensor, Table, Tensor]:
        """Return values ``[N, K]`` that are representable up to an ulp, their scales, and the loss of each row."""
        rows, k = self.weight.shape
        table = Table(nearest)
        fmt, size = table.format, table.format.block
        entered = self.columns is None and size is not None and size <= _LARGEST_ENTERED
        if not entered and scale == "mse" and table.groups:
            costs = self.restored(self.costs)
            address = 0 if fmt.granularity == "tensor" else costs.data_ptr()
            _core._fit_scales(
                fmt.core, rows, k, table.groups, self.weight.data_ptr(), address, 2.0, _REFITS, table.addresses
            )
        groups = self.ordered(torch.arange(k, dtype=torch.int32) // (size or k))
        if entered and size is not None:
            block = -(-block // size) * size
        spread = table.spread(rows)
        values, loss = self._columns(spread, groups, scale if entered else "given", min(block, k))
        return self.restored(values), table, loss

    def _columns(self, table: Table, groups: Tensor, choice: str, block: int) -> tuple[Tensor, Tensor]:
        """Round block after block."""
        weight = self.ordered(self.weight)
        rows, k = weight.shape
        errors, values = torch.empty_like(weight), torch.empty_like(weight)
        loss = torch.zeros(rows, dtype=torch.float64)
        for start in range(0, k, block):
            end = min(start + block, k)
            left = weight[:, start:end].clone(memory_format=torch.contiguous_format)
            # Errors of all earlier blocks at once; inside the block the core feeds them back column by column.
            now = left.clone()
            _core._feed_back(rows, k, start, end - start, now.data_ptr(), errors.data_ptr(), self.feedback.data_ptr())
            inside = self.feedback[start:end, start:end].T.contiguous()
            costs, columns = self.costs[start:end], groups[start:end]
            _core._gptq_block(
                table.format.core, choice, rows, end - start, table.per_row, now.data_ptr(), left.data_ptr(),
                inside.data_ptr(), costs.data_ptr(), columns.data_ptr(), loss.data_ptr(), table.addresses,
            )  # fmt: skip
            errors[:, start:end], values[:, start:end] = left, now
        _core._take_squares(rows, k, errors.data_ptr(), self.damping, loss.data_ptr())
        return values, loss


def _factors(moments: Tensor, damp: float) -> tuple[Tensor, Tensor, float]:
    """Factor ``H + damping = (I + M) D (I + M)'``; return I + M and D as float32, and the damping."""
    mean = _mean(moments.diagonal())
    damping = damp * mean
    # From the last column to the first: the factor of the reversed matrix, U'U, gives U' reversed, which is upper.
    while True:
        damped = moments.flip(0, 1).contiguous()
        damped.diagonal().add_(damping)
        damped.diagonal().masked_fill_(damped.diagonal() == 0, mean or 1.0)  # nothing comes from or goes to these
        if _core._factor(len(damped), damped.data_ptr()):
            upper = damped.triu_().T.flip(0, 1)
            del damped
            root = upper.diagonal().clone()
            return upper.div_(root).float().contiguous(), root.square().float().contiguous(), damping
        damping = max(10 * damping, _LEAST_DAMP * mean)
        if not 0 < damping <= mean:
            raise DataError("gptq: hessian is not positive semidefinite; pass X'X of the layer's inputs")


def _mean(values: Tensor) -> float:
    return math.fsum(values.tolist()) / len(values)  # rounded once: the same everywhere
