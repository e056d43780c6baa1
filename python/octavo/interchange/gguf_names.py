"""Architectures of GGUF files: names of tensors, the configuration of transformers, and rows that are permuted.

Every table is read in both directions: a file becomes a model, and a model a file.

Source: llama.cpp, ``gguf-py/gguf/tensor_mapping.py`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError, ModelError
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_config import (
    USUAL_SIZES,
    Config,
    Fields,
    Keys,
    bert_config,
    bert_keys,
    gpt2_config,
    gpt2_keys,
    llama_config,
    llama_keys,
    sizes,
)
from octavo.interchange.gguf_metadata import f32, u32
from octavo.storage.reading import shown

_NUMBER = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
_NAME = re.compile(r"(?:blk\.(0|[1-9]\d{0,5})\.)?(\w+)\.(weight|bias)", re.ASCII)


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
        numbers={**USUAL_SIZES, "attention.head_count_kv": "num_key_value_heads"},
        reals={"attention.layer_norm_rms_epsilon": "rms_norm_eps"},
        config=llama_config,
        keys=llama_keys,
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
        numbers=sizes("n_embd", "n_inner", "n_layer", "n_head", "n_positions"),
        reals={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        config=gpt2_config,
        keys=gpt2_keys,
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
        numbers=USUAL_SIZES,
        reals={"attention.layer_norm_epsilon": "layer_norm_eps"},
        config=bert_config,
        keys=bert_keys,
        pooler="pooler.",
    ),
}
"""Architectures whose files become models, by ``general.architecture``."""
