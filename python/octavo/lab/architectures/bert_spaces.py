"""The space of BERTs that teaching labs search: depth, heads, widths, and square layers that are linear or identity.

A layer's type exists as an axis where the layer does, so that no choice is without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.errors import SettingError
from octavo.lab.architectures.config_fields import config_spec
from octavo.lab.architectures.space import Axis, Constraint, Space
from octavo.lab.classifiers import ClassifierConfig

LINEAR, IDENTITY = "linear", "identity"
TYPES = (LINEAR, IDENTITY)


@dataclass(frozen=True)
class Sizes:
    """The choices of the four axes of sizes."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    hidden: tuple[int, ...]
    intermediate: tuple[int, ...]

    def axes(self, most: int | None = None) -> list[Axis]:
        """Return the axes, of at most so many choices each."""
        names = ("layers", "heads", "hidden", "intermediate")
        return [Axis(name, getattr(self, name)[:most]) for name in names]


#: The sizes of the labs, and those of networks that train in seconds.
SCALES = {
    "labs": Sizes((2, 4, 8), (2, 4, 8, 16), (128, 192, 256, 384, 512), (512, 768, 1024, 1536, 2048)),
    "tiny": Sizes((1, 2, 3), (2, 4, 8), (32, 64, 96), (64, 96, 128)),
}
PRESETS = ("lab32", "labs")
_DIVIDES = Constraint("heads divide hidden", lambda point: point["hidden"] % point["heads"] == 0)


def bert_space(preset: str, scale: str = "tiny", **fixed: Any) -> Space:
    """Return a preset at a scale; ``fixed``: the other fields of :class:`ClassifierConfig`, ``vocabulary`` among them.

    ``lab32``: two choices of each size and one type for all square layers, 32 models. ``labs``: all sizes, and a type
    for each square layer: query, key, value and output, both layers of the feed-forward part where it is as wide as
    the residual stream, and the pooler. Raises SettingError for another preset or scale.
    """
    if preset not in PRESETS:
        raise SettingError(f"unknown space {preset!r}; accepted are {', '.join(PRESETS)}")
    if scale not in SCALES:
        raise SettingError(f"unknown scale {scale!r}; accepted are {', '.join(SCALES)}")
    if preset == "lab32":
        axes = [*SCALES[scale].axes(2), Axis("type", TYPES)]
        return Space(axes, partial(_one_type, fixed), (_DIVIDES,), f"{preset} ({scale})")
    axes = SCALES[scale].axes()
    for layer in range(max(SCALES[scale].layers)):
        for name in ("query", "key", "value", "output", "up", "down"):
            square = name in ("up", "down")
            axes.append(Axis(f"{layer}.{name}", TYPES, partial(_exists, layer, square)))
    axes.append(Axis("pooler", TYPES))
    return Space(axes, partial(_each_type, fixed), (_DIVIDES,), f"{preset} ({scale})")


def _exists(layer: int, is_feed_forward: bool, point: Mapping[str, Any]) -> bool:
    return layer < point["layers"] and not (is_feed_forward and point["intermediate"] != point["hidden"])


def _sizes(fixed: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"layers": point["layers"], "heads": point["heads"], "width": point["hidden"]}
    return {**fixed, **shape, "feed_forward": point["intermediate"]}


def _one_type(fixed: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    sizes = _sizes(fixed, point)
    paths = ClassifierConfig(**sizes).square_layers() if point["type"] == IDENTITY else ()
    return config_spec(ClassifierConfig, **sizes, identity_layers=paths)


def _each_type(fixed: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    sizes = _sizes(fixed, point)
    # Axes are called by the layer and the last word of its path: 0.query is encoder.0.attention.query.
    names = {path: path if path == "pooler" else f"{path.split('.')[1]}.{path.rpartition('.')[2]}"
             for path in ClassifierConfig(**sizes).square_layers()}  # fmt: skip
    paths = tuple(path for path, name in names.items() if point[name] == IDENTITY)
    return config_spec(ClassifierConfig, **sizes, identity_layers=paths)
