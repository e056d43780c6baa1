"""OLMo 2: norms stand behind attention and MLP, and over all heads of queries and of keys."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.usual_decoder import (
    ATTENTION,
    GATED,
    NUMBERS,
    RMS,
    TIES,
    WHOLE,
    plain_keys,
    usual_config,
    with_bias,
)
from octavo.interchange.gguf_config import Fields


def _olmo2_config(fields: Fields) -> dict[str, Any]:
    fields.without("attention.sliding_window", 0)
    return {
        **usual_config(fields, "olmo2", has_size=False),
        "attention_bias": with_bias(fields, "attn_q"),
        "hidden_act": "silu",
    }


OLMO2 = Architecture(
    name="olmo2",
    model="Olmo2ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={
        **ATTENTION,
        "post_attention_norm": "post_attention_layernorm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_ffw_norm": "post_feedforward_layernorm",
        **GATED,
    },
    numbers=NUMBERS,
    reals=RMS,
    config=_olmo2_config,
    keys=plain_keys({"hidden_act": ("silu",)}),
    **TIES,
)
