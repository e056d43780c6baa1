"""Sizes and settings of models: metadata of GGUF files below an architecture, and configurations of transformers.

Every architecture has a function for each direction. Source: llama.cpp, ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError, ModelError
from octavo.interchange.ggml_decode import decode
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_metadata import Typed, f32, flag, u32
from octavo.storage.reading import shown

FACTORS = "rope_freqs.weight"
"""Tensor of the factors that wave lengths of rotations are multiplied by; it has no place in a model."""
# Llama 3 was trained on so many positions. Frequencies with fewer turns over them are divided by the largest factor,
# those with more are kept, and between them the share of both changes.
_LLAMA3_POSITIONS, _LEAST_TURNS, _MOST_TURNS = 8192, 1.0, 4.0
_BASE = 10000.0
_ROUNDING = 1e-4  # factors are computed in float32, and multiplied by up to 4 between the two
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
            raise self.refused(name, " or ".join(map(repr, accepted)))

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


def llama_config(fields: Fields) -> dict[str, Any]:
    """Return the configuration of a llama. Raises ContainerError for what is not read."""
    for key in ("expert_count", "rope.scaling.factor"):
        fields.without(key, 0, 1, 1.0)
    fields.without("rope.scaling.type", "none")
    heads, width = fields.whole("attention.head_count"), fields.whole("embedding_length")
    size = fields.whole("attention.key_length", width // max(heads, 1))
    if (turned := fields.whole("rope.dimension_count", size)) != size:
        raise fields.refused("rope.dimension_count", turned, f"{size}, the size of a head")
    names = fields.file.tensors
    return {
        "model_type": "llama",
        "vocab_size": fields.rows("token_embd.weight"),
        "num_key_value_heads": fields.whole("attention.head_count_kv", heads),
        "head_dim": size,
        "rope_parameters": _rotation(fields, size),
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "hidden_act": "silu",
    }


def llama_keys(config: Config) -> Keys:
    """Return the metadata of a llama. Raises ModelError for what a file cannot say."""
    config.only("hidden_act", "silu")
    heads, size = config.whole("num_attention_heads"), _head_size(config)
    usual = config.whole("hidden_size") // max(heads, 1)
    groups = config.whole("num_key_value_heads")
    rotation = _rotation_of(config)
    needed: dict[str, Typed] = (
        {} if size == usual else {"attention.key_length": u32(size), "attention.value_length": u32(size)}
    )
    customary = {"rope.dimension_count": u32(size)}
    (customary if groups == heads else needed)["attention.head_count_kv"] = u32(groups)
    (customary if rotation.real("rope_theta") == _BASE else needed)["rope.freq_base"] = f32(rotation.real("rope_theta"))
    return Keys(needed, customary)


def _head_size(config: Config) -> int:
    if config.values.get("head_dim") is not None:
        return config.whole("head_dim")
    return config.whole("hidden_size") // max(config.whole("num_attention_heads"), 1)


def _rotation_of(config: Config) -> Config:
    """Return the parameters of the rotations of a configuration. Raises ModelError for kinds that files lack."""
    values = config.values.get("rope_parameters")
    rotation = Config(f"{config.place}: rope_parameters", values if isinstance(values, Mapping) else {})
    rotation.only("rope_type", "default", "llama3")
    rotation.only("partial_rotary_factor", 1, 1.0)
    return rotation


def rotation_factors(config: Config) -> Tensor | None:
    """Return the factors of wave lengths of Llama 3, float32 ``[half of a head]``; None of plain rotations.

    Source: llama.cpp, ``convert_hf_to_gguf.py``, and the configuration's own rule, of which they are the inverse.
    """
    rotation = _rotation_of(config)
    if rotation.values.get("rope_type") != "llama3":
        return None
    size = _head_size(config)
    most, low, high = (rotation.real(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise rotation.refused("high_freq_factor", "one above low_freq_factor")
    positions = rotation.whole("original_max_position_embeddings")
    frequencies = 1.0 / rotation.real("rope_theta") ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    turns = positions * frequencies / (2 * math.pi)
    slow = ((high - turns) / (high - low)).clamp(0, 1)
    return 1 / (slow / most + 1 - slow)


def _rotation(fields: Fields, size: int) -> dict[str, Any]:
    """Return the parameters of rotations of heads of ``size`` elements: plain, or scaled as in Llama 3.

    A file has the factor of each frequency. Raises ContainerError for factors that Llama 3 does not have.
    """
    base = fields.real("rope.freq_base", _BASE)
    tensor = fields.file.tensors.get(FACTORS)
    if tensor is None:
        return {"rope_type": "default", "rope_theta": base}
    refusal = ContainerError(
        f"{fields.file.path}: tensor '{FACTORS}': {tensor.type.name} of shape {list(tensor.shape)}; accepted are the "
        f"{size // 2} factors of Llama 3 as F32"
    )
    if tensor.type.name != "F32" or tensor.shape != (size // 2,):
        raise refusal
    factors = decode(fields.file.read(FACTORS), tensor.type).flatten().tolist()
    largest = max(factors)
    if not 0 < largest < math.inf:
        raise refusal
    for number, factor in enumerate(factors):
        turns = _LLAMA3_POSITIONS / (2 * math.pi * base ** (2 * number / size))
        slow = min(max((_MOST_TURNS - turns) / (_MOST_TURNS - _LEAST_TURNS), 0.0), 1.0)
        if not abs(factor * (slow / largest + 1 - slow) - 1) <= _ROUNDING:
            raise refusal
    return {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": largest,
        "low_freq_factor": _LEAST_TURNS,
        "high_freq_factor": _MOST_TURNS,
        "original_max_position_embeddings": _LLAMA3_POSITIONS,
    }


def gpt2_config(fields: Fields) -> dict[str, Any]:
    """Return the configuration of a GPT-2. Raises ContainerError for what is not read."""
    return {
        "model_type": "gpt2",
        "vocab_size": fields.rows("token_embd.weight"),
        "n_positions": fields.rows("position_embd.weight"),
        "activation_function": "gelu_new",
    }


def gpt2_keys(config: Config) -> Keys:
    """Return the metadata of a GPT-2. Raises ModelError for what a file cannot say."""
    config.only("activation_function", "gelu_new")
    config.only("scale_attn_by_inverse_layer_idx", False)
    config.only("scale_attn_weights", True)
    config.only("add_cross_attention", False)
    inner = config.values.get("n_inner")
    inner = 4 * config.whole("n_embd") if inner is None else config.whole("n_inner")
    return Keys({"feed_forward_length": u32(inner)}, {})


def bert_config(fields: Fields) -> dict[str, Any]:
    """Return the configuration of a BERT. Raises ContainerError for what is not read."""
    fields.without("attention.causal", False)
    return {
        "model_type": "bert",
        "vocab_size": fields.rows("token_embd.weight"),
        "max_position_embeddings": fields.rows("position_embd.weight"),
        "type_vocab_size": fields.rows("token_types.weight"),
        "hidden_act": "gelu",
    }


def bert_keys(config: Config) -> Keys:
    """Return the metadata of a BERT. Raises ModelError for what a file cannot say."""
    config.only("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    return Keys({}, {"attention.causal": flag(False)})


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
