"""The study of formats: each family at its best configuration, chosen on validation, reported on test texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.errors import SettingError
from octavo.lab.studies import candidates
from octavo.lab.studies.measured_points import Laboratory, Point
from octavo.lab.studies.result_rows import draws, grouped, summary, weight_bits
from octavo.recipe import Recipe

#: What is quantized: the weights of Linear layers alone, or their inputs as well.
MODES = ("weights", "both")
_QUICK = 2  # candidates of a quick study


@dataclass(frozen=True)
class Formats:
    """The study: ``families`` at element ``widths``, each at its best configuration, over ``seeds``.

    All configurations of a family are compared by relative entropy to the float32 model on validation texts; the
    closest one is measured on test texts. ``quick``: compare two of them only.
    Raises SettingError for an unknown family, a width below 1 or above 16, or empty lists.
    """

    families: tuple[str, ...] = candidates.FAMILIES
    widths: tuple[int, ...] = (2, 3, 4, 6, 8)
    modes: tuple[str, ...] = MODES
    seeds: int = 3
    quick: bool = False

    def __post_init__(self) -> None:
        """Check names and widths."""
        if not (self.families and self.widths and self.modes) or self.seeds < 1:
            raise SettingError("families, widths, modes and seeds; accepted: one of each, at least")
        for width in self.widths:
            if not 1 <= width <= 16:
                raise SettingError(f"width {width}; accepted are 1 to 16 bits")
        for name in self.families:
            if not any(candidates.weights(name, width) for width in self.widths):
                raise SettingError(f"family {name!r} has none of the widths {', '.join(map(str, self.widths))}")
        for mode in self.modes:
            if mode not in MODES:
                raise SettingError(f"unknown mode {mode!r}; accepted are {', '.join(MODES)}")

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Choose, measure and return the rows of the table."""
        model = laboratory.subject.model()
        points = [Point({"study": "formats", "family": "fp32", "width": 32, "mode": "weights"}, "fp32")]
        for name in self.families:
            for width in sorted(set(self.widths)):
                points += self._chosen(laboratory, name, width)
        return rows(laboratory.measure_all(points), model)

    def _chosen(self, laboratory: Laboratory, name: str, width: int) -> list[Point]:
        weight = self._closest(
            laboratory, name, width, "weights", [f"weight={text}" for text in candidates.weights(name, width)]
        )
        if weight is None:
            return []
        chosen: dict[str, str | None] = {"weights": weight}
        if "both" in self.modes:
            given = [f"{weight} input={text}" for text in candidates.inputs(name, width)]
            chosen["both"] = self._closest(laboratory, name, width, "both", given)
        made = []
        for mode in self.modes:
            if chosen[mode] is not None:
                recipe = f"type:Linear {chosen[mode]}"
                label = {"study": "formats", "family": name, "width": width, "mode": mode}
                made += [Point(label, "ptq", recipe, seed) for seed in range(self.seeds if draws(recipe) else 1)]
        return made

    def _closest(self, laboratory: Laboratory, name: str, width: int, mode: str, given: list[str]) -> str | None:
        """Return the configuration that is closest to float32 on validation texts; None if there is none."""
        best, least = None, math.inf
        for text in given[:_QUICK] if self.quick else given:
            label = {"study": "formats", "family": name, "width": width, "mode": mode}
            found = laboratory.judge(Point(label, "ptq", f"type:Linear {text}"))["distance"]
            laboratory.tell(
                f"{name} {width} {mode}: {text}: {'not a number' if found is None else f'{found:.3g} nats'}"
            )
            if best is None or (found is not None and found < least):
                best, least = text, math.inf if found is None else found
        return best


def rows(records: Sequence[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Return one row for each family, width and mode, with its :func:`summary`; the first record is float32's.

    Bits are averages over quantized weights, scales included; 32 where nothing is quantized.
    """
    made = []
    names = ("family", "width", "mode")
    for key, group in grouped(records, names).items():
        recipe = group[0]["settings"]["recipe"]
        bits = {
            "weight_bits": 32.0 if recipe is None else weight_bits(model, recipe),
            "input_bits": _input_bits(recipe),
        }
        made.append({**dict(zip(names, key, strict=True)), **bits, **summary(group, records[0])})
    return made


def _input_bits(recipe: str | None) -> float:
    for rule in Recipe.parse(recipe or "").rules:
        for role, spec in rule.gives:
            if role == "input" and spec is not None:
                return spec.format.bits
    return 32.0
