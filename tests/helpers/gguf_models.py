"""Models of transformers written as GGUF files, as llama.cpp's converter does: names, permuted rows, metadata."""

import numpy as np

from helpers.gguf_files import gguf

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_1": 3, "IQ4_NL": 20, "BF16": 30}
BOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)  # of IQ4_NL
BLOCK = {
    "llama": {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    "gpt2": {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    "bert": {
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
}  # fmt: skip
WHOLE = {
    "llama": {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
    "gpt2": {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"},
    "bert": {
        "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
        "embeddings.token_type_embeddings": "token_types", "embeddings.position_embeddings": "position_embd",
    },
}  # fmt: skip
LAYERS = {"llama": "model.layers.", "gpt2": "transformer.h.", "bert": "encoder.layer."}


def blocks(matrix, kind):
    """The bytes of a matrix in a type, by the rules of ggml's encoders, or near them."""
    if kind in ("F32", "F16"):
        return matrix.astype(np.float32 if kind == "F32" else np.float16).tobytes()
    x = matrix.reshape(-1, 32).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # blocks of zeros have scale 0
        return _coded(x, kind)


def _coded(x, kind):
    if kind == "Q8_0":
        d = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16)
        codes = np.clip(np.round(_ratio(x, d)), -127, 127).astype(np.int8).view(np.uint8)
        return np.concatenate([d.view(np.uint8), codes], 1).tobytes()
    if kind == "Q4_0":
        d = (np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1) / -8).astype(np.float16)
        codes = np.clip(np.round(_ratio(x, d)) + 8, 0, 15).astype(np.uint8)
        head = [d.view(np.uint8)]
    elif kind == "IQ4_NL":
        d = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16)
        codes = np.abs(_ratio(x, d)[..., None] - BOOK).argmin(-1).astype(np.uint8)
        head = [d.view(np.uint8)]
    else:
        low = x.min(1, keepdims=True).astype(np.float16)
        d = ((x.max(1, keepdims=True) - low) / 15).astype(np.float16)
        codes = np.clip(np.round(_ratio(x - low, d)), 0, 15).astype(np.uint8)
        head = [d.view(np.uint8), low.view(np.uint8)]
    return np.concatenate([*head, codes[:, :16] | codes[:, 16:] << 4], 1).tobytes()


def _ratio(x, d):
    return np.where(d == 0, 0, x / d.astype(np.float32))


def permuted(weight, heads):
    """Rows of q and k as llama.cpp has them."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def name_in(file, name):
    """The name of a tensor in a file of an architecture; None where the file has it not."""
    path, _, kind = name.rpartition(".")
    if path in WHOLE[file]:
        return f"{WHOLE[file][path]}.{kind}"
    number, _, part = path.removeprefix(LAYERS[file]).partition(".")
    return f"blk.{number}.{BLOCK[file][part]}.{kind}" if part in BLOCK[file] else None


def metadata(model, architecture):
    """Keys and values of a model's file."""
    config, key = model.config, architecture
    keys = [
        ("general.architecture", "str", architecture),
        (f"{key}.context_length", "u32", config.max_position_embeddings),
        (f"{key}.embedding_length", "u32", config.hidden_size),
        (f"{key}.block_count", "u32", config.num_hidden_layers),
        (f"{key}.feed_forward_length", "u32", config.n_inner if key == "gpt2" else config.intermediate_size),
        (f"{key}.attention.head_count", "u32", config.num_attention_heads),
    ]
    if architecture == "llama":
        keys += [
            ("llama.attention.head_count_kv", "u32", config.num_key_value_heads),
            ("llama.attention.layer_norm_rms_epsilon", "f32", config.rms_norm_eps),
            ("llama.rope.dimension_count", "u32", config.head_dim),
            ("llama.rope.freq_base", "f32", config.rope_parameters["rope_theta"]),
            ("llama.vocab_size", "u32", config.vocab_size),
        ]
    else:
        epsilon = config.layer_norm_epsilon if key == "gpt2" else config.layer_norm_eps
        keys += [(f"{key}.attention.layer_norm_epsilon", "f32", epsilon)]
    return keys


def tensors(model, architecture, kind_of):
    """The tensors of a model's file; ``kind_of`` gives the type of a matrix by its name there."""
    found, config = [], model.config
    for name, value in model.state_dict().items():
        own = name_in(architecture, name)
        if own is None or (own == "output.weight" and config.tie_word_embeddings):
            continue
        array = value.numpy()
        if ".attn_q." in own and architecture == "llama":
            array = permuted(array, config.num_attention_heads)
        if ".attn_k." in own and architecture == "llama":
            array = permuted(array, config.num_key_value_heads)
        if architecture == "gpt2" and own.startswith("blk.") and array.ndim == 2:
            array = array.T.copy()
        keeps = array.ndim == 1 or own in ("position_embd.weight", "token_types.weight")
        kind = "F32" if keeps else kind_of(own)
        found.append((own, TYPES[kind], array.shape, blocks(array, kind)))
    return found


def file_of(model, architecture, kind_of, more=(), leave=()):
    """The bytes of a model's GGUF file; ``more``: metadata, which come last; ``leave``: tensors that are left out."""
    return gguf(
        [*metadata(model, architecture), *more],
        [tensor for tensor in tensors(model, architecture, kind_of) if tensor[0] not in leave],
    )
