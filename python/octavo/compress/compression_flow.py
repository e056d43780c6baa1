"""The flow of a compression: sensitivity, allocation, verification, tuning, training; resumable at every step.

A budget and a job go in; the packed model comes out, with everything that was measured on the way. Validation data
chooses. What was measured is in the journal before the next step begins: the same call goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

from torch import nn

from octavo.compress.compression_job import Goal, Job, canonical, packed_model
from octavo.compress.compression_trials import Found, PeerTrial, Trial, timed
from octavo.errors import ConfigError, OctavoError
from octavo.recipe import Recipe
from octavo.recipe.rule import KEEP, read_spec
from octavo.search.allocation import allocate
from octavo.search.assignment_recipe import to_recipe
from octavo.search.bounded_front import bounded_front
from octavo.search.fingerprints import identity_of
from octavo.search.forked_workers import measured_by
from octavo.search.journal import Journal, identity
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.measured_costs import latencies, resized
from octavo.search.measured_divergences import measure_sensitivity
from octavo.search.measured_latencies import machine, measure_latency
from octavo.search.pareto_front import Front, Point
from octavo.search.peers import Peer, nearest, peer_model, weights_of
from octavo.search.refine import tune
from octavo.search.short_training import Training, train_short
from octavo.search.verification import verify
from octavo.train.measurement import Measurement

#: Points of the front that are packed and evaluated, and uniform formats beside them.
VERIFIED, UNIFORM = 6, 2
#: Points next below a bound of the loss that tuning, and training, may bring within it.
TUNED, TRAINED = 3, 2
SOLVERS = ("gptq", "hqq")
# Points that fill less of the budget than this are not looked at for it.
_NEAR = 0.9
# Rounds that look for faster points where all of them were slower than predicted.
_CORRECTIONS = 2

Tell = Callable[[str, float], object]


class Flow:
    """One compression, step by step; ``tell`` hears what is done and the share of all work."""

    def __init__(
        self, job: Job, goal: Goal, formats: tuple[str, ...], journal: Journal, tell: Tell, workers: int = 1
    ) -> None:
        """Take the parts. ``workers``: processes that measure. Raises FormatError for formats that are none."""
        self.job, self.goal, self.journal, self.tell, self.workers = job, goal, journal, tell, workers
        self.formats = canonical(formats)
        self.found: Found | None = None

    # --- steps ------------------------------------------------------------------------------------------------------

    def search(self, *, fast: bool = False, training: Training | None = None) -> Found:
        """Choose a format for every layer, with the weights of least loss, and train it where that is asked for."""
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
        with timed(found, "tuning"):
            self._tune(found, ("gptq",) if fast else SOLVERS)
        return self._finish(found, training)

    def given(self, recipe: Recipe, training: Training | None = None) -> Found:
        """Build and measure a given recipe: nothing is searched."""
        found = self._begin()
        with timed(found, "verification"):
            self._trial(found, "recipe", "the given recipe", recipe)
        return self._finish(found, training)

    def built(self, trial: Trial, found: Found) -> nn.Module:
        """Return the packed model of a trial, as it was evaluated."""
        if trial.start is None:
            return packed_model(self.job.quantized(trial.recipe, corrected=trial.corrected))
        assert found.training is not None
        return packed_model(self._train(trial.start, found.training))

    def compare(self, found: Found, peers: Sequence[Peer]) -> None:
        """Evaluate the formats of other libraries whose bytes are next to those of the chosen model."""
        assert found.chosen is not None
        tensors = weights_of(self.job.model, found.sensitivity)

        def quality_of(peer: Peer) -> Measurement:
            return self.job.evaluate(peer_model(self.job.model, peer, tensors))

        with timed(found, "peers"):
            for peer, nbytes in nearest(self.job.model, peers, found.chosen.nbytes + self.job.saved, tensors):
                self.tell(f"evaluating {peer.label}", 0.93)
                settings = {
                    **self.job.identity, "what": "peer", "peer": peer.label, "tensors": tensors,
                    **identity_of(how=peer).digests,
                }  # fmt: skip
                quality = self._measured(settings, partial(quality_of, peer))
                found.peers.append(PeerTrial(peer.label, nbytes - self.job.saved, quality))

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
        with self.journal.decoding():
            return Measurement.restored(record["row"])

    def _sensitivity(self, fast: bool) -> Sensitivity:
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
            workers=self.workers,
            journal=self.journal,
            subject=identity(self.job.identity),
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
        sensitivity = found.sensitivity
        assert sensitivity is not None
        others = self._uniform(sensitivity) if uniform else []
        count = max(len(points) + len(others), 1)
        wanted = [("front", "", to_recipe(point, sensitivity)) for point in points]
        self._measure_ahead(found, wanted + [("uniform", text, recipe) for text, recipe in others])

        def loss(point: Point) -> float:
            self.tell(f"verifying {point.bits:.2f} bits", 0.55 + 0.2 * found.evaluations / count)
            trial = self._trial(found, "front", f"{point.bits:.2f} bits", to_recipe(point, sensitivity), point)
            return trial.quality.loss  # type: ignore[union-attr] # a point of the front is never refused

        if points:
            made = verify(points, lambda point: point, loss, progress=False)
            before = () if found.verification is None else found.verification.rows
            found.verification = replace(made, rows=(*before, *made.rows))
        for text, recipe in others:
            self.tell(f"verifying {text}", 0.55 + 0.2 * found.evaluations / count)
            self._trial(found, "uniform", text, recipe)

    def _uniform(self, sensitivity: Sensitivity) -> list[tuple[str, Recipe]]:
        """Return the largest formats that fit the budget when every layer has the same one."""
        most = self.goal.most_bytes(sensitivity.parameters)
        sizes = sensitivity.nbytes.sum(0) + sensitivity.fixed_nbytes
        fitting = [(int(size), text) for size, text in zip(sizes, sensitivity.formats, strict=True) if text != KEEP]
        # Where nothing fits, the smallest ones stand for what a single format costs.
        inside = sorted(((size, text) for size, text in fitting if size <= most), reverse=True)
        chosen = inside or sorted(fitting)
        return [(text, to_recipe(_uniform(sensitivity, text), sensitivity)) for _, text in chosen[:UNIFORM]]

    def _trial(
        self, found: Found, series: str, label: str, recipe: Recipe, point: Point | None = None, *,
        corrected: bool = False, start: Trial | None = None,
    ) -> Trial | None:  # fmt: skip
        """Build, size and evaluate a model; a recipe that a layer cannot have is noted and left out."""
        trial = Trial(series, label, recipe, 0, found.before, point, None, corrected, start)
        settings = self._settings(found, trial)
        record = self.journal.find(settings, "row")
        if record is None:
            row = self._row(found, trial)
            if isinstance(row, str):
                found.refused.append((label, row))
                return None
            record = self.journal.add(settings, row=row)
        with self.journal.decoding():
            row = dict(record["row"])
            nbytes, seconds = int(row.pop("nbytes")), row.pop("seconds", None)
            seconds = None if seconds is None else float(seconds)
            trial = replace(trial, nbytes=nbytes, seconds=seconds, quality=Measurement.restored(row))
        found.evaluations += 1
        found.trials.append(trial)
        return trial

    def _settings(self, found: Found, trial: Trial) -> dict[str, Any]:
        """Return what tells a trial from others, for the journal."""
        settings = {**self.job.identity, "what": "trial", "recipe": str(trial.recipe)}
        if trial.corrected:
            settings["corrected"] = True
        if trial.start is not None and found.training is not None:
            settings["training"] = _told(found.training)
        if self.goal.latency is not None:
            settings["timed"] = [self.goal.samples, machine()]
        return settings

    def _row(self, found: Found, trial: Trial) -> dict[str, Any] | str:
        """Return what a trial measures, or why a layer cannot have the recipe."""
        try:
            packed = self.built(trial, found)
        except OctavoError as error:
            if trial.series in ("front", "recipe", "trained"):
                raise
            return str(error)
        row = {**self.job.evaluate(packed).stored(), "nbytes": self.job.size(packed)}
        if self.goal.latency is not None:
            row["seconds"] = latencies({"": packed}, self._batch)[""]["value"]
        return row

    def _measure_ahead(self, found: Found, wanted: Sequence[tuple[str, str, Recipe]]) -> None:
        """Measure recipes that the journal does not hold in several processes; they are found there afterwards.

        Not where calls are timed: processes beside each other would slow each other down.
        """
        if self.workers < 2 or self.goal.latency is not None:
            return
        trials = {str(recipe): Trial(series, text, recipe, 0, found.before) for series, text, recipe in wanted}
        left = [
            text for text, trial in trials.items() if self.journal.find(self._settings(found, trial), "row") is None
        ]
        self.tell(f"verifying {len(left)} points in {self.workers} processes", 0.55)
        for text, row in measured_by(self.workers, lambda text: self._row(found, trials[text]), left):
            if not isinstance(row, str):
                self.journal.add(self._settings(found, trials[text]), row=row)

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

    def _finish(self, found: Found, training: Training | None) -> Found:
        """Correct the biases of what is best so far, train it where that is asked for, and choose."""
        with timed(found, "tuning"):
            for base in self._bases(found, 1):
                self.tell(f"correcting biases, {base.label}", 0.81)
                label = f"{base.label}, corrected biases"
                self._trial(found, "tuned", label, base.recipe, base.point, corrected=True)
        if training is not None:
            found.training = training
            with timed(found, "training"):
                for base in self._bases(found, TRAINED):
                    label = f"{base.label}, trained"
                    self._trial(found, "trained", label, base.recipe, base.point, corrected=base.corrected, start=base)
        found.chosen = self._best(found)
        return found

    def _bases(self, found: Found, count: int) -> list[Trial]:
        """Return what may be improved: the best trial, or for a bound of the loss it and those next below it."""
        best = self._best(found)
        if self.goal.max_loss is None or best.point is None:
            return [best]
        return self._cheaper(found, best)[:count]

    def _tune(self, found: Found, methods: Sequence[str]) -> None:
        """Evaluate the best points again with the solvers that help them."""
        assert found.sensitivity is not None
        for base in self._bases(found, TUNED):
            if base.point is not None:
                self.tell(f"tuning {base.label}", 0.78)
                recipe, kept = self._tuned(found, base.point, found.sensitivity, methods)
                if kept:
                    self._trial(found, "tuned", f"{base.label}, {' and '.join(kept)}", recipe, base.point)

    def _tuned(
        self, found: Found, point: Point, sensitivity: Sensitivity, methods: Sequence[str]
    ) -> tuple[Recipe, list[str]]:
        """Return the recipe of a point with the solvers that help, and their names."""
        base = str(to_recipe(point, sensitivity))
        settings = {
            **self.job.identity, "what": "tuned", "recipe": base, "methods": list(methods),
            "choice": dict(sorted(point.choice.items())),
        }  # fmt: skip
        record = self.journal.find(settings, "row")
        if record is None:
            tuned = tune(
                self.job.model, point, sensitivity, self.job.batches, methods=methods, output=self.job.output,
                divergence=self.job.divergence, samples=self.job.samples, progress=False,
            )  # fmt: skip
            steps = [
                {"method": s.method, "formats": list(s.formats), "loss": s.loss, "kept": s.kept} for s in tuned.steps
            ]
            row = {"recipe": str(tuned.recipe), "before": tuned.before, "loss": tuned.loss, "steps": steps,
                   "left_out": [list(each) for each in tuned.left_out]}  # fmt: skip
            record = self.journal.add(settings, row=row)
        row = record["row"]
        with self.journal.decoding():
            recipe = Recipe.of(row["recipe"])
            names = dict.fromkeys(step["method"].upper() for step in row["steps"] if step["kept"])
            left_out = [[str(what), str(why)] for what, why in row.get("left_out", ())]
            tuning = {**row, "before": float(row["before"]), "loss": float(row["loss"]), "left_out": left_out}
        found.tuned.append(tuning)
        return recipe, list(names)

    def _train(self, start: Trial, training: Training) -> nn.Module:
        """Return the trained model of a trial, quantized; a run that was stopped goes on."""
        model = self.job.quantized(start.recipe, corrected=start.corrected)
        name = identity(
            {**self.job.identity, "recipe": str(start.recipe), "corrected": start.corrected, **_told(training)}
        )
        steps = training.config.steps

        def advance(step: int) -> None:
            self.tell(f"training {start.label}: update {step + 1} of {steps}", 0.82 + 0.11 * step / steps)

        train_short(model, training, self.journal.path.parent / f"trained-{name[:16]}", advance)
        return model

    def _cheaper(self, found: Found, chosen: Trial) -> list[Trial]:
        """Return the points of as many bytes as the chosen one and fewer, which may be brought within the bound."""
        points = [trial for trial in found.trials if trial.point is not None and trial.nbytes <= chosen.nbytes]
        return sorted(points, key=lambda trial: (-trial.nbytes, trial.quality.loss))


def _uniform(sensitivity: Sensitivity, text: str) -> dict[str, str]:
    """Return one format for all groups, without its solver where that cannot be, as of rows that are looked up."""
    spec = read_spec(text)
    plain = text if spec is None else str(spec.format)
    lost = sensitivity.loss[:, sensitivity.formats.index(text)]
    return {group.name: plain if isnan(loss) else text for group, loss in zip(sensitivity.groups, lost, strict=True)}


def _told(training: Training) -> dict[str, Any]:
    return {"loss": training.identity, "config": training.config.binding()}
