"""Runs by name: optimizers, order of documents, noise of training, recomputed blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.lab.language import gpt
from octavo.lab.language.language_config import AdamW, LanguageConfig, Lion, Phase
from octavo.lab.language.language_scales import Scale
from octavo.lab.language.preset_base import Preset, keeper, nocap_baseline, with_batch, with_model

PRESETS: dict[str, Preset] = {}
_preset = keeper(PRESETS)


@_preset("the baseline's model trained with Lion, eight micro-batches an update")
def lion(scale: Scale) -> LanguageConfig:
    """Return the baseline's model with Lion at a fifth of the rate, and half of the batch."""
    return replace(_eight_parts(scale), optimizer=Lion(learning_rate=scale.learning_rate / 5))


@_preset("AdamW with moments in 8 bits on a dynamic map, eight micro-batches an update")
def adam_8bit(scale: Scale) -> LanguageConfig:
    """Return the baseline with codes for moments, and half of the batch."""
    rule = AdamW(learning_rate=scale.learning_rate, moments="dynamic8")
    return replace(_eight_parts(scale), optimizer=rule)


@_preset("AdamW with moments in 8-bit minifloats whose blocks share a bias, eight micro-batches an update")
def adam_minifloat(scale: Scale) -> LanguageConfig:
    """Return :func:`adam_8bit` with a block format of the package."""
    rule = AdamW(learning_rate=scale.learning_rate, moments="bm8e4/256")
    return replace(_eight_parts(scale), optimizer=rule)


@_preset("AdamW with eight micro-batches an update, beside which Lion and 8-bit moments are seen")
def eight_micro_batches(scale: Scale) -> LanguageConfig:
    """Return the baseline with half of the batch."""
    return _eight_parts(scale)


@_preset("documents of frequent tokens first, those of rare ones last", "worse")
def easy_documents_first(scale: Scale) -> LanguageConfig:
    """Return the baseline with the tokens of its run in another order."""
    return replace(nocap_baseline(scale), order="easy_first")


@_preset("LayerDrop: a tenth of the blocks left out, all of them in the last fifth of the tokens", "worse")
def layer_drop(scale: Scale) -> LanguageConfig:
    """Return the baseline with LayerDrop in a stage of its own."""
    return _calm_end(_noisy(scale, layer_drop=0.1))


@_preset("stochastic depth: the last block left out in a tenth of the passes, earlier ones less often", "worse")
def stochastic_depth(scale: Scale) -> LanguageConfig:
    """Return the baseline with rates that grow with depth."""
    return _noisy(scale, layer_drop=0.1, layer_drop_grows=True)


@_preset("drop-out of a tenth of what mixers and feed-forward networks write", "worse")
def dropout(scale: Scale) -> LanguageConfig:
    """Return the baseline with drop-out."""
    return _noisy(scale, dropout=0.1)


@_preset("drop-out with residual, drop-out and norm as one operation", "worse")
def dropout_fused(scale: Scale) -> LanguageConfig:
    """Return :func:`dropout` as one operation."""
    return _noisy(scale, dropout=0.1, fused=True)


@_preset("R-Drop: two passes with drop-out that are to agree", "worse")
def r_drop(scale: Scale) -> LanguageConfig:
    """Return :func:`dropout` with the objective of R-Drop."""
    return with_model(dropout(scale), objective=gpt.RDrop())


@_preset("token drop-out: 15 % of the inputs are a mask vector", "worse")
def token_dropout(scale: Scale) -> LanguageConfig:
    """Return the baseline with token drop-out, off in the last fifth of the tokens."""
    return _calm_end(with_model(nocap_baseline(scale), objective=gpt.TokenDropout()))


@_preset("random-LTD: inner blocks pass over a quarter of the positions", "worse")
def random_ltd(scale: Scale) -> LanguageConfig:
    """Return the baseline with positions passed over, none in the last fifth of the tokens."""
    return _calm_end(_noisy(scale, positions_passed_over=0.25))


@_preset("twice the context at the memory of one, early blocks recomputed; the last tenth at the plain length")
def recomputed_context(scale: Scale) -> LanguageConfig:
    """Return the baseline with as many sequences a micro-batch, twice as long, and three quarters of blocks recomputed.

    An update has as many tokens. The last tenth has the baseline's length, at which all arms are validated.
    """
    recomputed = -(-3 * scale.layers // 4)
    long = Phase(share=0.9, context=2 * scale.context, batch=max(1, scale.batch // 2))
    base = replace(_noisy(scale, recomputed=recomputed), micro_tokens=2 * scale.micro_tokens)
    return replace(base, phases=(long, Phase(share=0.1, context=scale.context, batch=scale.batch)))


def _noisy(scale: Scale, **noise: Any) -> LanguageConfig:
    """Return the baseline with fields of what it does in training alone."""
    base = nocap_baseline(scale)
    return replace(base, model=base.model.with_training(**noise))


def _eight_parts(scale: Scale) -> LanguageConfig:
    """Return the baseline with half of the batch, but eight sequences at least, in eight micro-batches."""
    batch = max(8, scale.batch // 2)
    return replace(with_batch(nocap_baseline(scale), batch), micro_tokens=-(-batch // 8) * scale.context)


def _calm_end(base: LanguageConfig) -> LanguageConfig:
    """Return a run whose last fifth is without noise."""
    phase = base.phases[-1]
    return replace(base, phases=(replace(phase, share=0.8), replace(phase, share=0.2, noise=0.0)))
