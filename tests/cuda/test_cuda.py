"""The runtime of CUDA kernels on machines without a GPU: what is missing is said, and kernels are compiled in advance."""

import pickle
import subprocess
from pathlib import Path

import octavo
import pytest
from helpers.processes import python
from octavo import CudaError, CudaUnavailableError, DTypeError, FormatError, KernelCompileError, SettingError, _core
from octavo.cuda import device as cuda

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("mxint8", "int4:g32")


def printed(code: str, **environment: object) -> str:
    """What code prints in a fresh interpreter, where it must not fail."""
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def compiler(tmp_path_factory) -> Path:
    """A stand-in for NVRTC that compiles nothing."""
    path = tmp_path_factory.mktemp("fake") / "libnvrtc.so.13"
    source = ROOT / "rust/cuda/tests/fakes/nvrtc.c"
    if not source.is_file():
        pytest.skip("the source of the stand-in is not here")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler to build a stand-in with")
    return path


def test_a_machine_with_nothing_says_what_is_missing_and_loads_no_torch(tmp_path):
    code = """
import sys
from octavo import CudaUnavailableError, cuda
found = cuda.info()
assert found.compiler is None and 'nowhere/libnvrtc.so.13: not there' in found.missing['nvrtc'], found
assert not cuda.is_available()
assert (found.driver is None) == ('driver' in found.missing)
assert found.cache.kernels == 0 and found.cache.nbytes == 0
for call in (cuda.prebuild, lambda: cuda.warmup('mxint8', 99)):
    try:
        call()
    except CudaUnavailableError as error:
        print(error)
assert 'torch' not in sys.modules
"""
    lines = printed(code, OCTAVO_NVRTC=tmp_path / "nowhere/libnvrtc.so.13", OCTAVO_CACHE_DIR=tmp_path / "kernels")
    assert "OCTAVO_NVRTC names no NVRTC that can be used" in lines
    assert "no NVIDIA driver" in lines or "device 99" in lines or "driver" in lines


def test_the_folder_of_kernels_is_named_refused_or_off(tmp_path):
    show = "from octavo import cuda; found = cuda.info(); print(found.cache, found.missing.get('cache'))"
    assert f"folder='{tmp_path}/a/b'" in printed(show, OCTAVO_CACHE_DIR=tmp_path / "a/b")
    assert f"folder='{tmp_path}/octavo/cubin'" in printed(show, OCTAVO_CACHE_DIR="", XDG_CACHE_HOME=tmp_path)
    assert "OCTAVO_CACHE_DIR=off" in printed(show, OCTAVO_CACHE_DIR="OFF")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "others can write to" in printed(show, OCTAVO_CACHE_DIR=tmp_path / "open")
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700


def test_a_setting_that_is_none_is_refused_at_import():
    code = "import sys\ntry:\n    import octavo\nexcept ValueError as error:\n    print(type(error).__name__, error)"
    for name in ("OCTAVO_CUDA_SYNC", "OCTAVO_CUDA_PLAIN"):
        assert f'SettingError {name}="2"; accepted are 0 and 1' in printed(code, **{name: "2"})


PREBUILD = f"""
import sys
from octavo import cuda
seen = []
first = cuda.prebuild(['sm_80', 'sm_90a'], {FORMATS}, processes=3, progress=lambda *now: seen.append(now))
again = cuda.prebuild(['sm_80', 'sm_90a'], {FORMATS}, processes=1)
assert 'torch' not in sys.modules
held = cuda.info().cache
print(first.compiled, first.found, again.compiled, again.found, held.kernels, len(seen))
assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
assert first.archs == ('sm_80', 'sm_90a')
"""


def test_kernels_are_compiled_once_whoever_asks(compiler, tmp_path):
    counts = printed(PREBUILD, OCTAVO_NVRTC=compiler, OCTAVO_CACHE_DIR=tmp_path).split()
    total = counts[0]
    assert counts == [total, "0", "0", total, total, total]


def test_a_kernel_that_does_not_compile_gives_the_log_and_leaves_nothing(compiler, tmp_path):
    code = f"""
from octavo import KernelCompileError, _core, cuda
if not _core._cuda_programs(_core.Format('mxint8'), 'sm_80'):
    print('nothing to compile')
else:
    try:
        cuda.prebuild(['sm_80'], {FORMATS}, processes=2)
    except KernelCompileError as error:
        assert 'broken.cu(7)' in error.log and 'does not compile for sm_80' in str(error), error
    assert cuda.info().cache.kernels == 0
    print('refused')
"""
    answer = printed(code, OCTAVO_NVRTC=compiler, OCTAVO_CACHE_DIR=tmp_path, FAKE_BROKEN=1)
    assert answer.strip() in ("refused", "nothing to compile")


def test_what_cannot_be_compiled_is_refused_before_work(compiler, tmp_path):
    code = """
from octavo import FormatError, SettingError, cuda
for arguments, kind in [
    ((['sm_75'], ['mxint8']), SettingError), ((['gfx90'], ['mxint8']), SettingError), ((None, ['mxint99']), FormatError),
    ((None, None, 0), SettingError),
]:
    try:
        cuda.prebuild(*arguments[:2], processes=arguments[2] if arguments[2:] else None)
    except kind as error:
        print(error)
    else:
        raise SystemExit(f'{arguments} was accepted')
"""
    told = printed(code, OCTAVO_NVRTC=compiler, OCTAVO_CACHE_DIR=tmp_path)
    assert "'sm_75' is none" in told and "'gfx90' is none" in told and "mxint99" in told and "processes is 0" in told
    code = "from octavo import cuda\ntry:\n    cuda.prebuild()\nexcept ValueError as error:\n    print(error)"
    assert "compiled kernels are not kept: OCTAVO_CACHE_DIR=off" in printed(
        code, OCTAVO_NVRTC=compiler, OCTAVO_CACHE_DIR="off"
    )


def test_warmup_takes_formats_and_models_and_nothing_else():
    from torch import nn

    layers = nn.Sequential(octavo.nn.PackedLinear.from_linear(nn.Linear(64, 8), "mxint8"), nn.ReLU())
    assert [str(fmt) for fmt in cuda._formats(layers)] == ["mxint8"]
    assert [str(fmt) for fmt in cuda._formats(["int4:g32", "int4:g32", octavo.Format("nf4")])] == ["int4:g32", "nf4"]
    with pytest.raises(FormatError, match="none of its layers has a format"):
        cuda.warmup(nn.Linear(2, 2))
    with pytest.raises(FormatError):
        cuda.warmup("no format")
    with pytest.raises(DTypeError):
        cuda.warmup(3.5)
    for device in ("cpu", "cuda:", "cuda:x", "cuda0", True):
        with pytest.raises(CudaUnavailableError, match="no CUDA device"):
            cuda.warmup("mxint8", device)


def test_errors_keep_their_place_among_exceptions_and_survive_pickling():
    assert issubclass(CudaUnavailableError, CudaError) and issubclass(KernelCompileError, CudaError)
    assert issubclass(CudaError, RuntimeError) and issubclass(CudaError, octavo.OctavoError)
    error = pickle.loads(pickle.dumps(KernelCompileError("a message", "a log")))
    assert (str(error), error.log) == ("a message", "a log")


@pytest.mark.parametrize("arch", ["sm_90a", "90a"])
def test_programs_have_names_and_keys(arch):
    try:
        listed = _core._cuda_programs(_core.Format("mxint8"), arch)
    except CudaUnavailableError as error:
        pytest.skip(str(error))
    assert all(name and len(key) == 64 for name, key in listed)
    with pytest.raises(SettingError):
        _core._cuda_programs(_core.Format("mxint8"), "sm_9")
    with pytest.raises(IndexError, match="has no program"):
        _core._cuda_prebuild(_core.Format("mxint8"), arch, 10**6)
