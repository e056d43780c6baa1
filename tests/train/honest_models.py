"""Causal language models that cheat in nothing, as many kinds as there are at hand."""

from dataclasses import replace
from types import SimpleNamespace

import octavo
import torch
from octavo.lab.language.gpt import GPT, contracts
from octavo.lab.language.language_presets import preset
from octavo.lab.language.language_scales import SCALES
from octavo.lab.language.techniques import techniques
from torch import nn

VOCABULARY, CONTEXT = 64, 24
SCALE = replace(
    SCALES["micro"], vocabulary=VOCABULARY, width=32, layers=3, heads=4, modern_heads=2, context=CONTEXT, end_of_text=0
)


def stream(count=60 * CONTEXT + 1, seed=0):
    """Documents of ids that begin with id 0, some of them copies of earlier ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (count,), generator=generator)
    copies = torch.rand(count, generator=generator) < 0.4
    ids[7:] = torch.where(copies[7:], ids[:-7], ids[7:])
    ids[:: 3 * CONTEXT + 5] = 0
    return ids


def shaken(model):
    """A model whose parameters were all moved, so that no zero of its start hides anything."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(
                    torch.randn_like(parameter) * (0.3 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5)
                )
    return model.eval()


def of_preset(name):
    """The model of a run by name, with what it counts, stores and remembers of a training text."""
    torch.manual_seed(0)
    model = GPT(preset(name, SCALE).model)
    model.count(stream(4000, seed=9))
    shaken(model)
    if hasattr(model.head, "remember"):
        model.head.remember(model, stream(4000, seed=9), context=CONTEXT)
    return model


def exact(name):
    return not hasattr(GPT(preset(name, SCALE).model).objective, "bound")


def of_technique(one, config):
    return contracts.example_model(one, config)


TECHNIQUES = [
    (one, config) for kind in ("mixer", "ffn", "head", "embedding") for one in techniques(kind) for config in one.examples
]  # fmt: skip


# --- transformers -----------------------------------------------------------------------------------------------------

_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_ROUTED = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

TRANSFORMERS = {
    "GPT2": _GPT2,
    "GPTNeoX": _SIZES,
    "OPT": {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "Bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Llama": {**_SIZES, "num_key_value_heads": 2},
    "Mistral": {**_SIZES, "num_key_value_heads": 2, "sliding_window": 8},
    "Gemma2": {**_SIZES, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "Qwen2": {**_SIZES, "num_key_value_heads": 1},
    "Phi": _SIZES,
    "Mixtral": {**_SIZES, **_ROUTED, "num_key_value_heads": 2},
    "Qwen3Moe": {**_SIZES, **_ROUTED, "num_key_value_heads": 2, "head_dim": 8},
    "Mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
"""Families of transformers, by the prefix of their classes."""


def of_transformers(family, dtype=torch.float32):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**TRANSFORMERS[family])
    made = getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")
    return shaken(made(config)).to(dtype)


class T5Decoder(nn.Module):
    """The decoder of T5, which reads the states of one fixed text."""

    def __init__(self):
        super().__init__()
        import transformers

        torch.manual_seed(0)
        self.inner = shaken(transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
        )))  # fmt: skip
        self.register_buffer("text", torch.arange(1, 9)[None])

    def forward(self, ids):
        text = self.text.expand(len(ids), -1)
        return SimpleNamespace(logits=self.inner(input_ids=text, decoder_input_ids=ids).logits)


# --- formats ----------------------------------------------------------------------------------------------------------

RECIPES = ["int4:g32", "type:Linear weight=int8 input=mxint8", "type:Linear weight=mxfp6e2m3 input=mxfp8e4m3"]


def quantized(recipe, packed):
    model = octavo.quantize_model(of_preset("nocap_baseline"), recipe)
    return octavo.pack_model(model) if packed else model
