"""Presets of mixers and mixtures: the patterns, memory and work that their lines promise, at every scale."""

import pytest
import torch
from octavo.lab.language.gpt import GPT
from octavo.lab.language.language_presets import preset
from octavo.lab.language.language_scales import SCALES


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("spectral_hybrid", "aaaassssssss"),
        ("afno", "ssssssssssss"),
        ("afno_hybrid", "aaaassssssss"),
        ("spectral_middle", "aassssssssaa"),
        ("local_hybrid", "gggagggaggga"),
        ("recurrence_hybrid", "rrarrarrarra"),
    ],
)
def test_hybrids_are_scaled_to_the_depth_and_keep_attention_where_they_say(name, pattern):
    assert preset(name, "true").model.pattern == pattern
    for scale in ("micro", "mini"):
        found = preset(name, scale).model.pattern
        assert len(found) == SCALES[scale].layers and set(found) == set(pattern) and found[-1] == pattern[-1]


def numbers_held(config, positions):
    """Weights, and what the caches of all blocks hold of ``positions``."""
    with torch.device("meta"):
        model = GPT(config.model)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return weights + positions * sum(block.mixer.cached_values for block in model.blocks)


@pytest.mark.parametrize("scale", SCALES)
def test_wide_grouped_attention_takes_no_more_memory_than_the_baseline(scale):
    """Decoding as many positions as a micro-batch of training has."""
    wide, base = (preset(name, scale) for name in ("gqa_wide", "nocap_baseline"))
    positions = SCALES[scale].micro_tokens
    assert numbers_held(wide, positions) <= numbers_held(base, positions)
    assert 1.1 < wide.model.width / base.model.width < 1.17


@pytest.mark.parametrize("name", ["moe_2", "moe_4", "moe_8", "moe_8_top2", "moe_8_bias", "moe_8_context"])
def test_a_mixture_does_the_work_of_the_baseline_for_a_token(name):
    """Feed-forward weights that a token meets: those of the baseline, and the gate's."""
    ffn, base = (preset(one, "mini").model.ffn for one in (name, "nocap_baseline"))
    assert ffn.chosen * ffn.factor == base.factor


@pytest.mark.parametrize("name", ["pooled_mean", "pooled_max", "pooled_latents", "pooled_reservoir"])
def test_pooled_memory_is_a_fraction_of_the_context(name):
    for scale, sizes in SCALES.items():
        with torch.device("meta"):
            mixer = GPT(preset(name, scale).model).blocks[0].mixer
        assert mixer.rows_kept(sizes.context) <= sizes.context // 4 and mixer.config.chunk == sizes.context // 8
