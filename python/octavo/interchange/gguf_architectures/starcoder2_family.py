"""StarCoder2: layer norms with biases, and an MLP without a gate."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.usual_decoder import (
    ATTENTION,
    LAYER_NORM,
    NUMBERS,
    TIES,
    WHOLE,
    plain_keys,
    usual_config,
    with_bias,
)
from octavo.interchange.gguf_config import Fields

_ACTIVATION = "gelu_pytorch_tanh"


def _starcoder2_config(fields: Fields) -> dict[str, Any]:
    return {
        **usual_config(fields, "starcoder2", has_size=False),
        "use_bias": with_bias(fields, "attn_q"),
        "hidden_act": _ACTIVATION,
        "sliding_window": None,
    }


STARCODER2 = Architecture(
    name="starcoder2",
    model="Starcoder2ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={
        "attn_norm": "input_layernorm",
        **ATTENTION,
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    numbers=NUMBERS,
    reals={LAYER_NORM: "norm_epsilon"},
    config=_starcoder2_config,
    keys=plain_keys({"hidden_act": (_ACTIVATION,), "sliding_window": ()}),
    **TIES,
)
