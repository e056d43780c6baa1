"""Llama and Mistral, Mixtral, SmolLM3 and Granite: rows of q and k have the halves of a rotation in turns."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_architecture import GROUPS, HEADS, Architecture, halves_of, of_one_kind
from octavo.interchange.gguf_architectures.usual_decoder import (
    BLOCK,
    NUMBERS,
    RMS,
    TIES,
    WHOLE,
    usual_config,
    usual_keys,
    with_bias,
    without_windows,
)
from octavo.interchange.gguf_config import Config, Fields, Keys
from octavo.interchange.gguf_metadata import f32, u32
from octavo.interchange.gguf_rotation import FACTORS, llama3_factors

ORDERS = {"attn_q": halves_of(HEADS), "attn_k": halves_of(GROUPS)}
_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_NOPE_STEP = 4  # of SmolLM3: every fourth layer has no rotations


def _biases(fields: Fields) -> dict[str, Any]:
    return {
        "attention_bias": with_bias(fields, "attn_q"),
        "mlp_bias": with_bias(fields, "ffn_up"),
        "hidden_act": "silu",
    }


def _llama_config(fields: Fields) -> dict[str, Any]:
    return {**usual_config(fields, "llama"), **_biases(fields)}


def _llama_keys(config: Config) -> Keys:
    config.only("hidden_act", "silu")
    config.only("sliding_window")
    return usual_keys(config)


def has_experts(file: GgufFile) -> bool:
    """Whether a file has experts."""
    return not of_one_kind(file)


def _mixtral_config(fields: Fields) -> dict[str, Any]:
    return {
        **usual_config(fields, "mixtral"),
        "num_local_experts": fields.whole("expert_count"),
        "num_experts_per_tok": fields.whole("expert_used_count"),
        "hidden_act": "silu",
    }


def _mixtral_keys(config: Config) -> Keys:
    experts = {
        "expert_count": u32(config.whole("num_local_experts")),
        "expert_used_count": u32(config.whole("num_experts_per_tok")),
    }
    return _llama_keys(config) | Keys(experts, {})


def _smollm3_config(fields: Fields) -> dict[str, Any]:
    return {
        **usual_config(fields, "smollm3", has_size=False),
        **_biases(fields),
        "no_rope_layer_interval": _NOPE_STEP,
        "pad_token_id": None,  # the default is beyond small vocabularies
    }


def _smollm3_keys(config: Config) -> Keys:
    config.only("hidden_act", "silu")
    without_windows(config)
    count = config.whole("num_hidden_layers")
    if config.values.get("no_rope_layers") != [int((layer + 1) % _NOPE_STEP != 0) for layer in range(count)]:
        raise config.refused("no_rope_layers", f"0 for every layer number {_NOPE_STEP} and 1 for others")
    return usual_keys(config)


def _granite_config(fields: Fields) -> dict[str, Any]:
    scales = {ours: fields.real(key, 0.0) for key, ours in _SCALES.items() if _is_there(fields, key)}
    return {**usual_config(fields, "granite", has_size=False), **_biases(fields), **scales}


def _is_there(fields: Fields, key: str) -> bool:
    return f"{fields.architecture}.{key}" in fields.file.metadata


def _granite_keys(config: Config) -> Keys:
    scales = Keys({key: f32(config.real(name)) for key, name in _SCALES.items()}, {})
    return _llama_keys(config) | scales


LLAMA = Architecture(
    name="llama",
    model="LlamaForCausalLM",
    others=("MistralForCausalLM",),
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals=RMS,
    config=_llama_config,
    keys=_llama_keys,
    orders=ORDERS,
    factor_names=(FACTORS,),
    factors=llama3_factors,
    **TIES,
)
MIXTRAL = Architecture(
    name="llama",
    model="MixtralForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={**{part: path for part, path in BLOCK.items() if "mlp" not in path}, "ffn_gate_inp": "mlp.gate"},
    numbers=NUMBERS,
    reals=RMS,
    config=_mixtral_config,
    keys=_mixtral_keys,
    is_in=has_experts,
    orders=ORDERS,
    experts="mlp.experts",
    factor_names=(FACTORS,),
    factors=llama3_factors,
    **TIES,
)
SMOLLM3 = Architecture(
    name="smollm3",
    model="SmolLM3ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals=RMS,
    config=_smollm3_config,
    keys=_smollm3_keys,
    orders=ORDERS,
    factor_names=(FACTORS,),
    factors=llama3_factors,
    **TIES,
)
GRANITE = Architecture(
    name="granite",
    model="GraniteForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals=RMS,
    config=_granite_config,
    keys=_granite_keys,
    orders=ORDERS,
    factor_names=(FACTORS,),
    factors=llama3_factors,
    **TIES,
)
