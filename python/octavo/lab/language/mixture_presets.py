"""Runs by name: mixtures of experts, gates of token and context, horizons of an operator."""

from __future__ import annotations

from typing import Any

from octavo.lab.language import gpt
from octavo.lab.language.language_config import LanguageConfig
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.preset_base import Preset, keeper, nocap_baseline, with_mixer, with_model

PRESETS: dict[str, Preset] = {}
_preset = keeper(PRESETS)


@_preset("two experts, one a token: the work of the baseline, twice its feed-forward weights")
def moe_2(scale: Scale) -> LanguageConfig:
    """Return the baseline with two experts."""
    return _experts(scale, experts=2)


@_preset("four experts, one a token", "better")
def moe_4(scale: Scale) -> LanguageConfig:
    """Return the baseline with four experts."""
    return _experts(scale, experts=4)


@_preset("eight experts, one a token", "better")
def moe_8(scale: Scale) -> LanguageConfig:
    """Return the baseline with eight experts."""
    return _experts(scale, experts=8)


@_preset("eight experts of half the width, two a token", "better")
def moe_8_top2(scale: Scale) -> LanguageConfig:
    """Return the baseline with two experts a token, whose work is that of one."""
    return _experts(scale, experts=8, chosen=2, factor=2.0)


@_preset("eight experts, kept busy by a bias that only the choice sees", "better")
def moe_8_bias(scale: Scale) -> LanguageConfig:
    """Return :func:`moe_8` without the loss of balance."""
    return _experts(scale, experts=8, balance="bias")


@_preset("eight experts, chosen by the mean of the positions before, not by the token")
def moe_8_context(scale: Scale) -> LanguageConfig:
    """Return :func:`moe_8` routed by context."""
    return _experts(scale, experts=8, route="context")


@_preset("eight experts behind a DeepONet's gate of token and context")
def deeponet_experts(scale: Scale) -> LanguageConfig:
    """Return :func:`moe_8` with such a gate."""
    return with_model(nocap_baseline(scale), ffn=gpt.GatedExperts(experts=8))


@_preset("attention, a convolution and a recurrence in every block, weighed by a DeepONet's gate")
def mixed_mixers(scale: Scale) -> LanguageConfig:
    """Return the baseline with experts that are different mixers."""
    return with_mixer(scale, gpt.MixedMixers(heads=scale.heads))


@_preset("an operator head: two further horizons, a vector each, in training alone", "worse")
def operator_horizons(scale: Scale) -> LanguageConfig:
    """Return the baseline with further tokens from the same head."""
    return with_model(nocap_baseline(scale), objective=gpt.OperatorHorizons())


def _experts(scale: Scale, **fields: Any) -> LanguageConfig:
    return with_model(nocap_baseline(scale), ffn=gpt.MixtureOfExperts(**fields))
