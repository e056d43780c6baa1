"""FormatLayer: what simulated and packed layers and products of activations have in common."""

from __future__ import annotations

from torch import nn

from octavo.recipe.spec import ROLES


class FormatLayer(nn.Module):
    """A layer whose tensors have formats. A file describes each of them; nothing looks for layers inside one."""

    @classmethod
    def stored_class(cls) -> str:
        """Return the name of the class in files."""
        return cls.__name__

    def role_quantizers(self) -> dict[str, nn.Module]:
        """Return a quantizer for each role that has one."""
        found = {role: getattr(self, f"{role}_quantizer", None) for role in ROLES}
        return {role: quantizer for role, quantizer in found.items() if quantizer is not None}
