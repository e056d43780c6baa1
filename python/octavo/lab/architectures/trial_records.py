"""Trials of a search in its storage: found again by identity, claimed by one worker, finished once.

A trial is created with everything that says what it is, in one step of the storage, which numbers them: of two workers
that claim one identity the lower number has it, and the other withdraws. Studies that measure in the same context are
siblings: what one of them has finished, none builds again, and what one has claimed, no other takes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from octavo import __version__
from octavo.errors import DataError, SettingError
from octavo.lab.architectures import trial_claims
from octavo.lab.architectures.space import Point
from octavo.lab.architectures.trial_storage import optuna_package, quiet
from octavo.storage.reading import member

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STUDY = "octavo"
"""Attribute of a study with what it is about; of a trial with its proposal."""
IDENTITY = "identity"
CLAIM, FACTS, FATE, FOUND = "claim", "facts", "fate", "found"
# What a trial's attribute of ours holds.
_TOLD: dict[str, type] = {"spec": dict, "identity": str, "ask": int, "memory": dict}
#: How a trial ended that has no value: it is another's (withdrawn), or its worker ended before it did (abandoned).
WITHDRAWN, ABANDONED = "withdrawn", "abandoned"
#: How a build ended. ``failed``: training diverged, and would again.
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True)
class TrialRecord:
    """A trial: its ``number``, ``identity`` and choices, ``spec``, what was measured, and how it ended.

    ``values``: of the objectives; None where it ``failed``. ``found``: the study in which it was built before, None
    where this one built it. ``ask``: the number of the sampler's ask. ``steps``: intermediate values by step.
    """

    number: int
    identity: str
    point: Point
    spec: dict[str, Any]
    ended: str
    values: tuple[float, ...] | None
    facts: dict[str, Any]
    found: str | None
    ask: int
    memory: dict[str, Any] = field(repr=False)
    steps: dict[int, float] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "values": None if self.values is None else list(self.values)}


@dataclass(frozen=True)
class Proposal:
    """A point that is to be claimed: what a trial is created with."""

    point: Point
    spec: dict[str, Any]
    identity: str
    ask: int
    memory: dict[str, Any]


class StudyTrials:
    """The trials of one study, read as they come; ``context`` makes siblings of studies."""

    def __init__(self, storage: BaseStorage, name: str, about: Mapping[str, Any] | None, lease_s: float) -> None:
        """Open a study, or begin it: ``about`` has its ``objectives``, ``axes`` and ``context``; None: as it is there.

        Raises SettingError where a study of this name is about something else.
        """
        optuna = optuna_package()
        self.name, self.lease_s = name, lease_s
        self._states, self._create = optuna.trial.TrialState, optuna.trial.create_trial
        self._gone = optuna.exceptions.UpdateFinishedTrialError
        with quiet():
            if about is None:
                study = optuna.load_study(study_name=name, storage=storage)
            else:
                directions = ["maximize" if goal == "max" else "minimize" for _, goal in about["objectives"]]
                study = optuna.create_study(
                    study_name=name, storage=storage, directions=directions, load_if_exists=True
                )
        # Optuna's own wrapper, which reads the trials of a database that have ended only once.
        self.study, self.id, self.storage = study, study._study_id, study._storage
        begun = (
            member(study.user_attrs, STUDY, dict, f"study {name!r}", error=DataError)
            if STUDY in study.user_attrs
            else None
        )
        if begun is None and about is not None:
            study.set_user_attr(STUDY, dict(about))
        self.about: dict[str, Any] = dict(begun or about or {})
        for key, value in (about or {}).items():
            if self.about.get(key) != value:
                raise SettingError(
                    f"study {name!r} was begun with {key} {self.about.get(key)!r}, and is asked for {value!r}; give "
                    "another name or storage, or the settings of before"
                )
        self.records: dict[str, TrialRecord] = {}
        self._read = 0
        self._open: list[int] = []  # trials looked at that had not ended
        self._news: list[TrialRecord] = []
        self._trials: list[FrozenTrial] = []
        self._asks = self._asks_of = 0
        self._held: int | None = None  # the trial that this worker is at
        self._siblings: dict[str, StudyTrials] = {}
        self._retry: dict[str, Proposal] = {}

    # --- reading ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what is new in the storage."""
        self._trials = self.storage.get_all_trials(self.id, deepcopy=False)
        looked_at = [*self._open, *range(self._read, len(self._trials))]
        self._read, self._open = len(self._trials), []
        for number in looked_at:
            trial = self._trials[number]
            if not trial.state.is_finished():
                self._open.append(number)
                continue
            record = self._record(trial)
            if record is not None and record.identity not in self.records:
                self.records[record.identity] = record
                self._retry.pop(record.identity, None)
                self._news.append(record)

    def news(self) -> list[TrialRecord]:
        """Return the records of trials that have ended since the last call, in their order."""
        self.refresh()
        found, self._news = self._news, []
        return found

    def running(self) -> list[FrozenTrial]:
        """Return the trials that have not ended, whether or not their workers live."""
        return [self._trials[number] for number in self._open]

    def next_ask(self) -> int:
        """Return the number of the ask after the last one of which there is a trial."""
        for trial in self._trials[self._asks_of :]:
            told = self._told(trial)
            self._asks = max(self._asks, -1 if told is None else told["ask"] + 1)
        self._asks_of = len(self._trials)
        return self._asks

    def elsewhere(self, identity: str) -> tuple[str, TrialRecord | None]:
        """Return the sibling that has built an identity to its end, and its record; ``""`` and None where none has."""
        for sibling in self.siblings():
            sibling.refresh()
            record = sibling.records.get(identity)
            if record is not None and record.ended == FINISHED and record.found is None:
                return sibling.name, record
        return "", None

    def siblings(self) -> list[StudyTrials]:
        """Return the other studies of the storage whose trials are measured in the same context."""
        for frozen in self.storage.get_all_studies():
            name, about = frozen.study_name, frozen.user_attrs.get(STUDY)
            if name == self.name or name in self._siblings or not isinstance(about, dict):
                continue
            if about.get("context") == self.about["context"]:
                self._siblings[name] = StudyTrials(self.storage, name, None, self.lease_s)
        return list(self._siblings.values())

    # --- claiming ---------------------------------------------------------------------------------------------------

    def abandoned(self) -> Proposal | None:
        """Return a trial whose worker has ended before it; of several workers that ask, one at a time gets it."""
        for trial in self.running():
            if self._told(trial) is None or trial_claims.stands(trial.user_attrs.get(CLAIM)):
                continue
            self.withdraw(trial._trial_id, ABANDONED)
        alive = self.claimed()
        for identity, proposal in self._retry.items():
            if identity not in alive and identity not in self.records:
                return proposal
        return None

    def claimed(self) -> set[str]:
        """Return the identities that workers are at."""
        stands = trial_claims.stands
        return {i for t in self.running() if (i := self._identity(t)) is not None and stands(t.user_attrs.get(CLAIM))}

    def claim(
        self, proposal: Proposal, trials: int | None, builds: int | None, found: str | None = None
    ) -> FrozenTrial | None:
        """Create the trial of a proposal for this worker; None where another has it, or there are enough others.

        ``trials`` and ``builds``: the most of the study, those that are running among them. ``found``: the sibling that
        has built it.
        """
        trial = self._new(proposal, {CLAIM: trial_claims.claim(self.lease_s)} | ({FOUND: found} if found else {}))
        self.refresh()
        before = [other for other in self.running() if other.number < trial.number]
        built = [other for other in before if FOUND not in other.user_attrs]
        full = trials is not None and len(self.records) + len(before) >= trials
        if builds is not None and found is None:
            full = full or sum(record.found is None for record in self.records.values()) + len(built) >= builds
        rivals = proposal.identity in self.records or any(self._identity(o) == proposal.identity for o in before)
        if not rivals and not full and (found or not self._is_taken_elsewhere(proposal.identity)):
            self._held = trial._trial_id
            return trial
        self.withdraw(trial._trial_id, WITHDRAWN)
        return None

    def finish(self, trial: FrozenTrial, ended: str, facts: dict[str, Any], values: list[float] | None) -> bool:
        """End a trial; False where its claim had gone to another worker, who has or will have the same result."""
        self._held = None
        states = {FINISHED: self._states.COMPLETE, STOPPED: self._states.PRUNED, FAILED: self._states.FAIL}
        try:
            self.storage.set_trial_user_attr(trial._trial_id, FACTS, facts)
            self.storage.set_trial_user_attr(trial._trial_id, FATE, ended)
            return self.storage.set_trial_state_values(trial._trial_id, states[ended], values)
        except self._gone:
            return False

    def withdraw(self, trial_id: int, fate: str) -> None:
        """End a trial without a result. Nothing happens where it has ended."""
        if trial_id == self._held:
            self._held = None
        try:
            self.storage.set_trial_user_attr(trial_id, FATE, fate)
            self.storage.set_trial_state_values(trial_id, self._states.FAIL)
        except self._gone:
            pass
        self.refresh()

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Move the deadline of this worker's claim on while the block lasts, from another thread."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self.lease_s / 4):
                held = self._held
                if held is not None:
                    # A claim that has gone is noticed at the end of the trial; a server may be away for a moment.
                    with suppress(Exception):
                        self.storage.set_trial_user_attr(held, CLAIM, trial_claims.claim(self.lease_s))

        thread = threading.Thread(target=renew, name="octavo-claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _new(self, proposal: Proposal, attributes: dict[str, Any]) -> FrozenTrial:
        """Create the running trial of a proposal, with its attributes, in one step of the storage."""
        from optuna.distributions import CategoricalDistribution

        told = {**asdict(proposal), "made": _made()}
        point = told.pop("point")
        choices: dict[str, Any] = self.about["axes"]
        template = self._create(
            state=self._states.RUNNING, params=point,
            distributions={name: CategoricalDistribution(choices[name]) for name in point},
            user_attrs={STUDY: told, IDENTITY: proposal.identity, **attributes},
        )  # fmt: skip
        template.datetime_start = datetime.now()
        return self.storage.get_trial(self.storage.create_new_trial(self.id, template_trial=template))

    def _is_taken_elsewhere(self, identity: str) -> bool:
        return self.elsewhere(identity)[1] is not None or any(identity in s.claimed() for s in self.siblings())

    def _record(self, trial: FrozenTrial) -> TrialRecord | None:
        """Return the record of a trial that has ended; None of one without a result, which is kept to be tried again.

        Trials that others put into the study are none of ours.
        """
        told = self._told(trial)
        if told is None:
            return None
        fate = trial.user_attrs.get(FATE)
        if trial.state == self._states.FAIL and fate != FAILED:
            # Not withdrawn: it was abandoned, perhaps after its worker wrote a fate and before it ended the trial.
            if fate != WITHDRAWN and told["identity"] not in self.records:
                self._retry[told["identity"]] = Proposal(
                    dict(trial.params), told["spec"], told["identity"], told["ask"], told["memory"]
                )
            return None
        ended = {self._states.COMPLETE: FINISHED, self._states.PRUNED: STOPPED}.get(trial.state, FAILED)
        return TrialRecord(
            trial.number, told["identity"], dict(trial.params), told["spec"], ended,
            None if trial.values is None else tuple(trial.values), trial.user_attrs.get(FACTS, {}),
            trial.user_attrs.get(FOUND), told["ask"], told["memory"], dict(trial.intermediate_values),
        )  # fmt: skip

    def _told(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """Return what a trial was created with, None of others' trials. Raises DataError for what is no proposal."""
        if STUDY not in trial.user_attrs:
            return None
        what = f"study {self.name!r}, trial {trial.number}"
        told: dict[str, Any] = member(trial.user_attrs, STUDY, dict, what, error=DataError)
        for key, kind in _TOLD.items():
            member(told, key, kind, f"{what}: {STUDY}", error=DataError)
        return told

    def _identity(self, trial: FrozenTrial) -> str | None:
        return trial.user_attrs.get(IDENTITY)


def _made() -> dict[str, Any]:
    """Return with what a trial is measured; torch where it is loaded."""
    torch = sys.modules.get("torch")
    return {"octavo": __version__, "torch": str(getattr(torch, "__version__", "")), "time": time.time()}
