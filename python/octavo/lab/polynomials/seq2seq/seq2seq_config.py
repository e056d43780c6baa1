"""The configuration of a sequence-to-sequence model: a frozen value that is stored beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.errors import SettingError

ARCHITECTURES = ("lstm", "hybrid", "transformer")

_LARGEST = {
    "vocabulary": 256,  # ids are bytes
    "embedding": 4096,
    "encoder": 4096,
    "hidden": 4096,
    "heads": 64,
    "layers": 64,
    "feedforward": 16384,
    "max_source": 4096,
    "max_target": 4096,
}


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The shape of a model.

    ``architecture``: ``lstm`` (LSTM encoder-decoder with additive attention), ``hybrid`` (bidirectional LSTM encoder;
    decoder of LSTM cell, self-attention, cross-attention and feed-forward) or ``transformer`` (encoder-decoder).
    ``vocabulary``: ids, the special ones 0 (pad), 1 (start) and 2 (end) included.
    ``embedding``: width of the token vectors of ``lstm`` and ``hybrid``. ``encoder``: units of their encoder, each way.
    ``hidden``: width of the decoder; in ``transformer`` of everything. ``heads``: of attention, divides ``hidden``.
    ``layers``: blocks of ``hybrid``'s decoder; of ``transformer``, layers in the encoder and in the decoder each.
    ``feedforward``: inner width of the feed-forward networks.
    ``max_source``, ``max_target``: tokens that a row may have, the end token included.

    Raises SettingError with the field, its value and what is accepted.
    """

    architecture: str = "hybrid"
    vocabulary: int = 31
    embedding: int = 64
    encoder: int = 64
    hidden: int = 128
    heads: int = 4
    layers: int = 2
    feedforward: int = 256
    max_source: int = 32
    max_target: int = 32

    def __post_init__(self) -> None:
        """Check every field."""
        if self.architecture not in ARCHITECTURES:
            raise SettingError(f"architecture is {self.architecture!r}; accepted are {', '.join(ARCHITECTURES)}")
        for name, largest in _LARGEST.items():
            value, least = getattr(self, name), 4 if name == "vocabulary" else 1
            if type(value) is not int or not least <= value <= largest:
                raise SettingError(f"{name} is {value!r}; accepted is a whole number from {least} to {largest}")
        if self.hidden % self.heads:
            raise SettingError(f"heads is {self.heads}; it must divide hidden, {self.hidden}")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Seq2SeqConfig:
        """Build from :meth:`as_dict`. Raises SettingError for unknown, missing and wrong fields."""
        names = {field.name for field in fields(cls)}
        wrong = sorted(values.keys() ^ names)
        if wrong:
            problem = "unknown" if wrong[0] in values else "missing"
            raise SettingError(f"{problem} field {wrong[0]!r}; the fields are {', '.join(sorted(names))}")
        return cls(**values)
