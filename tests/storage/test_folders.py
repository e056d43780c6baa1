"""Folders are whole or not at all, and the user's own files stay: beside the place, inside it, with and without swaps."""

import os
import stat
import subprocess
import sys
import threading

import octavo
import pytest
from helpers.files import entry_names
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.storage import files, folders
from torch import nn

OWNED = ("config.json", "generation_config.json", "model.safetensors")


def content(folder):
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def fill(target, word, names=("config.json", "model.safetensors", "deep/file"), **options):
    with folders.whole(target, owned=OWNED, **options) as stage:
        for name in names:
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_text(word)
    return {name: word for name in names}


@pytest.fixture(params=["swapped", "put aside", "inside"])
def way(request, monkeypatch):
    """The three ways to a new folder: swap, two renames, and file by file where nothing can be renamed."""
    if request.param == "put aside":
        monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    if request.param == "inside":
        monkeypatch.setattr(folders, "_is_fixed", lambda *_: True)
    return request.param


def test_a_folder_appears_whole_or_not_at_all(tmp_path, way):
    target = tmp_path / "deep" / "new"
    with pytest.raises(KeyboardInterrupt), folders.whole(target) as stage:
        (stage / "file").write_text("x")
        assert not target.exists()
        raise KeyboardInterrupt
    assert entry_names(tmp_path / "deep") == []
    old = fill(target, "old")
    with pytest.raises(KeyboardInterrupt), folders.whole(target) as stage:
        (stage / "config.json").write_text("new")
        raise KeyboardInterrupt
    assert content(target) == old and entry_names(tmp_path / "deep") == ["new"]
    new = fill(target, "new")
    assert content(target) == new and entry_names(tmp_path / "deep") == ["new"]


def test_what_the_user_keeps_in_a_folder_stays_and_what_belongs_to_the_old_model_goes(tmp_path, way):
    target = tmp_path / "model"
    fill(target, "old", ["config.json", "generation_config.json", "model.safetensors"])
    (target / "notes" / "empty").mkdir(parents=True)
    (target / "notes" / "one.txt").write_text("mine")
    (target / ".hidden").write_text("mine")
    (target / "link").symlink_to("notes/one.txt")
    (target / "dangling").symlink_to("nowhere")
    (target / "deep").mkdir()
    (target / "deep" / "beside").write_text("mine")
    (target / "notes").chmod(0o750)
    inode = (target / "notes" / "one.txt").stat().st_ino
    written = fill(target, "new")
    mine = {"notes/one.txt": "mine", ".hidden": "mine", "deep/beside": "mine", "link": "mine"}
    assert content(target) == {**written, **mine}
    assert (target / "link").is_symlink() and os.readlink(target / "dangling") == "nowhere"
    assert (target / "notes" / "empty").is_dir() and stat.S_IMODE((target / "notes").stat().st_mode) == 0o750
    assert (target / "notes" / "one.txt").stat().st_ino == inode
    assert entry_names(tmp_path) == ["model"]


def test_a_folder_keeps_its_mode_and_a_new_one_has_that_of_the_umask(tmp_path, way):
    for name, full in (("empty", False), ("full", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o751)
        if full:
            (tmp_path / name / "mine").write_text("mine")
        fill(tmp_path / name, "new")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o751
    before = os.umask(0o027)
    try:
        fill(tmp_path / "new", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750


def test_a_symbolic_link_is_followed(tmp_path, way):
    fill(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    written = fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and content(tmp_path / "real") == written
    assert entry_names(tmp_path) == ["link", "real"]


@pytest.mark.parametrize("below", ["model", "deep/model"])
def test_a_file_in_the_place_of_a_parent_is_no_directory(tmp_path, way, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="file"):
        fill(tmp_path / "file" / below, "new")
    assert entry_names(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_full_folder_is_refused_without_overwrite_before_and_after_the_work(tmp_path, way):
    old = fill(tmp_path / "model", "old")
    with pytest.raises(FileExistsError):
        fill(tmp_path / "model", "new", overwrite=False)
    assert content(tmp_path / "model") == old
    with pytest.raises(FileExistsError), folders.whole(tmp_path / "late", overwrite=False) as stage:
        (stage / "file").write_text("new")
        late = fill(tmp_path / "late", "late")
    assert content(tmp_path / "late") == late and entry_names(tmp_path) == ["late", "model"]
    (tmp_path / "empty").mkdir()
    assert fill(tmp_path / "empty", "new", overwrite=False) == content(tmp_path / "empty")


@pytest.mark.parametrize("old, new", [("config.json/file", "config.json"), ("deep", "deep/file")])
def test_a_file_in_the_way_of_a_folder_or_the_reverse_changes_nothing(tmp_path, way, old, new):
    (tmp_path / "model" / old).parent.mkdir(parents=True)
    (tmp_path / "model" / old).write_text("mine")
    before = content(tmp_path / "model")
    with pytest.raises(OSError), folders.whole(tmp_path / "model") as stage:
        (stage / new).parent.mkdir(exist_ok=True)
        (stage / new).write_text("new")
    assert content(tmp_path / "model") == before and entry_names(tmp_path) == ["model"]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError) as caught:
        fill(tmp_path / "file", "new")
    assert caught.value.filename == str(tmp_path / "file") and entry_names(tmp_path) == ["file"]


def test_a_shell_that_stands_in_the_folder_still_stands_in_it(tmp_path, monkeypatch):
    fill(tmp_path / "model", "old")
    monkeypatch.chdir(tmp_path / "model")
    written = fill(".", "new")
    assert content(tmp_path / "model") == written and os.path.samefile(".", tmp_path / "model")
    assert entry_names(tmp_path) == ["model"]


def test_files_that_came_late_are_kept(tmp_path, monkeypatch):
    """What another process writes into the folder while the new one is put in its place."""
    fill(tmp_path / "model", "old")
    carry = folders._carry

    def then_write(old, new, owned):
        carry(old, new, owned)
        (tmp_path / "model" / "late").write_text("mine")
        (tmp_path / "model" / "deep" / "late").write_text("mine")

    monkeypatch.setattr(folders, "_carry", then_write)
    written = fill(tmp_path / "model", "new", ["config.json", "deep/file"])
    assert content(tmp_path / "model") == {**written, "late": "mine", "deep/late": "mine"}


def test_readers_see_one_model_while_writers_take_turns(tmp_path):
    """Both files are of one writer at every moment: swapping leaves no gap, and opens inside it stay in one folder."""
    target, stop, seen, failures = tmp_path / "model", threading.Event(), set(), []
    fill(target, "0")

    def read():
        while not stop.is_set():
            handle = os.open(target, os.O_RDONLY)  # one folder for both reads
            try:
                words = set()
                for name in ("config.json", "model.safetensors"):
                    with open(os.open(name, os.O_RDONLY, dir_fd=handle)) as file:
                        words.add(file.read())
                if len(words) != 1:
                    failures.append(words)
                seen.update(words)
            except FileNotFoundError:
                pass  # this one folder has been replaced and is being removed
            finally:
                os.close(handle)

    def write(word):
        for _ in range(15):
            fill(target, word)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(str(number),)) for number in range(3)]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    reader.join()
    assert not failures and len(seen) > 1 and entry_names(tmp_path) == ["model"]


# --- what killed processes leave --------------------------------------------------------------------------------------

FILLING = """
import os, signal, sys
from octavo.storage import folders
with folders.whole(sys.argv[1]) as stage:
    (stage / "config.json").write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""
# The old folder has been put aside, and the new one does not have its name yet.
BETWEEN = """
import os, signal, sys
from octavo.storage import (files, folders)
folders._exchange = lambda *_: False
rename, done = os.rename, []
def killing(source, place):
    if done and done[-1].endswith(files.ASIDE):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, place)
    done.append(place)
os.rename = killing
with folders.whole(sys.argv[1]) as stage:
    (stage / "config.json").write_text("new")
"""


@pytest.mark.parametrize("code", [FILLING, BETWEEN])
def test_what_a_killed_writer_left_goes_with_the_next_write_and_nothing_is_lost(tmp_path, code):
    old = fill(tmp_path / "model", "old")
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert len(entry_names(tmp_path)) == 2
    assert (tmp_path / "model").exists() == (code is FILLING)
    fill(tmp_path / "other", "x")
    assert entry_names(tmp_path) == ["model", "other"]
    assert content(tmp_path / "model") == old


def test_what_a_living_writer_has_made_is_not_swept(tmp_path):
    with folders.whole(tmp_path / "a") as stage:
        (stage / "file").write_text("x")
        fill(tmp_path / "b", "x")
        files.sweep(tmp_path)
        assert stage.exists()
    assert content(tmp_path / "a") == {"file": "x"}


# --- who uses it ------------------------------------------------------------------------------------------------------


def test_a_saved_model_never_has_the_configuration_of_another(tmp_path):
    octavo.save_model(nn.Linear(3, 2), tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("of another model")
    (tmp_path / "model" / "tokenizer.json").write_text("mine")
    octavo.save_model(nn.Linear(4, 2), tmp_path / "model")
    assert entry_names(tmp_path / "model") == [PACKED_NAME, "tokenizer.json"]
