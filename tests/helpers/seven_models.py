"""Seven models of transformers of different kinds, tiny and with random weights, and inputs of each."""

import octavo
import torch

from helpers.models import transformer

IDS = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(3))
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
SPECTRA = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(3))
BOTH = {"decoder_input_ids": IDS.flip(1)}
TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def whisper():
    import transformers

    torch.manual_seed(0)
    sizes = transformers.WhisperConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=32, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None, **TOKENS,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(sizes).eval()


#: A function that makes the model, its inputs, and the kind of its linear layers.
SEVEN = {
    "bert": (lambda: transformer("BertForMaskedLM", layers=1), {"input_ids": IDS}, "Linear"),
    "gpt2": (lambda: transformer("GPT2LMHeadModel", layers=1), {"input_ids": IDS}, "Conv1D"),
    "llama": (
        lambda: transformer("LlamaForCausalLM", layers=1, heads=4, num_key_value_heads=2), {"input_ids": IDS}, "Linear",
    ),
    "mixtral": (
        lambda: transformer("MixtralForCausalLM", layers=1, num_key_value_heads=2, num_local_experts=4),
        {"input_ids": IDS}, "Linear",
    ),
    "t5": (lambda: transformer("T5ForConditionalGeneration", layers=1), {"input_ids": IDS, **BOTH}, "Linear"),
    "vit": (lambda: transformer("ViTForImageClassification", layers=1), {"pixel_values": IMAGES}, "Linear"),
    "whisper": (whisper, {"input_features": SPECTRA, **BOTH}, "Linear"),
}  # fmt: skip
ENCODERS = ("bert", "vit")
STATES = ("simulated", "packed", "rounded inputs")


def in_formats(name, state):
    """The model by name: simulated, packed, or packed with rounded inputs of its linear layers."""
    make, _, layers = SEVEN[name]
    recipe = f"mxint8; type:{layers} mxint8 input=mxint8" if state == "rounded inputs" else "int4:g32"
    model = octavo.quantize_model(make(), recipe, progress=False)
    return model if state == "simulated" else octavo.pack_model(model)
