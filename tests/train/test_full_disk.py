"""A disk that fills is an OSError that names the file; checkpoints that were whole stay, and the run goes on later."""

import errno
import resource
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from octavo.search.journal import Journal
from octavo.train import checkpoint
from train.tiny import assert_same_run, run

CHANGES = {"steps": 16, "checkpoint_every": 4, "evaluate_every": 6, "keep": 2, "log_every": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(folder, **CHANGES)
    return folder


@contextmanager
def no_file_beyond(nbytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def sizes(whole):
    return sorted({file.stat().st_size for file in whole.rglob("*") if file.is_file()})


def check(folder, caught):
    """The error names a file of the run; what is there can be read."""
    assert str(caught.value.filename).startswith(str(folder)), repr(caught.value)
    assert ".octavo.tmp" not in caught.value.filename
    for file in checkpoint.available(folder):
        checkpoint.load(file)
    assert not [file for file in folder.rglob("*") if file.name.endswith(".tmp")]


@pytest.mark.parametrize("case", range(17))
def test_a_file_that_may_not_grow_stops_the_run_and_loses_nothing(tmp_path, whole, case):
    largest = checkpoint.available(whole)[0].stat().st_size
    limit = [0, 1, 100, 700, 4095, 4096][case] if case < 6 else largest * (case - 5) // 12
    with no_file_beyond(limit), pytest.raises(OSError) as caught:
        run(tmp_path, **CHANGES)
    assert caught.value.errno == errno.EFBIG
    check(tmp_path, caught)
    run(tmp_path, **CHANGES)
    assert_same_run(tmp_path, whole)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of so many bytes."""
    mounted = []

    def mount(nbytes):
        place = tmp_path / "disk"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", place], capture_output=True)
        if done.returncode:
            pytest.skip("no file system may be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.1, 1.5, 1.9, 2.1, 2.4, 2.9])
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, small_disk, whole, share):
    """Room for so many checkpoints; a run needs three, two of which it keeps, and its weights twice."""
    disk = small_disk(int(checkpoint.available(whole)[0].stat().st_size * share) // 4096 * 4096)
    with pytest.raises(OSError) as caught:
        run(disk / "run", **CHANGES)
    assert caught.value.errno == errno.ENOSPC
    check(disk / "run", caught)
    shutil.copytree(disk / "run", tmp_path / "run")
    run(tmp_path / "run", **CHANGES)
    assert_same_run(tmp_path / "run", whole)


def test_a_point_that_did_not_fit_is_measured_again(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add({"width": 1}, result="x" * 1000)
    with no_file_beyond(1500), pytest.raises(OSError) as caught, Journal(tmp_path) as journal:
        journal.add({"width": 2}, result="x" * 1000)
    assert caught.value.filename == str(tmp_path / "study.jsonl")
    with Journal(tmp_path) as journal:
        assert len(journal) == 1 and journal.find({"width": 2}) is None
