"""Falcon: attention and MLP stand side by side, behind one norm or two; queries, keys and values are one matrix."""

from __future__ import annotations

from typing import Any

from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_architecture import GROUPS, HEADS, Architecture, grouped, of_one_kind
from octavo.interchange.gguf_architectures.usual_decoder import LAYER_NORM, with_bias
from octavo.interchange.gguf_config import USUAL_SIZES, Config, Fields, Keys
from octavo.interchange.gguf_metadata import Typed, text, u32
from octavo.interchange.gguf_rotation import rotation, rotation_keys

_SECOND = "blk.0.attn_norm_2.weight"
_WHOLE = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
_BLOCK = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_LAYOUT, _JPLOSKI = "tensor_data_layout", "jploski"  # queries, keys and values apart


def _falcon_config(fields: Fields) -> dict[str, Any]:
    fields.without(_LAYOUT, _JPLOSKI)
    heads, groups = fields.whole(HEADS), fields.whole(GROUPS, 1)
    norms = 2 if _SECOND in fields.file.tensors else 1
    is_new = norms == 2 or groups != 1
    return {
        "model_type": "falcon",
        "vocab_size": fields.rows("token_embd.weight"),
        "num_kv_heads": groups if is_new else heads,
        "new_decoder_architecture": is_new,
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "bias": with_bias(fields, "attn_qkv"),
        "num_ln_in_parallel_attn": norms if is_new else None,
        "ffn_hidden_size": fields.whole("feed_forward_length"),
        "rope_parameters": rotation(fields, fields.whole("embedding_length") // max(heads, 1)),
        "activation": "gelu",
    }


def _falcon_keys(config: Config) -> Keys:
    config.only("activation", "gelu")
    config.only("alibi", False)
    is_new = config.values.get("new_decoder_architecture") is True
    if not is_new:
        config.only("multi_query", True)
    config.only("parallel_attn", True)
    own: dict[str, Typed] = {
        GROUPS: u32(config.whole("num_kv_heads") if is_new else 1),
        "feed_forward_length": u32(config.whole("ffn_hidden_size")),
    }
    own[_LAYOUT] = text(_JPLOSKI)
    size = config.whole("hidden_size") // max(config.whole("num_attention_heads"), 1)
    return Keys(own, {}) | rotation_keys(config, size)


def _has_two(file: GgufFile) -> bool:
    return of_one_kind(file) and _SECOND in file.tensors


def _is_of_two(config: Config) -> bool:
    return config.values.get("new_decoder_architecture") is True and config.values.get("num_ln_in_parallel_attn") in (
        None,
        2,
    )


_NUMBERS = {key: ours for key, ours in USUAL_SIZES.items() if key != "feed_forward_length"}
FALCON = Architecture(
    name="falcon",
    model="FalconForCausalLM",
    whole=_WHOLE,
    layers="transformer.h",
    block={"attn_norm": "input_layernorm", **_BLOCK},
    numbers=_NUMBERS,
    reals={LAYER_NORM: "layer_norm_epsilon"},
    config=_falcon_config,
    keys=_falcon_keys,
    is_in=lambda file: of_one_kind(file) and not _has_two(file),
    is_of=lambda config: not _is_of_two(config),
    orders={"attn_qkv": grouped},
    head="lm_head.weight",
    table="transformer.word_embeddings.weight",
)
FALCON_TWO_NORMS = Architecture(
    name="falcon",
    model="FalconForCausalLM",
    whole=_WHOLE,
    layers="transformer.h",
    block={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn", **_BLOCK},
    numbers=_NUMBERS,
    reals={LAYER_NORM: "layer_norm_epsilon"},
    config=_falcon_config,
    keys=_falcon_keys,
    is_in=_has_two,
    is_of=_is_of_two,
    orders={"attn_qkv": grouped},
    head="lm_head.weight",
    table="transformer.word_embeddings.weight",
)
