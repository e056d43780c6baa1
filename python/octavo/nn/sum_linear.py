"""Linear layers that add their bias after the product: SumLinear, and a layer of transformers that does the same."""

from __future__ import annotations

from torch import Tensor, nn

# By name: transformers is not loaded for it.
_OF_TRANSFORMERS = "transformers.models.falcon.modeling_falcon.FalconLinear.forward"


class SumLinear(nn.Linear):
    """``x W^T``, rounded, and then ``+ b``: :class:`torch.nn.Linear` may round once where this rounds twice.

    Modules that multiply parameters of their own compute so; where their layers stay float, no bit changes.
    """

    is_plain_product = True

    def forward(self, input: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        product = input @ self.weight.T
        return product if self.bias is None else product + self.bias


def computes_as(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether the ``forward`` of a module is that of ``cls``, or computes the same product of a linear layer.

    A class of ours whose own ``forward`` does has ``is_plain_product``.
    """
    forward = type(module).forward
    if forward is cls.forward:
        return True
    name = f"{forward.__module__}.{getattr(forward, '__qualname__', '')}"
    owner = next(base for base in type(module).__mro__ if "forward" in vars(base))
    return cls is nn.Linear and (vars(owner).get("is_plain_product") is True or name == _OF_TRANSFORMERS)
