"""Architectures of GGUF files: names of tensors, the configuration of transformers, and rows that are permuted.

Every table is read in both directions: a file becomes a model, and a model a file.

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

from octavo.errors import ContainerError, ModelError
from octavo.interchange.ggml_decode import decode
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_metadata import Typed, f32, flag, u32
from octavo.storage.reading import shown

_NUMBER = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
_NAME = re.compile(r"(?:blk\.(0|[1-9]\d{0,5})\.)?(\w+)\.(weight|bias)", re.ASCII)
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


@dataclass(frozen=True)
class Architecture:
    """How the models of an architecture are named and described in transformers.

    ``model``: the class. ``whole``, ``block``: parts of names in the file to those of transformers. ``numbers``,
    ``reals``: keys of whole and real numbers to fields of the configuration. ``config``: makes the rest of the
    configuration. ``keys``: makes the rest of the keys, and refuses what a file cannot say. ``turned``: parts
    whose plain weight transformers stores ``[in, out]``. ``heads``: parts whose rows are permuted, with the key of
    their number of heads. ``head``, ``table``: tied where the file has no head. ``has_factors``: a file may have those
    of rotations. ``pooler``: how names of tensors begin that files lack.
    """

    model: str
    whole: Mapping[str, str]
    block: Mapping[str, str]
    layers: str
    numbers: Mapping[str, str]
    reals: Mapping[str, str]
    config: Callable[[Fields], dict[str, Any]]
    keys: Callable[[Config], Keys]
    turned: frozenset[str] = frozenset()
    heads: Mapping[str, str] = field(default_factory=dict)
    head: str | None = None
    table: str | None = None
    has_factors: bool = False
    pooler: str | None = None


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


def config_of(architecture: Architecture, fields: Fields) -> dict[str, Any]:
    """Return the configuration of transformers that metadata say. Raises ContainerError for what is not read."""
    rest = architecture.config(fields)
    return {
        **{ours: fields.whole(key) for key, ours in architecture.numbers.items() if ours not in rest},
        **{ours: fields.real(key) for key, ours in architecture.reals.items()},
        **rest,
    }


def keys_of(architecture: Architecture, config: Config) -> Keys:
    """Return the metadata that a configuration of transformers is. Raises ModelError for what a file cannot say."""
    rest = architecture.keys(config)
    others = rest.needed.keys() | rest.customary.keys()
    numbers = {key: u32(config.whole(ours)) for key, ours in architecture.numbers.items() if key not in others}
    reals = {key: f32(config.real(ours)) for key, ours in architecture.reals.items()}
    return Keys({**numbers, **reals, **rest.needed}, {"vocab_size": u32(config.whole("vocab_size")), **rest.customary})


@dataclass(frozen=True)
class FilePlace:
    """Where a tensor of a model goes in a file: its name there, its place among others, and how its rows are ordered.

    ``heads``, ``turned``: as for :class:`Place`.
    """

    name: str
    order: tuple[int, ...]
    heads: int = 0
    turned: bool = False

    def row_order(self, rows: int) -> Tensor | None:
        """Return which row of the model each row of the file is; None where the order is the same."""
        order = Place(self.name, self.heads).row_order(rows)
        return None if order is None else order.argsort()


def file_place_of(name: str, architecture: Architecture, config: Config) -> FilePlace:
    """Return where a tensor of a model goes. Raises ModelError for a name that the architecture does not have."""
    path, _, kind = name.rpartition(".")
    whole, block = ({ours: part for part, ours in table.items()} for table in (architecture.whole, architecture.block))
    number, _, inside = path.removeprefix(f"{architecture.layers}.").partition(".")
    is_block = path.startswith(f"{architecture.layers}.") and _NUMBER.fullmatch(number) is not None
    part = block.get(inside) if is_block else whole.get(path)
    if part is None or kind not in ("weight", "bias"):
        raise ModelError(
            f"{config.place}: {shown(name)} of a {architecture.model} has no place in a GGUF file; this version does "
            "not write it"
        )
    if not is_block:
        names = list(architecture.whole)
        return FilePlace(f"{part}.{kind}", (2 * part.startswith("output"), 0, names.index(part), kind == "bias"))
    heads = 0
    if part in architecture.heads:
        heads = config.whole(architecture.numbers[architecture.heads[part]])
        if heads < 1:
            raise ModelError(f"{config.place}: {heads} heads; GGUF files hold models with some")
    order = (1, int(number), list(architecture.block).index(part), int(kind == "bias"))
    turned = part in architecture.turned and kind == "weight"
    return FilePlace(f"blk.{int(number)}.{part}.{kind}", order, heads, turned)


def architecture_of_class(place: str, model: str) -> tuple[str, Architecture]:
    """Return the architecture of a class of transformers, and its name. Raises ModelError for another class."""
    for name, architecture in ARCHITECTURES.items():
        if architecture.model == model:
            return name, architecture
    classes = ", ".join(architecture.model for architecture in ARCHITECTURES.values())
    raise ModelError(f"{place}: a {model}; GGUF files are written of {classes}")


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
        "num_key_value_heads": fields.whole("attention.head_count_kv", heads),
        "head_dim": size,
        "rope_parameters": _rotation(fields, size),
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
        "hidden_act": "silu",
    }


def _llama_keys(config: Config) -> Keys:
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


def _gpt2(fields: Fields) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": fields.rows("token_embd.weight"),
        "n_positions": fields.rows("position_embd.weight"),
        "activation_function": "gelu_new",
    }


def _gpt2_keys(config: Config) -> Keys:
    config.only("activation_function", "gelu_new")
    config.only("scale_attn_by_inverse_layer_idx", False)
    config.only("scale_attn_weights", True)
    config.only("add_cross_attention", False)
    inner = config.values.get("n_inner")
    inner = 4 * config.whole("n_embd") if inner is None else config.whole("n_inner")
    return Keys({"feed_forward_length": u32(inner)}, {})


def _bert(fields: Fields) -> dict[str, Any]:
    fields.without("attention.causal", False)
    return {
        "model_type": "bert",
        "vocab_size": fields.rows("token_embd.weight"),
        "max_position_embeddings": fields.rows("position_embd.weight"),
        "type_vocab_size": fields.rows("token_types.weight"),
        "hidden_act": "gelu",
    }


def _bert_keys(config: Config) -> Keys:
    config.only("hidden_act", "gelu")
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    return Keys({}, {"attention.causal": flag(False)})


def _sizes(width: str, inner: str, layers: str, heads: str, positions: str) -> dict[str, str]:
    """Return the keys of sizes that all architectures have, with the names of fields of a configuration."""
    return {
        "context_length": positions,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": heads,
    }


_USUAL_SIZES = _sizes(
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"
)

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
        numbers={**_USUAL_SIZES, "attention.head_count_kv": "num_key_value_heads"},
        reals={"attention.layer_norm_rms_epsilon": "rms_norm_eps"},
        config=_llama,
        keys=_llama_keys,
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
        numbers=_sizes("n_embd", "n_inner", "n_layer", "n_head", "n_positions"),
        reals={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        config=_gpt2,
        keys=_gpt2_keys,
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
        numbers=_USUAL_SIZES,
        reals={"attention.layer_norm_epsilon": "layer_norm_eps"},
        config=_bert,
        keys=_bert_keys,
        pooler="pooler.",
    ),
}
"""Architectures whose files become models, by ``general.architecture``."""
