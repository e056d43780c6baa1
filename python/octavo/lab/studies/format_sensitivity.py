"""The study of sensitivity: the loss of every format in every group of layers, measured and estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import SettingError
from octavo.lab.studies.measured_points import Laboratory
from octavo.recipe.rule import KEEP, read_spec
from octavo.search import Sensitivity
from octavo.search.layer_sensitivity import ROLES
from octavo.search.measured_divergences import measure_sensitivity
from octavo.search.rank_correlation import rank_correlation

FORMATS = ("int3:g32", "mxfp4", "nf4", "int4:g32", "nvfp4", "mxfp6e2m3", "int6:g32", "mxint8")
"""Formats of 3.5 to 8.25 bits that are compared unless others are named."""


@dataclass(frozen=True)
class FormatSensitivity:
    """The study: every group of layers in every one of ``formats``, one at a time, on ``samples`` training texts.

    ``roles``: ``weight``, ``input`` or both. ``estimate``: the estimate from one backward pass as well. Raises
    SettingError for no formats, fewer than one sample and unknown roles, FormatError for formats that cannot be read.
    """

    formats: tuple[str, ...] = FORMATS
    roles: tuple[str, ...] = ("weight",)
    samples: int = 64
    estimate: bool = True

    def __post_init__(self) -> None:
        """Check before a model is loaded."""
        if not self.formats or self.samples < 1:
            raise SettingError(f"{len(self.formats)} formats, {self.samples} samples; accepted: one of each, at least")
        for role in self.roles or ("",):
            if role not in ROLES:
                raise SettingError(f"unknown role {role!r}; accepted are {' and '.join(ROLES)}")
        check_formats(self.formats)

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Measure, and return a row for each group and format."""
        measured = sensitivity_of(laboratory, self.formats, self.samples, self.roles)
        if not self.estimate:
            return rows(measured)
        laboratory.tell("the estimate from one backward pass")
        return rows(measured, sensitivity_of(laboratory, self.formats, self.samples, self.roles, method="fisher"))


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that cannot be read. Raises FormatError naming the text."""
    for text in formats:
        if text != KEEP:
            read_spec(text)


def sensitivity_of(
    laboratory: Laboratory,
    formats: Sequence[str],
    samples: int,
    roles: Sequence[str] = ("weight",),
    method: str = "divergence",
) -> Sensitivity:
    """Return the sensitivity of a subject's model on training texts; what the journal has is not measured again."""
    subject = laboratory.subject
    return measure_sensitivity(
        subject.model(), subject.calibration(samples, 0), formats, roles=tuple(roles), samples=samples, method=method,
        journal=laboratory.journal, progress=False,
    )  # fmt: skip


def rows(measured: Sensitivity, estimated: Sensitivity | None = None) -> list[dict[str, Any]]:
    """Return a row for each group and format: loss in the measure's unit, bytes, and the estimate."""
    found = []
    for at, group in enumerate(measured.groups):
        for column, text in enumerate(measured.formats):
            if text == KEEP:
                continue
            row = {
                "group": group.name, "role": group.role, "layers": " ".join(group.layers), "elements": group.elements,
                "format": text, "bytes": int(measured.nbytes[at, column]), "measure": measured.divergence,
                "loss": _plain(measured.loss[at, column]),
            }  # fmt: skip
            if estimated is not None:
                row["estimate"] = _plain(estimated.loss[at, column])
            found.append(row)
    return found


def agreement(found: Sequence[dict[str, Any]]) -> float | None:
    """Return the rank correlation of losses and estimates over all rows that have both; None without any."""
    pairs = [(row["loss"], row["estimate"]) for row in found if None not in (row["loss"], row.get("estimate"))]
    return None if len(pairs) < 2 else _plain(rank_correlation([one for one, _ in pairs], [two for _, two in pairs]))


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
