"""Products of two activations over rounded operands."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from octavo.errors import FormatError
from octavo.nn.format_layer import FormatLayer
from octavo.nn.quant_layer import copied_as
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.ops.codec import quantize
from octavo.recipe.spec import LayerPlan, Spec
from octavo.tensors.formats import Format


def quantized_matmul(a: Tensor, b: Tensor, a_format: Format | str, b_format: Format | str | None = None) -> Tensor:
    """Return ``a @ b`` over operands rounded along the contraction, K, with scales chosen from them.

    Gradients pass straight through.

    Args:
        a: ``[..., M, K]``.
        b: ``[..., K, N]``.
        a_format: format of ``a``.
        b_format: format of ``b``; default: that of ``a``.

    Returns:
        ``[..., M, N]``.

    Raises:
        FormatError: as :func:`octavo.quantize`.
        DTypeError: as :func:`octavo.quantize`.

    Example:
        >>> a, b = torch.randn(4, 64), torch.randn(64, 4)
        >>> rounded = octavo.quantize(a, "mxint8") @ octavo.quantize(b, "mxint8", axis=0)
        >>> torch.allclose(octavo.nn.quantized_matmul(a, b, "mxint8"), rounded)
        True
    """
    return quantize(a, a_format, axis=-1) @ quantize(b, b_format or a_format, axis=-2)


class QuantMatmul(FormatLayer):
    """``a @ b`` as a module, so that a recipe reaches it and its scales can be calibrated.

    ``a``: ``[..., M, K]``; ``b``: ``[..., K, N]``. The plan's input rounds both, along K; its output rounds the
    product. Raises FormatError for a plan with a weight or a bias.
    """

    quant_roles = ("input", "output")

    def __init__(self, plan: LayerPlan = LayerPlan(), *, what: str = "QuantMatmul") -> None:  # noqa: B008 frozen
        """Round nothing where the plan is empty."""
        super().__init__()
        self._add_quantizers(plan, what)

    def _add_quantizers(self, plan: LayerPlan, what: str) -> None:
        check_roles(self, plan, what)
        self.a_quantizer = quantizer(plan.input, -1, f"{what}: input a")
        self.b_quantizer = quantizer(plan.input, -2, f"{what}: input b")
        self.output_quantizer = quantizer(plan.output, -1, f"{what}: output")

    def with_plan(self, plan: LayerPlan, what: str) -> Self:
        """Return the same module with other quantizers.

        Args:
            plan: formats by role.
            what: names the module in errors.

        Returns:
            A new module.

        Raises:
            FormatError: for a plan with a weight or a bias.
        """
        made = copied_as(type(self), self)
        made._add_quantizers(plan, what)
        return made

    def role_quantizers(self) -> dict[str, nn.Module]:
        """Return a quantizer for each role that has one; both operands have that of the input.

        Returns:
            Quantizers by role.
        """
        found = {"input": self.a_quantizer, "output": self.output_quantizer}
        return {role: quantizer for role, quantizer in found.items() if quantizer is not None}

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product.

        Args:
            a: ``[..., M, K]``.
            b: ``[..., K, N]``.

        Returns:
            ``[..., M, N]``.
        """
        a = a if self.a_quantizer is None else self.a_quantizer(a)
        b = b if self.b_quantizer is None else self.b_quantizer(b)
        y = a @ b
        return y if self.output_quantizer is None else self.output_quantizer(y)


def quantizer(spec: Spec | None, axis: int, what: str) -> Quantizer | None:
    """A Quantizer, or None where there is no spec."""
    return None if spec is None else Quantizer(spec, axis=axis, what=what)


def check_roles(module: nn.Module, plan: LayerPlan, what: str) -> None:
    """Refuse formats for tensors that a product of activations does not have. Raises FormatError."""
    for role in ("weight", "bias"):
        if getattr(plan, role) is not None:
            raise FormatError(f"{what}: a {type(module).__name__} has no {role} to hold '{getattr(plan, role)}'")


register(LayerKind(None, QuantMatmul))
