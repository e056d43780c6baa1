"""Small models of many architectures, with random weights, and inputs for one pass: the one table of them.

``FAMILIES``: by family and name a function that makes a model, and its inputs. Sizes are small, yet matrices outweigh
vectors, as they do in real models. ``python docs/models.py`` measures all of them for the manual.
"""

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import octavo
import torch
from torch import nn

RECIPE = "int4:g32"
BITS = 4.5  # of RECIPE, scales included, in rows that are whole groups

# --- models of torch --------------------------------------------------------------------------------------------------

IDS = torch.tensor([[5, 9, 2, 33, 60, 7, 1, 12], [3, 3, 8, 41, 50, 2, 19, 4]])
PIXELS = torch.linspace(-2, 2, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()
WAVE = torch.linspace(0, 90, 2 * 1600).view(2, 1600).sin()
SPECTRUM = torch.linspace(0, 90, 2 * 16 * 64).view(2, 16, 64).sin()
SERIES = torch.linspace(0, 20, 2 * 32 * 2).view(2, 32, 2).sin()
VIDEO = PIXELS.repeat(1, 4, 1, 1).view(2, 4, 3, 32, 32)


class Tagger(nn.Module):
    """A tagger of words: a table, two layers of an LSTM in both directions, a head."""

    def __init__(self, cell=nn.LSTM):
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 64), nn.Linear(128, 17)
        self.cell = cell(64, 64, 2, batch_first=True, bidirectional=True)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[0])


class Translator(nn.Module):
    """``nn.Transformer``: encoder and decoder of torch, with a causal mask."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(61, 64), nn.Linear(64, 61)
        self.positions = nn.Parameter(torch.randn(1, 16, 64))
        self.blocks = nn.Transformer(64, 4, 1, 1, 128, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids) + self.positions[:, : ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.blocks(x, x, tgt_mask=mask, tgt_is_causal=True))


class UNet(nn.Module):
    """A U-Net: convolutions down, transposed ones up, and the connection between both."""

    def __init__(self):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.up, self.wide = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(64, 32, 4, 2, 1)
        self.last = nn.Conv2d(96, 8, 1)

    def forward(self, x):
        x = self.first(x).relu()
        y = self.down(x).relu()
        return self.last(torch.cat([x, self.up(y), self.wide(y)], 1))


class Recommender(nn.Module):
    """DLRM: bags of embeddings for categories, a network for numbers, products of both."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, 32, mode=mode) for mode in ("sum", "mean"))
        self.numbers = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32))
        self.top = nn.Sequential(nn.Linear(35, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers, ids):
        x = self.numbers(numbers)
        parts = torch.stack([x, *(table(ids) for table in self.tables)], 1)
        pairs = parts @ parts.transpose(1, 2)
        return self.top(torch.cat([x, pairs[:, 0, 1:], pairs[:, 1, 2:]], 1))


class VideoNet(nn.Module):
    """Three-dimensional convolutions over frames, and a recurrent cell over time."""

    def __init__(self):
        super().__init__()
        self.cube, self.wide = nn.Conv3d(3, 32, (1, 4, 4), (1, 4, 4)), nn.Conv3d(32, 64, 3, padding=1)
        self.up, self.cell = nn.ConvTranspose3d(64, 32, (1, 2, 2), (1, 2, 2)), nn.GRUCell(32, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, frames):
        x = self.up(self.wide(self.cube(frames.transpose(1, 2)).relu()).relu()).mean((3, 4))
        state = None
        for step in x.unbind(2):
            state = self.cell(step, state)
        return self.head(state)


class Latents(nn.Module):
    """Learned queries that attend to an input with ``nn.MultiheadAttention``, keys and values of other widths."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(16, 64))
        self.attend = nn.MultiheadAttention(64, 4, kdim=32, vdim=32, batch_first=True)
        self.keys, self.head = nn.Embedding(61, 32), nn.Linear(64, 8)

    def forward(self, ids):
        keys = self.keys(ids)
        return self.head(self.attend(self.queries.expand(len(ids), -1, -1), keys, keys)[0])


# --- models of transformers -------------------------------------------------------------------------------------------


def of(name, config=None, inputs=None, **options):
    """Return a function that makes a model of transformers, and its inputs."""

    def make():
        import transformers

        sizes = getattr(transformers, config or f"{name.removesuffix('ForCausalLM')}Config")(**options)
        return getattr(transformers, name)(sizes)

    return make, {"input_ids": IDS} if inputs is None else inputs


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
INNER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**INNER, "vocab_size": 61, **TOKENS}
SHORT = {**TEXT, "max_position_embeddings": 64}
SHARED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**SHARED, "head_dim": 16}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 64, **TOKENS}
VISION = {**INNER, "image_size": 32, "patch_size": 8}
BART = {
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 61, "max_position_embeddings": 64, **TOKENS,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
SPEECH = {key: value for key, value in BART.items() if key != "max_position_embeddings"}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "vocab_size": 61}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
STATES = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 4,
}  # fmt: skip
WAVES = {
    **TEXT, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 2), "conv_kernel": (10, 4, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
PYRAMID = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
TWO = {"text_config": {**SHORT, "eos_token_id": 60}, "vision_config": VISION, "projection_dim": 32}
BOTH = {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}
PICTURE = {"pixel_values": PIXELS}
CAPTION = {"input_ids": IDS, **PICTURE}
SOUND = {"input_values": WAVE}
SPOKEN = {"input_features": SPECTRUM.transpose(1, 2), "decoder_input_ids": IDS}


def seen(places):
    """Return the ids of a caption after so many places that a picture fills."""
    return torch.cat([torch.full((2, places), 60), IDS.clamp(max=59)], 1)


def decoders(names, **options):
    """Return the entries of decoders that the same options make, by name."""
    return {name: of(f"{name}ForCausalLM", f"{name}Config", **options) for name in names.split()}


def encoders(names, **options):
    """Return the entries of encoders that the same options make, by name."""
    return {name: of(f"{name}ForMaskedLM", f"{name}Config", **options) for name in names.split()}


def translators(names, **options):
    """Return the entries of encoder-decoders that the same options make, by name."""
    return {name: of(f"{name}ForConditionalGeneration", f"{name}Config", BOTH, **options) for name in names.split()}


def classifiers(names, **options):
    """Return the entries of classifiers of pictures that the same options make, by name."""
    return {name: of(f"{name}ForImageClassification", f"{name}Config", PICTURE, **options) for name in names.split()}


def speakers(names, **options):
    """Return the entries of encoders of sound that the same options make, by name."""
    return {name: of(f"{name}Model", f"{name}Config", SOUND, **options) for name in names.split()}


FAMILIES = {
    "modules of torch": {
        "LSTM tagger": (Tagger, {"ids": IDS}),
        "GRU tagger": (lambda: Tagger(nn.GRU), {"ids": IDS}),
        "nn.Transformer": (Translator, {"ids": IDS}),
        "U-Net": (UNet, {"x": PIXELS}),
        "DLRM": (Recommender, {"numbers": torch.linspace(-1, 1, 26).view(2, 13), "ids": IDS[:, :5] % 50}),
        "Conv3d and GRUCell": (VideoNet, {"frames": VIDEO}),
        "learned queries": (Latents, {"ids": IDS}),
    },
    "text, decoders": {
        **decoders("Llama Mistral Qwen2 Qwen3 Starcoder2 StableLm Olmo Olmo2 Cohere Granite Nemotron", **SHARED),
        **decoders("Persimmon SmolLM3 Phi Phi3 Exaone4 Arcee Apertus DiffLlama Doge", **SHARED),
        **decoders("Gemma Gemma2 Glm Glm4 Helium SeedOss VaultGemma", **HEADS),
        **decoders("Falcon GPTNeoX BioGpt", **SHORT),
        **decoders("GPTJ CodeGen", **GPT, rotary_dim=8),
        "Gemma3": of("Gemma3ForCausalLM", "Gemma3TextConfig", **HEADS),
        "GPT2": of("GPT2LMHeadModel", "GPT2Config", **GPT),
        "GPTBigCode": of("GPTBigCodeForCausalLM", **GPT),
        "GPTNeo": of(
            "GPTNeoForCausalLM", hidden_size=64, num_layers=2, num_heads=4, vocab_size=61, max_position_embeddings=64,
            attention_types=[[["global", "local"], 1]], **TOKENS,
        ),
        "OPT": of("OPTForCausalLM", **{**SHORT, "ffn_dim": 128}, word_embed_proj_dim=32),
        "Bloom": of("BloomForCausalLM", hidden_size=64, n_layer=2, n_head=4, vocab_size=61),
        "MPT": of("MptForCausalLM", d_model=64, n_heads=4, n_layers=2, vocab_size=61, max_seq_len=64),
        "CTRL": of("CTRLLMHeadModel", "CTRLConfig", **{**GPT, "dff": 128}),
        "XGLM": of(
            "XGLMForCausalLM", d_model=64, ffn_dim=128, num_layers=2, attention_heads=4, vocab_size=61,
            max_position_embeddings=64, **TOKENS,
        ),
    },
    "text, mixtures of experts": {
        **decoders("Mixtral GraniteMoe Olmoe Phimoe", **SHARED, **LOCAL, num_experts=4),
        "Qwen2Moe": of("Qwen2MoeForCausalLM", **SHARED, **EXPERTS, shared_expert_intermediate_size=64),
        "Qwen3Moe": of("Qwen3MoeForCausalLM", **HEADS, **EXPERTS),
        "GptOss": of("GptOssForCausalLM", **HEADS, **LOCAL),
        "MiniMax": of("MiniMaxForCausalLM", **HEADS, **LOCAL),
        "DeepseekV2": of("DeepseekV2ForCausalLM", **TEXT, num_key_value_heads=4, **LATENT, **ROUTED),
        "DeepseekV3": of("DeepseekV3ForCausalLM", **TEXT, num_key_value_heads=4, **LATENT, **ROUTED),
        "Glm4Moe": of("Glm4MoeForCausalLM", **HEADS, **ROUTED, n_shared_experts=1),
        "Llama4": of(
            "Llama4ForCausalLM", "Llama4TextConfig", **HEADS, num_local_experts=4, num_experts_per_tok=1,
            intermediate_size_mlp=128, interleave_moe_layer_step=1,
        ),
        "Ernie4_5_Moe": of(
            "Ernie4_5_MoeForCausalLM", **SHARED, moe_num_experts=4, moe_k=2, moe_intermediate_size=64,
            moe_layer_start_index=1, moe_num_shared_experts=1,
        ),
        "JetMoe": of(
            "JetMoeForCausalLM", hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_key_value_heads=2,
            kv_channels=16, vocab_size=61, **LOCAL, **TOKENS,
        ),
        "SwitchTransformers": of(
            "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", BOTH, **{**T5, "num_layers": 2},
            num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4,
            decoder_start_token_id=0,
        ),
        **translators("NllbMoe", **BART, num_experts=4, encoder_sparse_step=1, decoder_sparse_step=1),
    },
    "text, state spaces and recurrence": {
        "Mamba": of(
            "MambaForCausalLM", hidden_size=64, num_hidden_layers=2, vocab_size=61, state_size=4, expand=2,
            time_step_rank=4, conv_kernel=3,
        ),
        "FalconMamba": of(
            "FalconMambaForCausalLM", hidden_size=64, num_hidden_layers=2, vocab_size=61, state_size=4, expand=2,
            time_step_rank=4, conv_kernel=3,
        ),
        "Mamba2": of(
            "Mamba2ForCausalLM", hidden_size=64, num_hidden_layers=2, vocab_size=61, state_size=8, expand=2,
            num_heads=8, head_dim=16, n_groups=2, chunk_size=4,
        ),
        "Bamba": of("BambaForCausalLM", **SHARED, attn_layer_indices=[1], mamba_d_conv=3, **STATES),
        "FalconH1": of("FalconH1ForCausalLM", **SHARED, mamba_d_ssm=64, **{**STATES, "mamba_n_heads": 4}),
        "Jamba": of(
            "JambaForCausalLM", **SHARED, num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4,
            expert_layer_period=2, expert_layer_offset=1, mamba_d_conv=3, mamba_dt_rank=4, use_mamba_kernels=False,
        ),
        "GraniteMoeHybrid": of(
            "GraniteMoeHybridForCausalLM", **SHARED, **LOCAL, **STATES, layer_types=["mamba", "attention"],
            shared_intermediate_size=64,
        ),
        "Qwen3Next": of(
            "Qwen3NextForCausalLM", **HEADS, **EXPERTS, shared_expert_intermediate_size=64, linear_num_value_heads=4,
            linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
            layer_types=["linear_attention", "full_attention"],
        ),
        "Lfm2": of("Lfm2ForCausalLM", **SHARED, layer_types=["conv", "full_attention"]),
        "RecurrentGemma": of(
            "RecurrentGemmaForCausalLM", **SHARED, lru_width=64, block_types=["recurrent", "attention"],
            attention_window_size=16,
        ),
        "RWKV": of(  # rescaling divides weights in a forward pass, which Octavo refuses by name
            "RwkvForCausalLM", hidden_size=64, num_hidden_layers=2, vocab_size=61, attention_hidden_size=64,
            rescale_every=0,
        ),
    },
    "text, encoders": {
        **encoders("Bert Roberta ModernBert MPNet RemBert BigBird NomicBert Nystromformer IBert Mra", **SHORT),
        **encoders("Electra RoFormer SqueezeBert ConvBert", **SHORT, embedding_size=64),
        **encoders("Albert", **SHORT, embedding_size=32),
        **encoders("Deberta", **SHORT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
        **encoders("DebertaV2", **SHORT, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
        **encoders("Esm", **SHORT, token_dropout=False, mask_token_id=3),
        **encoders("Longformer", **SHORT, attention_window=[4, 4]),
        **encoders("Luke", **SHORT, entity_vocab_size=20, entity_emb_size=32),
        "FNet": of("FNetForMaskedLM", "FNetConfig", **{k: v for k, v in SHORT.items() if "heads" not in k}),
        "DistilBert": of(
            "DistilBertForMaskedLM", "DistilBertConfig", dim=64, hidden_dim=128, n_layers=2, n_heads=4, vocab_size=61,
            max_position_embeddings=64,
        ),
        "Funnel": of(
            "FunnelForMaskedLM", "FunnelConfig", d_model=64, d_inner=128, n_head=4, d_head=16, block_sizes=[1, 1],
            num_decoder_layers=1, vocab_size=61,
        ),
        "XLNet": of("XLNetLMHeadModel", "XLNetConfig", d_model=64, d_inner=128, n_head=4, n_layer=2, vocab_size=61),
        "XLM": of("XLMWithLMHeadModel", "XLMConfig", emb_dim=64, n_layers=2, n_heads=4, vocab_size=61),
        "Canine": of(
            "CanineModel", "CanineConfig", {"input_ids": IDS.repeat(1, 2)}, **{**INNER, "num_hidden_layers": 1},
            num_hash_functions=4, num_hash_buckets=64, max_position_embeddings=64, local_transformer_stride=8,
            downsampling_rate=4, upsampling_kernel_size=4,
        ),
        "Perceiver": of(
            "PerceiverForMaskedLM", "PerceiverConfig", {"input_ids": IDS.repeat(1, 2)}, num_latents=16, d_latents=64,
            d_model=64, num_blocks=1, num_self_attends_per_block=1, num_self_attention_heads=4,
            num_cross_attention_heads=4, qk_channels=64, v_channels=64, vocab_size=61, max_position_embeddings=16,
        ),
    },
    "text, encoder and decoder": {
        **translators("Bart MBart M2M100 PLBart Blenderbot BlenderbotSmall PegasusX Pegasus", **BART),
        **translators("T5 UMT5", **T5),
        **translators("LongT5", **T5, local_radius=3),
        **translators("BigBirdPegasus", **BART, attention_type="original_full"),
        **translators(
            "LED", **SPEECH, attention_window=[4], max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
        ),
        **translators(
            "ProphetNet", hidden_size=64, encoder_ffn_dim=128, decoder_ffn_dim=128, num_encoder_layers=1,
            num_decoder_layers=1, num_encoder_attention_heads=4, num_decoder_attention_heads=4, vocab_size=61,
            max_position_embeddings=64, num_buckets=8, **TOKENS,
        ),
        **translators("T5Gemma", encoder=HEADS, decoder=HEADS, vocab_size=61),
        **translators("FSMT", **BART, langs=["en", "de"], src_vocab_size=61, tgt_vocab_size=61),
        "Marian": of("MarianMTModel", "MarianConfig", BOTH, **{**BART, "pad_token_id": 60}),
    },
    "pictures and video": {
        **classifiers("ViT DeiT Dinov2 ViTMSN", **VISION),
        **classifiers("Beit", **VISION, use_relative_position_bias=True, use_absolute_position_embeddings=True),
        **classifiers(
            "Swin Swinv2", image_size=32, patch_size=4, embed_dim=32, depths=[1, 1], num_heads=[2, 4], window_size=4
        ),
        **classifiers("ConvNext ConvNextV2 PoolFormer", **PYRAMID),
        **classifiers("Pvt", **PYRAMID, image_size=32, num_attention_heads=[1, 2, 2, 4]),
        **classifiers("ResNet", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1]),
        **classifiers("RegNet", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], groups_width=16),
        **classifiers("Bit", embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], num_groups=8),
        **classifiers("MobileNetV2", image_size=32, depth_multiplier=0.25),
        **classifiers(
            "Levit", image_size=32, hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4], depths=[1, 1, 1],
            key_dim=[16, 16, 16],
        ),
        **classifiers(
            "FocalNet", image_size=32, embed_dim=32, depths=[1, 1], hidden_sizes=[32, 64], focal_levels=[1, 1],
            focal_windows=[3, 3],
        ),
        **classifiers(
            "Hiera", embed_dim=32, image_size=[32, 32], depths=[1, 1], num_heads=[1, 2], patch_stride=[4, 4],
            query_stride=[2, 2], masked_unit_size=[2, 2], num_query_pool=1,
        ),
        "ViTMAE": of(
            "ViTMAEForPreTraining", "ViTMAEConfig", {**PICTURE, "noise": torch.linspace(0, 1, 32).view(2, 16)},
            **VISION, decoder_hidden_size=64, decoder_intermediate_size=128, decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
        ),
        "Segformer": of(
            "SegformerForSemanticSegmentation", "SegformerConfig", PICTURE, **PYRAMID, num_attention_heads=[1, 2, 2, 4],
            decoder_hidden_size=32,
        ),
        "Yolos": of(
            "YolosForObjectDetection", "YolosConfig", PICTURE, **{**VISION, "image_size": [32, 32]},
            num_detection_tokens=8,
        ),
        "VitDet": of(
            "VitDetModel", "VitDetConfig", PICTURE, **{k: v for k, v in VISION.items() if k != "intermediate_size"},
            window_size=2, window_block_indices=[0], use_relative_position_embeddings=True, pretrain_image_size=32,
        ),
        "SAM": of(
            "SamModel", "SamConfig", {**PICTURE, "input_points": torch.tensor([[[[4.0, 9.0]]], [[[20.0, 11.0]]]])},
            vision_config={
                "hidden_size": 64, "output_channels": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 32, "patch_size": 8, "mlp_ratio": 2.0, "window_size": 2, "global_attn_indexes": [1],
                "num_pos_feats": 16,
            },
            prompt_encoder_config={"hidden_size": 32, "image_size": 32, "patch_size": 8},
            mask_decoder_config={
                "hidden_size": 32, "mlp_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                "iou_head_hidden_dim": 32,
            },
        ),
        "Timesformer": of(
            "TimesformerForVideoClassification", "TimesformerConfig", {"pixel_values": VIDEO}, **VISION, num_frames=4
        ),
        "VideoMAE": of(
            "VideoMAEForVideoClassification", "VideoMAEConfig", {"pixel_values": VIDEO}, **VISION, num_frames=4
        ),
        "Vivit": of(
            "VivitForVideoClassification", "VivitConfig", {"pixel_values": VIDEO}, **INNER, image_size=32,
            num_frames=4, tubelet_size=[2, 8, 8],
        ),
    },
    "sound and series": {
        **speakers("Wav2Vec2 Hubert WavLM UniSpeech Data2VecAudio Wav2Vec2Conformer SEW", **WAVES),
        "Whisper": of(
            "WhisperForConditionalGeneration", "WhisperConfig",
            {"input_features": SPECTRUM[:, :, :40], "decoder_input_ids": IDS}, **SPEECH, num_mel_bins=16,
            max_source_positions=20, max_target_positions=32,
        ),
        "Speech2Text": of(
            "Speech2TextForConditionalGeneration", "Speech2TextConfig", SPOKEN, **SPEECH, input_feat_per_channel=16,
            conv_channels=32, max_source_positions=64, max_target_positions=64,
        ),
        "Moonshine": of(
            "MoonshineForConditionalGeneration", "MoonshineConfig", {**SOUND, "decoder_input_ids": IDS},
            hidden_size=64, intermediate_size=128, encoder_num_hidden_layers=1, decoder_num_hidden_layers=1,
            encoder_num_attention_heads=4, decoder_num_attention_heads=4, vocab_size=61, decoder_start_token_id=1,
            **TOKENS,
        ),
        "ASTForAudio": of(
            "ASTForAudioClassification", "ASTConfig", {"input_values": SPECTRUM.transpose(1, 2)}, **INNER,
            patch_size=8, frequency_stride=8, time_stride=8, max_length=64, num_mel_bins=16,
        ),
        "Encodec": of(
            "EncodecModel", "EncodecConfig", {"input_values": WAVE[:, None]}, num_filters=8, hidden_size=32,
            codebook_size=16, codebook_dim=32, upsampling_ratios=[4, 2], num_lstm_layers=1, target_bandwidths=[12.0],
        ),
        "Dac": of(
            "DacModel", "DacConfig", {"input_values": WAVE[:, None]}, encoder_hidden_size=8,
            downsampling_ratios=[2, 4], decoder_hidden_size=64, n_codebooks=2, codebook_size=16, codebook_dim=8,
            upsampling_ratios=[4, 2],
        ),
        "Mimi": of(
            "MimiModel", "MimiConfig", {"input_values": WAVE[:, None]}, hidden_size=32, num_filters=8,
            upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=16, vector_quantization_hidden_dimension=16,
            num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, head_dim=8, intermediate_size=64,
            num_quantizers=4, upsample_groups=32,
        ),
        "SpeechT5": of(
            "SpeechT5ForSpeechToText", "SpeechT5Config", {**SOUND, "decoder_input_ids": IDS}, **WAVES,
            encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=128, decoder_ffn_dim=128, decoder_start_token_id=1,
        ),
        "PatchTST": of(
            "PatchTSTForPrediction", "PatchTSTConfig", {"past_values": SERIES}, num_input_channels=2,
            context_length=32, patch_length=4, patch_stride=4, d_model=64, ffn_dim=128, num_hidden_layers=2,
            num_attention_heads=4, prediction_length=8,
        ),
        "PatchTSMixer": of(
            "PatchTSMixerForPrediction", "PatchTSMixerConfig", {"past_values": SERIES}, num_input_channels=2,
            context_length=32, patch_length=4, patch_stride=4, d_model=64, num_layers=2, prediction_length=8,
        ),
    },
    "several kinds of input": {
        "CLIP": of("CLIPModel", "CLIPConfig", CAPTION, **TWO),
        "Siglip": of("SiglipModel", "SiglipConfig", CAPTION, text_config=SHORT, vision_config=VISION),
        "AltCLIP": of(
            "AltCLIPModel", "AltCLIPConfig", CAPTION, projection_dim=32, vision_config=VISION,
            text_config={**SHORT, "project_dim": 32},
        ),
        "GroupViT": of(
            "GroupViTModel", "GroupViTConfig", CAPTION, **TWO | {"projection_intermediate_dim": 64} | {
                "vision_config": {**VISION, "depths": [1, 1], "num_group_tokens": [8, 0], "num_output_groups": [8, 4]}
            },
        ),
        "OwlViT": of(
            "OwlViTModel", "OwlViTConfig", CAPTION, projection_dim=32, vision_config=VISION,
            text_config={**TEXT, "max_position_embeddings": 16},
        ),
        "Blip": of(
            "BlipForConditionalGeneration", "BlipConfig", CAPTION, vision_config=VISION,
            text_config={**SHORT, "encoder_hidden_size": 64, "sep_token_id": 2},
        ),
        "Blip2": of(
            "Blip2ForConditionalGeneration", "Blip2Config", {"input_ids": seen(8), **PICTURE}, vision_config=VISION,
            qformer_config={**TEXT, "encoder_hidden_size": 64}, num_query_tokens=8, image_token_index=60,
            text_config={**SHORT, "model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 64},
        ),
        "Llava": of(
            "LlavaForConditionalGeneration", "LlavaConfig", {"input_ids": seen(16), **PICTURE}, image_token_index=60,
            vision_config={"model_type": "clip_vision_model", **VISION}, vision_feature_layer=-1,
            text_config={"model_type": "llama", **SHARED},
        ),
        "PaliGemma": of(
            "PaliGemmaForConditionalGeneration", "PaliGemmaConfig",
            {"input_ids": seen(16), **PICTURE, "token_type_ids": torch.zeros(2, 24, dtype=torch.int64)},
            vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
            text_config={"model_type": "gemma", **HEADS}, image_token_index=60, projection_dim=64, hidden_size=64,
        ),
        "ViLT": of("ViltModel", "ViltConfig", CAPTION, **SHORT, image_size=32, patch_size=8),
        "GIT": of("GitForCausalLM", "GitConfig", CAPTION, **SHORT, vision_config=VISION),
        "FLAVA": of(
            "FlavaModel", "FlavaConfig", CAPTION, text_config=SHORT, image_config=VISION, multimodal_config=INNER,
            hidden_size=64, projection_dim=32,
        ),
        "LayoutLMv3": of(
            "LayoutLMv3Model", "LayoutLMv3Config", {**CAPTION, "bbox": torch.zeros(2, 8, 4, dtype=torch.int64)},
            **SHORT, max_2d_position_embeddings=64, coordinate_size=8, shape_size=16, input_size=32, patch_size=8,
        ),
        "DecisionTransformer": of(
            "DecisionTransformerModel", "DecisionTransformerConfig",
            {
                "states": SERIES[:, :5].repeat(1, 1, 2), "actions": SERIES[:, 5:10], "rewards": SERIES[:, :5, :1],
                "returns_to_go": SERIES[:, 5:10, :1], "timesteps": torch.arange(5).repeat(2, 1),
                "attention_mask": torch.ones(2, 5),
            },
            state_dim=4, act_dim=2, hidden_size=64, n_layer=2, n_head=4, max_ep_len=32, n_positions=64,
        ),
    },
}  # fmt: skip

ARCHITECTURES = {name: entry for family in FAMILIES.values() for name, entry in family.items()}
OF_TORCH = tuple(FAMILIES["modules of torch"])


# --- the sweep --------------------------------------------------------------------------------------------------------


def build(name):
    """Return the model of an architecture, in evaluation mode, and its inputs."""
    make, inputs = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():  # what begins as 0 or 1 hides what goes through it
        parameter.data += 0.02 * torch.randn_like(parameter)
    return model, inputs


@torch.no_grad()
def outputs(model, inputs):
    """Return the tensors that a model gives, of the same random numbers each time."""
    torch.manual_seed(7)
    found = model(**inputs)
    values = [found] if isinstance(found, torch.Tensor) else found.values() if hasattr(found, "values") else found
    return [value for value in values if isinstance(value, torch.Tensor)]


def generated(model, inputs):
    """Return four tokens that a model of transformers generates; None for one that generates no text of ids."""
    if not model.can_generate() or "input_ids" not in inputs:
        return None
    given = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    start = {"decoder_start_token_id": 1} if model.config.is_encoder_decoder else {}
    return model.generate(**given, **start, max_new_tokens=4, do_sample=False, eos_token_id=None)


@dataclass(frozen=True)
class Row:
    """What the sweep measures of one architecture.

    ``covered``: share of the elements of parameters of two and more axes that the default selection reaches. ``bits``:
    of the file's parameters, by their number. ``excess``: bytes of the file's parameters over ``BITS`` for each that is
    quantized and what floats take. ``left``: parameters of two and more axes that stay float, by the end of their
    names. ``gap``: packed against simulated outputs, relative to the largest. ``is_same``: whether the loaded model
    gives the outputs of the saved one.
    """

    name: str
    parameters: int
    covered: float
    bits: float
    excess: float
    left: tuple[str, ...]
    gap: float
    is_same: bool


def measure(name):
    """Return the row of an architecture: quantized in ``RECIPE``, packed, saved, loaded, each form run once."""
    model, inputs = build(name)
    simulated = octavo.quantize_model(model, RECIPE, progress=False)
    expected = outputs(simulated, inputs)
    coverage = octavo.quant.coverage(simulated)
    packed = octavo.pack_model(simulated)
    found = outputs(packed, inputs)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.UnusedLayerWarning)
        octavo.save_model(packed, Path(folder) / "model")
        made = ARCHITECTURES[name][0] if name in OF_TORCH else None
        loaded = outputs(octavo.load_model(Path(folder) / "model", made), inputs)
        parameters = {tensor.name for tensor in octavo.quant.coverage(packed).tensors}  # not buffers
        entries = octavo.inspect(Path(folder) / "model" / "model.octavo.safetensors")
        stored = sum(entry.nbytes for entry in entries if entry.name in parameters)
    matrices = [tensor for tensor in coverage.tensors if len(tensor.shape) > 1]
    left = [tensor for tensor in matrices if tensor.format is None]
    total = sum(tensor.elements for tensor in matrices)
    floats = sum(tensor.nbytes for tensor in coverage.tensors if tensor.format is None)
    return Row(
        name,
        coverage.parameters,
        1 - sum(tensor.elements for tensor in left) / total,
        8 * stored / coverage.parameters,
        stored / (coverage.quantized * BITS / 8 + floats),
        tuple(dict.fromkeys(tensor.name.rpartition(".")[2] for tensor in left)),
        max(gap(a, b) for a, b in zip(found, expected, strict=True)),
        all(same(a, b) for a, b in zip(loaded, found, strict=True)),
    )


def gap(found, expected):
    """Return the largest difference of two tensors, relative to the largest value."""
    difference = (found.double() - expected.double()).nan_to_num().abs().max()
    return float(difference / expected.double().nan_to_num().abs().max().clamp(min=1e-30))


def same(a, b):
    """Whether two tensors have the same values, NaN included."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
