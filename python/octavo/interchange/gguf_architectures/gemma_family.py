"""Gemma, Gemma 2 and Gemma 3: weights of norms are one more in files; some layers see a window alone."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_architectures.usual_decoder import (
    ATTENTION,
    BLOCK,
    GATED,
    NUMBERS,
    RMS,
    TIES,
    WHOLE,
    usual_config,
    usual_keys,
    with_bias,
)
from octavo.interchange.gguf_config import Config, Fields, Keys, head_size
from octavo.interchange.gguf_metadata import Typed, f32, u32
from octavo.interchange.gguf_rotation import BASE, rotation_of

_ACTIVATION = "gelu_pytorch_tanh"
_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # of Gemma 2 where a file has none
_WINDOW = "attention.sliding_window"
# Every so many layers, one sees all positions; the scale of scores is that of the heads' width in models of so many
# layers, which are those of 27 billion parameters, and of the size of a head in others.
_PATTERN2, _LARGE2 = 2, 46
_PATTERN3, _LARGE3 = 6, 62
_SLIDING, _FULL = "sliding_attention", "full_attention"


def _query_scalar(width: int, heads: int, size: int, *, is_large: bool) -> int:
    return width // max(heads, 1) if is_large else size


def _scalar_in(fields: Fields, size: int, large: int) -> int:
    is_large = fields.whole("block_count") == large
    return _query_scalar(
        fields.whole("embedding_length"), fields.whole("attention.head_count"), size, is_large=is_large
    )


def _check_scalar(config: Config, large: int) -> None:
    is_large = config.whole("num_hidden_layers") == large
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    expected = _query_scalar(width, heads, head_size(config), is_large=is_large)
    if config.values.get("query_pre_attn_scalar") != expected:
        raise config.refused("query_pre_attn_scalar", str(expected))


def _kinds(count: int, pattern: int) -> list[str]:
    return [_SLIDING if (layer + 1) % pattern else _FULL for layer in range(count)]


def _check_kinds(config: Config, pattern: int) -> None:
    kinds = config.values.get("layer_types")
    if kinds is not None and list(kinds) != _kinds(config.whole("num_hidden_layers"), pattern):
        raise config.refused("layer_types", f"{_FULL!r} for every layer number {pattern} and {_SLIDING!r} for others")


def _common_config(fields: Fields, model_type: str, base: float = BASE) -> dict[str, Any]:
    return {
        **usual_config(fields, model_type, base=base),
        "hidden_activation": _ACTIVATION,
        "attention_bias": with_bias(fields, "attn_q"),
    }


def _check_common(config: Config) -> None:
    config.only("hidden_activation", _ACTIVATION)
    config.only("use_bidirectional_attention", False)


def _gemma_config(fields: Fields) -> dict[str, Any]:
    return {**_common_config(fields, "gemma"), "hidden_act": _ACTIVATION}


def _gemma_keys(config: Config) -> Keys:
    _check_common(config)
    config.only("hidden_act", _ACTIVATION)
    return usual_keys(config, always_size=True)


def _gemma2_config(fields: Fields) -> dict[str, Any]:
    config = _common_config(fields, "gemma2")
    return {
        **config,
        "query_pre_attn_scalar": _scalar_in(fields, config["head_dim"], _LARGE2),
        "sliding_window": fields.whole(_WINDOW, 4096),
        "layer_types": _kinds(fields.whole("block_count"), _PATTERN2),
        **{name: fields.real(name, cap) for name, cap in _CAPS.items()},
    }


def _gemma2_keys(config: Config) -> Keys:
    _check_common(config)
    _check_scalar(config, _LARGE2)
    _check_kinds(config, _PATTERN2)
    own: dict[str, Typed] = {name: f32(config.real(name)) for name in _CAPS}
    return usual_keys(config, always_size=True) | Keys({**own, _WINDOW: u32(config.whole("sliding_window"))}, {})


def _gemma3_config(fields: Fields) -> dict[str, Any]:
    config = _common_config(fields, "gemma3_text", 1e6)
    window = fields.whole(_WINDOW, 0)
    cap = "final_logit_softcapping"
    local = {"rope_type": "default", "rope_theta": fields.real("rope.freq_base_swa", BASE)}
    return {
        **config,
        "rope_parameters": {_FULL: config["rope_parameters"], _SLIDING: local},
        "query_pre_attn_scalar": _scalar_in(fields, config["head_dim"], _LARGE3),
        "sliding_window": window or None,
        "layer_types": _kinds(fields.whole("block_count"), _PATTERN3 if window else 1),
        cap: fields.real(cap) if f"{fields.architecture}.{cap}" in fields.file.metadata else None,
    }


def _gemma3_keys(config: Config) -> Keys:
    _check_common(config)
    config.only("attn_logit_softcapping")
    _check_scalar(config, _LARGE3)
    _check_kinds(config, _PATTERN3 if config.values.get("sliding_window") is not None else 1)
    own: dict[str, Typed] = {}
    if config.values.get("sliding_window") is not None:
        own[_WINDOW] = u32(config.whole("sliding_window"))
    if config.values.get("final_logit_softcapping") is not None:
        own["final_logit_softcapping"] = f32(config.real("final_logit_softcapping"))
    local = rotation_of(config, _SLIDING)
    local.only("rope_type", "default")
    if (base := local.real("rope_theta")) != BASE:
        own["rope.freq_base_swa"] = f32(base)
    whole = Config(config.place, {**config.values, "rope_parameters": rotation_of(config, _FULL).values})
    rotated = usual_keys(whole, always_size=True)
    own["rope.freq_base"] = f32(rotation_of(config, _FULL).real("rope_theta"))
    return Keys(rotated.needed, rotated.customary) | Keys(own, {})


GEMMA = Architecture(
    name="gemma",
    model="GemmaForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block=BLOCK,
    numbers=NUMBERS,
    reals=RMS,
    config=_gemma_config,
    keys=_gemma_keys,
    added=1.0,
    **TIES,
)
GEMMA2 = Architecture(
    name="gemma2",
    model="Gemma2ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={**ATTENTION, **GATED, **_NORMS},
    numbers=NUMBERS,
    reals=RMS,
    config=_gemma2_config,
    keys=_gemma2_keys,
    added=1.0,
    **TIES,
)
GEMMA3 = Architecture(
    name="gemma3",
    model="Gemma3ForCausalLM",
    whole=WHOLE,
    layers="model.layers",
    block={
        **ATTENTION,
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        **GATED,
        **_NORMS,
    },
    numbers=NUMBERS,
    reals=RMS,
    config=_gemma3_config,
    keys=_gemma3_keys,
    added=1.0,
    **TIES,
)
