"""OctavoConfig: what ``from_pretrained`` is to do with a model, and what ``config.json`` says of one that is packed."""

from __future__ import annotations

from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from octavo.errors import FormatError, SettingError
from octavo.model_folder.quantization_entry import METHOD
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.recipe import Recipe
from octavo.storage.reading import shown


class OctavoConfig(QuantizationConfigMixin):
    """Formats for a model that ``from_pretrained`` of transformers reads: its ``quantization_config``.

    The result is that of :func:`octavo.quantize_model` and :func:`octavo.pack_model`, to the bit. Each weight is packed
    when it is read, so the float model is never in memory as a whole. Without a recipe the folder is one of Octavo's
    whose ``config.json`` does not say so, as those of Octavo 0.1; its file of weights says how it is packed. With
    ``simulate`` alone it is a checkpoint that transformers wrote of a simulated model, as ``Trainer`` does.

    Args:
        recipe: a Recipe, its text or dictionary; None for a folder that is packed already.
        simulate: make simulated layers, which train through the rounding, instead of packed ones.
        sparse: leave out codes that are 0 where that takes fewer bytes, as :func:`octavo.pack_model` does.
        weights: the file of packed weights in the folder, or the index of several; ``config.json`` has it.
        base_model: the repository of the float model; ``config.json`` has it.
        quant_method: ``octavo``; ``config.json`` has it.
        unknown: none is accepted.

    Raises:
        FormatError: for a recipe that is none, or options that need one.
        SettingError: for another ``quant_method``, ``weights`` that name no such file, and options that there are not.

    Example:
        >>> from octavo.transformers import OctavoConfig
        >>> OctavoConfig("int4:g32; lm_head keep").to_dict()
        {'quant_method': 'octavo', 'recipe': 'int4:g32; lm_head keep'}
    """

    def __init__(
        self,
        recipe: Any = None,
        *,
        simulate: bool = False,
        sparse: bool = False,
        weights: str = PACKED_NAME,
        base_model: str | None = None,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        """Check the recipe's text, and that every value has the type that it must."""
        if unknown:
            raise SettingError(
                f"quantization_config: this Octavo knows no {min(unknown)!r}; update Octavo where a later one wrote "
                "the folder"
            )
        if not isinstance(weights, str) or not weights.endswith((".safetensors", ".safetensors.index.json")):
            raise SettingError(f"weights is {shown(weights)}; accepted is the name of a safetensors file or its index")
        if quant_method != METHOD:
            raise SettingError(f"quant_method is {quant_method!r}; an OctavoConfig has '{METHOD}'")
        self.quant_method: Any = METHOD
        self.recipe: str | None = None if recipe is None else str(Recipe.of(recipe))
        self.simulate, self.sparse = bool(simulate), bool(sparse)
        self.weights, self.base_model = weights, base_model
        if sparse and simulate:
            raise FormatError("sparse=True is for packed weights; leave it out, or leave out simulate=True")

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``config.json``.

        Returns:
            Plain values by name, without those that are the usual ones.
        """
        options = {
            "recipe": self.recipe,
            "base_model": self.base_model,
            "simulate": self.simulate or None,
            "sparse": self.sparse or None,
            "weights": None if self.weights == PACKED_NAME else self.weights,
        }
        return {"quant_method": METHOD, **{name: value for name, value in options.items() if value is not None}}
