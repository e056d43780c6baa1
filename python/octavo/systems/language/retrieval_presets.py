"""Runs by name: diffusion, retrieval, meta-learning, and techniques together."""

from __future__ import annotations

from octavo.models import gpt
from octavo.systems.language.language_config import LanguageConfig
from octavo.systems.language.language_scales import Scale
from octavo.systems.language.preset_base import Preset, keeper, nocap_baseline, with_model

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
