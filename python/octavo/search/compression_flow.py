"""The flow of a compression: sensitivity, allocation, verification, solved weights; resumable at every step.

A budget and a job go in; the packed model comes out, with everything that was measured on the way. Validation data
chooses. What was measured is in the journal before the next step begins: the same call goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.errors import ConfigError, FormatError, OctavoError
from octavo.recipe import Recipe
from octavo.recipe.rule import KEEP, Rule
from octavo.search.allocation import allocate
from octavo.search.assignment_recipe import recipe_of
from octavo.search.bounded_front import bounded_front
from octavo.search.compression_job import Goal, Job, least_bytes
from octavo.search.front import Front, Point
from octavo.search.journal import Journal
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import Group, Sensitivity
from octavo.search.measured_costs import latencies, resized
from octavo.search.measured_latencies import measure_latency
from octavo.search.rank_correlation import rank_correlation
from octavo.train.measurement import Measurement

#: Points of the front that are packed and evaluated, and uniform formats beside them.
VERIFIED, UNIFORM = 6, 2
# Points that fill less of the budget than this are not looked at for it.
_NEAR = 0.9
# Rounds that look for faster points where all of them were slower than predicted.
_CORRECTIONS = 2

Tell = Callable[[str, float], object]


@dataclass(frozen=True)
class Trial:
    """A packed model that was evaluated. ``series``: ``front``, ``uniform`` or ``solved``; ``point``: of the front.

    ``seconds``: of a call on the samples of the goal's latency; None without such a goal.
    """

    series: str
    label: str
    recipe: Recipe
    nbytes: int
    quality: Measurement
    point: Point | None = None
    seconds: float | None = None


@dataclass
class Found:
    """Everything that a compression measured; ``chosen`` is one of ``trials``."""

    before: Measurement
    trials: list[Trial] = field(default_factory=list)
    chosen: Trial | None = None
    sensitivity: Sensitivity | None = None
    front: Front | None = None
    latencies: LatencyTable | None = None
    refused: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0

    @property
    def correlation(self) -> float | None:
        """Rank correlation of predicted and measured losses over the points of the front; None for fewer than 3."""
        pairs = [(t.point.loss, t.quality.loss) for t in self.trials if t.series == "front" and t.point is not None]
        found = rank_correlation([a for a, _ in pairs], [b for _, b in pairs]) if len(pairs) >= 3 else None
        return None if found is None or found != found else float(found)


class Flow:
    """One compression, step by step; ``tell`` hears what is done and the share of all work."""

    def __init__(self, job: Job, goal: Goal, formats: tuple[str, ...], journal: Journal, tell: Tell) -> None:
        """Take the parts. Raises FormatError for formats that are none."""
        self.job, self.goal, self.journal, self.tell = job, goal, journal, tell
        self.formats = canonical(formats)
        self.found: Found | None = None

    # --- steps ------------------------------------------------------------------------------------------------------

    def search(self, *, fast: bool = False, solve: bool = True) -> Found:
        """Choose a format for every layer."""
        found = self._begin()
        with timed(found, "sensitivity"):
            found.sensitivity = self._sensitivity(fast)
        found.front = self._front(found)
        if self.goal.max_loss is None:
            most = self.goal.most_bytes(found.sensitivity.parameters)
            points = [found.front.at(nbytes=most)]
        else:
            points = []
        if not fast or self.goal.max_loss is not None:
            points += self._to_verify(found.front, points)
        with timed(found, "verification"):
            self._verify(found, points, uniform=not fast)
            self._correct(found)
        chosen = self._best(found)
        if solve:
            with timed(found, "solving weights"):
                self._solve(found, chosen)
        found.chosen = self._best(found)
        return found

    def given(self, recipe: Recipe) -> Found:
        """Build and measure a given recipe: nothing is searched."""
        found = self._begin()
        with timed(found, "verification"):
            found.chosen = self._trial(found, "recipe", "the given recipe", recipe)
        return found

    # --- parts ------------------------------------------------------------------------------------------------------

    def _begin(self) -> Found:
        self.tell("measuring the float model", 0.02)
        settings = {**self.job.identity, "what": "before"}
        begin = time.perf_counter()
        before = self._measured(settings, lambda: self.job.evaluate(self.job.model))
        self.found = Found(before)
        self.found.seconds["float model"] = time.perf_counter() - begin
        return self.found

    def _measured(self, settings: Mapping[str, Any], measure: Callable[[], Measurement]) -> Measurement:
        record = self.journal.find(settings, "row")
        if record is None:
            record = self.journal.add(settings, row=measure().stored())
        return Measurement.restored(record["row"])

    def _sensitivity(self, fast: bool) -> Sensitivity:
        from octavo.search.measured_divergences import measure_sensitivity

        def progress(stage: str, done: int, total: int) -> None:
            self.tell(f"sensitivity: {stage}", 0.05 + 0.5 * done / max(total, 1))

        found = measure_sensitivity(
            self.job.model,
            self.job.batches,
            self.formats,
            share=self.job.share,
            exclude=self.job.exclude,
            method="fisher" if fast else "divergence",
            output=self.job.output,
            divergence=self.job.divergence,
            samples=self.job.samples,
            journal=self.journal,
            progress=progress,
        )
        return replace(found, fixed_nbytes=found.fixed_nbytes - self.job.saved)

    def _to_verify(self, front: Front, have: list[Point]) -> list[Point]:
        """Return further points: around the budget, and over the front."""
        least = float(front.bits.min())
        if self.goal.max_loss is not None:
            return list(front.spread(VERIFIED + 2))
        bound = have[0].bits
        spread = front.spread(VERIFIED, bits=(max(least, 0.75 * bound), max(float(front.bits.max()), bound)))
        near = front.spread(2, bits=(max(least, _NEAR * bound), bound))
        known = {have[0].nbytes}
        points = []
        for point in (*near, *spread):
            if point.nbytes not in known:
                known.add(point.nbytes)
                points.append(point)
        return points[: VERIFIED - 1]

    def _front(self, found: Found, slower: float = 1.0) -> Front:
        """Return the front of bytes, within the latency where there is a bound.

        ``slower``: measured seconds for each predicted one.
        """
        assert found.sensitivity is not None
        front = allocate(found.sensitivity)
        if self.goal.latency is None:
            return front
        if found.latencies is None:
            self.tell("measuring latencies of layers", 0.54)
            with timed(found, "latencies of layers"):
                found.latencies = measure_latency(
                    self.job.model, self._batch, found.sensitivity, table=self.journal, progress=False
                )
        most = self.goal.most_bytes(found.sensitivity.parameters)
        return bounded_front(front, {"latency": (found.latencies, self.goal.latency / slower)}, nbytes=most)

    def _correct(self, found: Found) -> None:
        """Where all points are slower than was predicted, take others, which are predicted as much faster."""
        for _ in range(_CORRECTIONS if self.goal.latency is not None else 0):
            if any(self._fits(found, trial) for trial in found.trials):
                return
            assert found.sensitivity is not None and found.latencies is not None
            known = {trial.nbytes for trial in found.trials}
            ratios = [
                trial.seconds / found.latencies.predict(trial.point.choice, found.sensitivity)
                for trial in found.trials
                if trial.point is not None and trial.seconds is not None
            ]
            try:
                found.front = self._front(found, max(1.0, *ratios))
            except ConfigError:  # not even the fastest assignment: the report says that the goal is missed
                return
            most = self.goal.most_bytes(found.sensitivity.parameters)
            if found.front.nbytes.min() <= most:
                points = [found.front.at(nbytes=most), *found.front.spread(2)]
                self._verify(found, [point for point in points if point.nbytes not in known], uniform=False)

    @property
    def _batch(self) -> Any:
        """The samples of the goal's latency."""
        return resized(next(iter(self.job.batches)), self.goal.samples)

    def _verify(self, found: Found, points: list[Point], *, uniform: bool) -> None:
        assert found.sensitivity is not None and found.front is not None
        wanted: list[tuple[str, str, Recipe, Point | None]] = [
            ("front", f"{point.bits:.2f} bits", recipe_of(point, found.sensitivity), point) for point in points
        ]
        if uniform:
            wanted += [("uniform", text, recipe, None) for text, recipe in self._uniform(found.sensitivity)]
        for number, (series, label, recipe, point) in enumerate(wanted):
            self.tell(f"verifying {label}", 0.55 + 0.25 * number / len(wanted))
            self._trial(found, series, label, recipe, point)

    def _uniform(self, sensitivity: Sensitivity) -> list[tuple[str, Recipe]]:
        """Return the largest formats that fit the budget when every layer has the same one."""
        most = self.goal.most_bytes(sensitivity.parameters)
        sizes = sensitivity.nbytes.sum(0) + sensitivity.fixed_nbytes
        fitting = [(int(size), text) for size, text in zip(sizes, sensitivity.formats, strict=True) if text != KEEP]
        # Where nothing fits, the smallest ones stand for what a single format costs.
        inside = sorted(((size, text) for size, text in fitting if size <= most), reverse=True)
        chosen = inside or sorted(fitting)
        names = [group.name for group in sensitivity.groups]
        return [(text, recipe_of(dict.fromkeys(names, text), sensitivity)) for _, text in chosen[:UNIFORM]]

    def _trial(self, found: Found, series: str, label: str, recipe: Recipe, point: Point | None = None) -> Trial | None:
        """Build, size and evaluate a recipe; one that a layer cannot have is noted and left out."""
        settings = {**self.job.identity, "what": "trial", "recipe": str(recipe)}
        if self.goal.latency is not None:
            settings["timed"] = self.goal.samples
        record = self.journal.find(settings, "row")
        if record is None:
            try:
                packed = self.job.build(recipe)
            except OctavoError as error:
                if series in ("front", "recipe"):
                    raise
                found.refused.append((label, str(error)))
                return None
            quality = self.job.evaluate(packed)
            facts: dict[str, Any] = {"nbytes": self.job.size(packed)}
            if self.goal.latency is not None:
                facts["seconds"] = latencies({"": packed}, self._batch)[""]["value"]
            record = self.journal.add(settings, row={**quality.stored(), **facts})
        row = dict(record["row"])
        nbytes, seconds = int(row.pop("nbytes")), row.pop("seconds", None)
        trial = Trial(series, label, recipe, nbytes, Measurement.restored(row), point, seconds)
        found.evaluations += 1
        found.trials.append(trial)
        return trial

    def _fits(self, found: Found, trial: Trial) -> bool:
        if self.goal.latency is not None and (trial.seconds is None or trial.seconds > self.goal.latency):
            return False
        if self.goal.max_loss is not None:
            return trial.quality.loss - found.before.loss <= self.goal.max_loss
        parameters = sum(p.numel() for p in self.job.model.parameters())
        return trial.nbytes <= self.goal.most_bytes(parameters) + 1e-6

    def _best(self, found: Found) -> Trial:
        """Return the trial that reaches the goal best; ties go to fewer bytes, then to the recipe's text."""
        fitting = [trial for trial in found.trials if self._fits(found, trial)]
        if self.goal.max_loss is None and fitting:
            return min(fitting, key=lambda trial: (trial.quality.loss, trial.nbytes, str(trial.recipe)))
        if fitting:
            return min(fitting, key=lambda trial: (trial.nbytes, trial.quality.loss, str(trial.recipe)))
        # Nothing keeps the bound: the model of least loss says how near it comes.
        return min(found.trials, key=lambda trial: (trial.quality.loss, trial.nbytes, str(trial.recipe)))

    def _solve(self, found: Found, chosen: Trial) -> None:
        """Evaluate the best points again with weights that GPTQ solves for the inputs of their layers."""
        sensitivity, front = found.sensitivity, found.front
        assert sensitivity is not None and front is not None
        bases = [trial for trial in found.trials if trial.point is not None and self._fits(found, trial)]
        bases = sorted(bases, key=lambda trial: (trial.quality.loss, trial.nbytes, str(trial.recipe)))[:2]
        if self.goal.max_loss is not None:
            bases = self._cheaper(found, chosen)
        for number, base in enumerate(bases):
            self.tell(f"solving weights, {base.label}", 0.82 + 0.12 * number / max(len(bases), 1))
            assert base.point is not None
            solved = {group.name: solved_text(base.point.choice[group.name], group) for group in sensitivity.groups}
            self._trial(found, "solved", f"{base.label}, GPTQ", recipe_of(solved, sensitivity), base.point)

    def _cheaper(self, found: Found, chosen: Trial) -> list[Trial]:
        """Return the points of fewer bytes next to the chosen one, which solving may bring within the bound."""
        points = [trial for trial in found.trials if trial.point is not None and trial.nbytes <= chosen.nbytes]
        return sorted(points, key=lambda trial: -trial.nbytes)[:3]


def check_budget(job: Job, goal: Goal, formats: Sequence[str]) -> None:
    """Refuse a budget below the smallest format, from shapes alone, and a latency of no forward pass.

    Raises ConfigError.
    """
    if goal.latency is not None and job.costs is not None:
        raise ConfigError(
            f"{job.name}: it runs in the native engine, not as forward passes of layers, whose latency a goal may "
            "bound; give bits, bytes or a loss"
        )
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    least, most = least_bytes(job.model, formats) - job.saved, goal.most_bytes(parameters)
    if least > most:
        raise ConfigError(
            f"no format fits {goal.limit:g} {goal.unit}: the smallest of {', '.join(formats)} takes "
            f"{8 * least / parameters:.2f} bits a parameter, {least:,} bytes; give more, or smaller formats"
        )


def canonical(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of formats, each once, sorted: their order changes nothing. Raises FormatError, ConfigError."""
    texts = []
    for text in formats:
        rule = Rule(weight=text)
        texts.append(str(dict(rule.gives)["weight"]))
    if not texts:
        raise ConfigError("no format to choose from; give some, such as 'int4:g32, nf4'")
    return tuple(sorted(dict.fromkeys(texts)))


def solved_text(text: str, group: Group) -> str:
    """Return the format of a group with GPTQ, as it is where nothing can be solved: lookups, and other methods."""
    if text == KEEP or not group.macs or group.role != "weight" or "@" in text:
        return text
    try:
        Rule(weight=f"{text}@gptq")
    except FormatError:
        return text
    return f"{text}@gptq"


@contextmanager
def timed(found: Found, what: str) -> Iterator[None]:
    """Add the seconds of a block to what was found."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        found.seconds[what] = found.seconds.get(what, 0) + time.perf_counter() - begin
