"""Training configurations of the polynomial models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.errors import SettingError
from octavo.lab.polynomials.seq2seq import ARCHITECTURES, Seq2SeqConfig
from octavo.train import TrainConfig

# Lines held out by `octavo.lab.polynomials.data.splits` for validation and test, and the seed of that split.
VALIDATION = TEST = 20_000
SPLIT_SEED = 0
# The training of the report: lines to train on and to validate with, passes, and fields of TrainConfig that differ.
REPORT_TRAIN, REPORT_VALIDATION = 800_000, 200_000
REPORT_EPOCHS, REPORT_ARCHITECTURE = 22, "lstm"
REPORT_TRAINING = {"seed": 42, "batch_size": 16, "accumulation": 1, "learning_rate": 1e-3}


def model_config(architecture: str, **changes: Any) -> Seq2SeqConfig:
    """Return the shape of the polynomial model of an architecture: ``lstm``, ``hybrid`` (shipped) or ``transformer``.

    ``changes``: fields of :class:`Seq2SeqConfig` that differ. Raises SettingError for an unknown architecture or field.
    """
    if architecture not in ARCHITECTURES:
        raise SettingError(f"unknown architecture {architecture!r}; accepted are {', '.join(ARCHITECTURES)}")
    return replace(Seq2SeqConfig(architecture=architecture), **changes)


def train_config(**changes: Any) -> TrainConfig:
    """Return the training of the shipped model; ``changes``: fields of :class:`TrainConfig` that differ.

    The rate stays up for 60 % of the steps and falls to 0 in the rest, where most of the accuracy is gained. Shorter
    runs have a shorter warm-up.
    """
    config = TrainConfig(
        steps=31_000,
        batch_size=256,
        accumulation=2,
        learning_rate=4e-3,
        schedule="trapezoid",
        warmup=200,
        cooldown=0.4,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        clip=1.0,
        precision="bf16",
        ema=0.999,
        evaluate_every=2000,
        checkpoint_every=500,
        log_every=50,
        seed=0,
    )
    steps = changes.get("steps", config.steps)
    return replace(config, **{"warmup": min(config.warmup, steps // 10), **changes})
