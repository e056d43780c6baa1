"""The sizes that presets are built at: micro for a CPU, mini for a GPU, true for the benchmark itself."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.lab.language.gpt.presets import GPT2_END_OF_TEXT, GPT2_VOCABULARY


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes. At each the table of the embedding is about 31 % of the baseline's parameters, as in GPT-2.

    ``heads`` of the baseline, ``modern_heads`` of the modern block, which has half as many. ``batch``: sequences of
    ``context`` tokens in an update. ``tokens``: of a run; ``validation_tokens``: of a validation.
    ``learning_rate``: of the baseline's AdamW. ``precision``: of the baseline's training; the benchmark's is bf16.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    modern_heads: int
    context: int
    batch: int
    tokens: int
    micro_tokens: int
    validation_tokens: int
    learning_rate: float
    precision: str = "fp32"
    end_of_text: int | None = None


SCALES = {
    "micro": Scale(
        vocabulary=1024, width=48, layers=4, heads=4, modern_heads=2, context=128, batch=8, tokens=1600 * 1024,
        micro_tokens=4096, validation_tokens=1 << 16, learning_rate=0.004,
    ),
    "mini": Scale(
        vocabulary=10240, width=320, layers=6, heads=5, modern_heads=5, context=512, batch=128, tokens=3250 * 65536,
        micro_tokens=65536, validation_tokens=1 << 19, learning_rate=0.0018, precision="bf16",
    ),
    "true": Scale(
        vocabulary=GPT2_VOCABULARY, width=768, layers=12, heads=12, modern_heads=6, context=1024, batch=512,
        tokens=4768 * 524288, micro_tokens=16384, validation_tokens=1 << 20, learning_rate=0.0018,
        precision="bf16", end_of_text=GPT2_END_OF_TEXT,
    ),
}  # fmt: skip
