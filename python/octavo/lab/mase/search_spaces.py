"""The mixed-precision spaces of two reports of MASE's labs: one for each class of layers, an axis for each key.

``lab-a`` searches widths 8, 16 and 32, exponents of 2 to 4 bits and biases 3, 7 and 15; ``lab-b`` widths 4, 8 and 16,
exponents of 4 to 6 bits and biases 13 to 17. Axes are called as the labs' trials call them: ``LAYER_weight_width``.

Settings that no format of Octavo has take the nearest one (:func:`nearest`): as many exponent bits as leave the format
a mantissa, then the largest width that it has. The shared exponents of blocks have 8 bits here, and are no axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from octavo.errors import FormatError, SettingError
from octavo.lab.architectures.space import Axis, Space
from octavo.lab.mase.importer import recipe
from octavo.lab.mase.layer_settings import Settings, read_format
from octavo.recipe import Recipe

PRESETS = ("lab-a", "lab-b")
FULL = "Full"
#: The layer classes of the labs, without ``Linear`` before them, and MASE's names of their schemes.
CLASSES = {
    FULL: None, "Integer": "integer", "MinifloatDenorm": "minifloat_denorm", "MinifloatIEEE": "minifloat_ieee",
    "Log": "log", "BlockFP": "block_fp", "BlockMinifloat": "block_minifloat", "BlockLog": "block_log",
    "Binary": "binary", "BinaryScaling": "binary_scaling", "BinaryResidualSign": "binary_residual",
}  # fmt: skip
GROUPS = {
    "full": (FULL,), "integer": ("Integer",), "minifloat": ("MinifloatDenorm", "MinifloatIEEE"), "log": ("Log",),
    "block": ("BlockFP", "BlockMinifloat", "BlockLog"), "binary": ("Binary", "BinaryScaling", "BinaryResidualSign"),
}  # fmt: skip
#: Classes whose MASE layers give no gradient: the labs evaluate them without training.
UNTRAINED = ("BlockMinifloat", "BinaryResidualSign")
COMPONENTS = ("data_in", "weight", "bias")
#: Fractions that the reports set by hand, by the width.
FRACTIONS: dict[str, Callable[[int], int]] = {
    "mase-a": lambda width: max(4, width - 2),
    "mase-b": lambda width: width // 2,
}
_RANGES: dict[str, dict[str, tuple[int, ...]]] = {
    "lab-a": {
        "width": (8, 16, 32), "frac_width": (2, 4, 8), "exponent_width": (2, 3, 4), "exponent_bias": (3, 7, 15),
        "block_size": (16, 32),
    },
    "lab-b": {
        "width": (4, 8, 16), "frac_width": (2, 4, 8), "exponent_width": (4, 5, 6), "exponent_bias": (13, 15, 17),
        "block_size": (16, 32),
    },
}  # fmt: skip
_KEYS = {
    "Integer": ("width", "frac_width"), "MinifloatDenorm": ("width", "exponent_width", "exponent_bias"),
    "MinifloatIEEE": ("width", "exponent_width", "exponent_bias"), "Log": ("width", "exponent_bias"),
    "BlockFP": ("width", "block_size"), "BlockMinifloat": ("width", "exponent_width", "block_size"),
    "BlockLog": ("width", "block_size"),
}  # fmt: skip
# What is not searched: the bits of shared exponents, and of signs which tensors have them.
_FIXED: dict[str, dict[str, Any]] = {
    "BlockFP": {f"{component}_exponent_width": 8 for component in COMPONENTS},
    "BlockMinifloat": {f"{component}_exponent_bias_width": 8 for component in COMPONENTS},
    "BlockLog": {f"{component}_exponent_bias_width": 8 for component in COMPONENTS},
    "Binary": {"weight_bipolar": True},
    "BinaryScaling": {f"{component}_bipolar": True for component in COMPONENTS},
    "BinaryResidualSign": {"data_in_residual_sign": True, "weight_bipolar": True},
}
_LEVELS = (2, 3)  # of the residual signs of inputs


def classes_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return layer classes by name, ``LinearInteger`` or ``integer``, and those of groups such as ``block``.

    Raises SettingError for a name that is none, and for none at all.
    """
    known = {name.lower(): (name,) for name in CLASSES} | GROUPS
    found: dict[str, None] = {}
    for name in names:
        word = name.lower()
        if word not in known and word.removeprefix("linear") not in known:
            raise SettingError(f"unknown layer class {name!r}; accepted are {', '.join((*CLASSES, *GROUPS))}")
        found |= dict.fromkeys(known.get(word) or known[word.removeprefix("linear")])
    if not found:
        raise SettingError(f"no layer class; accepted are {', '.join((*CLASSES, *GROUPS))}")
    return tuple(found)


def keys(preset: str, name: str, baseline: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return the choices of a class by key, ``weight_width`` for one; none where the class has no settings.

    ``baseline``: ``mase-a`` or ``mase-b``, whose rule gives integers their fractions. Raises SettingError for names
    that are none.
    """
    if preset not in PRESETS or name not in CLASSES:
        raise SettingError(f"{preset!r}, {name!r}; accepted are {', '.join(PRESETS)} and {', '.join(CLASSES)}")
    if baseline is not None and baseline not in FRACTIONS:
        raise SettingError(f"unknown baseline {baseline!r}; accepted are {', '.join(FRACTIONS)}")
    if name == "BinaryResidualSign":
        return {"data_in_levels": _LEVELS}
    own = [key for key in _KEYS.get(name, ()) if not (key == "frac_width" and baseline)]
    return {f"{component}_{key}": _RANGES[preset][key] for component in COMPONENTS for key in own}


def mixed_space(preset: str, name: str, layers: Sequence[str], baseline: str | None = None) -> Space:
    """Return the space of a layer class: each of ``layers``, paths of Linear layers, is of it, with its own settings.

    A specification has the ``recipe``; None: all layers are float, as of ``Full``, the one class that leaves them so.
    Layers of a class without settings have the axis ``LAYER_type``, of one choice. Raises SettingError as :func:`keys`.
    """
    choices = keys(preset, name, baseline)
    if choices:
        axes = [Axis(f"{layer}_{key}", values) for layer in layers for key, values in choices.items()]
    else:
        axes = [Axis(f"{layer}_type", (name,)) for layer in layers]
    return Space(axes, partial(_realise, name, tuple(layers), baseline), (), f"{preset} {name}")


def replaced(name: str, layers: Sequence[str], point: Mapping[str, Any], baseline: str | None = None) -> int:
    """Return how many tensors of a point of :func:`mixed_space` have settings that took the nearest format."""
    count = 0
    for layer in layers:
        config = _config(name, layer, point, baseline)
        count += sum(_component(config, part) != _component(_settled(name, config), part) for part in COMPONENTS)
    return count


@cache
def nearest(scheme: str, settings: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the settings of a tensor, or where no format has them those of the nearest one.

    Exponent bits become fewer until the format has a mantissa; then the width becomes smaller until the format exists.
    ``settings``: keys of MASE without the component, and their values. Raises FormatError where nothing is near.
    """
    wanted = dict(settings)
    for exponent in range(wanted.get("exponent_width", 1), 0, -1):
        for width in range(wanted.get("width", 1), 0, -1):
            changes = {"exponent_width": exponent, "width": width}
            tried = wanted | {key: value for key, value in changes.items() if key in wanted}
            try:
                read_format(scheme, Settings(f"{scheme}: weight", tried))
            except FormatError:
                continue
            return tried
    raise FormatError(f"{scheme}: no format is near {wanted}; accepted are settings of widths from 2 on")


def _realise(name: str, layers: Sequence[str], baseline: str | None, point: Mapping[str, Any]) -> dict[str, Any]:
    scheme, rules = CLASSES[name], list[Any]()
    if scheme is None:
        return {"recipe": None}
    for layer in layers:
        config = _settled(name, _config(name, layer, point, baseline))
        rules += recipe({"by": "name", layer: {"config": {"name": scheme, **config}}}).recipe.rules
    return {"recipe": str(Recipe(rules))}


def _config(name: str, layer: str, point: Mapping[str, Any], baseline: str | None) -> dict[str, Any]:
    """Return the settings of a layer at a point, as MASE's dictionary has them."""
    config: dict[str, Any] = {key: point[f"{layer}_{key}"] for key in keys(PRESETS[0], name, baseline)}
    if baseline is not None and name == "Integer":
        config |= {f"{part}_frac_width": FRACTIONS[baseline](config[f"{part}_width"]) for part in COMPONENTS}
    return config | _FIXED.get(name, {})


def _component(config: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {key.removeprefix(f"{part}_"): value for key, value in config.items() if key.startswith(f"{part}_")}


def _settled(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's settings with the nearest of each tensor."""
    scheme = CLASSES[name]
    if scheme is None or name not in _KEYS:
        return dict(config)
    parts = {part: nearest(scheme, tuple(_component(config, part).items())) for part in COMPONENTS}
    return {f"{part}_{key}": value for part, settings in parts.items() for key, value in settings.items()}
