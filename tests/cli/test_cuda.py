"""octavo doctor, octavo cuda info and prebuild."""

import json

import pytest
from octavo import CudaUnavailableError, _core, settings


@pytest.fixture(autouse=True)
def kernels(tmp_path, monkeypatch):
    """Keep kernels in a folder of the test."""
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "kernels"))
    settings.apply()
    yield tmp_path / "kernels"
    monkeypatch.undo()
    settings.apply()


def test_doctor_shows_every_part_or_why_it_is_missing(octavo, kernels):
    text = octavo("doctor").output
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert [line for line in lines if line in ("software", "processor", "CUDA")] == ["software", "processor", "CUDA"]
    assert f"cache {kernels}: 0 kernels, 0 B" in lines
    assert any(line.startswith(f"kernels use {_core.simd_level()}, {_core.num_threads()} of") for line in lines)
    assert "driver" in text and "nvrtc" in text


def test_doctor_and_info_for_programs(octavo, kernels):
    report = json.loads(octavo("doctor", "--json").output)
    assert report["packages"]["octavo"] == _core.__version__
    assert report["cpu"]["simd_level"] == _core.simd_level()
    assert report["cuda"] == json.loads(octavo("cuda", "info", "--json").output)
    found = report["cuda"]
    assert found["cache"] == {"folder": str(kernels), "kernels": 0, "nbytes": 0}
    for name, part in (("driver", "driver"), ("nvrtc", "compiler")):
        assert (found[part] is None) == (name in found["missing"])
    assert octavo("cuda", "info").output.startswith("CUDA\n")


def test_prebuild_refuses_what_is_no_architecture(octavo):
    result = octavo("cuda", "prebuild", "--arch", "sm_1", "--format", "mxint8", code=2)
    assert "architecture 'sm_1' is none" in result.output or "NVRTC" in result.output


@pytest.mark.slow
def test_prebuild_tells_what_it_did(octavo, kernels):
    try:
        _core._cuda_archs()
    except CudaUnavailableError as error:
        pytest.skip(str(error))
    result = octavo("cuda", "prebuild", "--arch", "sm_80", "--format", "mxint8", "--json")
    made = json.loads(result.stdout)
    assert made["found"] == 0 and made["archs"] == ["sm_80"]
    text = octavo("cuda", "prebuild", "--arch", "sm_80", "--format", "mxint8").output
    assert text.startswith(f"0 kernels compiled, {made['compiled']} found, for sm_80")
    assert f"kept in {kernels}" in text
