"""Memory that a raw call writes is no other part of the same call."""

import itertools

import numpy as np
import octavo
import pytest
import torch
from octavo import _core


def calls():
    """Raw calls on addresses by name of the part, the parts that they write, and those that they read."""
    sizes, whole = (2, 3, 32), _core.Format("int8:channel")
    with_zeros, with_levels = _core.Format("uint4:g32"), _core.Format("nvfp4")
    parts = ("codes", "scales", "zeros", "levels")
    for fmt, own in ((with_zeros, parts[:3]), (with_levels, ("codes", "scales", "levels"))):
        given = [part for part in own if part != "codes"]
        yield (
            lambda at, f=fmt: _core._encode(
                f, 0, [3, 32], -1, at("x"), tuple(at(f"out {part}") for part in parts), "floor", "error",
                (0, *(at(part) for part in parts[1:])),
            ),
            [f"out {part}" for part in own], ["x", *given],
        )  # fmt: skip
        yield (
            lambda at, f=fmt: _core._decode(f, 0, [3, 32], -1, tuple(map(at, parts)), at("out")), ["out"], list(own)
        )  # fmt: skip
        yield (
            lambda at, f=fmt: _core._quantize(
                f, 0, [3, 32], -1, at("x"), at("out"), "floor", (0, *(at(part) for part in parts[1:]))
            ),
            ["out"], given,
        )  # fmt: skip
        yield (
            lambda at, f=fmt: _core._packed_linear(
                f, 0, *sizes, at("x"), tuple(map(at, parts)), (at("bias"), 0), at("out")
            ),
            ["out"], ["x", "bias", *own],
        )  # fmt: skip
        yield (
            lambda at, f=fmt: _core._packed_embedding(f, 0, (at("ids"), 2), 3, 32, tuple(map(at, parts)), at("out")),
            ["out"], ["ids", *own],
        )  # fmt: skip
    yield (
        lambda at: _core._quantize_backward(
            whole, 0, [3, 32], -1, at("grad"), at("x"), at("out"), "floor", (0, at("scales"), 0, 0), at("to scales")
        ),
        ["out", "to scales"], ["grad", "x", "scales"],
    )  # fmt: skip
    yield (
        lambda at: _core._integer_linear(
            whole, whole, 0, *sizes, at("x"), (at("codes"), at("scales"), 0, 0), (at("given"), 2), (at("bias"), 3),
            at("out"),
        ),
        ["out"], ["x", "codes", "scales", "given", "bias"],
    )  # fmt: skip
    yield lambda at: _core._pack(4, 3, 32, at("codes"), at("out")), ["out"], ["codes"]
    yield lambda at: _core._unpack(4, 3, 32, at("codes"), at("out")), ["out"], ["codes"]
    blocks = ["values", "errors", "feedback", "weights", "groups", "loss"]
    yield (
        lambda at: _core._gptq_block(
            with_zeros, "given", 3, 32, 1, *map(at, blocks), (at("scales"), at("zeros"), 0.0)
        ),
        ["values", "errors", "loss", "scales", "zeros"], ["feedback", "weights", "groups"],
    )  # fmt: skip
    yield (
        lambda at: _core._fit_scales(
            with_zeros, 3, 32, 3, at("x"), at("weights"), 1.0, 1, (at("scales"), at("zeros"), 0.0)
        ),
        ["scales", "zeros"], ["x", "weights"],
    )  # fmt: skip
    tokenizer = _core._CharTokenizer.from_characters("x")
    for wide in (False, True):
        yield (
            lambda at, w=wide: tokenizer.encode((at("text"), 64), 3, 32, (False, False), w, at("ids"), at("lengths")),
            ["ids", "lengths"], ["text"],
        )  # fmt: skip
    stream = _core._PolynomialStream(0, [])
    yield (
        lambda at: stream.batch(0, 3, _core._CharTokenizer.polynomials(), (at("a"), 96), (at("b"), 96), (32, 32)),
        ["a", "b"], [],
    )  # fmt: skip


def placed(names, to, other):
    """Return a function from part to address, for which two parts are one; parts without a name have none."""
    places = {name: start() + 2048 * i for i, name in enumerate(names)}
    places[other] = places[to]
    return lambda name: places.get(name, 0)


MEMORY = np.full(1 << 16, 0x11, np.uint8)


def start():
    """Return the first aligned address."""
    return -(-MEMORY.ctypes.data // 64) * 64


def test_memory_that_a_raw_function_writes_is_nothing_elses():
    """Every part that is written, on the first bytes of every other part: refused before anything is written."""
    for call, written, read in calls():
        names = [*written, *read]
        for to, other in itertools.product(written, names):
            if to != other:
                with pytest.raises(octavo.ShapeError, match="share memory"):
                    call(placed(names, to, other))
    mxint8 = _core.Format("mxint8")
    for shift in (-124, -4, 4, 124):
        with pytest.raises(octavo.ShapeError, match="out and x share memory"):
            _core._quantize(mxint8, 0, [32], -1, start() + 4096, start() + 4096 + shift, "floor", None)
    assert (MEMORY == 0x11).all()
    x = torch.ones(32)
    _core._quantize(mxint8, 0, [32], -1, x.data_ptr(), x.data_ptr(), "floor", None)


def test_a_container_is_not_read_into_itself(tmp_path):
    octavo.save({"x": torch.ones(8)}, tmp_path / "x.safetensors")
    reader = _core._ContainerReader(str(tmp_path / "x.safetensors"), True)
    offset, count = reader.part("x")
    own = np.frombuffer(reader, np.uint8)
    with pytest.raises(octavo.ShapeError, match="share memory"):
        reader.read_into("x", own.ctypes.data + offset, count)
