"""Shared inputs of the test suite. No network, no GPU; recorded vectors are used where a folder holds them."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

# One thread for torch and numpy, here and in processes that tests start: the models are too small to share, and where every
# core runs tests of its own (pytest -n), threads wait for each other several times as long as they work. Tests about
# threads ask for theirs; the threads of our own kernels are not limited.
os.environ["OMP_NUM_THREADS"] = "1"

# Processes that tests start find the helpers and the attacks, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        str(Path(__file__).parent),
        str(Path(__file__).parents[1] / "fuzz"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)

import pytest
from helpers.simd import SIMD_LEVELS, at_level, available_levels
from hypothesis import HealthCheck, settings

settings.register_profile("octavo", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "octavo"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with ``vectors/`` and ``data/``: OCTAVO_TEST_SHARED, else ``../shared`` beside the repository."""
    folder = Path(os.environ.get("OCTAVO_TEST_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (folder / "vectors").is_dir():
        pytest.skip(f"no recorded vectors: {folder} is absent (set OCTAVO_TEST_SHARED)")
    return folder


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small random model of the polynomials' vocabulary, as 0.1 wrote it; tests do not write to it."""
    import json

    import torch
    from octavo.data import CharTokenizer
    from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
    from octavo.tensors import container

    folder = tmp_path_factory.mktemp("models") / "hybrid"
    folder.mkdir()
    config = Seq2SeqConfig(embedding=8, encoder=8, hidden=16, feedforward=16)
    torch.manual_seed(0)
    container.save(dict(build(config).state_dict()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"octavo": 1, "kind": "seq2seq", **config.as_dict()}))
    CharTokenizer.polynomials().save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def interrupts():
    """SIGINT is heard, here and in processes that the test starts: a job in the background begins with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection() -> None:
    """Nothing that is collected is garbage: the collector would go over a million objects again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--passed", metavar="FILE", type=Path, help="leave out tests that FILE names; add what passes")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("passed")) is not None:
        config.pluginmanager.register(_Passed(config, file.resolve()))


class _Passed:
    """A second run, with packages that the first one did without, leaves out what passed in the first."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self.file, self.known, self.new = file, set[str](), list[str]()
        if file.exists():
            self.known.update(file.read_text().splitlines())
        self.writes = not hasattr(config, "workerinput")  # a worker of pytest-xdist reports to the process that writes

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self.known]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in self.known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.new.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self.writes:
            self.file.write_text("".join(f"{name}\n" for name in sorted(self.known.union(self.new))))


ALONE = "OCTAVO_TEST_ALONE"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked ``alone`` in a process of its own, which no other test has started threads in."""
    if pyfuncitem.get_closest_marker("alone") is None or ALONE in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    environment = {**os.environ, ALONE: "1", "PYTEST_ADDOPTS": ""}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    root = pyfuncitem.config.rootpath
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@pytest.fixture(params=SIMD_LEVELS)
def simd(request):
    """Force one SIMD level; a level this machine lacks skips."""
    if request.param not in available_levels():
        pytest.skip(f"no {request.param} on this machine")
    with at_level(request.param):
        yield request.param
