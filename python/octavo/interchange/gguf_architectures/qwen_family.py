"""Qwen2, Qwen3 and Qwen3-MoE."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.llama_family import has_experts
from octavo.interchange.gguf_architectures.usual_decoder import (
    BLOCK,
    NUMBERS,
    RMS,
    TIES,
    WHOLE,
    plain_keys,
    usual_config,
    usual_keys,
    with_bias,
    without_windows,
)
from octavo.interchange.gguf_config import Config, Fields, Keys
from octavo.interchange.gguf_metadata import u32

_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_EXPERT_WIDTH = "expert_feed_forward_length"


def _qwen2_config(fields: Fields) -> dict[str, Any]:
    return {**usual_config(fields, "qwen2", has_size=False), "hidden_act": "silu", "use_sliding_window": False}


def _qwen3_config(fields: Fields) -> dict[str, Any]:
    return {
        **usual_config(fields, "qwen3"),
        "attention_bias": with_bias(fields, "attn_q"),
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3_keys(config: Config) -> Keys:
    config.only("hidden_act", "silu")
    without_windows(config)
    return usual_keys(config, always_size=True)


def _qwen3moe_config(fields: Fields) -> dict[str, Any]:
    return {
        **_qwen3_config(fields),
        "model_type": "qwen3_moe",
        "num_experts": fields.whole("expert_count"),
        "num_experts_per_tok": fields.whole("expert_used_count"),
        "moe_intermediate_size": fields.whole(_EXPERT_WIDTH),
        "norm_topk_prob": True,  # llama.cpp always does
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen3moe_keys(config: Config) -> Keys:
    if config.values.get("norm_topk_prob") is not True:
        raise config.refused("norm_topk_prob", "True")
    config.only("decoder_sparse_step", 1)
    if config.values.get("mlp_only_layers"):
        raise config.refused("mlp_only_layers", "models with experts in every layer")
    count = "num_experts" if "num_experts" in config.values else "num_local_experts"  # either, by transformers' version
    experts = {
        "expert_count": u32(config.whole(count)),
        "expert_used_count": u32(config.whole("num_experts_per_tok")),
        _EXPERT_WIDTH: u32(config.whole("moe_intermediate_size")),
    }
    return _qwen3_keys(config) | Keys(experts, {})


QWEN2 = Architecture(
    name="qwen2",
    model="Qwen2ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals=RMS,
    config=_qwen2_config,
    keys=plain_keys({"hidden_act": ("silu",)}),
    **TIES,
)
QWEN3 = Architecture(
    name="qwen3",
    model="Qwen3ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={**BLOCK, **_NORMS},
    numbers=NUMBERS,
    reals=RMS,
    config=_qwen3_config,
    keys=_qwen3_keys,
    **TIES,
)
QWEN3MOE = Architecture(
    name="qwen3moe",
    model="Qwen3MoeForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={
        **{part: path for part, path in BLOCK.items() if "mlp" not in path},
        **_NORMS,
        "ffn_gate_inp": "mlp.gate",
    },
    numbers=NUMBERS,
    reals=RMS,
    config=_qwen3moe_config,
    keys=_qwen3moe_keys,
    is_in=has_experts,
    experts="mlp.experts",
    **TIES,
)
