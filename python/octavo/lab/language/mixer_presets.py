"""Runs by name: the baseline with other mixers of positions, in all blocks or in some."""

from __future__ import annotations

from dataclasses import replace

from octavo.lab.language import gpt
from octavo.lab.language.language_config import LanguageConfig
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.preset_base import (
    Preset,
    keeper,
    nocap_baseline,
    with_mixer,
    with_model,
    with_pattern,
)

PRESETS: dict[str, Preset] = {}
_preset = keeper(PRESETS)

# --- attention --------------------------------------------------------------------------------------------------------


@_preset("grouped-query attention: half of the keys and values")
def gqa(scale: Scale) -> LanguageConfig:
    """Return the baseline with grouped heads, one group where their number is odd."""
    kv_heads = scale.heads // 2 if scale.heads % 2 == 0 else 1
    return with_mixer(scale, gpt.Attention(heads=scale.heads, kv_heads=kv_heads))


@_preset("grouped-query attention, and 12 % more width: the memory of decoding stays below the baseline's", "better")
def gqa_wide(scale: Scale) -> LanguageConfig:
    """Return :func:`gqa` with the width that the heads divide into even sizes nearest to 12 % more."""
    unit = 2 * scale.heads
    return gqa(replace(scale, width=unit * max(1, round(1.12 * scale.width / unit))))


@_preset("ALiBi: scores fall with the distance, by a slope a head; no rotary positions")
def alibi(scale: Scale) -> LanguageConfig:
    """Return the baseline with fixed biases for distances."""
    return with_mixer(scale, gpt.BiasedAttention(heads=scale.heads))


@_preset("a learned bias for buckets of distances; no rotary positions")
def relative_bias(scale: Scale) -> LanguageConfig:
    """Return the baseline with learned biases for distances."""
    return with_mixer(scale, gpt.BiasedAttention(heads=scale.heads, distance="buckets"))


@_preset("attention to an eighth of the context, and to means of the chunks before", "worse")
def pooled_mean(scale: Scale) -> LanguageConfig:
    """Return the baseline with a memory of means."""
    return with_mixer(scale, _pooled(scale, "mean"))


@_preset("attention to an eighth of the context, and to maxima of the chunks before", "worse")
def pooled_max(scale: Scale) -> LanguageConfig:
    """Return the baseline with a memory of maxima."""
    return with_mixer(scale, _pooled(scale, "max"))


@_preset("attention to an eighth of the context, and to two learned means of every chunk before", "worse")
def pooled_latents(scale: Scale) -> LanguageConfig:
    """Return the baseline with a memory of learned latents."""
    return with_mixer(scale, _pooled(scale, "latents"))


@_preset("attention to an eighth of the context, and to as many earlier positions, drawn evenly", "worse")
def pooled_reservoir(scale: Scale) -> LanguageConfig:
    """Return the baseline with a memory of drawn positions."""
    return with_mixer(scale, _pooled(scale, "reservoir"))


@_preset("multi-head latent attention")
def mla(scale: Scale) -> LanguageConfig:
    """Return the baseline with latent attention, its rank and rotary size in the published proportions."""
    size = scale.width // scale.heads
    rank, rotary = max(8, scale.width // 6), max(2, size // 4 * 2)
    mixer = gpt.LatentAttention(heads=scale.heads, head_size=size, rank=rank, rotary_size=rotary)
    return with_mixer(scale, mixer)


@_preset("attention within a window of a quarter of the context", "worse")
def fixed_window(scale: Scale) -> LanguageConfig:
    """Return the baseline with windows."""
    return with_mixer(scale, gpt.Attention(heads=scale.heads, window=scale.context // 4))


@_preset("attention within documents alone")
def document_mask(scale: Scale) -> LanguageConfig:
    """Return the baseline with documents kept apart."""
    return with_model(nocap_baseline(scale), keep_documents=True)


# --- spectral mixers, hybrids -----------------------------------------------------------------------------------------


@_preset("a causal spectral mixer in every block", "worse")
def spectral(scale: Scale) -> LanguageConfig:
    """Return the baseline with lag kernels in place of attention."""
    return with_pattern(scale, "s" * scale.layers, s=gpt.LagKernel())


@_preset("attention in the first third of the blocks, spectral mixers above", "worse")
def spectral_hybrid(scale: Scale) -> LanguageConfig:
    """Return the baseline with both."""
    low = max(1, scale.layers // 3)
    return with_pattern(scale, "a" * low + "s" * (scale.layers - low), s=gpt.LagKernel())


@_preset("a chunk-causal spectral mixer in the upper two thirds", "worse")
def chunk_spectral_hybrid(scale: Scale) -> LanguageConfig:
    """Return the baseline with chunks whose spectra mix."""
    low = max(1, scale.layers // 3)
    return with_pattern(
        scale,
        "a" * low + "c" * (scale.layers - low),
        c=gpt.ChunkSpectral(chunk=min(64, scale.context // 4), heads=scale.heads),
    )


@_preset("gated convolutions low, attention in every second block above")
def convolution_hybrid(scale: Scale) -> LanguageConfig:
    """Return the baseline with local mixers between attention, which the last block has."""
    return with_pattern(scale, ("ga" * scale.layers)[-scale.layers :], g=gpt.GatedConvolution())


@_preset("spectral mixers between attention in the first and the last sixth of the blocks", "worse")
def spectral_middle(scale: Scale) -> LanguageConfig:
    """Return the baseline with lag kernels in the middle."""
    ends = "a" * max(1, round(scale.layers / 6))
    return with_pattern(scale, ends + "s" * (scale.layers - 2 * len(ends)) + ends, s=gpt.LagKernel())


@_preset("gated convolutions, and attention in every fourth block, the last among them", "worse")
def local_hybrid(scale: Scale) -> LanguageConfig:
    """Return the baseline with local mixers low, and a few global attentions spread out."""
    return with_pattern(scale, ("ggga" * scale.layers)[-scale.layers :], g=gpt.GatedConvolution())


# --- operators, recurrences -------------------------------------------------------------------------------------------


@_preset("operator mixers: kernels of eight modes that all channels share", "worse")
def operator_modes(scale: Scale) -> LanguageConfig:
    """Return the baseline with operators in place of attention."""
    return with_mixer(scale, gpt.OperatorKernel())


@_preset("operator mixers: kernels that are a network of the lag", "worse")
def operator_mlp(scale: Scale) -> LanguageConfig:
    """Return the baseline with such kernels in place of attention."""
    return with_mixer(scale, gpt.OperatorKernel(kernel="mlp"))


@_preset("gated linear recurrences in place of attention", "worse")
def gated_recurrence(scale: Scale) -> LanguageConfig:
    """Return the baseline without attention, with a state of one number a channel."""
    return with_mixer(scale, gpt.GatedRecurrence(longest=scale.context / 2))


@_preset("two gated linear recurrences for every attention, which the last block has")
def recurrence_hybrid(scale: Scale) -> LanguageConfig:
    """Return the baseline with both."""
    mixer = gpt.GatedRecurrence(longest=scale.context / 2)
    return with_pattern(scale, ("rra" * scale.layers)[-scale.layers :], r=mixer)


def _pooled(scale: Scale, pooling: str) -> gpt.PooledAttention:
    chunk = max(2, scale.context // 8)
    return gpt.PooledAttention(heads=scale.heads, chunk=chunk, pooling=pooling, reservoir=chunk)
