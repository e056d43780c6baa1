"""The loop of a search: ask, realise, hash, look up, claim, build, tell.

The loop is ours and the samplers are Optuna's. An identity is built once in a storage, whichever study asks for it and
whichever worker: one that is known is answered from the storage. After 20 known points in a row, a random unseen point
takes the sampler's place once; where there is none, the search ends.
"""

from __future__ import annotations

import random
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import NonFiniteError, SettingError
from octavo.lab.architectures.objectives import Objective, objectives_of, values_of
from octavo.lab.architectures.samplers import GRID, Asker, Sampler
from octavo.lab.architectures.space import Point, Space
from octavo.lab.architectures.stopping import Stopping
from octavo.lab.architectures.trial_claims import LEASE_S
from octavo.lab.architectures.trial_records import (
    ABANDONED,
    FAILED,
    FINISHED,
    STOPPED,
    Proposal,
    StudyTrials,
    TrialRecord,
)
from octavo.lab.architectures.trial_storage import open_storage, quiet
from octavo.search.journal import identity
from octavo.storage.arguments import check, checks_arguments

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

REPEATS = 20  # known points in a row after which a random unseen one is taken
_LONGEST_LEASE_S = 10**6
_POLL_S = 0.2  # between two looks at trials of other workers, of which one may have to be taken over

#: Why a search ended: it made as many trials as it was to, there was no unseen point left, or it was asked to.
ENOUGH, EXHAUSTED = "enough", "exhausted"


class StopTrial(Exception):
    """Ends a trial that does worse than others; raised by :meth:`Build.report`, for :func:`run_search` to catch."""


@dataclass(frozen=True)
class Build:
    """What an evaluation is given: the ``spec`` to build, the ``point`` it was realised from, and its ``identity``.

    ``folder``: for files of this identity, the same one after a crash, so that training goes on from its checkpoint;
    None where the search has none.
    """

    point: Point
    spec: dict[str, Any]
    identity: str
    folder: Path | None
    _report: Callable[[int, float], bool] = field(repr=False)

    @checks_arguments
    def report(self, step: int, value: float) -> None:
        """Tell the value of the objective on validation after ``step``. Raises StopTrial where the trial is to end."""
        if self._report(step, value):
            raise StopTrial


@dataclass(frozen=True)
class Search:
    """What came of a search: its ``trials`` in order, and why it ended: ``enough`` or ``exhausted``."""

    name: str
    objectives: tuple[Objective, ...]
    trials: tuple[TrialRecord, ...]
    reason: str

    def best(self) -> TrialRecord | None:
        """Return the best trial of the first objective, the earliest of equal ones; None where none has finished."""
        best = None
        for trial in self.trials:
            if trial.ended == FINISHED and trial.values is not None:
                better = best is None or self.objectives[0].better(trial.values[0], (best.values or (0.0,))[0])
                best = trial if better else best
        return best

    def best_so_far(self) -> list[float]:
        """Return the best value of the first objective after each trial; trials without a value repeat the last."""
        values: list[float] = []
        for trial in self.trials:
            if trial.ended == FINISHED and trial.values is not None:
                value = trial.values[0]
                values.append(value if not values or self.objectives[0].better(value, values[-1]) else values[-1])
            elif values:
                values.append(values[-1])
        return values

    def front(self) -> list[TrialRecord]:
        """Return the finished trials that no other is better than in one objective and as good in all others."""
        done = [trial for trial in self.trials if trial.ended == FINISHED and trial.values is not None]
        return [trial for trial in done if not any(self._dominates(other, trial) for other in done)]

    def _dominates(self, one: TrialRecord, other: TrialRecord) -> bool:
        pairs = list(zip(self.objectives, one.values or (), other.values or (), strict=True))
        return any(goal.better(a, b) for goal, a, b in pairs) and not any(goal.better(b, a) for goal, a, b in pairs)


@checks_arguments
def run_search(
    space: Space,
    evaluate: Callable[[Build], Mapping[str, Any]],
    *,
    storage: str | Path | BaseStorage,
    name: str,
    objectives: str | Objective | Sequence[str | Objective] = "accuracy",
    sampler: Sampler | str = "tpe",
    trials: int | None = None,
    builds: int | None = None,
    context: Mapping[str, Any] | None = None,
    stopping: Stopping | None = None,
    allow_noop: Collection[str] = (),
    folder: Path | None = None,
    lease_s: float = LEASE_S,
    tell: Callable[..., None] = lambda text, share=None: None,
) -> Search:
    """Search a space, going on with the study called ``name`` that is in the storage, and return all its trials.

    ``evaluate``: builds and measures a fresh model of ``build.spec`` and returns plain facts, each objective by its
    name among them (``accuracy``, ``bytes min``). ``storage``: a folder, a file, ``postgresql://...``, or one of
    Optuna's; several processes may run this call at the same time, each of which returns when no trial is left.
    ``trials``: distinct points that the study is to have; ``builds``: models that it may build, which those that
    another study of the storage has built already do not count among; None: until the space is exhausted.
    ``context``: everything else that decides a number (data, training, seed), plain values; studies share what they
    build where it is equal. ``stopping``: ends bad trials early. ``folder``: where evaluations may keep files.
    ``lease_s``: after which a worker that gives no sign is taken for dead. ``tell``: hears a line for each trial.

    Training that diverges (NonFiniteError) is a failed trial; other errors of an evaluation end the search, and their
    point is tried again by the next call. Raises SettingError before anything is built for axes without effect, for a
    study of this name about something else, and for what does not go together.
    """
    goals = objectives_of(objectives)
    sampler = Sampler(sampler) if isinstance(sampler, str) else sampler
    for what, count in (("trials", trials), ("builds", builds)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise SettingError(f"{what} is {count!r}; accepted are whole numbers from 1 on, or None")
    if stopping is not None and len(goals) > 1:
        raise SettingError("stopping compares one objective; several were given")
    if not 1 <= lease_s <= _LONGEST_LEASE_S:
        raise SettingError(f"lease_s is {lease_s}; accepted are 1 to {_LONGEST_LEASE_S} s")
    space.check_axes(allow_noop)
    about = {
        "axes": {axis.name: list(axis.choices) for axis in space.axes},
        "objectives": [[goal.metric, goal.goal] for goal in goals],
        "sampler": sampler.facts(),
        "stopping": None if stopping is None else stopping.facts(),
        "context": dict(context or {}),
    }
    identity(about)  # plain JSON, or a DataError
    study = StudyTrials(open_storage(storage), name, about, lease_s)
    with study.renewing():
        return _Loop(space, evaluate, goals, sampler, study, trials, builds, stopping, folder, tell).go()


@dataclass
class _Loop:
    """One worker's run of a search."""

    space: Space
    evaluate: Callable[[Build], Mapping[str, Any]]
    goals: tuple[Objective, ...]
    sampler: Sampler
    study: StudyTrials
    trials: int | None
    builds: int | None
    stopping: Stopping | None
    folder: Path | None
    tell: Callable[..., None]

    def go(self) -> Search:
        """Work until nothing is left to do."""
        asker = Asker(self.space, self.sampler, self.goals)
        context, reason = self.study.about["context"], ENOUGH
        listed: list[TrialRecord] = []
        ask = repeats = 0
        while True:
            for record in self.study.news():
                listed.append(record)
                self._learn(asker, record)
            proposal = self.study.abandoned()
            if proposal is None:
                if self._is_enough(listed):
                    if not self._others_work():
                        break
                    continue
                ask = max(ask, self.study.next_ask())
                proposal, repeats = self._next(asker, ask, repeats, context)
                ask += 1
                if proposal is None:
                    if repeats >= 0:
                        continue
                    if not self._others_work():
                        reason = EXHAUSTED
                        break
                    repeats = REPEATS
                    continue
            if self._found(proposal) or self._built(proposal):
                repeats = 0
            else:  # another worker was first
                time.sleep(random.uniform(0, 0.02))
        listed.sort(key=lambda record: record.number)
        return Search(self.study.name, self.goals, tuple(listed), reason)

    def _next(self, asker: Asker, ask: int, repeats: int, context: dict[str, Any]) -> tuple[Proposal | None, int]:
        """Return the proposal of an ask; None and the repeats where it is known; None and -1 where none is unseen."""
        claimed: dict[str, Any] = dict.fromkeys(self.study.claimed())
        taken: ChainMap[str, Any] = ChainMap(claimed, self.study.records)
        asked = asker.ask(ask) if repeats < REPEATS or self.sampler.name == GRID else None
        if asked is None:
            point = asker.unseen(ask, taken, context)
            if point is None:
                return None, -1
            asked = (point, {})
        point, memory = asked
        if not self.space.allows(point):
            return None, repeats + 1
        spec = self.space.spec(point)
        found = identity({"spec": spec, "context": context})
        if found in taken:
            return None, repeats + 1
        return Proposal(point, spec, found, ask, memory), repeats

    def _found(self, proposal: Proposal) -> bool:
        """Answer a proposal from another study of the storage, where one has built it."""
        study, record = self.study.elsewhere(proposal.identity)
        if record is None:
            return False
        values = values_of(self.goals, record.facts, f"study {study!r}, trial {record.number}")
        trial = self.study.claim(proposal, self.trials, self.builds, found=study)
        if trial is not None and self.study.finish(trial, FINISHED, record.facts, values):
            self._say(proposal, values, f" (found in {study})")
        return True

    def _built(self, proposal: Proposal) -> bool:
        """Claim a proposal, build it and tell what came of it; False where another worker has it."""
        trial = self.study.claim(proposal, self.trials, self.builds)
        if trial is None:
            return False
        pruner = None if self.stopping is None else self.stopping.made()
        last: list[float] = []

        def report(step: int, value: float) -> bool:
            self.study.storage.set_trial_intermediate_value(trial._trial_id, step, float(value))
            last.append(float(value))
            if pruner is None:
                return False
            with quiet():
                return bool(pruner.prune(self.study.study, self.study.storage.get_trial(trial._trial_id)))

        folder = None if self.folder is None else self.folder / "runs" / proposal.identity[:16]
        build = Build(proposal.point, proposal.spec, proposal.identity, folder, report)
        begin = time.perf_counter()
        facts: dict[str, Any] = {}
        values: list[float] = []
        try:
            try:
                found = self.evaluate(build)
                check(found, Mapping[str, Any], "what evaluate returned")
                ended, facts = FINISHED, dict(found)
            except StopTrial:
                ended, values = STOPPED, last[-1:]
            except NonFiniteError as error:
                ended, facts = FAILED, {"error": str(error)}
            if ended == FINISHED:
                values = values_of(self.goals, facts, f"point {proposal.point}")
        except BaseException:
            self.study.withdraw(trial._trial_id, ABANDONED)
            raise
        facts = {"seconds": round(time.perf_counter() - begin, 3), **facts}
        if self.study.finish(trial, ended, facts, values or None):
            self._say(proposal, values, "" if ended == FINISHED else f" ({ended})")
        return True

    def _learn(self, asker: Asker, record: TrialRecord) -> None:
        from optuna.trial import TrialState

        states = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED, FAILED: TrialState.FAIL}
        asker.learn(
            record.point, record.memory, record.values, state=states[record.ended], intermediate_values=record.steps
        )

    def _is_enough(self, listed: Sequence[TrialRecord]) -> bool:
        """Whether trials that have ended and those that others work on are as many as were asked for."""
        running = len(self.study.claimed())
        if self.trials is not None and len(listed) + running >= self.trials:
            return True
        return self.builds is not None and sum(record.found is None for record in listed) + running >= self.builds

    def _others_work(self) -> bool:
        """Wait a little where other workers have trials, which this one takes over if they die."""
        if self.study.claimed():
            time.sleep(_POLL_S)
            return True
        return False

    def _say(self, proposal: Proposal, values: Sequence[float], how: str) -> None:
        told = ", ".join(f"{goal.metric} {value:.4g}" for goal, value in zip(self.goals, values, strict=False))
        done = len(self.study.records) + 1
        most = self.trials or self.builds
        choices = " ".join(f"{name}={choice}" for name, choice in list(proposal.point.items())[:6])
        self.tell(
            f"[{done}{f'/{most}' if most else ''}] {choices}{' ...' if len(proposal.point) > 6 else ''}: {told}{how}",
            None if most is None else min(1.0, done / most),
        )
