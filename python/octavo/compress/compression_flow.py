"""The flow of a compression: sensitivity, allocation, verification, tuning, training; resumable at every step.

A job and its options go in; everything that was measured on the way comes out, with the chosen trial. Validation data
chooses. What was measured is in the journal before the next step begins: the same call goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

from octavo.compress.compression_options import Options
from octavo.compress.compression_trials import Candidate, Evidence, Refusal, Search, StepClock, Trial
from octavo.compress.file_sizes import FileSizes
from octavo.compress.trial_bench import HELD_OUT, Bench
from octavo.compress.trial_choice import Choice
from octavo.compress.work_plan import WorkPlan, passes_of, solving
from octavo.data.batches import Batches, samples_of, tensors_in
from octavo.errors import ConfigError
from octavo.quant.algorithms.bias import has_biases
from octavo.recipe import Recipe
from octavo.recipe.rule import KEEP, read_spec
from octavo.recipe.sites import is_default
from octavo.search.allocation import allocate
from octavo.search.assignment_recipe import to_recipe
from octavo.search.bounded_front import bounded_front
from octavo.search.fisher_scores import ESTIMATING
from octavo.search.journal import identity
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.measured_divergences import measure_sensitivity
from octavo.search.measured_latencies import measure_latency
from octavo.search.pareto_front import Front, Point
from octavo.search.refine import solved_on, tuned_beside
from octavo.search.short_training import Training
from octavo.search.verification import Verification, verify

#: Points of the front that are packed and evaluated, and uniform formats beside them.
VERIFIED, UNIFORM = 6, 2
#: Points next below a bound of the loss that tuning, and training, may bring within it.
TUNED, TRAINED = 3, 2
SOLVERS = ("gptq", "hqq")
#: Groups of blocks in which a solver is kept or not, each for itself.
PARTS, FAST_PARTS = 8, 4
_NAMES = {"gptq": "GPTQ", "hqq": "HQQ", "rounding": "plain rounding"}
# Points that fill less of the budget than this are not looked at for it.
_NEAR = 0.9
# Rounds that look for faster points where all of them were slower than predicted.
_CORRECTIONS = 2

# Parameters of a model whose passes take long; the ids that its sensitivities are then measured on, and the samples.
_LARGE, _IDS, _FEWEST = 1 << 25, 4096, 16

#: Trials in the order in which they were measured, and candidates that could not be.
Outcomes = list[Trial | Refusal]


class Flow:
    """The steps of one compression; each returns what it measured."""

    def __init__(
        self,
        bench: Bench,
        options: Options,
        formats: tuple[str, ...],
        sizes: FileSizes | None,
        training: Training | None = None,
    ) -> None:
        """Take the parts. ``formats``: canonical candidates of every layer. ``training``: None: nothing is trained.

        ``sizes``: of the files that a search may write; None where a recipe is given.
        """
        self.sizes = sizes
        self.bench, self.options, self.formats, self.training = bench, options, formats, training
        self.job, self.goal, self.clock = bench.job, options.goal, StepClock()
        self._isolated = not options.fast and options.sensitivity != "fisher"
        bench.plan = self._plan()

    def run(self) -> Evidence:
        """Choose a format for every layer, or take the given recipe, correct biases, train, and choose the best."""
        self._tell("measuring the float model", "float model")
        with self.clock.step("float model"):
            before = self.bench.float_quality()
        choice = Choice(self.goal, before, sum(parameter.numel() for parameter in self.job.model.parameters()))
        if self.options.recipe is None:
            search, outcomes = self._search(choice)
        else:
            search, outcomes = None, self._recipe(self.options.recipe)
        outcomes += self._correct_biases(choice.bases(_trials(outcomes), 1))
        if self.training is not None:
            outcomes += self._train(choice.bases(_trials(outcomes), TRAINED), self.training)
        trials = _trials(outcomes)
        chosen = choice.best(trials)
        peers = []
        if self.options.peers:
            with self.clock.step("peers"):
                sensitivity = None if search is None else search.sensitivity
                peers = self.bench.peers(self.options.peers, chosen, sensitivity)
        return Evidence(
            before=before,
            trials=tuple(trials),
            chosen=chosen,
            refusals=tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal)),
            search=search,
            training=self.training,
            peers=tuple(peers),
            seconds=self.clock.seconds,
        )

    def _tell(self, text: str, step: str, fraction: float = 0.0) -> None:
        self.bench.tell(text, self.bench.plan.share(step, fraction))

    def _plan(self) -> WorkPlan:
        """Estimate what the steps cost, before any was taken."""
        options, evaluation = self.options, passes_of(self.job.data, "validation")
        searches, fast = options.recipe is None, options.fast
        layers = sum(1 for module in self.job.model.modules() if is_default(module))
        tuned = solving(1 if fast else len(SOLVERS), (1 if self._is_large() else FAST_PARTS) if fast else PARTS, 0.25)
        steps = 0 if self.training is None else self.training.config.steps
        return WorkPlan(
            {
                "float model": evaluation,
                "sensitivity": searches * (1 + layers * len(self.formats) / 2 if self._isolated else 4.0),
                "verification": evaluation * (VERIFIED + UNIFORM if searches and not fast else 1),
                "tuning": searches * (tuned + 4 + evaluation),
                "biases": (4 + evaluation) * has_biases(self.job.model),
                "training": 3 * steps / max(len(self.job.batches), 1),
                "peers": evaluation * len(options.peers),
                "packing": 0.5,
                "test": 2 * passes_of(self.job.data, "test") * (self.job.test is not None),
            }
        )

    # --- steps ------------------------------------------------------------------------------------------------------

    def _recipe(self, recipe: Recipe) -> Outcomes:
        with self.clock.step("verification"):
            return [self.bench.measure(Candidate(series="recipe", label="the given recipe", recipe=recipe))]

    def _search(self, choice: Choice) -> tuple[Search, Outcomes]:
        """Measure sensitivities, points of the front that they give, and the best of those with solvers."""
        fast = self.options.fast
        if fast and self._is_large():
            # Solving takes longest here, and is done once: on what tuning does not judge on.
            self.bench.make_with(Batches(solved_on(self.job.model, self.job.batches, self.job.samples)), HELD_OUT)
        with self.clock.step("sensitivity"):
            sensitivity = self._sensitivity()
        every = front = allocate(sensitivity)
        bound = None if self.goal.latency is None else self._bound(self.goal.latency, sensitivity)
        if bound is not None:
            front = bound.front(every)
        with self.clock.step("verification"):
            uniform = [] if fast else self._uniform(sensitivity)
            outcomes, verification = self._verify(sensitivity, self._points(front, sensitivity.parameters), uniform)
            if bound is not None:
                for _ in range(_CORRECTIONS):
                    if any(map(choice.fits, _trials(outcomes))):
                        break
                    try:
                        front = bound.front(every, bound.slower(_trials(outcomes)))
                    except ConfigError:  # not even the fastest assignment: the report says that the goal is missed
                        break
                    further, rows = self._verify(sensitivity, self._faster(front, outcomes, bound.nbytes), [], outcomes)
                    outcomes, verification = outcomes + further, _joined(verification, rows)
        with self.clock.step("tuning"):
            tuned_trials, tuned = self._tune(choice.bases(_trials(outcomes), TUNED), sensitivity)
        latencies = None if bound is None else bound.latencies
        return Search(sensitivity, front, latencies, verification, tuple(tuned)), outcomes + tuned_trials

    def _sensitivity(self) -> Sensitivity:
        def progress(stage: str, done: int, total: int) -> None:
            if self._isolated and stage == ESTIMATING:
                self._isolated = False
                self.bench.plan = self._plan()
            self._tell(f"sensitivity: {stage}", "sensitivity", done / max(total, 1))

        measured = measure_sensitivity(
            self.job.model,
            self.job.batches,
            self.formats,
            share=self.options.share,
            exclude=self.options.exclude,
            method="fisher" if self.options.fast else self.options.sensitivity,
            output=self.job.output,
            divergence=self.job.divergence,
            samples=self._most_samples(),
            workers=self.options.workers,
            journal=self.bench.journal,
            subject=identity(self.job.identity),
            progress=progress,
        )
        assert self.sizes is not None  # a search has them
        nbytes, fixed = self.sizes.of(measured)
        return replace(measured, nbytes=nbytes, fixed_nbytes=fixed)

    def _is_large(self) -> bool:
        return sum(one.numel() for one in self.job.model.parameters()) >= _LARGE

    def _most_samples(self) -> int:
        """Return the samples that sensitivities are measured on: fewer of a large model that is compressed fast."""
        batch = next(iter(self.job.batches))
        if not self.options.fast or not self._is_large():
            return self.job.samples
        ids = max((leaf.numel() for leaf in tensors_in(batch) if not leaf.is_floating_point()), default=1)
        length = max(ids // max(samples_of(batch), 1), 1)
        return min(self.job.samples, max(_IDS // length, _FEWEST))

    def _bound(self, seconds: float, sensitivity: Sensitivity) -> LatencyBound:
        self._tell("measuring latencies of layers", "latencies")
        with self.clock.step("latencies of layers"):
            latencies = measure_latency(
                self.job.model, self.bench.samples, sensitivity, table=self.bench.journal, progress=False
            )
        return LatencyBound(sensitivity, latencies, seconds, self.goal.most_bytes(sensitivity.parameters))

    def _points(self, front: Front, parameters: int) -> list[Point]:
        """Return the points that are evaluated: that of the budget, those around it, and some over the front."""
        if self.goal.max_loss is not None:
            return list(front.spread(VERIFIED + 2))
        assert self.sizes is not None  # a search has them
        chosen = self.sizes.point(front, self.goal.most_bytes(parameters))
        if self.options.fast:
            return [chosen]
        least, bound = float(front.bits.min()), chosen.bits
        spread = front.spread(VERIFIED, bits=(max(least, 0.75 * bound), max(float(front.bits.max()), bound)))
        near = front.spread(2, bits=(max(least, _NEAR * bound), bound))
        points = {chosen.nbytes: chosen}
        for point in (*near, *spread):
            points.setdefault(point.nbytes, point)
        return list(points.values())[:VERIFIED]

    def _faster(self, front: Front, outcomes: Outcomes, nbytes: float) -> list[Point]:
        """Return points of a front that were not evaluated, where it has some of at most ``nbytes``."""
        if front.nbytes.min() > nbytes:
            return []
        known = {trial.point.nbytes for trial in _trials(outcomes) if trial.point is not None}
        return [point for point in (front.at(nbytes=nbytes), *front.spread(2)) if point.nbytes not in known]

    def _uniform(self, sensitivity: Sensitivity) -> list[Candidate]:
        """Return the largest formats that fit the budget when every layer has the same one."""
        most = self.goal.most_bytes(sensitivity.parameters)
        sizes = sensitivity.nbytes.sum(0) + sensitivity.fixed_nbytes
        each = [(int(size), text) for size, text in zip(sizes, sensitivity.formats, strict=True) if text != KEEP]
        # Where nothing fits, the smallest ones stand for what a single format costs.
        inside = sorted(((size, text) for size, text in each if size <= most), reverse=True)
        return [
            Candidate(series="uniform", label=text, recipe=to_recipe(_uniform(sensitivity, text), sensitivity))
            for _, text in (inside or sorted(each))[:UNIFORM]
        ]

    def _verify(
        self, sensitivity: Sensitivity, points: list[Point], uniform: list[Candidate], earlier: Outcomes | None = None
    ) -> tuple[Outcomes, Verification | None]:
        """Evaluate points of the front, and uniform recipes. ``earlier``: what was evaluated before."""
        outcomes: Outcomes = []
        count, done = max(len(points) + len(uniform), 1), len(_trials(earlier or []))

        def candidate(point: Point) -> Candidate:
            recipe = to_recipe(point, sensitivity)
            assert self.sizes is not None  # a search has them
            bits = sensitivity.bits(self.sizes.exact(point.choice))
            return Candidate(series="front", label=f"{bits:.2f} bits", recipe=recipe, point=point)

        def tell(label: str) -> None:
            self._tell(f"verifying {label}", "verification", (done + len(_trials(outcomes))) / count)

        def loss(candidate: Candidate) -> float:
            tell(candidate.label)
            trial = self.bench.measure(candidate)
            outcomes.append(trial)
            return trial.quality.loss

        self.bench.measure_ahead([*map(candidate, points), *uniform])
        verification = verify(points, candidate, loss, progress=False) if points else None
        for one in uniform:
            tell(one.label)
            outcomes.append(self.bench.attempt(one))
        return outcomes, verification

    def _tune(self, bases: list[Trial], sensitivity: Sensitivity) -> tuple[Outcomes, list[dict[str, Any]]]:
        """Evaluate the best points again with the solvers that help them; return the tunings, too."""
        outcomes: Outcomes = []
        tunings = []
        for base in bases:
            if base.point is not None:
                self._tell(f"tuning {base.label}", "tuning")
                recipe, solvers, tuning = self._tuning(base.point, sensitivity)
                tunings.append(tuning)
                if solvers:
                    label = f"{base.label}, {' and '.join(solvers)}"
                    outcomes.append(
                        self.bench.attempt(Candidate(series="tuned", label=label, recipe=recipe, point=base.point))
                    )
        return outcomes, tunings

    def _tuning(self, point: Point, sensitivity: Sensitivity) -> tuple[Recipe, list[str], dict[str, Any]]:
        """Return the recipe of a point with the solvers that help, their names, and all that was tried."""
        journal, methods = self.bench.journal, ("gptq",) if self.options.fast else SOLVERS
        parts = PARTS if not self.options.fast else 1 if self._is_large() else FAST_PARTS
        settings = {
            **self.job.identity, "what": "tuned", "recipe": str(to_recipe(point, sensitivity)),
            "methods": list(methods), "parts": parts, "choice": dict(sorted(point.choice.items())),
        }  # fmt: skip
        record = journal.find(settings, "row")

        def progress(stage: str, done: int, total: int) -> None:
            self._tell(f"tuning: {stage}", "tuning", done / max(total, 1))

        if record is None:
            tuned = tuned_beside(
                self.job.model, point, sensitivity, self.job.batches, methods=methods, output=self.job.output,
                divergence=self.job.divergence, samples=self.job.samples, parts=parts,
                store_of=lambda recipe: self.bench.store(recipe, HELD_OUT), progress=progress,
            )  # fmt: skip
            steps = [
                {"method": s.method, "formats": list(s.formats), "loss": s.loss, "kept": s.kept} for s in tuned.steps
            ]
            row = {"recipe": str(tuned.recipe), "before": tuned.before, "loss": tuned.loss, "steps": steps,
                   "left_out": [list(each) for each in tuned.left_out]}  # fmt: skip
            record = journal.add(settings, row=row)
        row = record["row"]
        with journal.decoding():
            recipe = Recipe.of(row["recipe"])
            names = dict.fromkeys(_NAMES[step["method"]] for step in row["steps"] if step["kept"])
            left_out = [[str(what), str(why)] for what, why in row.get("left_out", ())]
            tuning = {**row, "before": float(row["before"]), "loss": float(row["loss"]), "left_out": left_out}
        return recipe, list(names), tuning

    def _correct_biases(self, bases: list[Trial]) -> Outcomes:
        """Evaluate trials again with corrected biases, where there are any."""
        outcomes: Outcomes = []
        if not has_biases(self.job.model):
            return outcomes
        with self.clock.step("tuning"):
            for base in bases:
                self._tell(f"correcting biases, {base.label}", "biases")
                outcomes.append(
                    self.bench.attempt(
                        Candidate(
                            series="tuned", label=f"{base.label}, corrected biases", recipe=base.recipe,
                            point=base.point, corrected=True,
                        )
                    )
                )  # fmt: skip
        return outcomes

    def _train(self, bases: list[Trial], training: Training) -> Outcomes:
        """Train trials through their formats and evaluate them again."""
        with self.clock.step("training"):
            return [
                self.bench.measure(
                    Candidate(
                        series="trained", label=f"{base.label}, trained", recipe=base.recipe, point=base.point,
                        corrected=base.corrected, start=base, training=training,
                    )
                )
                for base in bases
            ]  # fmt: skip


@dataclass(frozen=True)
class LatencyBound:
    """The goal's bound: predicted ``seconds`` of a call, beside at most ``nbytes``."""

    sensitivity: Sensitivity
    latencies: LatencyTable
    seconds: float
    nbytes: float

    def front(self, front: Front, slower: float = 1.0) -> Front:
        """Return the part of a front within the bound. ``slower``: measured seconds for each predicted one.

        Raises ConfigError where no assignment is within it.
        """
        return bounded_front(front, {"latency": (self.latencies, self.seconds / slower)}, nbytes=self.nbytes)

    def slower(self, trials: Sequence[Trial]) -> float:
        """Return the largest ratio of measured to predicted seconds, 1 at least."""
        ratios = [
            trial.seconds / self.latencies.predict(trial.point.choice, self.sensitivity)
            for trial in trials
            if trial.point is not None and trial.seconds is not None
        ]
        return max(1.0, *ratios)


def _trials(outcomes: Sequence[Trial | Refusal]) -> list[Trial]:
    return [outcome for outcome in outcomes if isinstance(outcome, Trial)]


def _joined(first: Verification | None, second: Verification | None) -> Verification | None:
    """Return two verifications as one."""
    if first is None or second is None:
        return first or second
    return replace(second, rows=(*first.rows, *second.rows))


def _uniform(sensitivity: Sensitivity, text: str) -> dict[str, str]:
    """Return one format for all groups, without its solver where that cannot be, as of rows that are looked up."""
    spec = read_spec(text)
    plain = text if spec is None else str(spec.format)
    lost = sensitivity.loss[:, sensitivity.formats.index(text)]
    return {group.name: plain if isnan(loss) else text for group, loss in zip(sensitivity.groups, lost, strict=True)}
