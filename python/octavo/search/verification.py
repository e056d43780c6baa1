"""verify: points of a front are built and evaluated; predicted and measured losses are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.display.notebook import InNotebooks
from octavo.display.progress import Report, Stages
from octavo.errors import ConfigError, NonFiniteError
from octavo.search.fingerprints import identity_of, warn_of_unknown
from octavo.search.journal import Journal
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.number_arrays import returned_number
from octavo.search.pareto_front import Point
from octavo.search.rank_correlation import rank_correlation
from octavo.storage.arguments import check, checks_arguments

if TYPE_CHECKING:
    from rich.table import Table

ENOUGH = 0.8
"""Least rank correlation at which the additive prediction may choose; below it, only measured points are chosen."""


@dataclass(frozen=True)
class Verified:
    """One point, its predicted loss, and the measured loss of the built model; lower is better."""

    point: Point
    predicted: float
    measured: float


@dataclass(frozen=True)
class Verification(InNotebooks):
    """Points of a front and their measured losses. ``notes``: remarks about the prediction."""

    rows: tuple[Verified, ...]
    notes: tuple[str, ...] = ()

    @property
    def correlation(self) -> float:
        """Rank correlation of predicted and measured losses; NaN for fewer than 3 points."""
        return rank_correlation([row.predicted for row in self.rows], [row.measured for row in self.rows])

    @property
    def can_predict(self) -> bool:
        """Whether the predicted losses order the points like the measured ones: a rank correlation of at least 0.8."""
        return self.correlation >= ENOUGH

    @checks_arguments
    def chosen(self, *, max_loss: float | None = None, nbytes: float | None = None, bits: float | None = None) -> Point:
        """Return the point of least measured loss within a size, or the smallest within a loss; exactly one bound is
        given.

        Args:
            max_loss: largest measured loss.
            nbytes: bytes of all tensors of the model.
            bits: the same for each parameter.

        Returns:
            The point.

        Raises:
            ConfigError: for no bound or several, and for one that no point satisfies.
        """
        bounds = {"max_loss": max_loss, "nbytes": nbytes, "bits": bits}
        named = {name: value for name, value in bounds.items() if value is not None}
        if len(named) != 1:
            raise ConfigError(f"a point is chosen by one of {', '.join(bounds)}; got {', '.join(named) or 'none'}")
        name, bound = next(iter(named.items()))
        of = {"max_loss": lambda row: row.measured, "nbytes": lambda row: row.point.nbytes, "bits": _bits}[name]
        inside = [row for row in self.rows if of(row) <= bound]
        if not inside:
            raise ConfigError(f"no measured point has {name} <= {bound:g}: the least is {min(map(of, self.rows)):g}")
        if name == "max_loss":
            return min(inside, key=lambda row: (row.point.nbytes, row.measured)).point
        return min(inside, key=lambda row: (row.measured, row.point.nbytes)).point

    def to_table(self) -> Table:
        """Return one row for each point.

        Returns:
            A table of rich.
        """
        from octavo.display.console import table
        from octavo.display.numbers import size

        rows = table(">bits", ">bytes", ">predicted loss", ">measured loss")
        for row in self.rows:
            rows.add_row(f"{row.point.bits:.2f}", size(row.point.nbytes), f"{row.predicted:.3e}", f"{row.measured:.3e}")
        return rows

    def __str__(self) -> str:
        """Return the table as plain text, the correlation, and the notes."""
        from octavo.display.console import plain_text

        summary = f"rank correlation of prediction and measurement: {self.correlation:.2f} over {len(self.rows)} points"
        return "\n".join([plain_text(self.to_table()), "", summary, *self.notes])

    def to_json(self) -> str:
        """Return everything as JSON.

        Returns:
            A text.
        """
        correlation = None if math.isnan(self.correlation) else self.correlation
        return json.dumps(
            {"correlation": correlation, "notes": self.notes, "points": [asdict(row) for row in self.rows]}, indent=1
        )


def _bits(row: Verified) -> float:
    return row.point.bits


@checks_arguments
def verify(
    points: Iterable[Point],
    build: Callable[[Point], Any],
    evaluate: Callable[[Any], float],
    *,
    pairs: Callable[[], Sequence[Pair]] | None = None,
    journal: Journal | Path | str | None = None,
    subject: str = "",
    progress: bool | Report = True,
) -> Verification:
    """Return the measured losses of points of a front: each is built and evaluated, one after the other.

    Args:
        points: of a front.
        build: returns the model of a point, such as
            ``pack_model(quantize_model(model, to_recipe(point, sensitivity)))``.
        evaluate: returns the loss of a model, lower is better, such as one minus accuracy.
        pairs: called if the rank correlation is below 0.8; its terms, from :func:`interaction_terms`, are added to the
            predictions of all points.
        journal: a folder, or an open Journal, with results that are not measured again.
        subject: a text that names model, data and evaluation in the journal. Without it both functions are identified
            by content, with everything that they close over and read; an IdentityWarning names parts that cannot be
            digested.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        Predicted and measured loss of each point.

    Raises:
        ConfigError: without points.
        NonFiniteError: for a loss that is NaN or infinite.
    """
    chosen = list(points)
    check(chosen, list[Point], "verify: points")
    if not chosen:
        raise ConfigError("no point to verify; take some of a front, as front.spread(10) does")
    rows = []
    with ExitStack() as stack:
        store = journal if isinstance(journal, Journal) or journal is None else stack.enter_context(Journal(journal))
        if store is not None and not subject:
            known = identity_of(build=build, evaluate=evaluate)
            warn_of_unknown(known.unknown)
            subject = str(known)
        advance = stack.enter_context(Stages(progress).stage("measuring points", len(chosen)))
        for point in chosen:
            settings = {"verified": subject, "choice": dict(sorted(point.choice.items()))}
            record = None if store is None else store.find(settings, "loss")
            if store is None or record is None:
                measured = returned_number(evaluate(build(point)), "evaluate")
                if not math.isfinite(measured):
                    raise NonFiniteError(
                        f"the loss of a point of {point.bits:.2f} bits is {measured}; accepted are finite ones"
                    )
                if store is not None:
                    store.add(settings, loss=measured)
            else:
                with store.decoding():
                    measured = float(record["loss"])
            rows.append(Verified(point, point.loss, measured))
            advance()
    plain = Verification(tuple(rows))
    if len(rows) < 3 or plain.can_predict:
        return plain
    finding = f"the sum over layers orders these points with a rank correlation of {plain.correlation:.2f}"
    if pairs is None:
        return Verification(plain.rows, (f"{finding}: it cannot predict here, only measured points may be chosen",))
    terms = pairs()
    better = tuple(Verified(row.point, row.predicted + _added(row.point, terms), row.measured) for row in rows)
    improved = Verification(better)
    if not improved.correlation > plain.correlation:
        return Verification(plain.rows, (f"{finding}; pairs of adjacent layers do not help: it cannot predict here",))
    can = "" if improved.can_predict else ", which is not enough to predict"
    return Verification(
        better, (f"{finding}, with terms for pairs of adjacent layers {improved.correlation:.2f}{can}",)
    )


@dataclass(frozen=True)
class Pair:
    """The loss of two groups in two formats together, minus the sum of their own losses."""

    groups: tuple[str, str]
    formats: tuple[str, str]
    loss: float


@checks_arguments
def interaction_terms(
    sensitivity: Sensitivity, points: Iterable[Point], together: Callable[[dict[str, str]], float]
) -> list[Pair]:
    """Return the interaction terms of adjacent groups in their formats at some points.

    Adjacent groups are neighbours in the sensitivity; weights and inputs are separate sequences.

    Args:
        sensitivity: losses by group and format.
        points: of a front.
        together: returns the divergence of the model with some groups in formats, ``{group: format}``, and all others
            float.

    Returns:
        The terms, each pair of groups and formats once.
    """
    points = list(points)
    check(points, list[Point], "interaction_terms: points")
    rows = {group.name: row for row, group in enumerate(sensitivity.groups)}
    adjacent = []
    for role in ("weight", "input"):
        own = [group.name for group in sensitivity.groups if group.role == role]
        adjacent += list(pairwise(own))
    wanted = dict.fromkeys(
        (pair, (point.choice[pair[0]], point.choice[pair[1]])) for point in points for pair in adjacent
    )
    terms = []
    for pair, formats in wanted:
        alone = [
            sensitivity.loss[rows[name], sensitivity.formats.index(text)]
            for name, text in zip(pair, formats, strict=True)
        ]
        if "keep" not in formats and not np.isnan(alone).any():
            both = returned_number(together(dict(zip(pair, formats, strict=True))), "together")
            terms.append(Pair(pair, formats, both - float(sum(alone))))
    return terms


def _added(point: Point, terms: Sequence[Pair]) -> float:
    return sum(
        term.loss for term in terms if (point.choice[term.groups[0]], point.choice[term.groups[1]]) == term.formats
    )
