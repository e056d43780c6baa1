"""The study of architectures: searches of a space by several samplers, and curves with and without compression."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import SettingError
from octavo.lab.architectures.samplers import GRID, SAMPLERS, Sampler
from octavo.lab.architectures.search_loop import EXHAUSTED, Search, run_search
from octavo.lab.architectures.space import Axis, Space
from octavo.lab.architectures.stopping import Stopping
from octavo.lab.architectures.trial_records import TrialRecord
from octavo.lab.architectures.trial_storage import open_storage, optuna_package
from octavo.lab.studies.architecture_builds import ArchitectureBuilds
from octavo.train.intervals import spread

#: What each curve is a search for: the accuracy as trained, compressed, and compressed and trained again.
CURVES = {"none": "accuracy", "without": "compressed", "with": "tuned"}
TOP = 0.05  # share of the points of a space that count as its best

Tell = Callable[..., None]


@dataclass(frozen=True)
class Architectures:
    """The study: every sampler searches the space for every curve, ``trials`` distinct networks each.

    ``seeds`` of samplers repeat each search; ``repeats`` trains the chosen network with so many seeds. Searches share
    what they build. Raises SettingError for unknown names, empty lists and numbers out of range.
    """

    preset: str = "lab32"
    scale: str = "tiny"
    samplers: tuple[str, ...] = SAMPLERS
    trials: int = 32
    seeds: int = 1
    repeats: int = 3
    epochs: float = 1.0
    stopping: Stopping | None = None

    def __post_init__(self) -> None:
        """Check names and numbers."""
        if not self.samplers:
            raise SettingError(f"samplers; accepted is one at least of {', '.join(SAMPLERS)}")
        for name in self.samplers:
            Sampler(name)
        for what in ("trials", "seeds", "repeats"):
            if getattr(self, what) < 1:
                raise SettingError(f"{what} is {getattr(self, what)}; accepted are whole numbers from 1 on")
        if not (math.isfinite(self.epochs) and self.epochs > 0):
            raise SettingError(f"{self.epochs} epochs; accepted are numbers above 0")

    def run(self, builds: ArchitectureBuilds, storage: str | Path, folder: Path, tell: Tell) -> Outcome:
        """Search, choose, train the choice with other seeds, and measure it on test texts, once."""
        opened, space = open_storage(storage), builds.space(self.preset, self.scale, self.epochs)
        given = {"storage": opened, "folder": folder, "context": builds.context(), "tell": tell}
        compression = builds.compression
        curves = [curve for curve in CURVES if curve == "none" or compression is not None]
        if compression is not None and not compression.epochs:
            curves.remove("with")
        searches: dict[tuple[str, str, int], Search] = {}
        # The grid first: where it covers the space, every other search is answered from it.
        for sampler in sorted(set(self.samplers), key=lambda name: name != GRID):
            for curve in curves:
                for seed in range(1 if sampler == GRID else self.seeds):
                    searches[sampler, curve, seed] = self._search(space, builds, sampler, curve, seed, searches, given)
        best = self._best(searches)
        chosen = self._chosen(builds, best, given) if best is not None else None
        return Outcome(self, space, searches, chosen)

    def _search(
        self,
        space: Space,
        builds: ArchitectureBuilds,
        sampler: str,
        curve: str,
        seed: int,
        before: Mapping[tuple[str, str, int], Search],
        given: dict[str, Any],
    ) -> Search:
        whole = before.get((GRID, "none", 0))
        name = f"nas {self.preset} {self.scale} {self.epochs:g} epochs, {sampler} {seed}, {curve}"
        told: dict[str, Any] = {
            "name": name, "sampler": Sampler(sampler, seed), "objectives": CURVES[curve], "trials": self.trials
        }  # fmt: skip
        if sampler == GRID and self.preset == "lab32":
            told["trials"] = None
        if whole is not None and whole.reason == EXHAUSTED and self.stopping is None:
            held = {trial.identity: trial.facts for trial in whole.trials}
            memory = optuna_package().storages.InMemoryStorage()
            context = given["context"]
            return run_search(space, lambda build: held[build.identity], storage=memory, context=context, **told)
        return run_search(space, builds.evaluate, stopping=self.stopping, **told, **given)

    def _best(self, searches: Mapping[tuple[str, str, int], Search]) -> TrialRecord | None:
        """Return the network that the last curve of any search liked best."""
        last = list(searches)[-1][1]
        found = [search.best() for (_, curve, _), search in searches.items() if curve == last]
        done = [trial for trial in found if trial is not None and trial.values is not None]
        return max(done, key=lambda trial: (trial.values or (0.0,))[0], default=None)

    def _chosen(self, builds: ArchitectureBuilds, best: TrialRecord, given: dict[str, Any]) -> dict[str, Any]:
        """Train the choice with other seeds, and return what it gave, on test texts, too."""
        space = Space(
            [Axis("seed", tuple(range(self.repeats)))], lambda point: {**best.spec, "seed": point["seed"]}, name="seeds"
        )
        name = f"nas seeds of {best.identity[:16]}"
        found = run_search(space, builds.evaluate, name=name, sampler=GRID, trials=self.repeats, **given)
        accuracies = [trial.facts["accuracy"] for trial in found.trials if "accuracy" in trial.facts]
        model, inherited = builds.trained(best.spec, given["folder"] / "runs" / best.identity[:16])
        spreading = spread(accuracies)
        return {
            "point": best.point, "identity": best.identity, "facts": best.facts, "spec": best.spec,
            "seeds": len(accuracies), "validation": spreading.mean, "sd": spreading.sd,
            "half_interval_95": spreading.half, "test": builds.test_accuracy(model), "inherited": inherited,
        }  # fmt: skip


@dataclass(frozen=True)
class EpochCurve:
    """The study of one network at several lengths of training, over ``seeds``."""

    epochs: tuple[float, ...]
    point: Mapping[str, Any] | None = None
    preset: str = "lab32"
    scale: str = "tiny"
    seeds: int = 3

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not self.epochs or not all(math.isfinite(e) and e > 0 for e in self.epochs) or self.seeds < 1:
            raise SettingError(f"epochs {self.epochs}, {self.seeds} seeds; accepted are numbers above 0")

    def run(self, builds: ArchitectureBuilds, storage: str | Path, folder: Path, tell: Tell) -> list[dict[str, Any]]:
        """Measure all lengths and return a row for each."""
        networks = builds.space(self.preset, self.scale, 1.0)
        point = networks.checked(self.point) if self.point is not None else next(networks.points())
        spec = networks.spec(point)
        lengths = tuple(float(epochs) for epochs in sorted(set(self.epochs)))
        axes = [Axis("epochs", lengths), Axis("seed", tuple(range(self.seeds)))]
        space = Space(axes, lambda at: {**spec, "epochs": at["epochs"], "seed": at["seed"]}, name="epochs")
        choices = " ".join(f"{name}={choice}" for name, choice in point.items())
        found = run_search(
            space, builds.evaluate, storage=storage, folder=folder, context=builds.context(), tell=tell, sampler=GRID,
            name=f"nas epochs {','.join(f'{e:g}' for e in lengths)} of {choices}",
        )  # fmt: skip
        rows = []
        for epochs in lengths:
            group = [
                trial.facts for trial in found.trials if trial.point["epochs"] == epochs and trial.values is not None
            ]
            row: dict[str, Any] = {"network": choices, "epochs": epochs, "seeds": len(group)}
            for measure in CURVES.values():
                values = [facts[measure] for facts in group if measure in facts]
                if values:
                    spreading = spread(values)
                    row |= {measure: spreading.mean, f"{measure}_half_interval_95": spreading.half}
            rows.append(row)
        return rows


@dataclass(frozen=True)
class Outcome:
    """What came of the study: its searches by sampler, curve and seed, and the network that was ``chosen``."""

    study: Architectures
    space: Space
    searches: Mapping[tuple[str, str, int], Search]
    chosen: dict[str, Any] | None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each trial: its place, value and the best so far, its choices, and where it was built."""
        rows = []
        for (sampler, curve, seed), search in self.searches.items():
            curve_values = iter(search.best_so_far())
            for place, trial in enumerate(search.trials, start=1):
                value = None if trial.values is None else trial.values[0]
                rows.append(
                    {
                        "sampler": sampler, "curve": curve, "sampler_seed": seed, "builds": place, "value": value,
                        "best_so_far": next(curve_values, None), "ended": trial.ended, "identity": trial.identity,
                        **{name: trial.facts.get(name) for name in (*CURVES.values(), "parameters", "seconds")},
                        **trial.point,
                    }
                )  # fmt: skip
        return rows

    def summaries(self) -> list[dict[str, Any]]:
        """Return a row for each sampler and curve: the best value, and distinct networks until one of the best 5 %.

        The latter where the space is known whole; None for searches that never got there. Intervals are over the seeds
        of samplers.
        """
        rows = []
        for sampler, curve in dict.fromkeys((sampler, curve) for sampler, curve, _ in self.searches):
            group = [s for (n, c, _), s in self.searches.items() if (n, c) == (sampler, curve) and s.best_so_far()]
            if not group:
                continue
            best = spread([search.best_so_far()[-1] for search in group])
            bar = self._bar(curve)
            reached = [] if bar is None else [_first(search.best_so_far(), bar) for search in group]
            known = [float(number) for number in reached if number is not None]
            row: dict[str, Any] = {
                "sampler": sampler, "curve": curve, "searches": len(group), "trials": len(group[0].trials),
                "best": best.mean, "best_half_interval_95": best.half, "top_value": bar, "reached": len(known),
            }  # fmt: skip
            if bar is not None and known and len(known) == len(group):
                found = spread(known)
                row |= {"builds_to_top": found.mean, "builds_half_interval_95": found.half}
            rows.append(row)
        return rows

    def _bar(self, curve: str) -> float | None:
        """Return the least value of the best 5 % of the space's points; None where not all are known."""
        whole = self.searches.get((GRID, curve, 0))
        if whole is None or whole.reason != EXHAUSTED:
            return None
        values = sorted((trial.values[0] for trial in whole.trials if trial.values is not None), reverse=True)
        return values[max(1, math.ceil(TOP * len(values))) - 1] if values else None


def _first(values: Sequence[float], bar: float) -> int | None:
    return next((number for number, value in enumerate(values, start=1) if value >= bar), None)
