"""GPT-NeoX (Pythia) and StableLM: part of each head turns, and attention and MLP may stand side by side."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import GROUPS, HEADS, Architecture, grouped
from octavo.interchange.gguf_architectures.usual_decoder import BLOCK, LAYER_NORM, NUMBERS, TIES, WHOLE, with_bias
from octavo.interchange.gguf_config import USUAL_SIZES, Config, Fields, Keys, head_size
from octavo.interchange.gguf_metadata import flag, u32
from octavo.interchange.gguf_rotation import partial_keys, partial_rotation

_PARALLEL = "use_parallel_residual"


def _gptneox_config(fields: Fields) -> dict[str, Any]:
    size = fields.whole("embedding_length") // max(fields.whole(HEADS), 1)
    return {
        "model_type": "gpt_neox",
        "vocab_size": fields.rows("token_embd.weight"),
        "use_parallel_residual": fields.flag(_PARALLEL, default=True),
        "attention_bias": with_bias(fields, "attn_qkv"),
        "rope_parameters": partial_rotation(fields, size),
        "hidden_act": "gelu",
    }


def _gptneox_keys(config: Config) -> Keys:
    config.only("hidden_act", "gelu")
    side_by_side = {_PARALLEL: flag(config.values.get("use_parallel_residual") is not False)}
    return Keys(side_by_side, {}) | partial_keys(config, head_size(config))


def _stablelm_config(fields: Fields) -> dict[str, Any]:
    heads = fields.whole(HEADS)
    size = fields.whole("embedding_length") // max(heads, 1)
    tensors = fields.file.tensors
    return {
        "model_type": "stablelm",
        "vocab_size": fields.rows("token_embd.weight"),
        "num_key_value_heads": fields.whole(GROUPS, heads),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
        "use_qkv_bias": with_bias(fields, "attn_q"),
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "rope_parameters": partial_rotation(fields, size),
        "hidden_act": "silu",
    }


def _stablelm_keys(config: Config) -> Keys:
    config.only("hidden_act", "silu")
    own = {
        GROUPS: u32(config.whole("num_key_value_heads")),
        _PARALLEL: flag(config.values.get("use_parallel_residual") is True),
    }
    return Keys(own, {}) | partial_keys(config, head_size(config))


GPTNEOX = Architecture(
    name="gptneox",
    model="GPTNeoXForCausalLM",
    whole={"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "lm_head"},
    layers="gpt_neox.layers",
    block={
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    numbers=USUAL_SIZES,
    reals={LAYER_NORM: "layer_norm_eps"},
    config=_gptneox_config,
    keys=_gptneox_keys,
    orders={"attn_qkv": grouped},
    head="lm_head.weight",
    table="gpt_neox.embed_in.weight",
)
STABLELM = Architecture(
    name="stablelm",
    model="StableLmForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals={LAYER_NORM: "layer_norm_eps"},
    config=_stablelm_config,
    keys=_stablelm_keys,
    stacked={
        "attn_q_norm": "self_attn.q_layernorm.norms.{}",
        "attn_k_norm": "self_attn.k_layernorm.norms.{}",
    },
    **TIES,
)
