"""What most decoders have in common: names of their tensors, and keys of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.interchange.gguf_architecture import GROUPS, HEADS
from octavo.interchange.gguf_config import USUAL_SIZES, Config, Fields, Keys, all_rotated, head_size, size_in, size_keys
from octavo.interchange.gguf_metadata import u32
from octavo.interchange.gguf_rotation import BASE, rotation, rotation_keys

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
BLOCK = {
    "attn_norm": "input_layernorm",
    **ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    **GATED,
}
NUMBERS = {**USUAL_SIZES, GROUPS: "num_key_value_heads"}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
LAYER_NORM = "attention.layer_norm_epsilon"
TIES: dict[str, Any] = {"head": "lm_head.weight", "table": "model.embed_tokens.weight"}


def usual_config(fields: Fields, model_type: str, *, has_size: bool = True, base: float = BASE) -> dict[str, Any]:
    """Return the configuration that most decoders have. Raises ContainerError for what is not read.

    ``has_size``: the configuration has the size of a head; else it is the width over the heads. ``base``: of rotations.
    """
    size = size_in(fields)
    heads = fields.whole(HEADS)
    usual = fields.whole("embedding_length") // max(heads, 1)
    if not has_size and size != usual:
        raise fields.refused("attention.key_length", size, f"{usual}, the width over the heads")
    all_rotated(fields, size)
    return {
        "model_type": model_type,
        "vocab_size": fields.rows("token_embd.weight"),
        "num_key_value_heads": fields.whole(GROUPS, heads),
        **({"head_dim": size} if has_size else {}),
        "rope_parameters": rotation(fields, size, base=base),
    }


def usual_keys(config: Config, *, always_size: bool = False) -> Keys:
    """Return the keys that most decoders have: heads, their size, rotations. Raises ModelError for other rotations.

    ``always_size``: files have the size of a head, whatever it is.
    """
    heads, size = config.whole("num_attention_heads"), head_size(config)
    groups = u32(config.whole("num_key_value_heads"))
    if groups.value == heads:
        own = Keys(size_keys(config, always=always_size), {GROUPS: groups})
    else:
        own = Keys({**size_keys(config, always=always_size), GROUPS: groups}, {})
    return own | rotation_keys(config, size)


def without_windows(config: Config) -> None:
    """Refuse a configuration some of whose layers see a window alone."""
    config.only("use_sliding_window", False)
    kinds = config.values.get("layer_types")
    if kinds is not None and any(kind != "full_attention" for kind in kinds):
        raise config.refused("layer_types", "'full_attention' alone")


def with_bias(fields: Fields, part: str) -> bool:
    """Whether the first block of a file has a bias of a part."""
    return f"blk.0.{part}.bias" in fields.file.tensors


def plain_keys(check: Mapping[str, tuple[object, ...]]) -> Callable[[Config], Keys]:
    """Return what makes the usual keys; ``check``: fields with the values that a file can say."""

    def keys(config: Config) -> Keys:
        for name, accepted in check.items():
            config.only(name, *accepted)
        without_windows(config)
        return usual_keys(config)

    return keys
