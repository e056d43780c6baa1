"""Whatever is passed in, what comes out is a result or an ``Exception``: never a crash, never a bare BaseException."""

import inspect
import itertools
import json
import math
import os
import threading
import time
from pathlib import Path

import numpy as np
import octavo
import pytest
import torch
from helpers import core_stub
from helpers.processes import python
from helpers.simd import SIMD_LEVELS
from octavo import Format, InternalError, _core, settings
from octavo.ops import codec as ops_module
from octavo.tensors import container as container_module

PACKAGE = Path(octavo.__file__).resolve().parent
HUGE = 2**62


# -------------------------------------------------------------------------------------------------------------- garbage

GARBAGE = [
    None, True, -1, 0, 3, 2**31, HUGE, -(2**63), 2**64, math.nan, math.inf, 1j, "", "mxint8", "\ud800", "a" * 5000, b"mxint8",
    (), [], [1], (0, 0, 0, 0), (-1, 2), {"a": 1}, object(), int, Format("mxint8"), _core.Format("int8"), print,
    np.float32(1), np.ones(3), np.ones((2, 3), np.float32), np.array(["x"]),
    torch.ones(2, 3), torch.ones(2, 3, dtype=torch.int8), torch.ones(3, device="meta"), torch.float32,
]  # fmt: skip


def assert_exception(call, *args, **kwargs):
    """The call returns, or raises an Exception that is no defect of ours and no torch-internal assertion."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        assert isinstance(error, Exception), f"{call}{args}: {type(error)}"
        assert not isinstance(error, InternalError | AssertionError | SystemError), f"{call}{args}: {error!r}"


def exported(module):
    """Public functions and classes of a module, and the methods of the classes."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            continue
        if callable(thing):
            yield f"{module.__name__}.{name}", thing


SAFE = {
    **{name: getattr(_core, name) for name in core_stub.functions() if not core_stub.takes_addresses(name)},
    "_huge_pages": _core._huge_pages,
    "Format": _core.Format,
    "Format.parse": _core.Format.parse,
    "Format.bits_per_element": _core.Format("mxint8").bits_per_element,
    "Format.nbytes": _core.Format("mxint8").nbytes,
    "Format._sizes": _core.Format("nvfp4")._sizes,
    "Format.saturates": _core.Format("nvfp4").saturates,
    "Format._marks": _core.Format("nvfp4")._marks,
    "Format.values": _core.Format("e4m3").values,
    "Format.__eq__": _core.Format("e4m3").__eq__,
}


@pytest.fixture(autouse=True)
def restored():
    """Settings of the core as they were, whatever garbage set."""
    threads = _core.num_threads()
    yield
    _core.force_simd(os.environ.get("OCTAVO_SIMD") or None)
    _core.set_num_threads(threads)
    settings.apply()


@pytest.mark.parametrize("name", list(SAFE))
def test_garbage_to_the_core_raises_an_exception(name):
    call = SAFE[name]
    assert_exception(call)
    for one in GARBAGE:
        assert_exception(call, one)
    for two in itertools.product(GARBAGE, repeat=2):
        assert_exception(call, *two)


def test_the_stub_has_the_names_of_the_core():
    names = {name for name in dir(_core) if not name.startswith("__")} | {"__version__"}
    assert core_stub.names() == names and core_stub.listed() == sorted(names)
    assert _core.formats() and _core.num_threads() >= 1 and _core.simd_level() in SIMD_LEVELS


def test_every_function_that_takes_addresses_has_an_example_here():
    """All others are called with garbage, and those of CUDA take their addresses where a device is."""
    names = {name for name in core_stub.functions() if core_stub.takes_addresses(name) and "_cuda" not in name}
    assert names == RAW.keys() | {"_digest", "_huge_pages", "_use_openmp"}


@pytest.mark.parametrize("value", [None, True, -1, 257, 1025, 2**31, 2**64, math.nan, "4", b"4", [], object()])
def test_garbage_for_the_number_of_threads(value):
    assert_exception(_core.set_num_threads, value)
    assert 1 <= _core.num_threads() <= 256


RAW = {
    "_adamw": (_core.Format("mxint8"), 3, 0, 0, (0, 0), (0, 0), (1.0, 0.1, 0.1, 0.1, 1.0, 1e-8)),
    "_dropout_norm": ((2, 3), (0, 0), (0, 0), 0, (1.0, 0.5, 7, 1e-6), (0, 0), 0, 0),
    "_dropout_norm_backward": ((2, 3), (0, 0, 0, 0), 0, 0, (1.0, 0.5, 7, 0.0), (0, 0), (0, 0), 0),
    "_encode": (_core.Format("mxint8"), 0, [2, 3], -1, 0, (0, 0, 0, 0), "floor", "error", None),
    "_decode": (_core.Format("mxint8"), 0, [2, 3], -1, (0, 0, 0, 0), 0),
    "_quantize": (_core.Format("mxint8"), 0, [2, 3], -1, 0, 0, "floor", None),
    "_quantize_backward": (_core.Format("mxint8"), 0, [2, 3], -1, 0, 0, 0, "floor", None, 0),
    "_pass_marked": (_core.Format("mxfp4"), 0, 16, 0, 0, 0),
    "_pack": (4, 2, 3, 0, 0),
    "_unpack": (4, 2, 3, 0, 0),
    "_packed_linear": (_core.Format("mxint8"), 0, 2, 3, 4, 0, (0, 0, 0, 0), None, 0),
    "_integer_linear": (
        _core.Format("int8:channel"), _core.Format("int8"), 0, 2, 3, 4, 0, (0, 0, 0, 0), None, None, 0,
    ),
    "_rounded_linear": (
        _core.Format("int4:g32"), _core.Format("int8:g32"), "floor", 0, 2, 3, 4, 0, (0, 0, 0, 0), None, None, 0,
    ),
    "_packed_embedding": (_core.Format("mxint8"), 0, (0, 2), 3, 4, (0, 0, 0, 0), 0),
    "_sparse_count": (8, 2, 3, 0),
    "_sparse_compress": (8, 2, 3, 1, 0, (0, 0)),
    "_sparse_starts": (2, 3, 1, 0, 0),
    "_sparse_expand": (8, 2, 3, 0, 1, (0, 0, 0, 0), 0),
    "_sparse_linear": (_core.Format("mxint8"), 0, 2, 3, 4, 0, (0, 0, 0, 0), (0, 0, 0, 0), None, 0),
    "_gptq_block": (_core.Format("int4:g32"), "floor", 2, 3, 1, 0, 0, 0, 0, 0, 0, (0, 0, 1.0)),
    "_fit_scales": (_core.Format("int4:g32"), 2, 3, 1, 0, 0, 0.7, 2, (0, 0, 1.0)),
    "_add_outer_products": (2, 3, 0, 0),
    "_factor": (3, 0),
    "_feed_back": (2, 3, 1, 2, 0, 0, 0),
    "_losses": (2, 3, 0, 0, 0, 0.1, 0),
    "_take_squares": (2, 3, 0, 0.1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RAW))
def test_null_addresses_are_refused(name):
    with pytest.raises(octavo.ShapeError, match="null pointer"):
        getattr(_core, name)(*RAW[name])


def test_addresses_of_a_digest_that_are_none_are_refused():
    """Any other address may be one of bytes, which have no alignment."""
    with pytest.raises(octavo.ShapeError, match="null pointer"):
        _core._digest([(0, 3)])
    for wrong in ([(-1, 3)], [(1.5, 3)], [("a", 3)], [(2**64, 3)], [(1, 2**63)], [(0,)], [0], 0, None):
        assert_exception(_core._digest, wrong)
    assert _core._digest([(0, 0)]) == _core._digest([])


@pytest.mark.parametrize("name", list(RAW))
def test_garbage_in_one_argument_of_a_raw_function_raises_an_exception(name):
    """All other arguments are valid but for null addresses, so that nothing is ever read or written."""
    call, good = getattr(_core, name), RAW[name]
    for position in range(len(good)):
        if position in core_stub.address_positions(name):
            continue
        for wrong in [*GARBAGE, [HUGE, HUGE], [2**32, 2**32], [-1], [2**64], 99, "ceil", "mse", "saturate", "nan"]:
            if isinstance(wrong, list) and wrong and wrong[0] == 0:
                continue
            assert_exception(call, *good[:position], wrong, *good[position + 1 :])
    for count in range(len(good) + 3):
        if count != len(good):
            assert_exception(call, *(*good, 0, 0, 0)[:count])


@pytest.mark.parametrize("name", list(RAW))
def test_odd_addresses_are_refused(name):
    """Addresses that are not aligned, negative or no integers, in every position that takes one."""
    call, good = getattr(_core, name), list(RAW[name])
    for position, value in enumerate(good):
        if (value == 0 and position > 1) or isinstance(value, tuple):
            for wrong in (-8, 2**64, "8", 1.5, None, b"\0" * 8, (1, 2), ("a",) * 4, (2**64,) * 4, (-1, 0, 0, 0)):
                assert_exception(call, *good[:position], wrong, *good[position + 1 :])
    with pytest.raises(octavo.ShapeError, match="not a multiple of 4"):
        _core._quantize(_core.Format("mxint8"), 0, [2, 3], -1, 4097, 4097, "floor", None)
    with pytest.raises(octavo.ShapeError, match="not a multiple of 2"):
        _core._quantize(_core.Format("mxint8"), 1, [2, 3], -1, 4097, 4097, "floor", None)


def test_sizes_that_overflow_are_refused_before_memory_is_touched():
    for shape in ([HUGE, 4], [2**40, 2**40], [2**63], [2**31, 2**31, 2**31]):
        for call in (
            lambda: _core._quantize(_core.Format("e4m3"), 0, shape, -1, 4096, 4096, "floor", None),  # noqa: B023
            lambda: _core._encode(_core.Format("e4m3"), 0, shape, -1, 4096, (4096,) * 4, "floor", "error", None),  # noqa: B023
            lambda: _core._decode(_core.Format("e4m3"), 0, shape, -1, (4096,) * 4, 4096),  # noqa: B023
        ):
            with pytest.raises((octavo.ShapeError, OverflowError, MemoryError)):
                call()
    for width, rows, k in ((4, HUGE, 8), (33, 1, 1), (0, 1, 1), (32, 2**40, 2**40), (16, 1, 2**63)):
        for call in (_core._pack, _core._unpack):
            with pytest.raises((octavo.ShapeError, OverflowError)):
                call(width, rows, k, 4096, 4096)


PUBLIC = {name: thing for module in (octavo, ops_module, container_module, settings) for name, thing in exported(module)
          if getattr(thing, "__module__", "").startswith("octavo")}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_garbage_to_the_package_raises_an_exception(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # save() may take a string for a path
    call = PUBLIC[name]
    assert_exception(call)
    for one in GARBAGE:
        if isinstance(one, int) and not isinstance(one, bool) and name.startswith("octavo.tensors.container"):
            continue  # an integer may be a file descriptor of this process
        assert_exception(call, one)
        assert_exception(call, one, one)
    for two in itertools.product(GARBAGE, [None, "mxint8", -1, math.nan, torch.ones(2, 3), object()]):
        assert_exception(call, *two)


@pytest.mark.parametrize("name", ["axis", "scale", "scales", "zeros", "levels", "ste", "out", "nonfinite", "dtype"])
def test_garbage_in_one_option_raises_an_exception(name):
    x = torch.ones(2, 3)
    for one in GARBAGE:
        for text in ("mxint8", "uint4", "e4m3", "nvfp4", "fixed8"):
            if name != "dtype":
                packed = octavo.encode(x, text)
                assert_exception(octavo.quantize, x.clone(), text, **{name: one})
                assert_exception(octavo.encode, x, text, **{name: one})
                if name in ("zeros", "levels"):
                    assert_exception(octavo.encode, x, text, scales=packed.scales, **{name: one})
            assert_exception(octavo.decode, octavo.encode(x, text), **{name: one})


def test_garbage_to_packed_tensors_raises_an_exception():
    packed = octavo.encode(torch.ones(4, 3), "mxint8")
    for one in GARBAGE:
        for call in (packed.to, packed.decode, packed.__getitem__, packed.__eq__, packed.__array__):
            assert_exception(call, one)
        for key in ("dtype", "device"):
            assert_exception(packed.to, **{key: one})
        for key in ("shape", "dtype", "axis", "scale"):
            options = {"shape": (4, 3), "dtype": torch.float32, "axis": -1, "scale": "floor", key: one}
            assert_exception(octavo.PackedTensor, Format("mxint8"), *packed.parts, **options)
        for position in range(5):
            parts = [Format("mxint8"), *packed.parts]
            parts[position] = one
            assert_exception(octavo.PackedTensor, *parts, shape=(4, 3), dtype=torch.float32)


# In a process of its own: these take addresses, or may end the process when they go wrong.
DANGEROUS = """
import ctypes, itertools, math, sys
import octavo
from octavo import _core
memory = ctypes.create_string_buffer(1 << 16)
start = (ctypes.addressof(memory) + 63) // 64 * 64
values = [None, -1, 0, 1, 7, 2**31, 2**62, 2**64, math.nan, "x", b"x", [], [1], (0, 0), object(), start]
formats = [_core.Format(t) for t in ("mxint8", "uint4:g32", "nvfp4", "binary2", "fixed32.16", "fp32", "e4m3")]
count = 0

def attempt(call, *args):
    global count
    count += 1
    try:
        call(*args)
    except Exception as error:
        assert not isinstance(error, octavo.InternalError), (call, args, error)

for f in formats:
    for shape in ([], [0], [3, 5], [2, 0], [1, 40], [2, 3, 4]):
        for axis in (-4, -1, 0, 2, 2**62):
            for dtype in (0, 1, 2, 3, 255):
                parts = (start, start + 8192, start + 16384, start + 24576)
                attempt(_core._encode, f, dtype, shape, axis, start + 32768, parts, "floor", "saturate", None)
                attempt(_core._decode, f, dtype, shape, axis, parts, start + 32768)
                attempt(_core._quantize, f, dtype, shape, axis, start, start, "mse", None)
                attempt(_core._quantize, f, dtype, shape, axis, start, start + 16384, "floor", parts)
                attempt(_core._quantize_backward, f, dtype, shape, axis, start, start + 8192, start + 16384, "ceil", None, 0)
                attempt(_core._quantize_backward, f, dtype, shape, axis, start, start + 8192, start + 16384, "floor", parts, start + 32768)
                for n, k in ((0, 3), (3, 0), (2, 40), (2**62, 4)):
                    for m in (0, 2, 2**61):
                        bias = (start + 45056, dtype)
                        out = start + 49152
                        attempt(_core._packed_linear, f, dtype, m, n, k, start, parts, bias, out)
                        attempt(_core._packed_embedding, f, dtype, (start, m), n, k, parts, out)
                        attempt(_core._integer_linear, f, formats[0], dtype, m, n, k, start, parts, None, bias, out)
for width in (0, 1, 4, 9, 17, 32, 33):
    for rows, k in ((0, 0), (0, 5), (5, 0), (3, 7), (1, 100)):
        attempt(_core._pack, width, rows, k, start, start + 8192)
        attempt(_core._unpack, width, rows, k, start, start + 8192)
for two in itertools.product(values, repeat=2):
    attempt(_core._ContainerReader, *two)
    attempt(_core._ContainerReader.from_bytes, two[0])
    writer = None
    for plain in ([], [("a", "F32", [2])], two[0]):
        attempt(_core._ContainerWriter, None, plain, two[1], {}, True)
        attempt(_core._ContainerWriter, None, plain, [], two[1], two[0])
writer = _core._ContainerWriter(None, [("a", "F32", [2])], [], {}, True)
for one in values:
    attempt(writer.put_plain, one, (start, 8))
    attempt(writer.put_plain, "a", one)
    attempt(writer.put_packed, "a", one)
    attempt(writer.put_packed, one, ((0, 0),) * 4)
attempt(writer.put_plain, "a", (start, 8))
data = writer.finish()
attempt(writer.finish)
attempt(writer.put_plain, "a", (start, 8))
writer.abandon()
reader = _core._ContainerReader.from_bytes(data)
for one in values:
    attempt(reader.part, one)
    attempt(reader.read_into, one, start, 8)
    attempt(reader.read_into, "a", start, one if one != start else 8)
    attempt(reader.read_into, "a", one if isinstance(one, int) and one in (0, -1, 2**64) else 0, 8)
for broken in range(len(data)):
    attempt(_core._ContainerReader.from_bytes, data[:broken])
attempt(lambda: memoryview(reader).cast("Q"))
print("survived", count)
"""


def test_dangerous_calls_leave_the_process_alive(tmp_path):
    done = python(f"import os; os.chdir({str(tmp_path)!r})\n{DANGEROUS}", timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("survived")


def test_a_panic_becomes_an_exception():
    """PanicException is a BaseException that ``except Exception`` misses; the boundary turns it into InternalError."""
    assert issubclass(InternalError, RuntimeError) and issubclass(InternalError, octavo.OctavoError)
    for error in (getattr(octavo, name) for name in octavo.__all__ if name.endswith("Error")):
        assert issubclass(error, octavo.OctavoError)


# ------------------------------------------------------------------------------------------------------ forks and threads

WATCHDOG_S = 20


def test_a_forked_child_quantizes():
    """After fork the workers of the pool are gone; a child that waits for them would hang for ever.

    The child computes nothing with torch, whose own threads do not survive a fork.
    """
    x = torch.randn(64, 4096)
    wanted = octavo.quantize(x, "mxint8").numpy().tobytes()  # the pool of the parent is running
    child = os.fork()
    if child == 0:
        try:
            same = octavo.quantize(x, "mxint8").numpy().tobytes() == wanted
            os._exit(0 if same and octavo.encode(x, "int8", axis=0).numel() == x.numel() else 3)
        finally:
            os._exit(4)
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail(f"the child still hangs after {WATCHDOG_S} s")


class Quantized(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return octavo.quantize(torch.full((64, 1024), index + 0.3), "int8")


@pytest.mark.parametrize("workers", [2])
def test_a_forking_data_loader_quantizes(workers):
    octavo.quantize(torch.randn(64, 4096), "int8")
    loader = torch.utils.data.DataLoader(
        Quantized(), num_workers=workers, multiprocessing_context="fork", timeout=WATCHDOG_S
    )
    for index, batch in enumerate(loader):
        assert torch.equal(batch[0], Quantized()[index])


def test_many_python_threads_get_right_results():
    texts = ["mxint8", "int8:channel", "e4m3", "nvfp4", "binary2", "uint4:g32", "fixed8", "nf4"]
    inputs = [torch.randn(40, 3000, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    wanted = {
        (text, i): (octavo.encode(x, text), octavo.quantize(x, text)) for text in texts for i, x in enumerate(inputs)
    }
    errors = []
    barrier = threading.Barrier(8)

    def work(offset):
        try:
            barrier.wait(WATCHDOG_S)
            for step in range(12):
                text, i = texts[(step + offset) % len(texts)], (step * 3 + offset) % len(inputs)
                packed, q = octavo.encode(inputs[i], text), octavo.quantize(inputs[i], text)
                assert packed == wanted[text, i][0] and torch.equal(q, wanted[text, i][1]), text
                assert torch.equal(octavo.decode(packed), octavo.decode(wanted[text, i][0])), text
                assert str(Format(f"bfp{2 + step}/{1 + offset}")) == f"bfp{2 + step}/{1 + offset}"
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(offset,), daemon=True) for offset in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WATCHDOG_S)
        assert not worker.is_alive(), "deadlock"
    assert not errors, errors[0]


def test_changing_the_number_of_threads_meanwhile_is_safe():
    x = torch.randn(64, 3000)
    wanted, stop, errors = octavo.quantize(x, "mxint8"), threading.Event(), []

    def change():
        while not stop.is_set():
            for count in (1, 2, 3, 2):
                _core.set_num_threads(count)
                time.sleep(0.002)

    changer = threading.Thread(target=change, daemon=True)
    changer.start()
    for _ in range(50):
        if not torch.equal(octavo.quantize(x, "mxint8"), wanted):
            errors.append("differs")
    stop.set()
    changer.join(WATCHDOG_S)
    assert not errors and not changer.is_alive()


# ----------------------------------------------------------------------------------------------------- import, settings


def test_import_loads_neither_torch_nor_numpy():
    done = python(
        "import sys, json, octavo; octavo.formats(); octavo.Format('mxint8').values(); dir(octavo);"
        "print(json.dumps([m for m in ('torch', 'numpy', 'octavo.ops.codec', 'octavo.tensors.packed_tensor') if m in sys.modules]))"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_every_public_name_is_there():
    done = python("import octavo; print([getattr(octavo, name) for name in octavo.__all__] and 'all')")
    assert done.stdout.strip() == "all", done.stderr
    names = ["nn.PackedLinear", "quant.gptq", "lora.insert", "lab", "data", "train.train", "linear.packed_linear"]
    names += ["gemm.int8_gemm", "recipe", "model_folder", "engine", "ops", "compress", "lab.studies", "cuda"]
    done = python("import octavo; " + "; ".join(f"octavo.{name}" for name in names))
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        octavo.nothing  # noqa: B018


@pytest.mark.parametrize("level", SIMD_LEVELS)
def test_the_environment_forces_a_simd_level(level):
    done = python("import octavo; print(octavo._core.simd_level())", OCTAVO_SIMD=level)
    if done.returncode:
        assert f"SIMD level '{level}' is not available" in done.stderr
    else:
        assert done.stdout.strip() == level


def test_the_environment_sets_the_number_of_threads():
    assert python("import octavo; print(octavo._core.num_threads())", OCTAVO_NUM_THREADS="3").stdout.strip() == "3"


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [("OCTAVO_SIMD", "sse9", "accepted are scalar, neon, avx2, avx512"), ("OCTAVO_NUM_THREADS", "many", "not a number"),
     ("OCTAVO_NUM_THREADS", "-1", "not a number"), ("OCTAVO_NUM_THREADS", "5000", "accepted are 0"),
     ("OCTAVO_NUM_THREADS", "\u00b2", "not a number")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(name, value, part):
    done = python("import octavo", **{name: value})
    assert done.returncode != 0 and part in done.stderr and "SettingError" in done.stderr


@pytest.mark.slow
def test_the_stub_of_the_core_matches_the_module(tmp_path):
    """mypy.stubtest of ``octavo._core`` against ``_core.pyi``: nothing missing, nothing too much."""
    pytest.importorskip("mypy")
    assert (PACKAGE / "_core.pyi").is_file() and (PACKAGE / "py.typed").is_file()
    done = python(
        "import sys; from mypy.stubtest import main; sys.argv[1:] = ['octavo._core']; sys.exit(main())",
        timeout=300,
        MYPY_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
