"""GPT-2: learned positions, and weights that transformers stores ``[in, out]``."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.usual_decoder import LAYER_NORM
from octavo.interchange.gguf_config import Config, Fields, Keys, sizes
from octavo.interchange.gguf_metadata import u32


def _gpt2_config(fields: Fields) -> dict[str, Any]:
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


GPT2 = Architecture(
    name="gpt2",
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
    reals={LAYER_NORM: "layer_norm_epsilon"},
    config=_gpt2_config,
    keys=_gpt2_keys,
    turned=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    head="lm_head.weight",
    table="transformer.wte.weight",
)
