"""Presets put together: the fields in which each differs from the baseline, one by one."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

from octavo.errors import SettingError
from octavo.lab.language.gpt import RDrop, TokenDropout
from octavo.lab.language.language_config import Phase


def joined(base: Any, config: Any, other: Any, names: tuple[str, str]) -> Any:
    """Return ``config`` with the fields in which ``other`` differs from ``base``, inside a model one by one.

    Stages are joined field by field over the tokens, and a mask of inputs becomes the noise of R-Drop. ``names``: of
    both, for the error. Raises SettingError where both change the same field otherwise.
    """
    changes: dict[str, Any] = {}
    for field in fields(base):
        old, now, new = (getattr(one, field.name) for one in (base, config, other))
        if new in (old, now):
            continue
        if now == old:
            changes[field.name] = new
        elif field.name == "phases":
            changes[field.name] = _stages(old, now, new, names)
        elif field.name == "objective" and {type(now), type(new)} == {TokenDropout, RDrop}:
            mask, agreement = (now, new) if isinstance(now, TokenDropout) else (new, now)
            changes[field.name] = replace(agreement, share=mask.share)
        elif is_dataclass(old) and type(old) is type(now) is type(new) and field.name != "optimizer":
            changes[field.name] = joined(old, now, new, names)
        else:
            raise _both(field.name, names)
    return replace(config, **changes) if changes else config


def _stages(
    base: tuple[Phase, ...], config: tuple[Phase, ...], other: tuple[Phase, ...], names: tuple[str, str]
) -> tuple[Phase, ...]:
    """Return stages that begin wherever those of one of both do, each field from the one that changes it."""
    usual = base[0]
    owners: dict[str, tuple[Phase, ...]] = {}
    for field in fields(Phase):
        if field.name == "share":
            continue
        ways = [
            stages
            for stages in (config, other)
            if any(getattr(one, field.name) != getattr(usual, field.name) for one in stages)
        ]
        if len(ways) > 1:
            raise _both(f"{field.name} of the stages", names)
        owners[field.name] = ways[0] if ways else config
    borders = [0.0, *sorted({*_ends(config), *_ends(other)})]
    return tuple(
        Phase(
            share=end - begin,
            **{name: getattr(_at(stages, (begin + end) / 2), name) for name, stages in owners.items()},
        )
        for begin, end in pairwise(borders)
    )


def _ends(stages: tuple[Phase, ...]) -> list[float]:
    """Return the shares of the tokens at which stages end, the last of them 1."""
    ends = [round(math.fsum(one.share for one in stages[: number + 1]), 12) for number in range(len(stages))]
    return [*ends[:-1], 1.0]


def _at(stages: tuple[Phase, ...], place: float) -> Phase:
    """Return the stage at a share of the tokens."""
    return next(stage for stage, end in zip(stages, _ends(stages), strict=True) if place < end)


def _both(field: str, names: tuple[str, str]) -> SettingError:
    return SettingError(f"{names[0]} and {names[1]!r} both change {field}; accepted together is one of them")
