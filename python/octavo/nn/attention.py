"""Attention over rounded operands, and its way into models of transformers.

::

    model = octavo.nn.attention.attach(BertModel.from_pretrained(...))
    model = octavo.quantize_model(model, "int8; type:QuantAttention input=int8@mse", calibration=batches)

:func:`attach` registers an attention function with transformers and gives every attention module a
:class:`QuantAttention`, which rounds nothing until a recipe says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import DTypeError
from octavo.nn.format_layer import FormatLayer
from octavo.nn.matmul import QuantMatmul, check_roles
from octavo.nn.quant_layer import copied_as
from octavo.nn.registry import LayerKind, register
from octavo.recipe.spec import LayerPlan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "octavo"
CHILD = "attention_products"


class QuantAttention(FormatLayer):
    """Scaled dot-product attention whose two products are over rounded operands.

    The plan's input rounds queries and keys along the head's width, probabilities and values along the keys; its
    output rounds what attention returns. Softmax is float32. State dict: the scales, if there are any.
    Raises FormatError for a plan with a weight or a bias.
    """

    quant_roles = ("input", "output")

    def __init__(self, plan: LayerPlan = LayerPlan(), *, what: str = "QuantAttention") -> None:  # noqa: B008 frozen
        """Round nothing where the plan is empty."""
        super().__init__()
        self._add_products(plan, what)

    def _add_products(self, plan: LayerPlan, what: str) -> None:
        check_roles(self, plan, what)
        self.scores = QuantMatmul(LayerPlan(input=plan.input), what=f"{what}: scores")
        self.values = QuantMatmul(plan, what=f"{what}: values")

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
        made._add_products(plan, what)
        for product in (made.scores, made.values):
            product.train(self.training)
        return made

    @classmethod
    def stored_class(cls) -> str:
        """Return the name of the class in files, which is that of subclasses, too.

        Returns:
            The name.
        """
        return "QuantAttention"

    def role_quantizers(self) -> dict[str, nn.Module]:
        """Return a quantizer for each role that has one: of the input that of the queries, and that of the result.

        Returns:
            Quantizers by role.
        """
        found = {"input": self.scores.a_quantizer, "output": self.values.output_quantizer}
        return {role: quantizer for role, quantizer in found.items() if quantizer is not None}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention and its probabilities.

        Args:
            query: ``[..., T, D]``.
            key: ``[..., S, D]``.
            value: ``[..., S, D]``.
            mask: of bool, True where attended to, or added to the scores.
            scale: of the scores; default: ``D ** -0.5``.
            dropout: of the probabilities, in training.
            causal: position t attends to the first ``S - T + t + 1`` keys.

        Returns:
            ``[..., T, D]`` and ``[..., T, S]``.
        """
        scores = self.scores(query, key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            queries, keys = scores.shape[-2:]
            seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries)
            scores = scores.masked_fill(~seen, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        probabilities = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        probabilities = functional.dropout(probabilities, dropout, self.training)
        return self.values(probabilities, value), probabilities


class _Attached(QuantAttention):
    """One that transformers calls, in the process that made it and in one that unpickles it."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call] # torch's has no types
        _register()


def attach(model: nn.Module) -> nn.Module:
    """Let the attention of a transformers model go through a :class:`QuantAttention`; return ``model``.

    Every attention module gets one as ``attention_products``, and the model's attention implementation becomes
    ``octavo``. Without quantizers it computes what ``eager`` does. Raises DTypeError for a model whose attention does
    not go through transformers' attention interface.
    """
    found = [module for module in model.modules() if _attends(module)]
    if not found or not hasattr(model, "set_attn_implementation"):
        raise DTypeError(
            f"{type(model).__name__} has no attention behind transformers' attention interface; "
            "write its products with octavo.nn.QuantAttention"
        )
    _register()
    for module in found:
        if not isinstance(getattr(module, CHILD, None), QuantAttention):
            module.add_module(CHILD, _Attached().train(module.training))
    cast("PreTrainedModel", model).set_attn_implementation(NAME)
    return model


def _attends(module: nn.Module) -> bool:
    config = getattr(module, "config", None)
    return hasattr(module, "is_causal") and hasattr(config, "_attn_implementation")


def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """The function that transformers calls: ``[B, H, T, D]`` in, ``[B, T, H, D]`` and the probabilities out."""
    if options.get("softcap") is not None or options.get("position_bias") is not None:
        raise DTypeError(f"{type(module).__name__}: its attention caps or biases the scores, which octavo does not")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # grouped-query attention
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
    products = getattr(module, CHILD)
    y, probabilities = products(query, key, value, attention_mask, scale=scaling, dropout=dropout)
    return y.transpose(1, 2).contiguous(), probabilities


register(LayerKind(None, QuantAttention))
