"""The mixed-precision spaces of two reports of MASE's labs: settings of each layer, key by key, float one of them.

``lab-a`` searches exponents of 2 to 4 bits and biases 3, 7 and 15, ``lab-b`` exponents of 4 to 6 bits and biases 13 to
17. Widths are 8, 16 and 32; settings that no format of Octavo has, such as a logarithmic number of 16 bits, are absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from octavo.errors import FormatError, SettingError
from octavo.lab.architectures.space import Axis, Space
from octavo.lab.mase.importer import recipe
from octavo.recipe import Recipe

PRESETS = ("lab-a", "lab-b")
GROUPS = ("full", "integer", "block", "minifloat", "log", "binary")
ROLES = {"data_in": "input", "weight": "weight", "bias": "bias"}
FLOAT = "float"
#: Fractions that the reports set by hand, by the width.
FRACTIONS: dict[str, Callable[[int], int]] = {
    "mase-a": lambda width: max(4, width - 2),
    "mase-b": lambda width: width // 2,
}
_WIDTHS, _BLOCKS = (8, 16, 32), (16, 32)
_EXPONENTS = {"lab-a": (2, 3, 4), "lab-b": (4, 5, 6)}
_BIASES = {"lab-a": (3, 7, 15), "lab-b": (13, 15, 17)}
_INPUTS_ALONE = ("residual_sign", "levels")  # keys that weight and bias do not have


def keys(preset: str, group: str) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Return the schemes of a group, and for each the choices of its keys, which every role has for itself.

    Residual levels are of inputs alone. ``full`` has none: all layers are float. Raises SettingError for another preset
    or group.
    """
    if preset not in PRESETS or group not in GROUPS:
        raise SettingError(f"{preset!r}, {group!r}; accepted are {', '.join(PRESETS)} and {', '.join(GROUPS)}")
    exponents, biases = _EXPONENTS[preset], _BIASES[preset]
    minifloat = {"width": _WIDTHS, "exponent_width": exponents, "exponent_bias": biases}
    found: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
        "full": {},
        "integer": {"integer": {"width": _WIDTHS, "frac_width": (2, 4, 8)}},
        "block": {
            "block_fp": {"width": _WIDTHS, "exponent_width": (8,), "block_size": _BLOCKS},
            "block_minifloat": {
                "width": _WIDTHS, "exponent_width": exponents, "exponent_bias_width": (8,), "block_size": _BLOCKS,
            },
            "block_log": {"width": _WIDTHS, "exponent_bias_width": (8,), "block_size": _BLOCKS},
        },
        "minifloat": {"minifloat_ieee": minifloat, "minifloat_denorm": minifloat},
        "log": {"log": {"width": _WIDTHS, "exponent_bias": biases}},
        "binary": {
            "binary_scaling": {"bipolar": (True,)},
            "binary_residual": {"bipolar": (True,), "residual_sign": (True,), "levels": (2, 3)},
        },
    }  # fmt: skip
    return found[group]


def mixed_space(preset: str, group: str, layers: Sequence[str], baseline: str | None = None) -> Space:
    """Return the space of a group: for each layer its scheme or float, and the settings of each of its tensors.

    ``layers``: paths of Linear layers. ``baseline``: ``mase-a`` or ``mase-b``, whose rule gives integers their
    fractions. A specification has the ``recipe``. Raises SettingError for names that are none.
    """
    if baseline is not None and baseline not in FRACTIONS:
        raise SettingError(f"unknown baseline {baseline!r}; accepted are {', '.join(FRACTIONS)}")
    schemes = {name: {role: _settings(name, role, tuple(choices.items()), baseline) for role in ROLES}
               for name, choices in keys(preset, group).items()}  # fmt: skip
    axes = []
    for layer in layers:
        axes.append(Axis(layer, (FLOAT, *schemes)))
        for name, roles in schemes.items():
            for role, texts in roles.items():
                axes.append(Axis(f"{layer} {name} {role}", texts, partial(_has, layer, name)))
    return Space(axes, partial(_realise, tuple(layers)), (), f"{preset} {group}")


def _has(layer: str, scheme: str, point: Mapping[str, Any]) -> bool:
    return point[layer] == scheme


@cache
def _settings(
    scheme: str, role: str, choices: tuple[tuple[str, tuple[Any, ...]], ...], baseline: str | None
) -> tuple[str, ...]:
    """Return the settings of a tensor that a format has, as texts: ``width=8 frac_width=4``."""
    found = []
    choices = tuple(choice for choice in choices if role == "data_in" or choice[0] not in _INPUTS_ALONE)
    names = [name for name, _ in choices]
    for values in itertools.product(*(options for _, options in choices)):
        given = dict(zip(names, values, strict=True))
        if baseline is not None and "frac_width" in given:
            given["frac_width"] = FRACTIONS[baseline](given["width"])
        text = " ".join(f"{name}={value}" for name, value in given.items())
        try:
            _imported("layer", scheme, {role: text})
        except FormatError:
            continue
        found.append(text)
    return tuple(dict.fromkeys(found))


def _realise(layers: Sequence[str], point: Mapping[str, Any]) -> dict[str, Any]:
    rules: list[Any] = []
    for layer in layers:
        scheme = point[layer]
        if scheme != FLOAT:
            texts = {role: point[f"{layer} {scheme} {role}"] for role in ROLES}
            rules += _imported(layer, scheme, texts).rules
    return {"recipe": str(Recipe(rules)) if rules else None}


def _imported(layer: str, scheme: str, texts: Mapping[str, str]) -> Recipe:
    """Read settings as MASE's dictionary of one layer."""
    config: dict[str, Any] = {"name": scheme}
    for role, text in texts.items():
        for word in text.split():
            key, _, value = word.partition("=")
            config[f"{role}_{key}"] = value == "True" if value in ("True", "False") else int(value)
    return recipe({"by": "name", layer: {"config": config}}).recipe
