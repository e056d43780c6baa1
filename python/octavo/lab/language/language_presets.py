"""Runs by name: functions that return a frozen :class:`LanguageConfig`, each one small difference from a base.

``predicted`` is what is expected of a run beside the baseline at the same tokens, before it is measured: ``better``,
``even`` or ``worse``; ``even`` where a difference within the noise of seeds is expected.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.errors import SettingError
from octavo.lab.language import gpt, mixer_presets, mixture_presets, retrieval_presets, training_presets
from octavo.lab.language.language_config import AdamW, LanguageConfig, Muon, Phase
from octavo.lab.language.language_scales import SCALES, Scale
from octavo.lab.language.preset_base import Preset, keeper, nocap_baseline, with_batch, with_model

PRESETS: dict[str, Preset] = {}
BASE, TUNED = "nocap_baseline", "tuned_baseline"
_preset = keeper(PRESETS)


def preset(name: str, scale: Scale | str = "true") -> LanguageConfig:
    """Return the run of a name at sizes, or at those of a name. Raises SettingError for another name."""
    if isinstance(scale, str):
        if scale not in SCALES:
            raise SettingError(f"scale is {scale!r}; accepted are {', '.join(SCALES)}")
        scale = SCALES[scale]
    if name not in PRESETS:
        raise SettingError(f"preset is {name!r}; accepted are {', '.join(PRESETS)}")
    return PRESETS[name].make(scale)


# --- baselines --------------------------------------------------------------------------------------------------------

_preset("the baseline of the benchmark: GPT-2 with RoPE and RMSNorm, AdamW")(nocap_baseline)


@_preset("the baseline with learning rate, batch and cool-down tuned", "better")
def tuned_baseline(scale: Scale) -> LanguageConfig:
    """Return the baseline with half the batch, a longer cool-down and a higher rate."""
    base = with_batch(nocap_baseline(scale), scale.batch // 2)
    return replace(base, cooldown=0.5, optimizer=AdamW(learning_rate=1.5 * scale.learning_rate))


# --- optimizers, blocks -----------------------------------------------------------------------------------------------


@_preset("the baseline's model trained with Muon", "better")
def muon(scale: Scale) -> LanguageConfig:
    """Return the baseline's model with Muon and its long cool-down."""
    return replace(nocap_baseline(scale), optimizer=Muon(), warmup=0.0, cooldown=0.7)


@_preset("Muon with row rescaling and cautious decay", "better")
def normuon_cautious(scale: Scale) -> LanguageConfig:
    """Return :func:`muon` with both."""
    return replace(muon(scale), optimizer=Muon(row_rescale=0.95, cautious=True))


@_preset("QK-norm, squared ReLU and zero-initialized outputs, with the baseline's AdamW", "better")
def modern_block(scale: Scale) -> LanguageConfig:
    """Return the baseline with the modern block alone."""
    base = nocap_baseline(scale)
    mixer = gpt.Attention(heads=scale.heads, qk_norm=True)
    return with_model(base, mixers={"a": mixer}, ffn=gpt.SquaredReluMLP(), stream=gpt.Stream(initial="zero_output"))


@_preset("the simple modern recipe with Muon", "better")
def modern(scale: Scale) -> LanguageConfig:
    """Return the recipe of the optimizer track."""
    return replace(muon(scale), model=_light(gpt.modern(**_modern_sizes(scale))))


@_preset("the modern recipe with every skip, value tables, smearing and hashed pairs", "better")
def modern_skips(scale: Scale) -> LanguageConfig:
    """Return :func:`modern` with all of them."""
    return replace(muon(scale), model=_light(gpt.modern_skips(**_modern_sizes(scale))))


@_preset("a gated feed-forward network of as many parameters", "worse")
def gated_mlp(scale: Scale) -> LanguageConfig:
    """Return the baseline with a gated MLP."""
    return with_model(nocap_baseline(scale), ffn=gpt.GatedMLP())


# --- schedules, stages ------------------------------------------------------------------------------------------------


@_preset("four times the batch, a quarter of the updates", "worse")
def large_batch(scale: Scale) -> LanguageConfig:
    """Return the baseline with a batch that is too large."""
    return with_batch(nocap_baseline(scale), 4 * scale.batch)


@_preset("half of the tokens cool down", "better")
def long_cooldown(scale: Scale) -> LanguageConfig:
    """Return the baseline with a longer cool-down."""
    return replace(nocap_baseline(scale), cooldown=0.5)


@_preset("one cycle: the rate rises over 30 % of the tokens and falls to 0, momentum inversely")
def one_cycle(scale: Scale) -> LanguageConfig:
    """Return the baseline with a one-cycle schedule."""
    return replace(nocap_baseline(scale), schedule="one_cycle", warmup=0.3)


@_preset("one cycle, and sequences that grow from a quarter to the whole length")
def length_curriculum(scale: Scale) -> LanguageConfig:
    """Return :func:`one_cycle` in three stages of length, updates of the same number of tokens."""
    return replace(one_cycle(scale), phases=tuple(
        Phase(share=1 / 3, context=scale.context // cut, batch=scale.batch * cut) for cut in (4, 2, 1)
    ))  # fmt: skip


@_preset("windows of attention that grow from an eighth to the whole context")
def window_warmup(scale: Scale) -> LanguageConfig:
    """Return the baseline in three stages of window."""
    windows = (scale.context // 8, scale.context // 4, None)
    return replace(nocap_baseline(scale), phases=tuple(
        Phase(share=1 / 3, context=scale.context, batch=scale.batch, window=window) for window in windows
    ))  # fmt: skip


@_preset("a batch that grows from a half over the whole to one and a half", "better")
def batch_warmup(scale: Scale) -> LanguageConfig:
    """Return the baseline in three stages of batch, with the rates of the record."""
    sizes = ((scale.batch // 2, 1.0), (scale.batch, 1.52), (scale.batch * 3 // 2, 1.73))
    return replace(nocap_baseline(scale), phases=tuple(
        Phase(share=1 / 3, context=scale.context, batch=batch, rate=rate / 1.52) for batch, rate in sizes
    ))  # fmt: skip


@_preset("whole documents shuffled in every epoch")
def shuffled_documents(scale: Scale) -> LanguageConfig:
    """Return the baseline with another order of its data."""
    return replace(nocap_baseline(scale), order="documents")


# --- precision --------------------------------------------------------------------------------------------------------


@_preset("products in TF32, on GPUs that have it")
def tf32(scale: Scale) -> LanguageConfig:
    """Return the baseline in TF32."""
    return replace(nocap_baseline(scale), precision="tf32")


@_preset("products in bfloat16, as the benchmark has them")
def bf16(scale: Scale) -> LanguageConfig:
    """Return the baseline in bfloat16."""
    return replace(nocap_baseline(scale), precision="bf16")


@_preset("products in float16, with loss scaling")
def fp16(scale: Scale) -> LanguageConfig:
    """Return the baseline in float16."""
    return replace(nocap_baseline(scale), precision="fp16")


@_preset("linear layers of the blocks in simulated FP8: e4m3 forward, e5m2 backward", "worse")
def fp8(scale: Scale) -> LanguageConfig:
    """Return the baseline in simulated FP8."""
    return replace(nocap_baseline(scale), precision="fp8")


# --- heads and objectives ---------------------------------------------------------------------------------------------


@_preset("LightRNN: words in a grid, rows and columns predicted one after the other", "worse")
def lightrnn(scale: Scale) -> LanguageConfig:
    """Return the baseline with a grid of words in the order of ids."""
    return with_model(nocap_baseline(scale), embedding=gpt.GridTable(), head=gpt.GridSoftmax())


@_preset("LightRNN whose words move to cheaper cells three times", "worse")
def lightrnn_reallocated(scale: Scale) -> LanguageConfig:
    """Return :func:`lightrnn` with reallocation."""
    return replace(lightrnn(scale), reallocations=3)


@_preset("LightRNN with rows smoothed towards those that follow the previous token", "worse")
def lightrnn_smoothed(scale: Scale) -> LanguageConfig:
    """Return :func:`lightrnn` with row smoothing."""
    return with_model(lightrnn(scale), objective=gpt.RowSmoothing())


@_preset("CoCoNT: corpus frequencies of next tokens as targets at the start of a window")
def cocont(scale: Scale) -> LanguageConfig:
    """Return the baseline with targets from frequent prefixes."""
    return with_model(nocap_baseline(scale), objective=gpt.PrefixTargets())


@_preset("multi-token prediction: a head for the token after the next", "worse")
def mtp_parallel(scale: Scale) -> LanguageConfig:
    """Return the baseline with a parallel head."""
    return with_model(nocap_baseline(scale), objective=gpt.ParallelHeads(ahead=2))


@_preset("multi-token prediction: a chained module for the token after the next", "worse")
def mtp_chained(scale: Scale) -> LanguageConfig:
    """Return the baseline with a chained module."""
    return with_model(nocap_baseline(scale), objective=gpt.ChainedModules(ahead=2))


@_preset("multi-token prediction: the same scores for three tokens, annealed to one")
def mtp_repeated(scale: Scale) -> LanguageConfig:
    """Return the baseline with repeated scores."""
    return with_model(nocap_baseline(scale), objective=gpt.RepeatedLogits())


@_preset("adaptive softmax: frequent tokens, and clusters of rare ones", "worse")
def adaptive_softmax(scale: Scale) -> LanguageConfig:
    """Return the baseline with an adaptive head."""
    cutoffs = (scale.vocabulary // 5, scale.vocabulary // 2)
    return with_model(nocap_baseline(scale), head=gpt.AdaptiveSoftmax(cutoffs=cutoffs, divisor=2.0))


@_preset("sampled softmax over an eighth of the vocabulary", "worse")
def sampled_softmax(scale: Scale) -> LanguageConfig:
    """Return the baseline with a sampled softmax."""
    return with_model(nocap_baseline(scale), head=gpt.SampledSoftmax(samples=scale.vocabulary // 8))


@_preset("noise-contrastive estimation with draws of an eighth of the vocabulary", "worse")
def nce(scale: Scale) -> LanguageConfig:
    """Return the baseline with noise-contrastive estimation."""
    return with_model(nocap_baseline(scale), head=gpt.NoiseContrastive(samples=scale.vocabulary // 8))


@_preset("negative sampling, corrected in evaluation", "worse")
def negative_sampling(scale: Scale) -> LanguageConfig:
    """Return the baseline with negative sampling."""
    return with_model(nocap_baseline(scale), head=gpt.NegativeSampling(samples=scale.vocabulary // 8))


def _light(model: gpt.GPTConfig) -> gpt.GPTConfig:
    """Return a model whose residual stream has 16 bits where it trains so."""
    return model.with_training(autocast_stream=True)


def _modern_sizes(scale: Scale) -> dict[str, Any]:
    return {
        "vocabulary": scale.vocabulary,
        "width": scale.width,
        "layers": scale.layers,
        "heads": scale.modern_heads,
        "end_of_text": scale.end_of_text,
    }


PRESETS |= mixer_presets.PRESETS | mixture_presets.PRESETS | retrieval_presets.PRESETS | training_presets.PRESETS
