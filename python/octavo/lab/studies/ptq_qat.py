"""The study of widths: accuracy after post-training quantization (PTQ) and after training through the format (QAT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import FormatError, SettingError
from octavo.lab.studies.measured_points import Laboratory, Point, Training
from octavo.lab.studies.result_rows import draws, grouped, summary
from octavo.recipe import Recipe

BASELINES = ("mase", "mase-a", "mase-b")
_ZEROS = {"zero": "zero", "quantized": "layers"}  # columns of a row, and where a record has them


@dataclass(frozen=True)
class Family:
    """A way to quantize the Linear layers at any width ``{w}``.

    ``ptq``, ``qat``: what is given to weights, inputs and biases before and with training; ``half`` of the width is
    ``{h}``, all of it but two and at least 4 is ``{f}``.
    """

    ptq: str
    qat: str

    def recipe(self, width: int, *, trained: bool = False) -> str | None:
        """Return the recipe at a width; None where the format is not that wide, or not that narrow."""
        text = f"type:Linear {(self.qat if trained else self.ptq).format(w=width, h=width // 2, f=max(4, width - 2))}"
        try:
            Recipe.parse(text)
        except FormatError:
            return None
        return text


FAMILIES = {
    "fixed": Family("weight=fixed{w}@mse input=fixed{w}@mse", "weight=fixed{w}@lsq input=fixed{w}@lsq"),
    "int": Family("weight=int{w}:channel@mse input=int{w}@mse", "weight=int{w}:channel@lsq input=int{w}@lsq"),
    "mxint": Family("weight=mxint{w} input=mxint{w}", "weight=mxint{w} input=mxint{w}"),
    "bfp": Family("weight=bfp{w}/16 input=bfp{w}/16", "weight=bfp{w}/16 input=bfp{w}/16"),
    "int-weights": Family("weight=int{w}:g32@mse", "weight=int{w}:g32@mse"),
    # MASE's labs: width and fraction by hand, the same for weights, inputs and biases, nothing calibrated.
    # Two reports of them: fractions of all bits but two, at least 4, and of half the bits, as in the labs.
    "mase": Family(*("weight=fixed{w}.{h} input=fixed{w}.{h} bias=fixed{w}.{h}",) * 2),
    "mase-a": Family(*("weight=fixed{w}.{f} input=fixed{w}.{f} bias=fixed{w}.{f}",) * 2),
    "mase-b": Family(*("weight=fixed{w}.{h} input=fixed{w}.{h} bias=fixed{w}.{h}",) * 2),
}


@dataclass(frozen=True)
class PtqQat:
    """The study: ``families`` at ``widths``, each with and without training, over ``seeds``.

    A seed decides the calibration texts and, in training, their order and dropout; the float32 model is one.
    Raises SettingError for an unknown family, for lists that are empty, and for a family that has none of the widths.
    """

    families: tuple[str, ...] = ("fixed", "int", "mxint")
    widths: tuple[int, ...] = (2, 3, 4, 6, 8, 16, 32)
    seeds: int = 3
    training: Training | None = field(default_factory=Training)

    def __post_init__(self) -> None:
        """Check names and widths."""
        if not self.families or not self.widths or self.seeds < 1:
            raise SettingError("families, widths and seeds; accepted: one of each, at least")
        for width in self.widths:
            if not 2 <= width <= 32:
                raise SettingError(f"width {width}; accepted are 2 to 32 bits")
        for name in self.families:
            if not any(family(name).recipe(width) for width in self.widths):
                raise SettingError(f"family {name!r} has none of the widths {', '.join(map(str, self.widths))}")

    def points(self) -> list[Point]:
        """Return all points, the float32 model first; widths that a family has not are left out."""
        made = [Point({"study": "ptq-qat", "family": "fp32", "width": 32}, "fp32")]
        for name in self.families:
            for width in sorted(set(self.widths)):
                made += self._points(name, width)
        return made

    def _points(self, name: str, width: int) -> list[Point]:
        label = {"study": "ptq-qat", "family": name, "width": width}
        before, after = (family(name).recipe(width, trained=trained) for trained in (False, True))
        if before is None or after is None:
            return []
        made = [Point(label, "ptq", before, seed) for seed in range(self.seeds if draws(before) else 1)]
        if self.training is not None:
            made += [Point(label, "qat", after, seed, self.training) for seed in range(self.seeds)]
        return made

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Measure all points and return the rows of the table."""
        if self.training is not None:
            wanted, taken = self.training.updates(laboratory.subject), self.training.config(laboratory.subject, 0).steps
            if taken < wanted:
                laboratory.tell(
                    f"training takes {taken:,} updates in place of {wanted:,}; --qat-share {self.training.share:g} "
                    "takes all of them"
                )
        return rows(laboratory.measure_all(self.points()))


def family(name: str) -> Family:
    """Return a family by its name, or one made of ``WEIGHT`` or ``WEIGHT+INPUT`` with ``{w}`` for the width.

    Raises SettingError for a name that is none.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    if "{w}" not in name:
        raise SettingError(
            f"unknown family {name!r}; accepted are {', '.join(FAMILIES)}, or formats such as 'int{{w}}:g32+int8'"
        )
    weight, _, given = name.partition("+")
    text = f"weight={weight}" + (f" input={given}" if given else "")
    try:
        Recipe.parse(f"type:Linear {text.format(w=8, h=4, f=6)}")
    except (FormatError, KeyError, IndexError, ValueError) as error:
        raise SettingError(f"family {name!r} at 8 bits: {error}") from None
    return Family(text, text)


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each family, width and method, with its :func:`summary`; the first record is float32's.

    ``zero_layers`` of ``quantized_layers``: layers whose weights all round to 0, of the first seed; None: none do.
    ``zero_share``: of all quantized weights, where some layer's are all 0.
    """
    names = ("family", "width", "method")
    return [
        {
            **dict(zip(names, key, strict=True)), **summary(group, records[0]),
            **{f"{name}_layers": group[0].get("zeros", {}).get(part) for name, part in _ZEROS.items()},
            "zero_share": _zero_share(group[0].get("zeros", {})),
        }
        for key, group in grouped(records, names).items()
    ]  # fmt: skip


def _zero_share(zeros: dict[str, int]) -> float | None:
    return zeros["zero_weights"] / zeros["weights"] if zeros.get("weights") else None
