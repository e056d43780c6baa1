"""Tokens a second of masked diffusion beside an autoregressive model, at equal quality of the samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, SettingError
from octavo.lab.language.gpt import GPT, first_state, step
from octavo.lab.language.gpt.diffusion_sampling import continued

_ERRORS = 2.0


@dataclass(frozen=True)
class SampledSpeed:
    """Samples of one model. ``steps`` a block; None of an autoregressive model.

    ``tokens_per_s``: the median over samples, one sequence at a time, through torch. ``nats``: what the judge gives a
    token of them, with its standard error over samples. ``entropy``: of the ids' frequencies, in nats: text that
    repeats itself pleases a judge and has little of it. ``equal``: whether nats are not above, and the entropy not
    below, those of the autoregressive model, by more than two standard errors, or 2 % of the entropy.
    """

    model: str
    steps: int | None
    tokens_per_s: float
    nats: float
    error: float
    entropy: float
    equal: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def sampled_speeds(
    diffusion: GPT,
    plain: GPT,
    judge: GPT,
    *,
    steps: Sequence[int],
    tokens: int,
    samples: int,
    seed: int = 0,
    tell: Callable[[str], object] = lambda text: None,
) -> list[SampledSpeed]:
    """Return the speed and quality of samples of ``tokens`` ids: of ``plain`` first, then of diffusion by ``steps``.

    All begin with the id that begins documents and are drawn at temperature 1; sample n of every kind is made before
    sample n + 1. ``judge``: scores them, and is best neither of the two. Raises ModelError for models of other kinds or
    vocabularies, SettingError for numbers below what an interval needs.
    """
    if tokens < 2 or samples < 2 or not steps or min(steps) < 1:
        raise SettingError(
            f"{tokens} tokens, {samples} samples, steps {list(steps)}; accepted are 2, 2, and 1 and more"
        )
    if not hasattr(diffusion.objective, "hidden"):
        raise ModelError(
            "the model is of no masked diffusion; give one of octavo lab train gpt --preset block_diffusion"
        )
    for name, one in (("plain", plain), ("judge", judge)):
        if hasattr(one.objective, "hidden"):
            raise ModelError(f"the {name} model is of masked diffusion, which gives no exact scores; give another")
        if one.config.vocabulary != diffusion.config.vocabulary:
            raise ModelError(
                f"the {name} model has {one.config.vocabulary} ids and diffusion {diffusion.config.vocabulary}; "
                "accepted are models of the same tokenizer"
            )
    kinds = [None, *dict.fromkeys(steps)]
    drawn: dict[int | None, list[Tensor]] = {kind: [] for kind in kinds}
    speeds: dict[int | None, list[float]] = {kind: [] for kind in kinds}
    begin = torch.tensor([diffusion.config.end_of_text or 0])
    for number in range(-1, samples):  # the first one warms up
        tell(f"sample {number + 1} of {samples}")
        for kind in kinds:
            generator = torch.Generator().manual_seed(seed + number + 1)
            start = time.perf_counter()
            if kind is None:
                ids = decoded(plain, begin, tokens, generator)
            else:
                ids = continued(diffusion, begin, tokens, steps=kind, generator=generator)
            if number >= 0:
                speeds[kind].append(tokens / (time.perf_counter() - start))
                drawn[kind].append(ids)
    found: list[SampledSpeed] = []
    for kind in kinds:
        nats = [judged(judge, ids) for ids in drawn[kind]]
        mean = math.fsum(nats) / samples
        error = math.sqrt(math.fsum((value - mean) ** 2 for value in nats) / (samples - 1) / samples)
        entropy = _entropy(torch.cat([ids[1:] for ids in drawn[kind]]))
        first = found[0] if found else None
        equal = first is None or (
            mean - first.nats <= _ERRORS * math.hypot(error, first.error) and entropy >= 0.98 * first.entropy
        )
        name = "autoregressive" if kind is None else "masked diffusion"
        found.append(SampledSpeed(name, kind, median(speeds[kind]), mean, error, entropy, equal))
    return found


@torch.no_grad()
def decoded(model: GPT, prompt: Tensor, tokens: int, generator: Any) -> Tensor:
    """Return a prompt ``[P]`` and ``tokens`` ids drawn after it, token by token, with the cache of keys and values."""
    state, ids = first_state(model, 1), prompt.tolist()
    for at in range(len(prompt) + tokens - 1):
        log_probs_1V, state = step(model, torch.tensor([ids[at]]), state)
        if at >= len(prompt) - 1:
            ids.append(int(torch.multinomial(log_probs_1V[0].exp(), 1, generator=generator)))
    return torch.tensor(ids)


@torch.no_grad()
def judged(model: GPT, ids: Tensor) -> float:
    """Return the mean nats of the ids after the first, in one window."""
    return float(model.nll(ids[None, :-1], ids[None, 1:]).double().mean())


def _entropy(ids: Tensor) -> float:
    shares = torch.bincount(ids).double() / len(ids)
    return float(torch.special.entr(shares).sum())
