"""What presets are made of: the baseline, and changes of a run.

A change takes a run and the sizes, and returns the run with one difference. Where a field's value depends on the sizes,
a function of them stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

from octavo.lab.language import gpt
from octavo.lab.language.language_config import AdamW, LanguageConfig, Phase, TestTime
from octavo.lab.language.language_scales import Scale

Change = Callable[[LanguageConfig, Scale], LanguageConfig]


def nocap_baseline(scale: Scale) -> LanguageConfig:
    """Return the baseline."""
    return LanguageConfig(
        model=gpt.nocap_baseline(
            vocabulary=scale.vocabulary, width=scale.width, layers=scale.layers, heads=scale.heads,
            end_of_text=scale.end_of_text,
        ),
        tokens=scale.tokens,
        phases=(Phase(share=1.0, context=scale.context, batch=scale.batch),),
        micro_tokens=scale.micro_tokens,
        validation_tokens=scale.validation_tokens,
        optimizer=AdamW(learning_rate=scale.learning_rate),
        precision=scale.precision,
    )  # fmt: skip


# --- changes ----------------------------------------------------------------------------------------------------------


def run(**fields: Any) -> Change:
    """Return the change of fields of the run."""
    return lambda base, scale: replace(base, **_at(scale, fields))


def model(**fields: Any) -> Change:
    """Return the change of fields of the model."""
    return lambda base, scale: replace(base, model=replace(base.model, **_at(scale, fields)))


def noise(**fields: Any) -> Change:
    """Return the change of fields of what the model does in training alone."""
    return lambda base, scale: replace(base, model=base.model.with_training(**_at(scale, fields)))


def mixer(value: Any) -> Change:
    """Return the change to one mixer in every block."""
    return lambda base, scale: replace(base, model=replace(base.model, mixers={"a": _one(scale, value)}))


def pattern(letters: Callable[[Scale], str], **mixers: Any) -> Change:
    """Return the change to a letter a block; ``a`` is the baseline's attention, ``mixers`` give the others."""

    def change(base: LanguageConfig, scale: Scale) -> LanguageConfig:
        known = {"a": gpt.Attention(heads=scale.heads), **_at(scale, mixers)}
        blocks = letters(scale)
        return replace(base, model=replace(base.model, pattern=blocks, mixers={one: known[one] for one in set(blocks)}))

    return change


def batch(sequences: Callable[[Scale], int]) -> Change:
    """Return the change to updates of so many sequences, in every stage."""
    return lambda base, scale: replace(
        base, phases=tuple(replace(phase, batch=max(1, sequences(scale))) for phase in base.phases)
    )


def resized(sizes: Callable[[Scale], Scale], change: Change) -> Change:
    """Return the baseline at other sizes, changed there; it takes the place of the run."""
    return lambda base, scale: change(nocap_baseline(sizes(scale)), sizes(scale))


def phases(*stages: Callable[[Scale], dict[str, Any]]) -> Change:
    """Return the change to stages; fields that are not given are those of the one stage of the run."""
    return lambda base, scale: replace(base, phases=tuple(replace(base.phases[0], **stage(scale)) for stage in stages))


def calm_end(base: LanguageConfig, scale: Scale) -> LanguageConfig:
    """Change the last fifth of the tokens, which has no noise."""
    phase = base.phases[-1]
    return replace(base, phases=(replace(phase, share=0.8), replace(phase, share=0.2, noise=0.0)))


def modern_model(make: Callable[..., gpt.GPTConfig]) -> Change:
    """Return the change to a model of the optimizer track, whose residual stream has 16 bits where it trains so."""

    def change(base: LanguageConfig, scale: Scale) -> LanguageConfig:
        network = make(
            vocabulary=scale.vocabulary, width=scale.width, layers=scale.layers, heads=scale.modern_heads,
            end_of_text=scale.end_of_text,
        )  # fmt: skip
        return replace(base, model=network.with_training(autocast_stream=True))

    return change


# --- values that depend on the sizes ----------------------------------------------------------------------------------


def grouped_attention(scale: Scale) -> gpt.Attention:
    """Return attention with half of the keys and values, or one of them where the number of heads is odd."""
    return gpt.Attention(heads=scale.heads, kv_heads=scale.heads // 2 if scale.heads % 2 == 0 else 1)


def wider(scale: Scale) -> Scale:
    """Return the width that the heads divide into even sizes nearest to 12 % more."""
    unit = 2 * scale.heads
    return replace(scale, width=unit * max(1, round(1.12 * scale.width / unit)))


def pooled(pooling: str) -> Callable[[Scale], gpt.PooledAttention]:
    """Return attention to an eighth of the context, and to a memory of the chunks before."""

    def mixer(scale: Scale) -> gpt.PooledAttention:
        chunk = max(2, scale.context // 8)
        return gpt.PooledAttention(heads=scale.heads, chunk=chunk, pooling=pooling, reservoir=chunk)

    return mixer


def latent_attention(scale: Scale) -> gpt.LatentAttention:
    """Return latent attention, its rank and rotary size in the published proportions."""
    size = scale.width // scale.heads
    rank, rotary = max(8, scale.width // 6), max(2, size // 4 * 2)
    return gpt.LatentAttention(heads=scale.heads, head_size=size, rank=rank, rotary_size=rotary)


def recurrence(scale: Scale) -> gpt.GatedRecurrence:
    """Return recurrences that remember half of the context at most."""
    return gpt.GatedRecurrence(longest=scale.context / 2)


def fourier_operator(scale: Scale) -> gpt.AFNO:
    """Return AFNO on chunks of 64 positions, or of a quarter of a shorter context."""
    return gpt.AFNO(chunk=max(2, min(64, scale.context // 4)))


def sparse_mixers(make: Callable[..., gpt.SparseMixers]) -> Callable[[Scale], gpt.SparseMixers]:
    """Return experts of every kind; each is sent a fifth of the tokens, more or less, so chunks are shorter."""
    return lambda scale: make(heads=scale.heads, chunk=max(2, min(16, scale.context // 16)))


def retrieval(*, joint: bool) -> Callable[[Scale], gpt.Retrieval]:
    """Return chunked cross-attention to a store of a sixteenth of the chunks. ``joint``: with a learned query."""

    def mixer(scale: Scale) -> gpt.Retrieval:
        chunk = max(4, min(64, scale.context // 8))
        entries = min(1 << 16, max(1024, scale.tokens // chunk // 16))
        return gpt.Retrieval(heads=scale.heads, chunk=chunk, entries=entries, overlap=min(8, chunk), joint=joint)

    return mixer


def nearest_neighbours(scale: Scale) -> gpt.NearestNeighbours:
    """Return a head that remembers a 64th of the states, at least those of a context."""
    entries = min(1 << 16, max(scale.context, scale.tokens // 64 // scale.context * scale.context))
    return gpt.NearestNeighbours(entries=entries)


def test_time(scale: Scale) -> TestTime:
    """Return training on neighbours of chunks of a quarter of the context."""
    chunk = max(4, min(64, scale.context // 4))
    return TestTime(chunk=chunk, entries=min(1 << 16, max(1024, scale.tokens // chunk // 8)))


def eighth_batch(scale: Scale) -> int:
    """Return half of the batch, but eight sequences at least, which eight micro-batches divide."""
    return max(8, scale.batch // 2)


def low_attention(letter: str) -> Callable[[Scale], str]:
    """Return attention in the first third of the blocks, another mixer above."""

    def letters(scale: Scale) -> str:
        low = max(1, scale.layers // 3)
        return "a" * low + letter * (scale.layers - low)

    return letters


def outer_attention(scale: Scale) -> str:
    """Return attention in the first and the last sixth of the blocks, ``s`` between."""
    ends = "a" * max(1, round(scale.layers / 6))
    return ends + "s" * (scale.layers - 2 * len(ends)) + ends


def repeated(unit: str) -> Callable[[Scale], str]:
    """Return a unit of letters over and over, whole at the end."""
    return lambda scale: (unit * scale.layers)[-scale.layers :]


def middle_block(letter: str) -> Callable[[Scale], str]:
    """Return attention in all blocks but one in the middle."""

    def letters(scale: Scale) -> str:
        middle = scale.layers // 2
        return "a" * middle + letter + "a" * (scale.layers - middle - 1)

    return letters


def _at(scale: Scale, fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with those values that depend on the sizes."""
    return {name: _one(scale, value) for name, value in fields.items()}


def _one(scale: Scale, value: Any) -> Any:
    return value(scale) if isinstance(value, FunctionType) else value
