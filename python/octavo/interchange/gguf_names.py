"""Architectures of GGUF files: names of tensors, the configuration of transformers, and rows that are permuted.

Source: llama.cpp, ``gguf-py/gguf/tensor_mapping.py`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError
from octavo.interchange.ggml_decode import decode
from octavo.interchange.gguf import GgufFile
from octavo.storage.reading import shown

_NAME = re.compile(r"(?:blk\.(0|[1-9]\d{0,5})\.)?(\w+)\.(weight|bias)", re.ASCII)
FACTORS = "rope_freqs.weight"
"""Tensor of the factors that wave lengths of rotations are multiplied by; it has no place in a model."""
# Llama 3 was trained on so many positions. Frequencies with fewer turns over them are divided by the largest factor,
# those with more are kept, and between them the share of both changes.
_LLAMA3_POSITIONS, _LEAST_TURNS, _MOST_TURNS = 8192, 1.0, 4.0
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
class Architecture:
    """How the models of an architecture are named and described in transformers.

    ``model``: the class. ``whole``, ``block``: parts of names in the file to those of transformers. ``config``: makes
    the configuration. ``turned``: parts whose plain weight transformers stores ``[in, out]``. ``heads``: parts whose
    rows are permuted, with the key of their number of heads. ``head``, ``table``: tied where the file has no head.
    ``has_factors``: a file may have those of rotations.
    """

    model: str
    whole: Mapping[str, str]
    block: Mapping[str, str]
    layers: str
    config: Callable[[Fields], dict[str, Any]]
    turned: frozenset[str] = frozenset()
    heads: Mapping[str, str] = field(default_factory=dict)
    head: str | None = None
    table: str | None = None
    has_factors: bool = False


@dataclass(frozen=True)
class Place:
    """Where a tensor of a file goes: its name in the model, and how its values are ordered there.

    ``heads``: number of heads whose rows are permuted, 0 for none. ``turned``: plain weights are transposed.
    """

    name: str
    heads: int = 0
    turned: bool = False

    def row_order(self, rows: int) -> Tensor | None:
        """Return which row of the file each row of the model is; None where the order is the same.

        The file has the two halves of a head's rotation in turns, the model one after the other.
        """
        if not self.heads:
            return None
        return torch.arange(rows).view(self.heads, -1, 2).transpose(1, 2).reshape(-1)


def architecture_of(file: GgufFile) -> tuple[Architecture, Fields]:
    """Return the architecture of a file, and its metadata. Raises ContainerError for one that is not read."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ContainerError(
            f"{file.path}: general.architecture is {shown(name)}; models are read of {', '.join(ARCHITECTURES)}; "
            "octavo.interchange.gguf_tensors.load_gguf reads the tensors"
        )
    if file.metadata.get("split.count", 1) != 1:
        raise ContainerError(
            f"{file.path}: one of {shown(file.metadata['split.count'])} files of a model; merge them by "
            "llama-gguf-split of llama.cpp"
        )
    return ARCHITECTURES[name], Fields(file, name)


def place_of(name: str, architecture: Architecture, fields: Fields) -> Place:
    """Return where a tensor goes. Raises ContainerError for a name that the architecture does not have."""
    match = _NAME.fullmatch(name)
    block, part, kind = match.groups() if match else (None, "", "")
    ours = (architecture.whole if block is None else architecture.block).get(part)
    if ours is None:
        raise ContainerError(
            f"{fields.file.path}: tensor {shown(name)} has no place in a {architecture.model}; this version does not "
            "read it"
        )
    path = ours if block is None else f"{architecture.layers}.{int(block)}.{ours}"
    heads = 0
    if block is not None and part in architecture.heads:
        heads = fields.whole(architecture.heads[part], fields.whole("attention.head_count"))
        rows = fields.file.tensors[name].shape[0] if fields.file.tensors[name].shape else 1
        if heads < 1 or rows % (2 * heads):
            raise ContainerError(
                f"{fields.file.path}: tensor {shown(name)} has {rows} rows; accepted are multiples of twice its "
                f"{heads} heads"
            )
    return Place(f"{path}.{kind}", heads, part in architecture.turned and kind == "weight")


def _llama(fields: Fields) -> dict[str, Any]:
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
        "hidden_size": width,
        "intermediate_size": fields.whole("feed_forward_length"),
        "num_hidden_layers": fields.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": fields.whole("context_length"),
        "rms_norm_eps": fields.real("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rotation(fields, size),
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "hidden_act": "silu",
    }


def _rotation(fields: Fields, size: int) -> dict[str, Any]:
    """Return the parameters of rotations of heads of ``size`` elements: plain, or scaled as in Llama 3.

    A file has the factor of each frequency. Raises ContainerError for factors that Llama 3 does not have.
    """
    base = fields.real("rope.freq_base", 10000.0)
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


def _gpt2(fields: Fields) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": fields.rows("token_embd.weight"),
        "n_embd": fields.whole("embedding_length"),
        "n_inner": fields.whole("feed_forward_length"),
        "n_layer": fields.whole("block_count"),
        "n_head": fields.whole("attention.head_count"),
        "n_positions": fields.rows("position_embd.weight"),
        "layer_norm_epsilon": fields.real("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _bert(fields: Fields) -> dict[str, Any]:
    fields.without("attention.causal", False)
    return {
        "model_type": "bert",
        "vocab_size": fields.rows("token_embd.weight"),
        "hidden_size": fields.whole("embedding_length"),
        "intermediate_size": fields.whole("feed_forward_length"),
        "num_hidden_layers": fields.whole("block_count"),
        "num_attention_heads": fields.whole("attention.head_count"),
        "max_position_embeddings": fields.rows("position_embd.weight"),
        "type_vocab_size": fields.rows("token_types.weight"),
        "layer_norm_eps": fields.real("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
    }


ARCHITECTURES = {
    "llama": Architecture(
        model="LlamaForCausalLM",
        whole={"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
        layers="model.layers",
        block={
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
        config=_llama,
        heads={"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"},
        head="lm_head.weight",
        table="model.embed_tokens.weight",
        has_factors=True,
    ),
    "gpt2": Architecture(
        model="GPT2LMHeadModel",
        whole={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layers="transformer.h",
        block={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        config=_gpt2,
        turned=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
        head="lm_head.weight",
        table="transformer.wte.weight",
    ),
    "bert": Architecture(
        model="BertModel",
        whole={
            "token_embd": "embeddings.word_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
            "token_types": "embeddings.token_type_embeddings",
            "position_embd": "embeddings.position_embeddings",
        },
        layers="encoder.layer",
        block={
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        config=_bert,
    ),
}
"""Architectures whose files become models, by ``general.architecture``."""
