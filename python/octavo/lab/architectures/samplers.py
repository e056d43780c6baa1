"""Samplers: which point of a space a search tries next, as a function of its seed, a number and finished trials.

Nothing is kept between two asks but what the storage holds, so that a search which was killed goes on as it would have
gone on. TPE, NSGA-II and random points are Optuna's; ``grid`` goes through the space in its order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from octavo.errors import SettingError
from octavo.lab.architectures.objectives import Objective
from octavo.lab.architectures.space import Axis, Point, Space
from octavo.lab.architectures.trial_storage import optuna_package, quiet
from octavo.storage.arguments import check_fields, checks_arguments

GRID, RANDOM, TPE, NSGA2 = "grid", "random", "tpe", "nsga2"
SAMPLERS = (GRID, RANDOM, TPE, NSGA2)
_OPTIONS = {GRID: (), RANDOM: (), TPE: ("n_startup_trials", "n_ei_candidates", "multivariate", "group"),
            NSGA2: ("population_size", "mutation_prob", "crossover_prob", "swapping_prob")}  # fmt: skip


@dataclass(frozen=True)
class Sampler:
    """A sampler by name: ``grid``, ``random``, ``tpe`` or ``nsga2``, with Optuna's ``options`` and a ``seed``.

    Raises SettingError for another name or option.
    """

    name: str = TPE
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check name and options."""
        check_fields(self)
        if self.name not in SAMPLERS:
            raise SettingError(f"unknown sampler {self.name!r}; accepted are {', '.join(SAMPLERS)}")
        if self.seed < 0:
            raise SettingError(f"the seed of a sampler is {self.seed!r}; accepted are whole numbers from 0 on")
        for option in self.options:
            if option not in _OPTIONS[self.name]:
                raise SettingError(
                    f"{option!r} is no option of the sampler {self.name}; accepted are "
                    f"{', '.join(_OPTIONS[self.name]) or 'none'}"
                )

    def facts(self) -> dict[str, Any]:
        """Return name, seed and options, plain values."""
        return {"name": self.name, "seed": self.seed, "options": dict(self.options)}

    @checks_arguments
    def number(self, ask: int) -> int:
        """Return the seed of an ask: 32 bits."""
        return int.from_bytes(sha256(f"{self.seed} {ask}".encode()).digest()[:4], "big")

    @checks_arguments
    def made(self, ask: int) -> Any:
        """Return Optuna's sampler for one ask."""
        samplers = optuna_package().samplers
        seed = self.number(ask)
        if self.name == TPE:
            # One axis at a time, as the labs' TPE: axes that exist at some points only are no obstacle to it.
            return samplers.TPESampler(seed=seed, **{"multivariate": False, **self.options})
        if self.name == NSGA2:
            made = samplers.NSGAIISampler(seed=seed, **self.options)
            # Optuna gives the parents of a generation in another order to its first ask than to later ones, which a
            # search that goes on in the middle of a generation would not repeat.
            select = made.select_parent
            made.select_parent = lambda study, generation: sorted(select(study, generation), key=lambda t: t.number)
            return made
        return samplers.RandomSampler(seed=seed)


class Asker:
    """Asks a sampler for points, given the finished trials of its search; one for each run of a search."""

    def __init__(self, space: Space, sampler: Sampler, objectives: Sequence[Objective]) -> None:
        """Begin without trials."""
        self.space, self.sampler = space, sampler
        self._grid: Iterator[Point] | None = space.points() if sampler.name == GRID else None
        self._optuna = optuna_package()
        if self._grid is None:
            goals = ["maximize" if objective.goal == "max" else "minimize" for objective in objectives]
            with quiet():
                self._shadow = self._optuna.create_study(directions=goals)
        self._fresh = True  # something was learned since the last ask

    def learn(self, point: Point, memory: dict[str, Any], values: Sequence[float] | None, **more: Any) -> None:
        """Take a finished trial in; ``memory`` is what :meth:`ask` gave with the point, ``more`` Optuna's fields."""
        if self._grid is None:
            self._fresh = True
            distributions = {axis.name: self._distribution(axis) for axis in self.space.axes if axis.name in point}
            self._shadow.add_trial(
                self._optuna.trial.create_trial(
                    params=point, distributions=distributions, system_attrs=memory,
                    values=None if values is None else list(values), **more,
                )
            )  # fmt: skip

    def ask(self, number: int) -> tuple[Point, dict[str, Any]] | None:
        """Return the point of ask ``number`` and what the sampler noted of it; None at the end of a grid."""
        if self._grid is not None:
            point = next(self._grid, None)
            return None if point is None else (point, {})
        with quiet():
            if self._fresh:  # asks that follow without news, which were known points, draw on from the same generator
                self._shadow.sampler, self._fresh = self.sampler.made(number), False
            trial = self._shadow.ask()
            point = self.space.choose(lambda axis: trial.suggest_categorical(axis.name, axis.choices))
            memory = dict(self._shadow.get_trials(deepcopy=False)[trial.number].system_attrs)
            self._shadow.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # it comes back by learn, or never
        return point, memory

    def unseen(self, number: int, known: Any, context: dict[str, Any]) -> Point | None:
        """Return a random point that is not ``known``, as ask ``number``; None where all are."""
        return self.space.unseen(random.Random(self.sampler.number(number)), known, context)

    def _distribution(self, axis: Axis) -> Any:
        return self._optuna.distributions.CategoricalDistribution(axis.choices)
