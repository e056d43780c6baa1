"""Runs by name: diffusion, retrieval, meta-learning, and techniques together."""

from __future__ import annotations

from dataclasses import replace

from octavo.lab.language import gpt
from octavo.lab.language.language_config import LanguageConfig, Phase, Reptile, TestTime
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.preset_base import Preset, keeper, nocap_baseline, with_model, with_pattern

PRESETS: dict[str, Preset] = {}
_preset = keeper(PRESETS)

# --- diffusion --------------------------------------------------------------------------------------------------------


@_preset("masked diffusion: hidden tokens predicted from both sides; a bound on the likelihood, no exact loss", "worse")
def masked_diffusion(scale: Scale) -> LanguageConfig:
    """Return the baseline trained to reveal hidden tokens of whole windows."""
    return with_model(nocap_baseline(scale), objective=gpt.MaskedDiffusion())


@_preset("masked diffusion within blocks of 16 tokens, which follow each other; a bound, no exact loss", "worse")
def block_diffusion(scale: Scale) -> LanguageConfig:
    """Return the baseline trained to reveal hidden tokens block after block."""
    return with_model(nocap_baseline(scale), objective=gpt.MaskedDiffusion(block=min(16, scale.context)))


# --- retrieval --------------------------------------------------------------------------------------------------------


@_preset("RETRO: a middle block reads neighbours of the chunk before, found in other documents", "worse")
def retro(scale: Scale) -> LanguageConfig:
    """Return the baseline with chunked cross-attention in one block."""
    return _retrieving(scale, joint=False)


@_preset("RETRO whose search has a learned query, trained through the scores of neighbours", "worse")
def joint_retriever(scale: Scale) -> LanguageConfig:
    """Return :func:`retro` with a retriever that is trained with the model."""
    return _retrieving(scale, joint=True)


@_preset("kNN-LM: a quarter of the probability is that of the nearest states of training", "better")
def knn_lm(scale: Scale) -> LanguageConfig:
    """Return the baseline, which remembers states in evaluation."""
    entries = min(1 << 16, max(scale.context, scale.tokens // 64 // scale.context * scale.context))
    return with_model(nocap_baseline(scale), head=gpt.NearestNeighbours(entries=entries))


# --- training on small updates ----------------------------------------------------------------------------------------


@_preset("test-time training: the last validation trains on retrieved neighbours of what it has scored", "better")
def test_time_training(scale: Scale) -> LanguageConfig:
    """Return the baseline, whose weights follow the text that it is measured on."""
    chunk = max(4, min(64, scale.context // 4))
    entries = min(1 << 16, max(1024, scale.tokens // chunk // 8))
    return replace(nocap_baseline(scale), test_time=TestTime(chunk=chunk, entries=entries))


@_preset("Reptile: every ten updates the weights go half of the way from where they were", "worse")
def reptile(scale: Scale) -> LanguageConfig:
    """Return the baseline with outer steps."""
    return replace(nocap_baseline(scale), reptile=Reptile(every=10, rate=0.5))


# --- together ---------------------------------------------------------------------------------------------------------


@_preset(
    "LightRNN, rows smoothed by n-grams and two tokens ahead at half the context, as once reported at 3.34", "worse"
)
def lightrnn_cocont_mtp2(scale: Scale) -> LanguageConfig:
    """Return the three techniques together; the record has both losses.

    The last tenth has the whole context, in which it is validated: losses at another context compare with none.
    """
    base = with_model(
        nocap_baseline(scale), embedding=gpt.GridTable(), head=gpt.GridSoftmax(), objective=gpt.GridTogether()
    )
    half = Phase(share=0.9, context=scale.context // 2, batch=2 * scale.batch)
    return replace(base, phases=(half, Phase(share=0.1, context=scale.context, batch=scale.batch)))


def _retrieving(scale: Scale, *, joint: bool) -> LanguageConfig:
    chunk = max(4, min(64, scale.context // 8))
    entries = min(1 << 16, max(1024, scale.tokens // chunk // 16))
    mixer = gpt.Retrieval(heads=scale.heads, chunk=chunk, entries=entries, overlap=min(8, chunk), joint=joint)
    middle = scale.layers // 2
    pattern = "a" * middle + "r" + "a" * (scale.layers - middle - 1)
    return with_pattern(scale, pattern, r=mixer)
