"""Where a folder says how its weights are packed: ``config.json``, or files that older packages wrote beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ContainerError, OctavoError
from octavo.model_folder.model_config import CONFIG
from octavo.model_folder.quantization_entry import PACK_OTHERWISE, packing_entry
from octavo.storage.reading import read_json, shown

_METHOD = "quant_method"
BESIDE = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files of AutoGPTQ, AutoAWQ and ModelOpt; the weights beside them are no longer packed so once they are converted."""


def packing_settings(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Return the settings of the packing of a folder with ``quant_method``, and the file that has them.

    Empty where there are none. A file that cannot be read has none: whoever opens the folder says why.
    """
    folder = Path(path)
    if entry := packing_entry(folder):
        return _flat(entry), str(folder / CONFIG)
    for name in BESIDE:
        try:
            values = read_json(folder / name, finite=False)
        except (OctavoError, OSError):
            continue
        is_modelopt = isinstance(values.get("quantization"), dict)
        method = "modelopt" if is_modelopt else "awq" if "w_bit" in values else "gptq" if "bits" in values else None
        if method is not None:
            return _flat({_METHOD: method, **values}), str(folder / name)
    return {}, str(folder / CONFIG)


def packing_method(path: str | os.PathLike[str]) -> str | None:
    """Return the package that packed a folder, by its name in the settings; None for files and other folders."""
    if not os.path.isdir(path):
        return None
    method = packing_settings(path)[0].get(_METHOD)
    return method if isinstance(method, str) else None


def whole(settings: Mapping[str, Any], keys: tuple[str, ...], label: str, default: int) -> int:
    """Return the first of the named settings that is stated. Raises ContainerError where it is no whole number."""
    for key in keys:
        value = settings.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 31:
            raise ContainerError(f"{label}: {key} is {shown(value)}; accepted is a whole number")
        return value
    return default


def text(settings: Mapping[str, Any], key: str, label: str, default: str, accepted: tuple[str, ...] = ()) -> str:
    """Return a setting in lower case. Raises ContainerError where it is no text, or none of the accepted ones."""
    value = settings.get(key)
    value = default if value is None else value
    if not isinstance(value, str):
        raise ContainerError(f"{label}: {key} is {shown(value)}; accepted is a text")
    if accepted and value.lower() not in accepted:
        raise ContainerError(f"{label}: {key} is {shown(value)}; read are {', '.join(accepted)}; {PACK_OTHERWISE}")
    return value.lower()


def flag(settings: Mapping[str, Any], key: str, label: str, default: bool | None = None) -> bool | None:
    """Return a setting that is true or false. Raises ContainerError where it is another value."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise ContainerError(f"{label}: {key} is {shown(value)}; accepted are true and false")
    return default if value is None else value


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings of which ModelOpt's own are not nested."""
    inner = values.get("quantization")
    return {**values, **inner} if isinstance(inner, dict) else values
