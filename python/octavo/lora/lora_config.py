"""LoraConfig: rank, scaling and dropout of an adapter, and the layers that it goes on."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.errors import DTypeError, ModelError
from octavo.storage.arguments import checks_arguments, is_finite
from octavo.storage.reading import shown


@dataclass(frozen=True)
class LoraConfig:
    """Options of an adapter.

    Source: Hu et al. 2021, LoRA, section 4.1; ``rslora``: Kalajdzievski 2023 (https://arxiv.org/abs/2312.03732).

    Args:
        rank: columns of B and rows of A, at least 1.
        alpha: the update is scaled by alpha / rank, with ``rslora`` by alpha / sqrt(rank); default: the rank.
        targets: selectors of the linear layers to adapt.
        dropout: share of the adapter's input set to 0 in training, 0 to below 1.
        train: selectors of modules that are fully trained instead, such as a new head; they are not adapted.
        rslora: scale by the root of the rank.

    Raises:
        ModelError: for values outside these ranges.

    Example:
        >>> octavo.lora.LoraConfig(rank=8).as_dict()
        {'rank': 8, 'alpha': 8.0, 'targets': ['type:Linear'], 'dropout': 0.0, 'train': [], 'rslora': False}
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = ("type:Linear",)
    dropout: float = 0.0
    train: tuple[str, ...] = ()
    rslora: bool = False

    def __post_init__(self) -> None:
        """Check the values; one selector may be given without a list."""
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise ModelError(f"lora: rank is {shown(self.rank)}; accepted are integers from 1")
        alpha = self.rank if self.alpha is None else self.alpha
        if not is_finite(alpha):
            raise ModelError(f"lora: alpha is {shown(self.alpha)}; accepted are finite numbers")
        if not is_finite(self.dropout) or not 0 <= self.dropout < 1:
            raise ModelError(f"lora: dropout is {shown(self.dropout)}; accepted are numbers from 0 to below 1")
        if not isinstance(self.rslora, bool):
            raise ModelError(f"lora: rslora is {shown(self.rslora)}; accepted are True and False")
        for key in ("targets", "train"):
            object.__setattr__(self, key, _selectors(key, getattr(self, key)))
        if not self.targets:
            raise ModelError("lora: targets is empty; name at least one linear layer, such as 'type:Linear'")
        object.__setattr__(self, "alpha", float(alpha))
        object.__setattr__(self, "dropout", float(self.dropout))

    @classmethod
    @checks_arguments
    def of(cls, config: LoraConfig | Mapping[str, Any] | None = None, **options: Any) -> LoraConfig:
        """Return a configuration, updated by options.

        Args:
            config: a configuration or a mapping.
            options: fields of the configuration.

        Returns:
            The configuration.

        Raises:
            DTypeError: for other types.
            ModelError: for an unknown key; names the nearest known one.
        """
        if isinstance(config, LoraConfig):
            config = asdict(config)
        if config is not None and not isinstance(config, Mapping):
            raise DTypeError(f"lora: config is a {type(config).__name__}; accepted are a LoraConfig and a mapping")
        values = {**(config or {}), **options}
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; accepted are {', '.join(known)}"
                raise ModelError(f"lora: unknown option {key!r}{hint}")
        if "rank" not in values:
            raise ModelError("lora: no rank given; it has no default")
        return cls(**values)

    @property
    def scaling(self) -> float:
        """The factor of B A."""
        assert self.alpha is not None  # the constructor sets it
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain values, for JSON.

        Returns:
            The fields by name.
        """
        return asdict(self) | {"targets": list(self.targets), "train": list(self.train)}


def _selectors(key: str, value: object) -> tuple[str, ...]:
    """Return one selector or several as a tuple of texts."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        raise ModelError(f"lora: {key} is {shown(value)}; accepted are a selector or a list of selectors")
    return tuple(texts)
