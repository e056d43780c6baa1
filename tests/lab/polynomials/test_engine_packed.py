"""The general route multiplies packed weights: laws of answers, of memory, and of what the fused route prepares."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from helpers.quick import spread
from lab.polynomials.test_engine import export, lines, make
from octavo import _core
from octavo.lab.polynomials import Engine

# Octavo's kernels and float32 differ in the order of summation, and by what parts beyond the 24th bit hold.
SCORE = 2e-3
# Matrices on both sides of the sizes at which octavo.linear changes its kernel: 4,096 and 32,768 weights.
WIDE = {"embedding": 48, "encoder": 40, "hidden": 144, "heads": 4, "feedforward": 272}
# Bytes of weights that the general route prepares, at most.
PREPARED = 4 << 20
FORMATS = ["mxint16", "mxint8", "int4:g32", "mxfp8e4m3", "nf4", "int8:channel"]


def packed(tmp_path: Path, architecture: str, fmt: str, **config: int) -> tuple[Path, Path, torch.nn.Module]:
    """Two folders of one model, its matrices packed and the same values plain."""
    model = make(architecture, **config)
    tensors = {n: octavo.encode(t, fmt) if t.ndim == 2 else t for n, t in model.state_dict().items()}
    values = {n: t if isinstance(t, torch.Tensor) else octavo.decode(t) for n, t in tensors.items()}
    folders = tmp_path / "packed", tmp_path / "plain"
    for folder, content in zip(folders, (tensors, values), strict=True):
        folder.mkdir(parents=True)
        export(model, folder, content)
    return *folders, model


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
@pytest.mark.parametrize("fmt", spread(FORMATS))
def test_packed_and_plain_weights_of_the_same_values_score_alike(tmp_path, architecture, fmt):
    folder, plain, model = packed(tmp_path, architecture, fmt, **WIDE)
    rows = lines(70, model.config.max_source)
    for beam in (1, 3):
        found, expected = (Engine.load(f, route="general")._core.expand_scored(rows, beam) for f in (folder, plain))
        np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=SCORE)
        # Where two tokens are equally likely but for the last bits, either is right.
        assert sum(a != b for (a, _), (b, _) in zip(found, expected, strict=True)) <= 1


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
@pytest.mark.parametrize("fmt", ["mxint8", "int4:g32", "mxfp6e2m3"])
def test_sparse_weights_are_expanded_when_they_are_read(tmp_path, architecture, fmt):
    """The same answers to the last bit as of dense codes, on both routes."""
    model = make(architecture, **WIDE)
    pruned = {n: torch.where(t.abs() < t.abs().median(), 0.0, t) for n, t in model.state_dict().items()}
    dense = {n: octavo.encode(t, fmt) if t.ndim == 2 else t for n, t in pruned.items()}
    sparse = {n: t if isinstance(t, torch.Tensor) else t.to_sparse() for n, t in dense.items()}
    found = []
    for name, content in (("dense", dense), ("sparse", sparse)):
        (tmp_path / name).mkdir()
        export(model, tmp_path / name, content)
        found.append([Engine.load(tmp_path / name, route=route) for route in ("general", "auto")])
    rows = lines(20, model.config.max_source)
    for one, other in zip(*found, strict=True):
        assert one._core.expand_scored(rows, 1) == other._core.expand_scored(rows, 1)


@pytest.mark.parametrize("architecture", ["lstm", "hybrid", "transformer"])
@pytest.mark.parametrize("fmt", ["mxint16", "int4:g32"])
@pytest.mark.parametrize("beam", [1, 3])
def test_an_answer_depends_on_its_line_alone(tmp_path, architecture, fmt, beam):
    """Equal to the last bit: in any company, in any order, on any number of threads."""
    folder, _, model = packed(tmp_path, architecture, fmt, **WIDE)
    engine = Engine.load(folder, route="general", threads=1)
    rows = lines(60, model.config.max_source)
    together = engine._core.expand_scored(rows, beam)
    assert [engine._core.expand_scored([row], beam)[0] for row in rows[:10]] == together[:10]
    assert engine._core.expand_scored(rows[:7], beam) == together[:7]
    assert engine._core.expand_scored(rows[::-1], beam)[::-1] == together
    for threads in (2, 5):
        assert Engine.load(folder, route="general", threads=threads)._core.expand_scored(rows, beam) == together


_GROWTH = """
import sys
from octavo.lab.polynomials import (Engine)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

Engine.load(sys.argv[2], route="general").expand(["x"])
before = resident()
engine = Engine.load(sys.argv[1], route="general")
engine.expand(["x"] * 3)
print(resident() - before)
"""


@pytest.mark.parametrize("fmt", ["mxint8", "int4:g32"])
def test_memory_of_the_general_route_is_the_packed_file(tmp_path, fmt):
    """Growth of the process over an engine of a small model, beside float32 of the large one."""
    wide = {"hidden": 512, "heads": 4, "feedforward": 2048, "layers": 3}
    folder, _, model = packed(tmp_path, "transformer", fmt, **wide)
    small = tmp_path / "small"
    small.mkdir()
    export(make("hybrid"), small)
    dense = sum(t.nbytes for t in model.state_dict().values())
    stored = (folder / "model.safetensors").stat().st_size
    ran = subprocess.run([sys.executable, "-c", _GROWTH, folder, small], capture_output=True, text=True, check=True)
    # One decoded matrix at a time is looked at while the file is read; the allocator may keep its memory.
    most = stored + 2 * 4 * 512 * 2048 + (4 << 20)
    assert most < 0.6 * dense
    assert int(ran.stdout) <= most, (int(ran.stdout), stored, dense)


@pytest.mark.parametrize("fmt", ["mxint8", "mxint16"])
@pytest.mark.parametrize("architecture", ["hybrid", "transformer"])
def test_the_general_route_prepares_a_small_model_whole_and_a_large_one_up_to_a_bound(tmp_path, architecture, fmt):
    small, _, _ = packed(tmp_path / "small", architecture, fmt)
    engine = Engine.load(small, route="general")
    assert engine.prepared_nbytes == 0
    engine.expand(["x+1", "(y)"], beam=2)
    matrices = sum(t.numel() for t in make(architecture).state_dict().values() if t.ndim == 2)
    assert matrices < engine.prepared_nbytes < PREPARED
    before = engine.prepared_nbytes
    engine.expand(["z"])
    assert engine.prepared_nbytes == before
    large, _, model = packed(tmp_path / "large", architecture, fmt, hidden=768, feedforward=1536)
    engine = Engine.load(large, route="general")
    engine.expand(["x+1"])
    assert 2 * sum(t.numel() for t in model.state_dict().values()) > PREPARED
    assert PREPARED / 2 < engine.prepared_nbytes <= PREPARED


def test_weights_prepared_at_one_simd_level_are_not_those_of_another(tmp_path, simd):
    folder, _, model = packed(tmp_path, "hybrid", "int4:g32", **WIDE)
    rows = lines(20, model.config.max_source)
    engine = Engine.load(folder, route="general")
    found = engine._core.expand_scored(rows, 2)
    _core.force_simd(None)
    assert engine._core.expand_scored(rows, 2) == Engine.load(folder, route="general")._core.expand_scored(rows, 2)
    _core.force_simd(simd)
    assert engine._core.expand_scored(rows, 2) == found


def test_the_engine_tells_what_it_prepared(tmp_path):
    weights = sum(t.numel() for t in make("hybrid").state_dict().values())
    folder = export(make("hybrid"), tmp_path)
    assert Engine.load(folder, route="general").prepared_nbytes == 0
    assert Engine.load(folder).prepared_nbytes > 2 * weights
    shipped = {p: Engine.load(precision=p).prepared_nbytes for p in ("float", "bfloat16", "integer")}
    assert 500_000 < shipped["integer"] < shipped["bfloat16"] <= shipped["float"] < 6_000_000
