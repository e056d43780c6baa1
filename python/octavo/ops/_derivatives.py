"""Derivatives of the ops: reverse mode, forward mode, and what ``torch.func`` makes of both.

Each op that rounds or multiplies has one ``autograd.Function``. Autograd calls it where a gradient or a tangent is
wanted; every transform of ``torch.func`` calls it, for the plain ops too. Weights, scales of weights and codes are
constants. Ops without derivatives say so in forward mode, instead of a tangent of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import library as registry
from torch.autograd import Function, forward_ad

_FUNCTORCH = "FuncTorchDynamicLayerFrontMode"
"""The dispatch key that sees a call while transforms of ``torch.func`` are active, before they take it apart."""


def tangent_of(value: object) -> Tensor | None:
    """Return the forward-mode tangent of a tensor, or None."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    tangent: Tensor | None = forward_ad.unpack_dual(value).tangent
    return tangent


def refuse_tangents(name: str, advice: str, *values: object) -> None:
    """Refuse operands with a forward-mode tangent. Raises NotImplementedError.

    Callers look at ``forward_ad._current_level`` first, which costs a few nanoseconds.
    """
    if any(tangent_of(value) is not None for value in values):
        raise NotImplementedError(f"{name}: forward-mode derivatives are not defined; {advice}")


def below(op: Any, *args: object) -> Any:
    """Call an op without its derivative, on values without tangents."""
    if forward_ad._current_level >= 0:
        args = tuple(forward_ad.unpack_dual(arg).primal if tangent_of(arg) is not None else arg for arg in args)
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def _each(op: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call ``op`` once for each element of the mapped dimensions: exact for scales chosen from a whole tensor."""

    def element(at: int) -> Any:
        return op(*(arg if dim is None else arg.select(dim, at) for arg, dim in zip(args, dims, strict=True)))

    dims = [dim if isinstance(arg, Tensor) else None for arg, dim in zip(args, in_dims, strict=True)]
    if info.batch_size == 0:
        raise NotImplementedError(f"{op}: vmap over 0 elements, of which no result tells its shape")
    made = [element(at) for at in range(info.batch_size)]
    if isinstance(made[0], tuple):
        return tuple(torch.stack(pieces) for pieces in zip(*made, strict=True)), (0,) * len(made[0])
    return torch.stack(made), 0


def _in_forward_mode() -> bool:
    """Whether the innermost transform of ``torch.func`` is a forward-mode one."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return interpreter is not None and interpreter.key() == torch._C._functorch.TransformType.Jvp


def _rows(op: Any, info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Map the first operand alone as more rows of one call; anything else element by element."""
    if in_dims[0] is None or any(dim is not None for dim in in_dims[1:]):
        return _each(op, info, in_dims, args)
    return op(args[0].movedim(in_dims[0], 0), *args[1:]), 0


class Rounded(Function):
    """``quantize``: the gradient passes straight through the rounding, to 0 where x saturated (``clipped``)."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        made: Tensor = below(torch.ops.octavo.quantize.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, format, axis, rule, scales, zeros, levels, ste = inputs
        ctx.options, ctx.ste = (format, axis, rule), ste
        # Nobody asks for x again where every gradient passes and none is learned.
        kept = (None,) * 4 if ste == "identity" and scales is None else (x, scales, zeros, levels)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, scales, zeros, levels = ctx.saved_tensors
        learn = scales is not None and ctx.needs_input_grad[4]
        if ctx.ste == "identity" and not learn:
            return grad, None, None, None, None, None, None, None
        grad_x, grad_scales = torch.ops.octavo.quantize_backward(grad, x, *ctx.options, scales, zeros, levels, learn)
        grad_x = grad if ctx.ste == "identity" else grad_x
        return grad_x, None, None, None, grad_scales if learn else None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        if ctx.ste == "identity":
            return tangent.clone()
        x, scales, zeros, levels = ctx.saved_tensors
        # The derivative is a diagonal of zeros and ones, equal to its transpose.
        masked: Tensor = torch.ops.octavo.quantize_backward(tangent, x, *ctx.options, scales, zeros, levels, False)[0]
        return masked

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _each(torch.ops.octavo.quantize.default, info, in_dims, args)


class RoundedBackward(Function):
    """``quantize_backward``: the gradient of x is linear in the incoming one, through a mask that is a constant."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = below(torch.ops.octavo.quantize_backward.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _, *parts, learn = inputs
        x, format, axis, rule, scales, zeros, levels = parts
        ctx.options, ctx.learn = (format, axis, rule), learn
        ctx.save_for_backward(x, scales, zeros, levels)
        ctx.save_for_forward(x, scales, zeros, levels)

    @staticmethod
    def _masked(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        if ctx.learn:
            raise NotImplementedError("quantize: second derivatives through learned scales are not defined")
        x, scales, zeros, levels = ctx.saved_tensors
        masked: tuple[Tensor, Tensor] = torch.ops.octavo.quantize_backward(
            grad, x, *ctx.options, scales, zeros, levels, False
        )
        return masked

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        return RoundedBackward._masked(ctx, grad)[0], None, None, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> tuple[Any, ...]:
        return RoundedBackward._masked(ctx, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _each(torch.ops.octavo.quantize_backward.default, info, in_dims, args)


def _bias_gradient(grad: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.reshape(-1, grad.shape[-1]).sum(0).to(dtype)


class Product(Function):
    """``packed_linear``: linear in x and bias; the weight is a constant."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        made: Tensor = below(torch.ops.octavo.packed_linear.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *parts, bias, format, out_features, in_features = inputs
        ctx.save_for_backward(*parts)
        ctx.save_for_forward(*parts)
        ctx.sizes, ctx.bias_dtype = (format, out_features, in_features), None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.octavo.packed_linear_backward(grad, *ctx.saved_tensors, *ctx.sizes)
        grad_bias = _bias_gradient(grad, ctx.bias_dtype) if ctx.needs_input_grad[5] else None
        return grad_x, None, None, None, None, grad_bias, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        product: Tensor = torch.ops.octavo.packed_linear(tangent, *ctx.saved_tensors, None, *ctx.sizes)
        return product if others[4] is None else product + others[4].to(product.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _rows(torch.ops.octavo.packed_linear.default, info, in_dims, args)


class ProductBackward(Function):
    """``packed_linear_backward``: linear in the incoming gradient, with the transposed weight."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        made: Tensor = below(torch.ops.octavo.packed_linear_backward.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *parts, format, out_features, in_features = inputs
        ctx.save_for_backward(*parts)
        ctx.save_for_forward(*parts)
        ctx.sizes = (format, out_features, in_features)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        again = torch.ops.octavo.packed_linear(grad, *ctx.saved_tensors, None, *ctx.sizes)
        return again, None, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        product: Tensor = torch.ops.octavo.packed_linear_backward(tangent, *ctx.saved_tensors, *ctx.sizes)
        return product

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _rows(torch.ops.octavo.packed_linear_backward.default, info, in_dims, args)


class RoundedProduct(Function):
    """``rounded_linear``: ``packed_linear`` of ``quantize``, whose derivatives it has."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        made: Tensor = below(torch.ops.octavo.rounded_linear.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, format, out_features, in_features, input_format, rule = inputs
        bias = tensors.pop(5)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.sizes, ctx.bias_dtype = (format, out_features, in_features), None if bias is None else bias.dtype
        ctx.options = (input_format, -1, rule)

    @staticmethod
    def _masked(ctx: Any, grad: Tensor) -> Tensor:
        x, *_, scales, zeros, levels = ctx.saved_tensors
        options = (*ctx.options, scales, zeros, levels, False)
        masked: Tensor = torch.ops.octavo.quantize_backward(grad, x, *options)[0]
        return masked

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.octavo.packed_linear_backward(grad, *ctx.saved_tensors[1:5], *ctx.sizes)
            grad_x = RoundedProduct._masked(ctx, grad_x)
        grad_bias = _bias_gradient(grad, ctx.bias_dtype) if ctx.needs_input_grad[5] else None
        return grad_x, None, None, None, None, grad_bias, *(None,) * 8

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        parts = ctx.saved_tensors[1:5]
        product: Tensor = torch.ops.octavo.packed_linear(RoundedProduct._masked(ctx, tangent), *parts, None, *ctx.sizes)
        return product if others[4] is None else product + others[4].to(product.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _each(torch.ops.octavo.rounded_linear.default, info, in_dims, args)


class IntegerProduct(Function):
    """``integer_linear``: straight through the rounding of the inputs, but where given scales saturate; the weight is a
    constant."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        made: Tensor = below(torch.ops.octavo.integer_linear.default, *args)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, codes, scales, bias, input_scales, format, input_format, out_features, in_features = inputs
        # Scales that are chosen from x saturate nothing: there x need not be kept.
        saved = (codes, scales, None if input_scales is None else x, input_scales)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.sizes, ctx.bias_dtype = (format, out_features, in_features), None if bias is None else bias.dtype
        ctx.input_format = input_format

    @staticmethod
    def _parts(ctx: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        codes, scales, *_ = ctx.saved_tensors
        return codes, scales, codes.new_empty(0), scales.new_empty(0)  # integers have neither zeros nor levels

    @staticmethod
    def _masked(ctx: Any, grad: Tensor) -> Tensor:
        *_, x, input_scales = ctx.saved_tensors
        if x is None:
            return grad
        rows, x = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        masked: Tensor = torch.ops.octavo.quantize_backward(rows, x, ctx.input_format, -1, "floor", input_scales)[0]
        return masked.reshape(grad.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.octavo.packed_linear_backward(grad, *IntegerProduct._parts(ctx), *ctx.sizes)
            grad_x = IntegerProduct._masked(ctx, grad_x)
        grad_bias = _bias_gradient(grad, ctx.bias_dtype) if ctx.needs_input_grad[3] else None
        return grad_x, None, None, grad_bias, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        tangent = IntegerProduct._masked(ctx, tangent)
        product: Tensor = torch.ops.octavo.packed_linear(tangent, *IntegerProduct._parts(ctx), None, *ctx.sizes)
        return product if others[2] is None else product + others[2].to(product.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        return _each(torch.ops.octavo.integer_linear.default, info, in_dims, args)


# --- registration ---------------------------------------------------------------------------------------------------


def differentiate(
    library: registry.Library,
    names: tuple[str, ...],
    function: type[Function],
    free: tuple[int, ...],
    simpler: Callable[..., Tensor | None] | None = None,
) -> None:
    """Give ops their derivative. The first of ``names`` has it in autograd, all have it under ``torch.func``.

    ``free``: positions of the operands that may have a tangent; the others are constants, and NotImplementedError is
    raised for a tangent of theirs. ``simpler``: the op with a simpler derivative, where its arguments have one, else
    None; asked first in reverse mode.
    """
    op = getattr(torch.ops.octavo, names[0]).default
    arguments = op._schema.arguments
    defaults = [argument.default_value for argument in arguments]

    def full(args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with those that the dispatcher left out, as it does with defaults."""
        return (*args, *defaults[len(args) :])

    def wants_tangent(args: tuple[Any, ...]) -> bool:
        found = [at for at, arg in enumerate(args) if tangent_of(arg) is not None]
        for at in found:
            if at not in free:
                raise NotImplementedError(
                    f"{names[0]}: forward-mode derivatives by {arguments[at].name} are not defined; use reverse mode, "
                    "which learns scales of quantize"
                )
        return bool(found)

    def transformed(*args: Any) -> Any:
        if _in_forward_mode():
            wants_tangent(args)
        return function.apply(*full(args))

    def autograd(*args: Any) -> Any:
        wanted = torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        if wanted and simpler is not None and forward_ad._current_level < 0:
            made = simpler(*full(args))
            if made is not None:
                return made
        if (forward_ad._current_level >= 0 and wants_tangent(args)) or wanted:
            return function.apply(*full(args))
        return below(op, *args)

    library.impl(names[0], autograd, "Autograd")
    for name in names:
        library.impl(name, transformed, _FUNCTORCH)


def constant(library: registry.Library, name: str, advice: str) -> None:
    """Make an op a constant to every transform of ``torch.func``, and say in forward mode that it is one."""
    op = getattr(torch.ops.octavo, name).default
    defaults = [argument.default_value for argument in op._schema.arguments]

    class Constant(Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            return below(op, *args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*outputs)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
            return (None,) * len(defaults)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
            return _each(op, info, in_dims, args)

    def transformed(*args: Any) -> Any:
        if _in_forward_mode():
            refuse_tangents(name, advice, *args)
        return Constant.apply(*args, *defaults[len(args) :])

    library.impl(name, transformed, _FUNCTORCH)


def untransformed(library: registry.Library, name: str) -> None:
    """Refuse an op that writes into memory of its caller under transforms of ``torch.func``."""

    def refused(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{name} writes into memory of its caller, which transforms of torch.func do not follow; "
            "leave out= away inside them"
        )

    library.impl(name, refused, _FUNCTORCH)
