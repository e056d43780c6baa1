"""Many workers on one study, killed at random: nothing is built twice, nothing finished is lost."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")

from lab.architectures.postgres_server import server  # noqa: E402
from lab.architectures.search_worker import POINTS, SPACE, measured  # noqa: E402
from octavo.errors import DataError  # noqa: E402
from octavo.lab.architectures import trial_claims  # noqa: E402
from octavo.lab.architectures.samplers import Sampler  # noqa: E402
from octavo.lab.architectures.search_loop import run_search  # noqa: E402
from octavo.lab.architectures.trial_records import StudyTrials  # noqa: E402
from octavo.lab.architectures.trial_storage import NAME, open_storage  # noqa: E402

WORKER = Path(__file__).with_name("search_worker.py")


@pytest.fixture(scope="module")
def started():
    pytest.importorskip("psycopg")
    with server() as address:
        yield address


@pytest.fixture
def database(started):
    yield started
    with suppress(KeyError):  # a test that fails leaves no study to the next one
        optuna.delete_study(study_name="kills", storage=open_storage(started))


def work(storage, log, sampler="grid", trials=0, seconds=0.01):
    command = [sys.executable, WORKER, storage, log, sampler, trials, seconds]
    return subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, start_new_session=True)


def kill_at_random(storage, log, kills, seed, **given):
    """Keep 4 workers at work until the study ends, killing one now and then; return when each pid was killed."""
    generator, killed = random.Random(seed), {}
    workers = [work(storage, log, **given) for _ in range(4)]
    deadline = time.monotonic() + 300
    try:
        while any(worker.poll() is None for worker in workers):
            assert time.monotonic() < deadline, "the study does not end"
            time.sleep(generator.uniform(0.02, 0.25))
            begun = log.exists()
            for worker in workers:
                if worker.poll() not in (None, 0, -signal.SIGKILL):
                    pytest.fail(worker.stderr.read().decode()[-3000:])
            alive = [position for position, worker in enumerate(workers) if worker.poll() is None]
            if begun and alive and len(killed) < kills:
                position = generator.choice(alive)
                os.kill(workers[position].pid, signal.SIGKILL)
                workers[position].wait()
                killed[workers[position].pid] = time.monotonic()
                workers[position] = work(storage, log, **given)
    finally:
        for worker in workers:  # none of a test that fails works on
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    assert all(worker.returncode == 0 for worker in workers)
    return killed


def check(storage, log, killed, trials):
    """Hold the law: every identity is finished once, and begun again only after the death of who had it."""
    found = StudyTrials(open_storage(storage), "kills", None, 30)
    found.refresh()
    numbers = [t.number for t in found.study.get_trials(deepcopy=False) if t.state == optuna.trial.TrialState.COMPLETE]
    assert len(numbers) == len(found.records) == trials and not found.running()
    lines = [line.split() for line in log.read_text().splitlines()]
    at_work = {}
    for what, identity, pid, moment in lines:
        if what == "begin":
            if identity in at_work:
                other = at_work[identity]
                assert other in killed and killed[other] <= float(moment), "two workers at one identity"
            at_work[identity] = int(pid)
    ends = [identity for what, identity, *_ in lines if what == "end"]
    # A kill between the end of the evaluation and the storage's word loses that one trial.
    assert len(lines) - len(ends) <= trials + len(killed) and set(ends) == set(found.records)
    return found


def front(records):
    pairs = [tuple(record.values) for record in records]
    return sorted({(a, b) for a, b in pairs if not any(c >= a and d <= b and (c, d) != (a, b) for c, d in pairs)})


def whole_front():
    values = [measured(point) for point in SPACE.points()]
    pairs = [(value["accuracy"], value["bytes"]) for value in values]
    return sorted({(a, b) for a, b in pairs if not any(c >= a and d <= b and (c, d) != (a, b) for c, d in pairs)})


@pytest.mark.slow
def test_workers_of_a_database_share_a_grid_and_survive_kills(database, tmp_path):
    killed = kill_at_random(database, tmp_path / "log", kills=2, seed=1)
    found = check(database, tmp_path / "log", killed, POINTS)
    assert len(killed) == 2 and front(found.records.values()) == whole_front()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "random", "nsga2"])
def test_twenty_kills_lose_no_finished_trial(database, tmp_path, sampler):
    trials = POINTS if sampler == "grid" else 30
    given = {"sampler": sampler, "trials": 0 if sampler == "grid" else trials, "seconds": 0.3}
    killed = kill_at_random(database, tmp_path / "log", kills=20, seed=2, **given)
    found = check(database, tmp_path / "log", killed, trials)
    assert len(killed) == 20
    if sampler == "grid":
        assert front(found.records.values()) == whole_front()


@pytest.mark.slow
def test_workers_of_a_journal_file_survive_kills(tmp_path):
    killed = kill_at_random(tmp_path / "study", tmp_path / "log", kills=6, seed=3, seconds=0.05)
    check(tmp_path / "study", tmp_path / "log", killed, POINTS)


def test_a_claim_ends_with_its_process_or_its_deadline():
    own = trial_claims.claim(60)
    assert trial_claims.stands(own)
    assert not trial_claims.stands({**own, "deadline": time.time() - 1})
    assert not trial_claims.stands({**own, "begun": "1"})  # another process has its number
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not trial_claims.stands({**own, "process": gone.pid})
    assert trial_claims.stands({**own, "machine": "another", "process": gone.pid})
    assert not trial_claims.stands({**own, "machine": "another", "deadline": time.time() - 1})
    assert not trial_claims.stands(None)


def test_a_worker_that_was_given_up_does_not_count(tmp_path):
    """Its lease ran out while it was at work: another worker's result stands, and its own is dropped."""
    storage = optuna.storages.InMemoryStorage()
    given = {"storage": storage, "name": "study", "sampler": "grid", "trials": 3, "objectives": "accuracy"}
    later = []

    def evaluate(build):
        if not later:
            later.append(build.identity)
            study = StudyTrials(storage, "study", None, 60)
            study.refresh()
            (trial,) = study.running()
            study.withdraw(trial._trial_id, "abandoned")
            return {"accuracy": -1.0}
        return measured(build.point)

    found = run_search(SPACE, evaluate, **given)
    assert [trial.values[0] for trial in found.trials] == [measured(trial.point)["accuracy"] for trial in found.trials]
    assert found.trials[0].identity == later[0] and len(found.trials) == 3


def test_a_database_that_is_not_there_is_named():
    pytest.importorskip("psycopg")
    with pytest.raises(DataError, match="database cannot be used"):
        open_storage("postgresql://nobody@127.0.0.1:1/none")


def test_the_dashboard_shows_our_studies(tmp_path):
    pytest.importorskip("optuna_dashboard")
    run_search(
        SPACE, lambda build: measured(build.point), storage=tmp_path, name="shown", objectives="accuracy",
        sampler=Sampler("random"), trials=4,
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "import sys; from optuna_dashboard import run_server; from octavo.lab.architectures.trial_storage import open_storage; "
    code += "run_server(open_storage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    shown = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / NAME), str(port)], stderr=subprocess.DEVNULL)
    try:
        studies = ask(f"http://127.0.0.1:{port}/api/studies", shown)
        study = next(s for s in studies["study_summaries"] if s["study_name"] == "shown")
        told = ask(f"http://127.0.0.1:{port}/api/studies/{study['study_id']}", shown)
        assert len(told["trials"]) == 4 and {trial["state"] for trial in told["trials"]} == {"Complete"}
    finally:
        shown.kill()
        shown.wait()


def ask(address, shown):
    for _ in range(400):
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)
        except OSError:
            assert shown.poll() is None, "the dashboard ended"
            time.sleep(0.05)
    pytest.fail("the dashboard does not answer")
