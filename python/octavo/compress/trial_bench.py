"""The bench of a compression: it builds, sizes, times and evaluates models, each once for a journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from torch import nn

from octavo.compress.compression_job import Job, packed_model, stored_bytes
from octavo.compress.compression_options import Goal
from octavo.compress.compression_trials import Candidate, PeerTrial, Refusal, Trial
from octavo.compress.work_plan import WorkPlan
from octavo.data.batches import Batches
from octavo.errors import OctavoError
from octavo.recipe import Recipe
from octavo.search.fingerprints import identity_of
from octavo.search.forked_workers import measured_by
from octavo.search.journal import Journal, identity
from octavo.search.kept_solutions import KeptSolutions
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.measured_costs import latencies, resized
from octavo.search.measured_latencies import machine
from octavo.search.peers import Peer, nearest, peer_model, weights_of
from octavo.search.refine import judge
from octavo.search.short_training import Training, train_short
from octavo.storage.process_memory import give_back
from octavo.train.measurement import Measurement

#: Which calibration data a model is made with: all, or what solvers see in tuning, which judges on the others.
ALL, HELD_OUT = "all", "without those held out of tuning"

Tell = Callable[[str, float], object]


class Bench:
    """Measures the models of a job; ``tell`` hears what is done, and the share of all work."""

    def __init__(self, job: Job, goal: Goal, journal: Journal, tell: Tell, workers: int) -> None:
        """Take the parts. ``workers``: processes that measure candidates ahead."""
        self.job, self.goal, self.journal, self.tell, self.workers = job, goal, journal, tell, workers
        self.plan = WorkPlan({})
        self._batches, self._data = job.batches, ALL

    @cache  # noqa: B019 # a bench lives as long as its compression
    def _divergence(self) -> Callable[[nn.Module], float] | None:
        """Return the divergence of a model from the float one, whose outputs are kept; None where the quality is it."""
        job = self.job
        return None if job.unseen is None else judge(job.model, job.unseen, job.output, job.divergence)

    @property
    def samples(self) -> Any:
        """The samples of the goal's latency."""
        return resized(next(iter(self.job.batches)), self.goal.samples)

    def float_quality(self) -> Measurement:
        """Return the quality of the float model."""
        return self._quality({**self.job.identity, "what": "before"}, lambda: self.job.evaluate(self.job.model))

    def measure(self, candidate: Candidate) -> Trial:
        """Build, size and evaluate a candidate. Raises as :func:`octavo.quantize_model` for its recipe."""
        record = self._find(candidate)
        return self._trial(candidate, record or self._add(candidate, self._row(self.built(candidate))))

    def attempt(self, candidate: Candidate) -> Trial | Refusal:
        """Build, size and evaluate a candidate whose recipe a layer may not take."""
        record = self._find(candidate)
        if record is None:
            try:
                packed = self.built(candidate)
            except OctavoError as error:
                return Refusal(candidate.label, str(error))
            record = self._add(candidate, self._row(packed))
        return self._trial(candidate, record)

    def measure_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Measure candidates that the journal does not hold in several processes; they are found there afterwards.

        Not where calls are timed: processes beside each other would slow each other down.
        """
        if self.workers < 2 or self.goal.latency is not None:
            return
        by_recipe = {str(candidate.recipe): candidate for candidate in candidates}
        missing = [text for text, candidate in by_recipe.items() if self._find(candidate) is None]
        self._tell(f"verifying {len(missing)} points in {self.workers} processes", "verification")
        self._divergence()  # runs the float model once, before this process forks

        def row(text: str) -> dict[str, Any] | None:
            try:
                packed = self.built(by_recipe[text])
            except OctavoError:  # measured again below, where the error is raised or becomes a refusal
                return None
            return self._row(packed)

        for text, measured in measured_by(self.workers, row, missing):
            if measured is not None:
                self._add(by_recipe[text], measured)

    def built(self, candidate: Candidate) -> nn.Module:
        """Return the packed model of a candidate, as it is evaluated."""
        if candidate.start is None or candidate.training is None:
            return packed_model(self._quantized(candidate.recipe, corrected=candidate.corrected))
        return packed_model(self._trained(candidate.start, candidate.training))

    def make_with(self, batches: Batches, data: str) -> None:
        """Make models with these batches in place of all; ``data`` tells them from others in the journal."""
        self._batches, self._data = batches, data

    def _quantized(self, recipe: Recipe, *, corrected: bool, to_train: bool = False) -> nn.Module:
        return self.job.quantized(
            recipe, self._batches, corrected=corrected, to_train=to_train, store=self.store(recipe, self._data)
        )

    def store(self, recipe: Recipe, data: str) -> KeptSolutions:
        """Return the solved layers of a recipe. ``data``: which of the job's batches they were solved on."""
        return KeptSolutions(
            self.journal, {**self.job.identity, "what": "solutions", "recipe": str(recipe), "data": data}
        )

    def peers(self, peers: Sequence[Peer], chosen: Trial, sensitivity: Sensitivity | None) -> list[PeerTrial]:
        """Evaluate the formats of other libraries whose bytes are next to those of a trial, with a header as large."""
        tensors = weights_of(self.job.model, sensitivity)
        trials = []

        def quality_of(peer: Peer) -> Measurement:
            return self.job.evaluate(peer_model(self.job.model, peer, tensors))

        saved = stored_bytes(self.job.model) - self.job.tensor_bytes(self.job.model)
        for peer, size in nearest(self.job.model, peers, chosen.tensor_bytes + saved, tensors):
            self._tell(f"evaluating {peer.label}", "peers")
            settings = {
                **self.job.identity, "what": "peer", "peer": peer.label, "tensors": tensors,
                **identity_of(how=peer).digests,
            }  # fmt: skip
            quality = self._quality(settings, partial(quality_of, peer))
            trials.append(PeerTrial(peer.label, size - saved + chosen.nbytes - chosen.tensor_bytes, quality))
        return trials

    def _tell(self, text: str, step: str, fraction: float = 0.0) -> None:
        self.tell(text, self.plan.share(step, fraction))

    # --- the journal ------------------------------------------------------------------------------------------------

    def _quality(self, settings: Mapping[str, Any], measure: Callable[[], Measurement]) -> Measurement:
        record = self.journal.find(settings, "row")
        if record is None:
            record = self.journal.add(settings, row=measure().stored())
        with self.journal.decoding():
            return Measurement.restored(record["row"])

    def _find(self, candidate: Candidate) -> Mapping[str, Any] | None:
        return self.journal.find(self._settings(candidate), "row")

    def _add(self, candidate: Candidate, row: dict[str, Any]) -> Mapping[str, Any]:
        return self.journal.add(self._settings(candidate), row=row)

    def _settings(self, candidate: Candidate) -> dict[str, Any]:
        """Return what tells a candidate from others."""
        settings = {**self.job.identity, "what": "trial", "sized": "file", "recipe": str(candidate.recipe)}
        if self._data != ALL:
            settings["data"] = self._data
        if candidate.corrected:
            settings["corrected"] = True
        if candidate.training is not None:
            settings["training"] = _binding(candidate.training)
        if self.goal.latency is not None:
            settings["timed"] = [self.goal.samples, machine()]
        return settings

    def _row(self, packed: nn.Module) -> dict[str, Any]:
        """Return what a packed model measures."""
        row = {**self.job.evaluate(packed).stored(), "nbytes": self.job.size(packed)}
        row["tensor_bytes"] = self.job.tensor_bytes(packed)
        give_back()
        if (divergence := self._divergence()) is not None:
            row["divergence"] = divergence(packed)
        if self.goal.latency is not None:
            row["seconds"] = latencies({"": packed}, self.samples)[""]["value"]
        return row

    def _trial(self, candidate: Candidate, record: Mapping[str, Any]) -> Trial:
        with self.journal.decoding():
            row = dict(record["row"])
            nbytes, tensor_bytes = int(row.pop("nbytes")), int(row.pop("tensor_bytes"))
            seconds, divergence = row.pop("seconds", None), row.pop("divergence", None)
            divergence = None if divergence is None else float(divergence)
            seconds = None if seconds is None else float(seconds)
            return Trial(
                **vars(candidate), nbytes=nbytes, tensor_bytes=tensor_bytes, seconds=seconds, divergence=divergence,
                quality=Measurement.restored(row),
            )  # fmt: skip

    def _trained(self, start: Trial, training: Training) -> nn.Module:
        """Return the trained model of a trial, quantized; a run that was stopped goes on."""
        model = self._quantized(start.recipe, corrected=start.corrected, to_train=True)
        settings = {**self.job.identity, "recipe": str(start.recipe), "corrected": start.corrected}
        if self._data != ALL:
            settings["data"] = self._data
        name = identity({**settings, **_binding(training)})
        steps = training.config.steps

        def advance(step: int) -> None:
            self._tell(f"training {start.label}: update {step + 1} of {steps}", "training", step / steps)

        train_short(model, training, self.journal.path.parent / f"trained-{name[:16]}", advance)
        return model


def _binding(training: Training) -> dict[str, Any]:
    return {"loss": training.identity, "config": training.config.binding()}
