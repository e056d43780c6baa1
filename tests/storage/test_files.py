"""Files are whole or not at all: whatever is in the place, whatever fails, and whoever was killed before."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager

import octavo
import pytest
import torch
from helpers.files import entry_names
from octavo.storage import files, folders, locks


@contextmanager
def no_file_beyond(nbytes):
    """Every write past ``nbytes`` of a file fails with EFBIG, as it would with ENOSPC on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("mode, content", [("wb", b"new"), ("w", "näw\n")])
@pytest.mark.parametrize("there", [False, True])
def test_a_file_has_its_old_content_until_the_end_and_then_the_new(tmp_path, mode, content, there):
    path = tmp_path / "file"
    if there:
        path.write_bytes(b"old")
    with files.whole(path, mode) as file:
        file.write(content)
        file.flush()
        assert path.read_bytes() == b"old" if there else not path.exists()
    assert path.read_bytes() == (content if mode == "wb" else content.encode())
    assert entry_names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_after_an_error_the_old_content_stays_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), files.whole(path) as file:
        file.write(b"x" * 10**6)
        raise error
    assert path.read_bytes() == b"old" and entry_names(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("limit", [0, 1, 65535, 65536, 99_999])
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, mode, limit):
    path = tmp_path / "file"
    path.write_bytes(b"")
    with no_file_beyond(limit), pytest.raises(OSError) as caught, files.whole(path, mode) as file:
        for _ in range(100):
            file.write(b"x" * 1000 if mode == "wb" else "x" * 1000)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    assert path.read_bytes() == b"" and entry_names(tmp_path) == ["file"]


@pytest.mark.parametrize("missing", ["no/such/file", ".", "plain/file"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, missing):
    (tmp_path / "plain").write_bytes(b"")
    path = tmp_path / missing
    with pytest.raises(OSError) as caught, files.whole(path):
        pass
    assert caught.value.filename == str(path)
    assert entry_names(tmp_path) == ["plain"]


def test_symbolic_links_are_followed_also_to_what_is_not_there(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "real").write_bytes(b"old")
    for link, to in (("a", "real"), ("b", "a"), ("c", "there/missing")):
        (tmp_path / link).symlink_to(to)
    for link in "bc":
        files.write(tmp_path / link, f"through {link}")
        assert (tmp_path / link).is_symlink()
    assert (tmp_path / "real").read_text() == "through b" and (tmp_path / "a").is_symlink()
    assert (tmp_path / "there" / "missing").read_text() == "through c"


def test_a_mode_is_kept_and_a_new_file_has_that_of_the_umask(tmp_path):
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(0o640)
    before = os.umask(0o027)
    try:
        for name in ("old", "new"):
            files.write(tmp_path / name, b"")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new")] == [0o640, 0o640]
    (tmp_path / "old").chmod(0o755)
    files.write(tmp_path / "old", b"x")
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o755


def test_pipes_and_devices_are_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    files.write(tmp_path / "pipe", b"through")
    reader.join()
    assert read == [b"through"] and entry_names(tmp_path) == ["pipe"]
    files.write("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="/dev/full"):
        files.write("/dev/full", b"x")


def test_standard_output_is_written_directly_wherever_it_goes(tmp_path):
    code = "from octavo.storage import files; files.write('/dev/stdout', 'told')"
    with open(tmp_path / "out", "wb") as out:
        inode = os.fstat(out.fileno()).st_ino
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"told" and (tmp_path / "out").stat().st_ino == inode
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert told.stdout == b"told"


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, os.fsdecode(b"\xff" * 40), ".", "a b\nc"])
def test_every_name_that_a_file_can_have_can_be_written(tmp_path, name):
    if name == ".":
        name = ".hidden"
    files.write(tmp_path / name, b"x")
    assert entry_names(tmp_path) == [name]


# --- what killed processes leave --------------------------------------------------------------------------------------


def killed(code, folder):
    """Run ``code`` in a child that prints when it is to be killed."""
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


WRITING = """
import sys, time
from octavo.storage import files
with files.whole(sys.argv[1] + "/file") as file:
    file.write(b"x" * 10**6)
    print("now", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_writer_left_goes_with_the_next_write_and_a_living_one_keeps_its_own(tmp_path):
    child = killed(WRITING, tmp_path)
    (left,) = entry_names(tmp_path)
    files.write(tmp_path / "other", b"")
    assert entry_names(tmp_path) == [left, "other"]
    child.kill()
    child.wait()
    files.write(tmp_path / "other", b"")
    assert entry_names(tmp_path) == ["other"]


def test_what_others_call_alike_is_left_alone(tmp_path):
    names = [".file.tmp", "file.1-00000000.octavo.tmp", ".file.x-00000000.octavo.tmp", ".octavo.tmp", ".a.Ab3dEf.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    files.write(tmp_path / "file", b"")
    assert entry_names(tmp_path) == sorted([*names, "file"])


NATIVE = """
import os, sys, torch
from octavo import _core
from octavo.tensors import container
writer = _core._ContainerWriter(sys.argv[1] + "/model.safetensors", [("a", "F32", [4])], [], {}, True)
print("now", flush=True)
os.read(0, 1)
"""


def test_what_a_killed_container_writer_left_goes_with_the_next_and_a_living_one_keeps_its_own(tmp_path):
    child = killed(NATIVE, tmp_path)
    (left,) = entry_names(tmp_path)
    octavo.save({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert entry_names(tmp_path) == [left, "model.safetensors"]
    child.kill()
    child.wait()
    octavo.save({"a": torch.zeros(3)}, tmp_path / "other.safetensors")
    assert left in entry_names(tmp_path)
    octavo.save({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert entry_names(tmp_path) == ["model.safetensors", "other.safetensors"]


def test_a_file_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    take, calls = locks.take, []

    def late(descriptor, **options):
        if not calls:
            calls.append([os.unlink(entry) for entry in tmp_path.iterdir()])
        return take(descriptor, **options)

    monkeypatch.setattr(locks, "take", late)
    files.write(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x" and entry_names(tmp_path) == ["file"]


def test_many_writers_of_one_file_and_sweepers_leave_one_whole_file(tmp_path):
    contents = [bytes([65 + number]) * 200_000 for number in range(4)]
    failures = []

    def write(content):
        try:
            for _ in range(30):
                files.write(tmp_path / "file", content)
                assert (tmp_path / "file").read_bytes() in contents
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and entry_names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "make", [files.whole, folders.whole, lambda path: folders.scratch()], ids=["file", "folder", "scratch"]
)
def test_an_interrupt_at_any_line_leaves_nothing_temporary(tmp_path, monkeypatch, make):
    """Ctrl+C, and the exit that SIGTERM means, come between any two lines: until the body begins, and in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = {files.__file__, folders.__file__, locks.__file__}
    lines, heard = 0, 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename not in ours:
            return None
        if event == "line":
            lines += 1
            if lines == heard:
                raise KeyboardInterrupt
        return trace

    for _ in range(200):
        heard, lines = heard + 1, 0
        began = False
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with make(tmp_path / "x"):
                sys.settrace(before)
                began = True
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.settrace(before)
        assert list(tmp_path.iterdir()) == [], heard
        if began:
            break
    assert began and heard > 10
