"""Systems that lack what POSIX has: the package is imported, packs, saves, loads and locks there."""

import subprocess
import sys
import textwrap

import pytest
from helpers.processes import python
from octavo.storage import process_memory, system

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the simulation looks into /proc")

BEGIN = """
from helpers import no_posix
no_posix.install()
"""


def simulated(code: str, *arguments: object, begin: str = BEGIN) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter without POSIX."""
    from pathlib import Path

    tests = Path(__file__).parents[1]
    return python(textwrap.dedent(begin) + textwrap.dedent(code), *arguments, path=[tests])


def passes(code: str, *arguments: object) -> str:
    done = simulated(code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_simulation_lacks_what_windows_lacks():
    passes("""
        import octavo.storage.system as system
        assert not system.POSIX and system.fcntl is None
        assert not hasattr(system.os, "O_NONBLOCK") and not hasattr(system.signal, "SIGKILL")
        assert system.READ == 0
        import os
        assert os.O_NONBLOCK
    """)


@pytest.mark.parametrize("command", ["--help", "doctor"])
def test_the_command_line_answers(command):
    assert passes(
        """
        import sys
        sys.argv = ["octavo", *sys.argv[1:]]
        from octavo.cli import main
        main()
        """,
        *command.split(),
    )


def test_every_module_of_the_package_can_be_imported():
    """But those that need a package that is not here."""
    passes("""
        import importlib, pkgutil
        import octavo
        from octavo import _core
        for module in pkgutil.walk_packages(octavo.__path__, "octavo.", onerror=lambda name: None):
            if module.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except (ImportError, octavo.OctavoError) as error:
                name = getattr(error, "name", None) or ""
                assert not name.startswith("octavo") and name not in no_posix.MODULES, f"{module.name}: {error}"
    """)


def test_tensors_and_models_are_packed_saved_replaced_and_loaded(tmp_path):
    passes(
        """
        import sys
        from pathlib import Path
        import octavo, torch
        from torch import nn

        place = Path(sys.argv[1])
        weight = torch.linspace(-1, 1, 64 * 64).view(64, 64)
        for text in ("mxint8", "int4:g32"):
            octavo.save({"a": octavo.encode(weight, text)}, place / "tensors.safetensors", overwrite=True)
            loaded = octavo.load(place / "tensors.safetensors")["a"]
            assert torch.equal(loaded.decode(), octavo.quantize(weight, text))

        folder = place / "model"
        torch.manual_seed(0)
        for text in ("mxint8", "mxfp4"):
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
            packed = octavo.pack_model(octavo.quantize_model(model, f"type:Linear {text}"))
            octavo.save_model(packed, folder, overwrite=True)
            (folder / "mine.txt").write_text("kept", encoding="utf-8")
            again = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
            again = octavo.load_model(folder, again)
            assert torch.equal(again(weight), packed(weight))
            left = sorted(path.name for path in place.iterdir())
            assert left == ["model", "tensors.safetensors"], left
        assert (folder / "mine.txt").read_text(encoding="utf-8") == "kept"
        """,
        tmp_path,
    )


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    passes(
        """
        import os, sys
        from octavo.storage import files
        os.chdir(sys.argv[1])
        files.write("a", "first")
        files.write("a", "second")
        try:
            with files.whole("a") as file:
                file.write(b"third")
                raise KeyError
        except KeyError:
            pass
        assert open("a").read() == "second" and os.listdir(".") == ["a"], os.listdir(".")
        """,
        tmp_path,
    )


def test_a_folder_is_locked_for_others_until_its_process_ends(tmp_path):
    other = BEGIN + textwrap.dedent("""
        import sys
        from octavo.storage.locks import FolderLock
        with FolderLock(sys.argv[1]):
            pass
    """)
    passes(
        """
        import os, subprocess, sys
        from octavo.storage.locks import FolderLock
        other = [sys.executable, "-c", sys.argv[2], sys.argv[1]]
        with FolderLock(sys.argv[1]):
            refused = subprocess.run(other, capture_output=True, text=True)
            assert f"process {os.getpid()} on" in refused.stderr and "LockedError" in refused.stderr, refused.stderr
        taken = subprocess.run(other, capture_output=True, text=True)
        assert taken.returncode == 0, taken.stderr
        assert not os.listdir(sys.argv[1])
        """,
        tmp_path,
        other,
    )


def test_files_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path):
    passes(
        """
        import os, sys
        from octavo.storage import files
        os.chdir(sys.argv[1])
        open(".dead.1-0123abcd.octavo.tmp", "w").close()
        with files.whole("living") as file:
            files.write("other", "x")
            left = sorted(os.listdir("."))
            assert len(left) == 2 and left[0].startswith(".living."), left
        assert sorted(os.listdir(".")) == ["living", "other"]
        """,
        tmp_path,
    )


def test_what_the_system_cannot_do_is_a_typed_error():
    passes("""
        import pathlib
        import octavo
        from octavo.storage import process_memory
        from octavo.train.launch import launch
        try:
            launch(["-c", "1"], 2)
            raise AssertionError
        except octavo.SettingError as error:
            assert "groups of processes" in str(error)
        process_memory._STATUS = pathlib.Path("/nowhere")
        try:
            process_memory.peak()
            raise AssertionError
        except octavo.OctavoError as error:
            assert "does not tell the memory" in str(error)
    """)


def test_a_process_ends_at_once_without_a_signal():
    done = simulated("""
        import atexit
        atexit.register(print, "cleaned up")
        from octavo.storage import system
        system.os.kill = None
        system.end_at_once()
    """)
    assert done.returncode == 137 and not done.stdout


def test_a_claim_needs_no_proc(tmp_path, monkeypatch):
    from octavo.lab.architectures import trial_claims

    monkeypatch.setattr(trial_claims, "_PROCESSES", tmp_path / "none")
    assert trial_claims.stands(trial_claims.claim(60.0))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not trial_claims.stands({**trial_claims.claim(60.0), "process": gone.pid})
    monkeypatch.setattr(system, "POSIX", False)
    assert trial_claims.stands(trial_claims.claim(60.0))
    assert not trial_claims.stands(trial_claims.claim(-1.0))


def test_macos_tells_the_peak_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(process_memory, "_STATUS", tmp_path / "none")
    kib = process_memory.peak()
    monkeypatch.setattr(process_memory.sys, "platform", "darwin")
    assert kib // 1024 <= process_memory.peak() <= kib // 512
