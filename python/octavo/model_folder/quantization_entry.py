"""The entry of ``config.json`` by which transformers asks our plug-in for a model of Octavo."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, OctavoError
from octavo.late_binding import late
from octavo.model_folder.model_config import CONFIG
from octavo.storage import files
from octavo.storage.reading import read_json, shown

if TYPE_CHECKING:
    from torch import nn

ENTRY, METHOD = "quantization_config", "octavo"
PACK_OTHERWISE = "pack the model so, or save it decoded, as model.dequantize() of transformers gives it"
"""The way out where a packing is not read."""


def entry_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the entry for a model; None for one without a layer of ours, which transformers reads itself."""
    from octavo.model_folder.model_card import base_of
    from octavo.nn.format_layer import FormatLayer  # and torch, which whoever reads a folder's texts does without
    from octavo.nn.packed_layer import PackedLayer
    from octavo.recipe.note import noted_recipe

    layers = [module for module in model.modules() if isinstance(module, FormatLayer)]
    if not layers:
        return None
    entry: dict[str, Any] = {"quant_method": METHOD}
    if (recipe := noted_recipe(model)) is not None:
        entry["recipe"] = recipe
    if (base := base_of(model)) is not None:
        entry["base_model"] = base
    if not any(isinstance(layer, PackedLayer) for layer in layers):
        entry["simulate"] = True
    return entry


def folder_entry(folder: Path) -> dict[str, Any]:
    """Return our entry in the ``config.json`` of a folder; an empty one where there is none that can be read."""
    entry = packing_entry(folder)
    return entry if is_ours(entry) else {}


def packing_entry(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the entry in the ``config.json`` of a folder, of whatever package; an empty one where there is none.

    A configuration that cannot be read has none: whoever opens the folder says why.
    """
    try:
        entry = read_json(Path(folder) / CONFIG, finite=False).get(ENTRY)
    except (OctavoError, OSError):
        return {}
    return entry if isinstance(entry, dict) else {}


def is_ours(entry: Any) -> bool:
    """Whether an entry of a configuration is of our plug-in: a mapping, or an object with the attribute."""
    method = entry.get("quant_method") if isinstance(entry, Mapping) else getattr(entry, "quant_method", None)
    return bool(method == METHOD)


def refuse_packing(folder: Path, entry: Any) -> None:
    """Refuse the entry of a package that no reader knows; None is no entry. Raises ContainerError naming the field."""
    if entry is None or is_ours(entry):
        return
    method = entry.get("quant_method") if isinstance(entry, Mapping) else None
    raise ContainerError(
        f"{folder / CONFIG}: quantization_config: quant_method is {'missing' if method is None else shown(method)}; "
        f"read are {', '.join(late('packing_methods')())}; {PACK_OTHERWISE}"
    )


def without_ours(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration without our entry."""
    return {name: value for name, value in values.items() if name != ENTRY or not is_ours(value)}


def write_entry(folder: Path, entry: Mapping[str, Any] | None) -> None:
    """Give the ``config.json`` of a model of transformers in a folder our entry; None takes it out.

    A configuration of another library, and a folder without one, stay as they are.
    """
    file = folder / CONFIG
    if not file.exists():
        return
    values = read_json(file, finite=False)
    new = {**without_ours(values), **({} if entry is None else {ENTRY: entry})}
    if "model_type" in values and new != values:
        files.write(file, json.dumps(new, indent=2) + "\n")
