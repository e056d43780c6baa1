"""A folder has one worker; the lock dies with its process, and with nothing else."""

import os
import subprocess
import sys
import threading
import time

import pytest
from octavo import LockedError
from octavo.storage import locks
from octavo.storage.locks import NAME, FolderLock

HOLDING = """
import os, sys, time
from octavo.storage.locks import FolderLock
with FolderLock(sys.argv[1]):
    # The forked child speaks, for by then it has let go of its copy of the lock.
    if sys.argv[2] != "fork" or os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)


def holder(folder, how=""):
    child = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder), how], stdout=subprocess.PIPE, text=True)
    return child, int(child.stdout.readline())


def test_a_second_process_is_refused_and_told_who_is_at_work(tmp_path):
    child, _ = holder(tmp_path)
    try:
        with pytest.raises(LockedError) as caught, FolderLock(tmp_path, label="study", option="--out"):
            pass
        told = str(caught.value)
        assert told.startswith(f"{tmp_path}: another process is at work on this study (process {child.pid} on ")
        assert os.uname().nodename in told and told.endswith("wait for it, end it, or give another --out")
        with pytest.raises(LockedError):
            locks.check(tmp_path)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("how", ["", "fork"])
def test_a_killed_process_is_no_obstacle_nor_are_its_forked_children(tmp_path, how):
    child, forked = holder(tmp_path, how)
    child.kill()
    child.wait()
    try:
        with FolderLock(tmp_path):
            pass
        locks.check(tmp_path)
    finally:
        if how:
            os.kill(forked, 9)
    assert not list(tmp_path.iterdir())


def test_who_waits_a_moment_for_a_dying_process_gets_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 20.0)
    child, _ = holder(tmp_path)
    threading.Timer(0.3, child.kill).start()
    with FolderLock(tmp_path):
        assert child.wait(20) == -9


def test_a_folder_is_free_again_after_the_end_and_after_an_error(tmp_path):
    for _ in range(3):
        with pytest.raises(ValueError), FolderLock(tmp_path / "new"):
            raise ValueError
    assert not list((tmp_path / "new").iterdir())


def test_the_own_process_is_refused_too_but_its_own_thread_may_go_in_deeper(tmp_path):
    with FolderLock(tmp_path):
        with pytest.raises(LockedError), FolderLock(tmp_path):
            pass
        with locks.hold(tmp_path), locks.hold(tmp_path / "."):
            pass
        refused = []

        def elsewhere():
            try:
                with locks.hold(tmp_path):
                    pass
            except LockedError as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert refused
        with pytest.raises(LockedError):
            locks.check(tmp_path)
    assert not (tmp_path / NAME).exists()


def test_a_forked_child_that_leaves_the_lock_does_not_give_it_back(tmp_path):
    with FolderLock(tmp_path) as lock:
        child = os.fork()
        if child == 0:
            lock.__exit__()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockedError), FolderLock(tmp_path):
            pass


def test_checking_makes_nothing(tmp_path):
    locks.check(tmp_path / "nowhere")
    locks.check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_of_many_at_a_time(tmp_path, monkeypatch):
    """The file is removed at every end: who opened it before must not hold a lock on a name that is gone."""
    monkeypatch.setattr(locks, "_PATIENCE", 60.0)
    monkeypatch.setattr(locks, "_POLL", 0.0005)
    inside, most = [], []

    def work():
        for _ in range(40):
            with FolderLock(tmp_path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 160 and max(most) == 1


def test_a_file_system_without_locks_is_named_in_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "take", lambda *_, **__: None)
    with pytest.warns(UserWarning, match="has no locks"), FolderLock(tmp_path):
        pass
