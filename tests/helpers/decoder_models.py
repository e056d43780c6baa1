"""Random models of transformers, one or more of every architecture that the native decoder runs."""

import torch

VOCABULARY = 97
POSITIONS = 512
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": POSITIONS,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.5 + i for i in range(8)],
}  # fmt: skip
GEMMA = {**SMALL, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 40}
OSS = {**SMALL, "head_dim": 32, "num_local_experts": 5, "sliding_window": 40}
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
FALCON = {key: value for key, value in NEOX.items() if key != "intermediate_size"}
OPT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 96,
    "max_position_embeddings": POSITIONS, "word_embed_proj_dim": 64, "dropout": 0.0,
}  # fmt: skip

PICTURES = {
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 8,
    },
}  # fmt: skip
"""Fields of a whole model that sees pictures, beside those of its network for texts."""

CASES = {
    "llama": ("Llama", {**SMALL, "tie_word_embeddings": True}),
    "llama biases": ("Llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama 3.1": ("Llama", {**SMALL, "rope_parameters": LLAMA3}),
    "llama linear": ("Llama", {**SMALL, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}}),
    "llama yarn": ("Llama", {**SMALL, "rope_parameters": YARN}),
    "llama yarn of deepseek": (
        "Llama",
        {**SMALL, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 20, "beta_slow": 2}},
    ),
    "llama yarn untruncated": ("Llama", {**SMALL, "rope_parameters": {**YARN, "truncate": False}}),
    "mistral": ("Mistral", {**SMALL, "sliding_window": 50}),
    "mistral without window": ("Mistral", {**SMALL, "sliding_window": None, "head_dim": 20}),
    "mistral short window": ("Mistral", {**SMALL, "sliding_window": 1, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {**SMALL, "tie_word_embeddings": True}),
    "qwen2 window": (
        "Qwen2", {**SMALL, "use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    ),
    "qwen2 yarn": ("Qwen2", {**SMALL, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {**SMALL, "head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 biases": ("Qwen3", {**SMALL, "head_dim": 16, "attention_bias": True}),
    "qwen3 window": (
        "Qwen3",
        {**SMALL, "head_dim": 16, "use_sliding_window": True, "sliding_window": 20,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gemma2": ("Gemma2", GEMMA),
    "gemma2 small caps": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2 without caps": (
        "Gemma2",
        {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ),
    "gemma3": ("Gemma3", {**GEMMA, "num_hidden_layers": 7}),
    "gemma3 pattern": ("Gemma3", {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    "gemma3 scaled": (
        "Gemma3",
        {**GEMMA, "final_logit_softcapping": 5.0,
         "layer_types": ["full_attention", "sliding_attention", "full_attention"],
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
         }},
    ),
    "gemma3 beside pictures": ("Gemma3", {**GEMMA, "num_hidden_layers": 7}, PICTURES),
    "gemma3 beside pictures, scaled": (
        "Gemma3",
        {**GEMMA, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
         "rope_parameters": {
             "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
         }},
        PICTURES,
    ),
    "gemma3 beside pictures, untied": ("Gemma3", {**GEMMA, "tie_word_embeddings": False}, {**PICTURES, "tie": False}),
    "mistral3 beside pictures": (
        "Mistral3",
        {**SMALL, "model_type": "mistral", "sliding_window": None, "head_dim": 24},
        {**PICTURES, "tie": False, "image_token_index": 90},
    ),
    "mistral3 beside pictures, window": (
        "Mistral3", {**SMALL, "model_type": "mistral", "sliding_window": 50}, {**PICTURES, "image_token_index": 90},
    ),
    "mistral3 beside pictures, yarn": (
        "Mistral3",
        {**SMALL, "model_type": "mistral", "sliding_window": None, "rope_parameters": YARN},
        {**PICTURES, "image_token_index": 90},
    ),
    "phi3": ("Phi3", {**SMALL, "pad_token_id": 0}),
    "phi3 window": ("Phi3", {**SMALL, "pad_token_id": 0, "sliding_window": 60, "num_key_value_heads": 4}),
    "phi3 long": (
        "Phi3", {**SMALL, "pad_token_id": 0, "rope_parameters": LONG, "original_max_position_embeddings": 512},
    ),
    "phi4": (
        "Phi3",
        {**SMALL, "pad_token_id": 0, "tie_word_embeddings": True, "original_max_position_embeddings": 128,
         "rope_parameters": {**LONG, "partial_rotary_factor": 0.75, "short_factor": [1.0] * 6,
                             "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]}},
    ),
    "smollm3": ("SmolLM3", {**SMALL, "num_hidden_layers": 5, "pad_token_id": 0}),
    "smollm3 window": (
        "SmolLM3",
        {**SMALL, "pad_token_id": 0, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 30},
    ),
    "smollm3 biases": (
        "SmolLM3",
        {**SMALL, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True, "no_rope_layer_interval": 2,
         "tie_word_embeddings": False},
    ),
    "gpt_neox": ("GPTNeoX", NEOX),
    "gpt_neox sequential": ("GPTNeoX", {**NEOX, "use_parallel_residual": False, "hidden_act": "gelu_new"}),
    "gpt_neox half": (
        "GPTNeoX",
        {**NEOX, "attention_bias": False, "tie_word_embeddings": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}},
    ),
    "opt": ("OPT", OPT),
    "opt without biases": ("OPT", {**OPT, "enable_bias": False, "activation_function": "gelu"}),
    "opt 350m": ("OPT", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "opt 350m untied": (
        "OPT",
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 96, "tie_word_embeddings": False,
         "enable_bias": False},
    ),
    "opt norms of sums": ("OPT", {**OPT, "do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt projected": ("OPT", {**OPT, "word_embed_proj_dim": 48}),
    "opt without last norm": ("OPT", {**OPT, "_remove_final_layer_norm": True}),
    "opt untied": ("OPT", {**OPT, "tie_word_embeddings": False, "num_hidden_layers": 1}),
    "falcon": ("Falcon", FALCON),
    "falcon new": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon one norm": (
        "Falcon",
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon sequential": (
        "Falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "ffn_hidden_size": 80},
    ),
    "falcon slopes": (
        "Falcon", {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "falcon slopes of twelve heads": ("Falcon", {**FALCON, "alibi": True, "hidden_size": 96, "num_attention_heads": 12}),
    "falcon slopes new": (
        "Falcon",
        {**FALCON, "alibi": True, "new_decoder_architecture": True, "num_attention_heads": 16, "num_kv_heads": 8},
    ),
    "stablelm": ("StableLm", SMALL),
    "stablelm parallel": ("StableLm", {**SMALL, "use_parallel_residual": True, "use_qkv_bias": True}),
    "stablelm 2": ("StableLm", {**SMALL, "qk_layernorm": True, "tie_word_embeddings": True}),
    "granite": (
        "Granite",
        {**SMALL, "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.4,
         "attention_multiplier": 0.11},
    ),
    "granite tied": ("Granite", {**SMALL, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "granite llama3": ("Granite", {**SMALL, "rope_parameters": LLAMA3, "logits_scaling": 2}),
    "olmo2": ("Olmo2", SMALL),
    "olmo2 biases": ("Olmo2", {**SMALL, "attention_bias": True, "num_key_value_heads": 4}),
    "olmo2 tied": ("Olmo2", {**SMALL, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 5}),
    "mixtral window": ("Mixtral", {**SMALL, "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 37}),
    "mixtral all": ("Mixtral", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 4}),
    "gpt oss": ("GptOss", {**OSS, "num_experts_per_tok": 2}),
    "gpt oss long window": (
        "GptOss",
        {**OSS, "sliding_window": 200, "num_experts_per_tok": 1, "swiglu_limit": 2.5, "swiglu_alpha": 1.1,
         "layer_types": ["full_attention", "sliding_attention", "full_attention"], "rope_parameters": YARN},
    ),
    "gpt oss without biases": (
        "GptOss",
        {**OSS, "num_experts_per_tok": 5, "attention_bias": False, "head_dim": 24, "num_key_value_heads": 4,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "tie_word_embeddings": True},
    ),
    "qwen3 moe": (
        "Qwen3Moe",
        {**SMALL, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
         "norm_topk_prob": True},
    ),
    "qwen3 moe sparse": (
        "Qwen3Moe",
        {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2},
    ),
    "qwen3 moe dense layers": (
        "Qwen3Moe",
        {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0, 2],
         "attention_bias": True, "use_sliding_window": True, "sliding_window": 45},
    ),
}  # fmt: skip
"""Three configurations of each architecture and more: the class of transformers, its configuration, and that of a whole
which sees pictures, too, where it is part of one."""


def decoder_model(name, *, seed=0, deviation=0.2, **changes):
    """Return a model with random weights, norms included, so that none of them hides a defect."""
    import transformers

    stem, values, *pictures = CASES[name]
    values = {**values, **changes}
    torch.manual_seed(seed)
    if pictures:
        kind = getattr(transformers, f"{stem}ForConditionalGeneration")
        whole = {key: value for key, value in pictures[0].items() if key != "tie"}
        tie = {"tie_word_embeddings": pictures[0].get("tie", True)}
        model = kind(kind.config_class(text_config=values, **whole, **tie)).eval()
    else:
        kind = getattr(transformers, f"{stem}ForCausalLM")
        model = kind(kind.config_class(**values)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            # Norms that shrink what they give would make all scores alike.
            center = 1.0 if parameter.ndim == 1 and "norm" in path and "bias" not in path else 0.0
            center = 0.0 if stem.startswith("Gemma") else center
            parameter.copy_(center + deviation * torch.randn(parameter.shape, generator=generator))
    return model
