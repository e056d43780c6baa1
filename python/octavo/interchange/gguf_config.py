"""Sizes and settings of models: metadata of GGUF files below an architecture, and configurations of transformers.

Every file of ``gguf_architectures`` translates them in both directions. Source: llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ContainerError, ModelError
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_metadata import Typed, u32
from octavo.storage.reading import shown

_TOKENS = ("bos", "eos", "padding", "unknown")


@dataclass(frozen=True)
class Fields:
    """The metadata of a file below the name of its architecture; errors name key and file."""

    file: GgufFile
    architecture: str

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0. Raises ContainerError for another value, or none without a default."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.refused(key, value, "a whole number from 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0. Raises ContainerError for another value, or none without a default."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.refused(key, value, "a finite number above 0")
        return float(value)

    def without(self, key: str, *none: object) -> None:
        """Refuse a file that has something which is not read. ``none``: values that mean nothing of it."""
        value = self.file.metadata.get(f"{self.architecture}.{key}")
        if value is not None and value not in none:
            raise self.refused(key, value, "files without it")

    def flag(self, key: str, *, default: bool) -> bool:
        """Return whether something holds. Raises ContainerError for another value."""
        value: object = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, bool):
            raise self.refused(key, value, "true or false")
        return value

    def rows(self, name: str) -> int:
        """Return the rows of a tensor. Raises ContainerError where it is missing or no matrix."""
        tensor = self.file.tensors.get(name)
        if tensor is None or len(tensor.shape) != 2:
            shape = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise ContainerError(f"{self.file.path}: tensor {name!r} is {shape}; accepted are matrices")
        return tensor.shape[0]

    def tokens(self) -> dict[str, int]:
        """Return the special tokens of the tokenizer, as configurations of transformers name them."""
        ids = {}
        for name, ours in zip(_TOKENS, ("bos", "eos", "pad", "unk"), strict=True):
            value = self.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(value, int) and not isinstance(value, bool):
                ids[f"{ours}_token_id"] = value
        return ids

    def refused(self, key: str, value: object, accepted: str) -> ContainerError:
        """Return the error for a value."""
        text = "missing" if value is None else shown(value)
        return ContainerError(f"{self.file.path}: {self.architecture}.{key} is {text}; accepted is {accepted}")

    def _value(self, key: str, default: float | None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)


@dataclass(frozen=True)
class Config:
    """The configuration of a model of transformers; errors name the field. ``place``: the folder, for errors."""

    place: str
    values: Mapping[str, Any]

    def whole(self, name: str) -> int:
        """Return a whole number from 0. Raises ModelError for another value."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.refused(name, "a whole number from 0")
        return value

    def real(self, name: str) -> float:
        """Return a finite number above 0. Raises ModelError for another value."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise self.refused(name, "a finite number above 0")
        return float(value)

    def only(self, name: str, *accepted: object) -> None:
        """Refuse values that a file cannot say; None is the default of transformers."""
        value = self.values.get(name)
        if value is not None and value not in accepted:
            raise self.refused(name, " or ".join(map(repr, accepted)) or "models without it")

    def refused(self, name: str, accepted: str) -> ModelError:
        """Return the error for a field."""
        return ModelError(
            f"{self.place}: {name} of the configuration is {shown(self.values.get(name))}; GGUF files hold {accepted}"
        )


@dataclass(frozen=True)
class Keys:
    """Keys of a file without the name of the architecture.

    ``needed``: a reader has no default for them. ``customary``: the values that a reader takes where they are missing.
    """

    needed: dict[str, Typed]
    customary: dict[str, Typed]

    def __or__(self, other: Keys) -> Keys:
        """Return the keys of both."""
        return Keys(self.needed | other.needed, self.customary | other.customary)


def head_size(config: Config) -> int:
    """Return the size of a head: ``head_dim``, or the width over the heads."""
    if config.values.get("head_dim") is not None:
        return config.whole("head_dim")
    return config.whole("hidden_size") // max(config.whole("num_attention_heads"), 1)


def size_in(fields: Fields) -> int:
    """Return the size of a head of a file. Raises ContainerError where keys and values have different ones."""
    usual = fields.whole("embedding_length") // max(fields.whole("attention.head_count"), 1)
    size = fields.whole("attention.key_length", usual)
    if (values := fields.whole("attention.value_length", size)) != size:
        raise fields.refused("attention.value_length", values, f"{size}, attention.key_length")
    return size


def all_rotated(fields: Fields, size: int) -> None:
    """Refuse a file whose heads turn in part."""
    if (turned := fields.whole("rope.dimension_count", size)) != size:
        raise fields.refused("rope.dimension_count", turned, f"{size}, the size of a head")


def size_keys(config: Config, *, always: bool = False) -> dict[str, Typed]:
    """Return the keys of the size of a head, none where it is the width over the heads, unless ``always``."""
    size = head_size(config)
    if size == config.whole("hidden_size") // max(config.whole("num_attention_heads"), 1) and not always:
        return {}
    return {"attention.key_length": u32(size), "attention.value_length": u32(size)}


def sizes(width: str, inner: str, layers: str, heads: str, positions: str) -> dict[str, str]:
    """Return the keys of sizes that all architectures have, with the names of fields of a configuration."""
    return {
        "context_length": positions,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": heads,
    }


USUAL_SIZES = sizes(
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"
)
