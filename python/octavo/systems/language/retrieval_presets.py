"""Runs by name: diffusion, retrieval, meta-learning, and techniques together."""

from __future__ import annotations

from octavo.models import gpt
from octavo.systems.language.language_config import LanguageConfig
from octavo.systems.language.language_scales import Scale
from octavo.systems.language.preset_base import Preset, keeper, nocap_baseline, with_model, with_pattern

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


def _retrieving(scale: Scale, *, joint: bool) -> LanguageConfig:
    chunk = max(4, min(64, scale.context // 8))
    entries = min(1 << 16, max(1024, scale.tokens // chunk // 16))
    mixer = gpt.Retrieval(heads=scale.heads, chunk=chunk, entries=entries, overlap=min(8, chunk), joint=joint)
    middle = scale.layers // 2
    pattern = "a" * middle + "r" + "a" * (scale.layers - middle - 1)
    return with_pattern(scale, pattern, r=mixer)
