"""Every layer of many architectures, quantized alone to one bit: the output changes, or a warning or error names it.

Run as a program it prints a row for each architecture: modules with parameters, how many changed the output, were
named, were wrong.
"""

import sys
import time
import warnings

import octavo
import pytest
import torch
from octavo import DTypeError, FormatError, UnusedLayerWarning
from torch import nn

FORMATS = ("binary", "ternary")
GAP = 2e-5  # packed against simulated, relative to the largest output: sums in another order
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
IDS = torch.tensor([[5, 9, 2, 33, 60, 7, 1, 12], [3, 3, 8, 41, 50, 2, 19, 4]])
PIXELS = torch.linspace(-2, 2, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()
WAVE = torch.linspace(0, 90, 2 * 1600).view(2, 1600).sin()


class Recurrent(nn.Module):
    """Torch's layers that take no formats, beside some that do."""

    def __init__(self, cell=nn.LSTM):
        super().__init__()
        self.embed, self.cell = nn.Embedding(61, 16), cell(16, 16, batch_first=True)
        self.up, self.head = nn.ConvTranspose1d(16, 16, 2), nn.Linear(16, 61)

    def forward(self, ids):
        x, _ = self.cell(self.embed(ids))
        return self.head(self.up(x.transpose(1, 2)).transpose(1, 2))


class Encoder(nn.Module):
    """Torch's own transformer, whose fast path reads weights past its layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 32), nn.Linear(32, 61)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


class Attends(nn.Module):
    """MultiheadAttention alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = nn.Embedding(61, 32), nn.MultiheadAttention(32, 4), nn.Linear(32, 61)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.attend(x, x, x)[0])


class ReadsPast(nn.Module):
    """A model that reads weights and biases itself, and has a layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.embed, self.dense, self.spare = nn.Embedding(61, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.mix, self.head = nn.Conv1d(16, 16, 3, padding=1, groups=4), nn.Linear(16, 61)

    def forward(self, ids):
        x = nn.functional.embedding(ids, self.embed.weight)
        x = x @ self.dense.weight.t() + self.dense.bias
        x = nn.functional.conv1d(x.transpose(1, 2), self.mix.weight, self.mix.bias, padding=1, groups=4)
        return torch.addmm(self.head.bias, x.transpose(1, 2).flatten(0, 1), self.head.weight.T)


def transformers_model(name, config, **options):
    """A function that makes a model of transformers with random weights."""

    def make():
        import transformers

        made = getattr(transformers, config)(**options)
        return getattr(transformers, name)(made)

    return make


def of(name, config=None, inputs=None, **options):
    return transformers_model(
        name,
        config or f"{name.removesuffix('ForCausalLM').removesuffix('Model').removesuffix('ForMaskedLM')}Config",
        **options,
    ), inputs or {"input_ids": IDS}


GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 32}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 61, "state_size": 8, "expand": 2}
PICTURE = {"pixel_values": PIXELS}
BOTH = {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}
DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 64}
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 61,
}  # fmt: skip

ARCHITECTURES = {
    "reads past": (ReadsPast, {"ids": IDS}),
    "nn.LSTM, ConvTranspose": (Recurrent, {"ids": IDS}),
    "nn.GRU, ConvTranspose": (lambda: Recurrent(nn.GRU), {"ids": IDS}),
    "nn.TransformerEncoder": (Encoder, {"ids": IDS}),
    "nn.MultiheadAttention": (Attends, {"ids": IDS}),
    "bert": of("BertForMaskedLM", **SMALL),
    "albert": of("AlbertForMaskedLM", embedding_size=16, **SMALL),
    "deberta": of("DebertaForMaskedLM", **DEBERTA),
    "deberta-v2": of("DebertaV2ForMaskedLM", **DEBERTA, position_buckets=8, norm_rel_ebd="layer_norm"),
    "mobilebert": of(
        "MobileBertForMaskedLM", **{**SMALL, "intermediate_size": 64}, embedding_size=16, intra_bottleneck_size=16,
        num_feedforward_networks=2, true_hidden_size=16,
    ),
    "mamba": of("MambaForCausalLM", **MAMBA, time_step_rank=4, conv_kernel=3),
    "falcon-mamba": of("FalconMambaForCausalLM", **MAMBA, time_step_rank=4, conv_kernel=3),
    "mamba2": of("Mamba2ForCausalLM", **MAMBA, num_heads=8, head_dim=8, n_groups=2, chunk_size=4),
    "jamba": of(
        "JambaForCausalLM", **SMALL, num_key_value_heads=2, num_experts=2, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8, mamba_d_conv=3, mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "bamba": of(
        "BambaForCausalLM", **SMALL, num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8,
        mamba_n_groups=2, mamba_d_state=8, mamba_d_conv=3, mamba_chunk_size=4,
    ),
    "mixtral": of("MixtralForCausalLM", **SMALL, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2),
    "llama": of("LlamaForCausalLM", **SMALL, num_key_value_heads=2),
    "gpt2": of("GPT2LMHeadModel", "GPT2Config", **GPT),
    "gpt-neox": of("GPTNeoXForCausalLM", **SMALL),
    "opt": of("OPTForCausalLM", **{**SMALL, "ffn_dim": 48}, word_embed_proj_dim=16),
    "bloom": of("BloomForCausalLM", hidden_size=32, n_layer=2, n_head=4, vocab_size=61),
    "rwkv": of("RwkvForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=61, attention_hidden_size=32),
    "t5": of(
        "T5ForConditionalGeneration", "T5Config", BOTH, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        vocab_size=61,
    ),
    "bart": of("BartForConditionalGeneration", "BartConfig", BOTH, **BART),
    "vit": of("ViTForImageClassification", "ViTConfig", PICTURE, **SMALL, image_size=32, patch_size=8),
    "convnext": of(
        "ConvNextForImageClassification", "ConvNextConfig", PICTURE, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
    ),
    "swin": of(
        "SwinForImageClassification", "SwinConfig", PICTURE, image_size=32, patch_size=4, embed_dim=16, depths=[1, 1],
        num_heads=[2, 4], window_size=4,
    ),
    "resnet": of(
        "ResNetForImageClassification", "ResNetConfig", PICTURE, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
    ),
    "wav2vec2": of(
        "Wav2Vec2Model", "Wav2Vec2Config", {"input_values": WAVE}, **SMALL, conv_dim=(16, 16, 16),
        conv_stride=(5, 4, 2), conv_kernel=(10, 4, 3), num_feat_extract_layers=3, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
    ),
    "clip": of(
        "CLIPModel", "CLIPConfig", {"input_ids": IDS, **PICTURE}, projection_dim=16,
        text_config={**SMALL, "max_position_embeddings": 16, "eos_token_id": 60},
        vision_config={**SMALL, "image_size": 32, "patch_size": 8},
    ),
}  # fmt: skip

QUICK = (
    "reads past",
    "nn.LSTM, ConvTranspose",
    "nn.TransformerEncoder",
    "deberta-v2",
    "mobilebert",
    "mamba",
    "mixtral",
)


def build(name):
    make, inputs = ARCHITECTURES[name]
    if make.__module__ == __name__ and make.__name__ == "make":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():  # norms and biases that begin as 1 and 0 hide what goes through them
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model, inputs


@torch.no_grad()
def outputs(model, inputs):
    found = model(**inputs)
    if isinstance(found, torch.Tensor):
        return [found]
    return [value for value in found.values() if isinstance(value, torch.Tensor)]


def layers_of(model):
    """Paths of all modules with parameters of their own, layers that a recipe reaches or not."""
    return [
        path
        for path, module in model.named_modules()
        if path and any(p is not None for p in module._parameters.values())
    ]


def gap(found, expected):
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30))
        for a, b in zip(found, expected, strict=True)
    )


def try_layer(model, inputs, path, text, expected):
    """Return ``changed``, ``named`` or ``wrong`` for one layer, and how far the packed model is from the simulated."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            simulated = octavo.quantize_model(model, {"rules": [{"name": path, "weight": text}]}, progress=False)
        except (FormatError, DTypeError) as error:  # no layer that takes formats, or a weight that something computes
            return "named" if path in str(error) else "wrong", 0.0
        found = outputs(simulated, inputs)
    named = {
        layer for entry in caught if isinstance(entry.message, UnusedLayerWarning) for layer in entry.message.layers
    }
    apart = gap(outputs(octavo.pack_model(simulated, inplace=True), inputs), found)
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return "named" if path in named else "wrong" if same else "changed", apart


def measure(name):
    """Return the verdict on each layer of an architecture, the formats in turn, and the largest gap of packing."""
    model, inputs = build(name)
    expected = outputs(model, inputs)
    verdicts, largest = {}, 0.0
    for number, path in enumerate(layers_of(model)):
        verdicts[path], apart = try_layer(model, inputs, path, FORMATS[number % len(FORMATS)], expected)
        largest = max(largest, apart)
    return verdicts, largest


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_every_layer_changes_the_output_or_is_named(name):
    verdicts, largest = measure(name)
    assert verdicts and set(verdicts.values()) <= {"changed", "named"}, verdicts
    assert largest <= GAP


def main():
    total = {"changed": 0, "named": 0, "wrong": 0}
    print(f"{'architecture':26}{'layers':>8}{'changed':>9}{'named':>7}{'wrong':>7}{'packed gap':>12}{'seconds':>9}")
    for name in sys.argv[1:] or ARCHITECTURES:
        start = time.perf_counter()
        try:
            verdicts, largest = measure(name)
        except Exception as error:  # a row for every architecture
            print(f"{name:26} {type(error).__name__}: {error}"[:300], flush=True)
            continue
        counts = {verdict: list(verdicts.values()).count(verdict) for verdict in total}
        for verdict, count in counts.items():
            total[verdict] += count
        cells = "".join(
            f"{counts[verdict]:>{width}}" for verdict, width in (("changed", 9), ("named", 7), ("wrong", 7))
        )
        seconds = time.perf_counter() - start
        print(f"{name:26}{len(verdicts):>8}{cells}{largest:>12.1e}{seconds:>9.1f}", flush=True)
        for path, verdict in verdicts.items():
            if verdict == "wrong":
                print(f"    wrong: {path}")
    print(f"{sum(total.values())} layers: {total}")


if __name__ == "__main__":
    main()
