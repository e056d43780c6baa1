"""Phi-3 and Phi-4: queries, keys and values are one matrix, gate and up another, in files as in the model."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import GROUPS, HEADS, Architecture
from octavo.interchange.gguf_architectures.usual_decoder import NUMBERS, RMS, TIES, WHOLE
from octavo.interchange.gguf_config import Config, Fields, Keys, head_size
from octavo.interchange.gguf_metadata import Typed, u32
from octavo.interchange.gguf_rotation import LONG_FACTORS, SHORT_FACTORS, long_factors, long_keys, long_rotation

_WINDOW = "attention.sliding_window"


def _phi3_config(fields: Fields) -> dict[str, Any]:
    heads = fields.whole(HEADS)
    size = fields.whole("embedding_length") // max(heads, 1)
    parameters = long_rotation(fields, size)
    original = parameters.get("original_max_position_embeddings", fields.whole("context_length"))
    return {
        "model_type": "phi3",
        "vocab_size": fields.rows("token_embd.weight"),
        "num_key_value_heads": fields.whole(GROUPS, heads),
        "rope_parameters": parameters,
        "original_max_position_embeddings": original,
        "sliding_window": fields.whole(_WINDOW, 0) or None,
        "hidden_act": "silu",
        "pad_token_id": None,  # the default is beyond small vocabularies
    }


def _phi3_keys(config: Config) -> Keys:
    config.only("hidden_act", "silu")
    window = config.values.get("sliding_window")
    own: dict[str, Typed] = {
        GROUPS: u32(config.whole("num_key_value_heads")),
        _WINDOW: u32(0 if window is None else config.whole("sliding_window")),
    }
    return Keys(own, {}) | long_keys(config, head_size(config))


PHI3 = Architecture(
    name="phi3",
    model="Phi3ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    numbers=NUMBERS,
    reals=RMS,
    config=_phi3_config,
    keys=_phi3_keys,
    factor_names=(LONG_FACTORS, SHORT_FACTORS),
    factors=long_factors,
    **TIES,
)
