"""Models of transformers as GGUF files, as llama.cpp's converter makes them, by gguf-py: names, metadata, order of rows."""

import math

import gguf
import numpy as np

from helpers.gguf_models import permuted

ARCHITECTURE = {
    "Llama": "llama", "Mistral": "llama", "Mixtral": "llama", "SmolLM3": "smollm3", "Qwen2": "qwen2", "Qwen3": "qwen3",
    "Qwen3Moe": "qwen3moe", "Gemma": "gemma", "Gemma2": "gemma2", "Gemma3": "gemma3", "Phi3": "phi3",
    "GPTNeoX": "gptneox", "Falcon": "falcon", "StableLm": "stablelm", "Granite": "granite", "Olmo2": "olmo2",
    "Starcoder2": "starcoder2",
}  # fmt: skip
PERMUTED = ("llama", "smollm3", "granite")
LAYER_NORMS = {
    "gptneox": "layer_norm_eps", "falcon": "layer_norm_epsilon", "stablelm": "layer_norm_eps",
    "starcoder2": "norm_epsilon",
}  # fmt: skip


def architecture_of(model):
    return ARCHITECTURE[type(model).__name__.removesuffix("ForCausalLM")]


def groups_of(model):
    """Heads of keys and values."""
    config = model.config
    if architecture_of(model) == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def ungrouped(weight, heads, groups, width):
    """Rows of queries, keys and values of each group as all queries, all keys, all values."""
    size = width // heads
    rows = weight.reshape(groups, heads // groups + 2, size, *weight.shape[1:])
    parts = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])


def converted(model):
    """Tensors of a file by name."""
    config, own = model.config, architecture_of(model)
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == own)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    found, stacks = {}, {}
    for name, value in model.state_dict().items():
        array = value.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        layer = name.split(".")[2] if ".layers." in name else None
        if name.endswith("mlp.experts.gate_up_proj"):
            half = array.shape[1] // 2
            found[f"blk.{layer}.ffn_gate_exps.weight"] = array[:, :half]
            found[f"blk.{layer}.ffn_up_exps.weight"] = array[:, half:]
            continue
        if name.endswith("mlp.experts.down_proj"):
            found[f"blk.{layer}.ffn_down_exps.weight"] = array
            continue
        if "layernorm.norms." in name:
            stacks.setdefault(name.partition(".norms.")[0] + ".weight", []).append(array)
            continue
        if own in PERMUTED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            array = permuted(array, config.num_attention_heads if ".q_proj" in name else groups_of(model))
        if own in ("gptneox", "falcon") and "query_key_value" in name:
            groups = config.num_attention_heads if own == "gptneox" else groups_of(model)
            array = ungrouped(array, config.num_attention_heads, groups, config.hidden_size)
        if own.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    for name, parts in stacks.items():
        found[names.get_name(name, try_suffixes=(".weight",))] = np.stack(parts)
    return found


def add_metadata(writer, model):
    config, own = model.config, architecture_of(model)
    heads, width = config.num_attention_heads, config.hidden_size
    size = getattr(config, "head_dim", None) or width // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.ffn_hidden_size if own == "falcon" else config.intermediate_size)
    writer.add_head_count(heads)
    if own in LAYER_NORMS:
        writer.add_layer_norm_eps(getattr(config, LAYER_NORMS[own]))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if own != "gptneox":
        writer.add_head_count_kv(groups_of(model))
    if size != width // heads or own.startswith(("gemma", "qwen3")):
        writer.add_key_length(size)
        writer.add_value_length(size)
    if own == "falcon":
        writer.add_tensor_data_layout("jploski")
    if own in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if own == "llama":
        writer.add_vocab_size(config.vocab_size)
    add_rotations(writer, model, size)
    if own in ("gemma2", "gemma3") and config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if own == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if own == "gemma3" and config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if own == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if own == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if own == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def add_rotations(writer, model, size):
    config, own = model.config, architecture_of(model)
    values = config.rope_parameters
    values = values.get("full_attention", values)
    share = values.get("partial_rotary_factor", 1.0)
    writer.add_rope_freq_base(values["rope_theta"])
    if own not in ("qwen2", "qwen3", "qwen3moe", "falcon", "olmo2", "starcoder2") and not own.startswith("gemma"):
        writer.add_rope_dimension_count(int(size * share))
    kind = values["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(values["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(values["original_max_position_embeddings"])
    original = values.get("original_max_position_embeddings", config.max_position_embeddings)
    if own == "phi3":
        writer.add_rope_scaling_orig_ctx_len(original)
    if kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(values[f"{name}_factor"], np.float32))
    if kind == "llama3":
        plain = 1 / values["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float32) / size)
        inner = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (plain / inner).astype(np.float32))


def convert(model, path, kind="F32", more=None, split_experts=False):
    """Write a model; ``kind``: the type of its matrices. ``more``: adds metadata."""
    writer = gguf.GGUFWriter(path, architecture_of(model))
    writer.add_name("tiny")
    add_metadata(writer, model)
    if more is not None:
        more(writer)
    number = gguf.GGMLQuantizationType[kind]
    for name, array in converted(model).items():
        if split_experts and "_exps" in name:
            for row, matrix in enumerate(array):
                add_tensor(writer, name.replace("_exps.", f".{row}."), matrix, number)
        else:
            add_tensor(writer, name, array, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(writer, name, array, number):
    keeps = array.ndim < 2 or "norm" in name or "gate_inp" in name
    if array.shape[-1] % 32 and number == gguf.GGMLQuantizationType.Q8_0:
        number = gguf.GGMLQuantizationType.F16
    if keeps or number == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), number), raw_dtype=number)
