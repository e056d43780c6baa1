"""The shape of a classifier, checked when it is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.errors import SettingError
from octavo.storage.reading import shown

# Most layers, and the largest of all other sizes: products of two stay far below 64 bits.
_LAYERS, _LARGEST = 4096, 1 << 24


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """A BERT encoder with a pooler and a linear head; the defaults are the two-layer BERT of quantization labs.

    ``vocabulary``: ids, 0 for padding. ``classes``: labels. ``width`` of the residual stream, in ``heads`` parts;
    ``feed_forward``: inner width; ``positions``: tokens of the longest text. ``dropout``: in training.
    ``identity_layers``: paths of square Linear layers that are the identity instead (:meth:`square_layers`).
    Raises SettingError with the field, its value and what is accepted.
    """

    vocabulary: int
    classes: int = 2
    width: int = 128
    layers: int = 2
    heads: int = 2
    feed_forward: int = 512
    positions: int = 64
    dropout: float = 0.1
    identity_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("vocabulary", "classes", "width", "layers", "heads", "feed_forward", "positions"):
            value, least = getattr(self, name), 2 if name in ("vocabulary", "classes") else 1
            most = _LAYERS if name == "layers" else _LARGEST
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise SettingError(f"{name} is {shown(value)}; accepted are whole numbers from {least} to {most}")
        if self.width % self.heads:
            raise SettingError(f"heads is {self.heads}; accepted are divisors of the width, {self.width}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise SettingError(f"dropout is {self.dropout!r}; accepted are 0 to below 1")
        given = self.identity_layers
        if not isinstance(given, list | tuple) or not all(isinstance(path, str) for path in given):
            raise SettingError(f"identity_layers is {shown(given)}; accepted is a list of paths")
        if given:
            square = self.square_layers()
            for path in given:
                if path not in square:
                    raise SettingError(
                        f"identity_layers names {shown(path)}, no square layer here; those are {', '.join(square)}"
                    )
        object.__setattr__(self, "identity_layers", tuple(sorted(set(given))))

    def square_layers(self) -> tuple[str, ...]:
        """Return the paths of the Linear layers that give as many values as they take: 4 or 6 a layer, and the pooler.

        The layers of the feed-forward part are square where its width is that of the residual stream.
        """
        names = ["attention.query", "attention.key", "attention.value", "attention.output"]
        if self.feed_forward == self.width:
            names += ["feed_forward.up", "feed_forward.down"]
        return (*(f"encoder.{layer}.{name}" for layer in range(self.layers) for name in names), "pooler")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON has them; without layers that are the identity there is no such field."""
        found = asdict(self)
        found["identity_layers"] = list(self.identity_layers)
        return found if self.identity_layers else {n: v for n, v in found.items() if n != "identity_layers"}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> ClassifierConfig:
        """Build a configuration from :meth:`as_dict`. Raises SettingError for an unknown or missing field."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(given.keys() - known):
            raise SettingError(f"{unknown[0]} is no field of a classifier; accepted: {', '.join(sorted(known))}")
        if "vocabulary" not in given:
            raise SettingError("vocabulary is missing; a classifier needs the number of its ids")
        return cls(**given)
