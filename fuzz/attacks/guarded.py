"""Raw ops on tensors that begin or end at a page nobody may touch: a read or write outside them ends the process.

``python fuzz/attacks/guarded.py COUNT SEED [before|after]`` makes COUNT calls, most with operands that do not fit: wrong shapes,
dtypes, strides, offsets, aliases, devices, layouts, sizes and values. Calls run in forked children, so that a fault is
counted and named instead of ending the run; what is not an error of the kinds accepted below counts, too. Every call
follows from the seed and its number: ``python fuzz/attacks/guarded.py 1 SEED before NUMBER`` repeats one in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter

import octavo
import torch
from octavo import _core
from octavo.ops import codec as ops  # noqa: F401 register the ops
from octavo.ops import (
    gemm,  # noqa: F401 register the ops
    linear,  # noqa: F401 register the ops
    sparse,  # noqa: F401 register the ops
)
from octavo.tensors import sparse_codes
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import part_specs

PAGE = mmap.PAGESIZE
ZEROS = torch.zeros
SPAN = 128 * PAGE
"""Bytes between two guard pages; most operands are smaller, the others lie on the heap."""
BATCH = 5000
CALL_S = 20
ACCEPTED = (octavo.OctavoError, NotImplementedError, RuntimeError, TypeError, MemoryError)
"""Typed errors of Octavo; torch's own, of its dispatcher and schema. RuntimeErrors of Octavo's core are InternalErrors."""
DEFECTS = (octavo.InternalError, AssertionError, SystemError)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (
    *FLOATS,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
)
FORMATS = (*(str(fmt) for fmt in octavo.formats()), "int3:g64", "uint2:channel", "int5:channel", "int7:tensor")
TEXTS = (*FORMATS, "", "mxint8:g32", "int99", "\0", "int4:g0", "no", "ufixed32:mse")
HUGE = (-1, -(2**31), -(2**63), 2**31, 2**62, 2**63 - 1, 2**40, 0, 1, 7)


class Arena:
    """Pages between two guard pages; a tensor ends at the upper one or begins at the lower one."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        private, readable = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE
        start = libc.mmap(None, SPAN + 2 * PAGE, 0, private, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value)
        assert libc.mprotect(start + PAGE, SPAN, readable) == 0
        self.low, self.high = start + PAGE, start + PAGE + SPAN

    def tensor(self, shape: list[int], dtype: torch.dtype, after: bool, fill: bytes | None) -> torch.Tensor:
        count = 1
        for n in shape:
            count *= n
        nbytes = count * dtype.itemsize
        if nbytes == 0 or nbytes > SPAN:
            return ZEROS(shape, dtype=dtype)
        at = self.high - nbytes if after else self.low
        if fill is not None:
            ctypes.memmove(at, fill, nbytes)
        return torch.frombuffer((ctypes.c_char * nbytes).from_address(at), dtype=dtype).view(shape)


class Results:
    """Allocators of torch whose tensors lie at guard pages, too: what the ops make for their results."""

    def __init__(self, after: bool) -> None:
        self.arenas, self.used, self.after = [Arena() for _ in range(8)], 0, after

    def place(self, shape: object, dtype: torch.dtype) -> torch.Tensor:
        self.used += 1
        return self.arenas[self.used % 8].tensor(list(shape), dtype, self.after, None)

    def install(self) -> None:
        """Replace the allocators in this process."""
        empty, zeros, empty_like, new_empty = torch.empty, torch.zeros, torch.empty_like, torch.Tensor.new_empty

        def own(shape: object, dtype: object, device: object) -> bool:
            sized = isinstance(shape, (list, tuple)) and all(type(n) is int and n >= 0 for n in shape)
            return sized and isinstance(dtype, torch.dtype) and torch.device(device or "cpu").type == "cpu"

        def made_empty(*shape: object, dtype: object = None, device: object = None, **rest: object) -> torch.Tensor:
            if not rest and len(shape) == 1 and own(shape[0], dtype, device):
                return self.place(shape[0], dtype)
            return empty(*shape, dtype=dtype, device=device, **rest)

        def made_zeros(*shape: object, dtype: object = None, device: object = None, **rest: object) -> torch.Tensor:
            if not rest and len(shape) == 1 and own(shape[0], dtype, device):
                return self.place(shape[0], dtype).zero_()
            return zeros(*shape, dtype=dtype, device=device, **rest)

        def made_like(x: torch.Tensor, **rest: object) -> torch.Tensor:
            if set(rest) <= {"memory_format"} and own(tuple(x.shape), x.dtype, x.device):
                return self.place(x.shape, x.dtype)
            return empty_like(x, **rest)

        def made_new(x: torch.Tensor, shape: object, *, dtype: object = None, **rest: object) -> torch.Tensor:
            if not rest and own(shape, dtype or x.dtype, x.device):
                return self.place(shape, dtype or x.dtype)
            return new_empty(x, shape, dtype=dtype, **rest)

        torch.empty, torch.zeros, torch.empty_like, torch.Tensor.new_empty = made_empty, made_zeros, made_like, made_new


class Subclass(torch.Tensor):
    """A tensor of a class of its own."""


class Calls:
    """The calls of one seed."""

    def __init__(self, seed: int, after: bool) -> None:
        self.seed, self.after = seed, after
        self.arenas = [Arena() for _ in range(16)]
        noise = random.Random(seed)
        self.zeros, self.noises = bytes(SPAN), [noise.randbytes(SPAN) for _ in range(4)]
        values = [
            noise.choice((0.0, -0.0, 1.5, 3e38, -7.0, 1e-40, float("nan"), float("inf"), 0.1)) for _ in range(SPAN // 4)
        ]
        self.floats = struct.pack(f"{len(values)}f", *values)
        self.plain = struct.pack(f"{SPAN // 4}f", *[noise.gauss(0, 1) for _ in range(SPAN // 4)])
        self.shrunk = None

    def fill(self, dtype: torch.dtype) -> bytes:
        """Bytes of operands: noise, extreme values, ordinary values or small numbers."""
        if dtype == torch.bool:
            return self.zeros
        kind = self.random.random()
        if kind < 0.25 or not dtype.is_floating_point:
            return self.random.choice(self.noises) if kind < 0.8 else self.zeros
        if dtype == torch.float32:
            return self.plain if kind < 0.8 else self.floats
        return self.random.choice(self.noises)

    def make(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        self.used += 1
        return self.arenas[self.used % len(self.arenas)].tensor(list(shape), dtype, self.after, self.fill(dtype))

    # --- operands that fit ----------------------------------------------------------------------------------------

    def shape(self, least: int = 0) -> list[int]:
        sizes = (0, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 40, 64, 96)
        rank = self.random.choice((1, 2, 2, 2, 3, least))
        made = [self.random.choice(sizes[:9]) for _ in range(max(rank, least))]
        if made:
            made[-1] = self.random.choice(sizes)
        return made

    def parts(self, text: str, shape: list[int], axis: int) -> list[torch.Tensor]:
        made = []
        for name, dtype, part in part_specs(core(text), tuple(shape), axis):
            tensor = self.make(list(part), dtype)
            if name in ("scales", "levels") and dtype.is_floating_point and self.random.random() < 0.7:
                tensor.fill_(0.5)
            made.append(tensor)
        return made

    def given(self, text: str, shape: list[int], axis: int) -> list[torch.Tensor | None]:
        if self.random.random() < 0.5:
            return [None, None, None]
        _, scales, zeros, levels = self.parts(text, shape, axis)
        fmt = core(text)
        return [scales, zeros if fmt.has_zeros else None, levels if fmt.has_levels else None]

    def codec(self) -> tuple[str, list, dict]:
        """Arguments of an op of the codecs."""
        pick = self.random.choice
        text, shape, dtype = pick(FORMATS), self.shape(), pick(FLOATS)
        axis = pick((-1, -1, 0, len(shape) - 1)) if shape else -1
        name = pick(
            (
                "quantize",
                "quantize_plain",
                "quantize_out",
                "quantize_backward",
                "encode",
                "encode_out",
                "decode",
                "decode_out",
            )
        )
        rule = pick(("floor", "floor", "ceil", "mse"))
        if name.startswith("decode"):
            args = [*self.parts(text, shape, axis), text, shape, axis]
            if name == "decode":
                return name, [*args, dtype], {}
            return name, args, {"out": self.make(shape, dtype)}
        args = [self.make(shape, dtype), text, axis, rule, *self.given(text, shape, axis)]
        if name == "quantize":
            return name, [*args, pick(("clipped", "identity"))], {}
        if name == "quantize_out":
            return name, args, {"out": self.make(shape, dtype)}
        if name == "quantize_backward":
            return name, [self.make(shape, dtype), *args, pick((False, True))], {}
        if name == "encode":
            return name, [*args, pick(("error", "saturate", "nan"))], {}
        if name == "encode_out":
            names = ("codes_out", "scales_out", "zeros_out", "levels_out")
            outs = dict(zip(names, self.parts(text, shape, axis), strict=True))
            return name, [*args, pick(("error", "saturate"))], outs
        return name, args, {}

    def product(self) -> tuple[str, list, dict]:
        """Arguments of an op that multiplies or looks up."""
        pick = self.random.choice
        rows, columns, lead = pick((1, 2, 5, 8, 16, 33)), pick((1, 3, 8, 32, 33, 64, 96)), self.shape()[:-1]
        dtype = pick(FLOATS)
        name = pick(("packed_linear", "packed_linear_plain", "packed_linear_backward", "integer_linear", "integer_linear_plain",
                     "rounded_linear", "rounded_linear_plain", "packed_embedding", "int8_gemm", "dense_codes",
                     "sparse_linear"))  # fmt: skip
        if name == "int8_gemm":
            m = pick((0, 1, 4, 9))
            out = pick((torch.int32, torch.int8, *FLOATS))
            scales = [None if out == torch.int32 else self.make([n], torch.float32) for n in (m, rows)]
            bias = pick((None, self.make([rows], torch.int32)))
            return (
                name,
                [self.make([m, columns], torch.int8), self.make([rows, columns], torch.int8), bias, *scales, out, 0],
                {},
            )
        if name.startswith("integer"):
            text, given = (
                pick(("int8:channel", "int4:channel", "int8:tensor", "int2:channel")),
                pick(("int8:channel", "int8:tensor")),
            )
            parts = self.parts(text, [rows, columns], -1)[:2]
            bias = pick((None, self.make([rows], torch.int32), self.make([rows], dtype)))
            count = 1
            for n in lead:
                count *= n
            scales = pick((None, self.make([count if given == "int8:channel" else 1], torch.float32)))
            return name, [self.make([*lead, columns], dtype), *parts, bias, scales, text, given, rows, columns], {}
        text = pick(FORMATS)
        parts = self.parts(text, [rows, columns], -1)
        if name in ("dense_codes", "sparse_linear"):
            dense = parts[0] * (torch.rand(parts[0].shape) < 0.4)
            found = sparse_codes.compress(dense, core(text), rows, columns)
            sparse = [self.make(list(part.shape), part.dtype).copy_(part) for part in found]
            if name == "dense_codes":
                first = pick((0, 16)) if rows > 16 else 0
                return name, [*sparse, text, rows, columns, first, rows - first], {}
            bias = pick((None, self.make([rows], pick(FLOATS))))
            return name, [self.make([*lead, columns], dtype), *sparse, *parts[1:], bias, text, rows, columns], {}
        if name == "packed_embedding":
            ids = self.make(self.shape(), pick((torch.int64, torch.int32)))
            if self.random.random() < 0.8:
                ids.fill_(self.random.randrange(rows))
            return name, [ids, *parts, text, rows, columns, dtype], {}
        if name == "packed_linear_backward":
            return name, [self.make([*lead, rows], dtype), *parts, text, rows, columns], {}
        bias = pick((None, self.make([rows], pick(FLOATS))))
        sizes = (text, rows, columns)
        if name.startswith("rounded"):
            rounding = pick(("int8:g32", "mxint8", "int8:channel", "mxfp4", "bf16")), "floor"
            return name, [self.make([*lead, columns], dtype), *parts, bias, None, None, None, *sizes, *rounding], {}
        return name, [self.make([*lead, columns], dtype), *parts, bias, *sizes], {}

    # --- operands that do not ---------------------------------------------------------------------------------------

    def misfit(self, tensor: torch.Tensor, others: list[torch.Tensor]) -> object:
        """Another operand in the place of one that fits."""
        pick, shape = self.random.choice, list(tensor.shape)
        kind = self.random.randrange(20)
        at = self.random.randrange(len(shape)) if shape else 0
        if kind < 4 and shape:  # one more, one less, none or many along a dimension
            shape[at] = max(0, shape[at] + pick((-1, 1, -shape[at], 17)))
            return self.make(shape, tensor.dtype)
        if kind == 4:
            return self.make([1, *shape], tensor.dtype)
        if kind == 5:
            return self.make(shape[1:], tensor.dtype)
        if kind == 6:
            return self.make(shape, pick(DTYPES))
        if kind == 7 and shape:  # every other element of a larger one
            larger = shape.copy()
            larger[at] *= 2
            return self.make(larger, tensor.dtype).unflatten(at, (shape[at], 2)).select(at + 1, 1)
        if kind == 8 and len(shape) > 1:
            return self.make(shape[::-1], tensor.dtype).permute(*reversed(range(len(shape))))
        if kind == 9:
            return self.make([1] * len(shape), tensor.dtype).expand(shape)
        if kind == 10 and 0 < tensor.nbytes < SPAN:  # an address that is not aligned
            arena, nbytes = self.arenas[0], tensor.nbytes
            start = arena.high - nbytes - 1 if self.after else arena.low + 1
            odd = (ctypes.c_char * nbytes).from_address(start)
            return torch.frombuffer(odd, dtype=tensor.dtype).view(shape)
        if kind == 11 and others:  # another operand, or bytes of it
            other = pick(others)
            flat = other.reshape(-1)
            with contextlib.suppress(RuntimeError):
                return flat.view(tensor.dtype)[: tensor.numel()].view(shape)
            return other
        if kind == 12:
            return tensor.to("meta")
        if kind == 13 and tensor.numel() and tensor.dtype in (torch.float32, torch.uint8, torch.float16, torch.int8):
            made = ZEROS(shape, dtype=tensor.dtype)
            made.untyped_storage().resize_(self.random.randrange(made.nbytes))
            self.shrunk = made
            return made
        if kind == 14:
            return pick(
                (tensor.as_subclass(Subclass), tensor.to_sparse() if shape else tensor, tensor.to(torch.complex64).imag)
            )
        if kind == 15 and tensor.is_floating_point():
            return tensor.detach().requires_grad_()
        if kind == 16 and len(shape) == 2 and tensor.dtype == torch.float32:
            return pick(
                (
                    torch.nested.nested_tensor([tensor]),
                    torch.quantize_per_tensor(torch.zeros(shape), 0.1, 0, torch.qint8),
                )
            )
        if kind == 17:
            return torch.empty(0, dtype=tensor.dtype)
        if kind == 18 and shape:
            return self.make([1], tensor.dtype).expand([*shape[:-1], 2**34])
        return pick((None, self.make(self.shape(), pick(DTYPES))))

    def wrong(self, value: object) -> object:
        """Another value in the place of a number, text or list."""
        pick = self.random.choice
        if isinstance(value, str):
            return pick(TEXTS)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return pick((*HUGE, value + 1, value - 1))
        if isinstance(value, list):
            made = [*value]
            if made and self.random.random() < 0.7:
                made[self.random.randrange(len(made))] = pick(HUGE)
                return made
            return pick(([], [1, *made], [-1], [2**62, 4], [2**32, 2**32], [3, 0, 5], made[::-1]))
        if isinstance(value, torch.dtype):
            return pick(DTYPES)
        return value

    def __call__(self, number: int) -> tuple[str, list, dict, bool]:
        """Return name, arguments and keywords of a call, and whether it must be refused."""
        self.random = random.Random(self.seed << 32 | number)
        self.used, self.shrunk = self.random.randrange(8), None
        name = None
        while name is None:  # formats that do not take the shape
            with contextlib.suppress(octavo.OctavoError):
                name, args, kwargs = (self.codec if self.random.random() < 0.6 else self.product)()
        places = [(args, at) for at in range(len(args))] + [(kwargs, key) for key in kwargs]
        originals = [holder[at] for holder, at in places if isinstance(holder[at], torch.Tensor)]
        for holder, at in self.random.sample(places, self.random.choice((0, 1, 1, 1, 2, 3))):
            value = holder[at]
            if isinstance(value, torch.Tensor):
                holder[at] = self.misfit(value, originals)
            else:
                holder[at] = self.wrong(value)
        first = args[1] if name == "quantize_backward" else args[0]
        return name, args, kwargs, self.shrunk is not None and first is self.shrunk


def describe(name: str, args: list, kwargs: dict) -> str:
    def told(value: object) -> str:
        if isinstance(value, torch.Tensor):
            return (
                f"{value.dtype} {tuple(value.shape) if not value.is_nested else 'nested'} {value.layout} {value.device}"
            )
        return repr(value)

    return f"{name}({', '.join(map(told, args))}, {', '.join(f'{k}={told(v)}' for k, v in kwargs.items())})"


accepted: Counter[str] = Counter()
"""Calls that gave a result, by op: a sweep that refuses everything would show nothing."""


def attempt(call: tuple[str, list, dict, bool]) -> str | None:
    """Make a call; return what is wrong with its end, or None."""
    name, args, kwargs, refused = call
    try:
        getattr(torch.ops.octavo, name).default(*args, **kwargs)
    except DEFECTS as error:
        return f"{type(error).__name__}: {error}"
    except ACCEPTED:
        return None
    except BaseException as error:  # a panic's own
        return f"{type(error).__name__}: {error}"
    accepted[name] += 1
    return "a tensor beyond its storage was read" if refused else None


def child(calls: Calls, first: int, count: int, place: mmap.mmap) -> None:
    """Make calls; end with status 0 where all ended well. The number of the call at work is kept in ``place``."""
    grown = int(open("/proc/self/statm").read().split()[0]) * PAGE + (4 << 30)  # noqa: SIM115 ends with the process
    resource.setrlimit(resource.RLIMIT_AS, (grown, grown))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Results(calls.after).install()
    bad = 0
    for number in range(first, first + count):
        place[:8] = struct.pack("q", number)
        signal.alarm(CALL_S)
        call = calls(number)
        if wrong := attempt(call):
            bad += 1
            print(f"call {number}: {wrong[:300]}: {describe(*call[:3])}", flush=True)
    if count >= 1000 and len(accepted) < 14:
        bad += 1
        print(f"calls {first} to {first + count}: results only from {dict(accepted)}", flush=True)
    os._exit(0 if bad == 0 else 1)


def sweep(count: int, seed: int, after: bool) -> tuple[int, int]:
    """Make calls in children; return the number of faults and of children that found other defects."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _core.set_num_threads(1)
    calls = Calls(seed, after)
    place = mmap.mmap(-1, 8)
    faults = defects = number = batches = 0
    started = told = time.monotonic()
    while number < count:
        size = min(BATCH, count - number)
        level = ("scalar", "avx2", "avx512")[batches % 3]
        batches += 1
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(ValueError):
                _core.force_simd(level)
            try:
                child(calls, number, size, place)
            except BaseException:
                traceback.print_exc()
                os._exit(2)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            at = struct.unpack("q", place[:8])[0]
            faults += 1
            print(f"call {at} ({level}) ended by signal {-code}: {describe(*calls(at)[:3])}", flush=True)
            number = at + 1
        else:
            defects += code != 0
            number += size
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(
                f"{number} calls, {faults} faults, {defects} batches with defects, {told - started:.0f} s", flush=True
            )
    return faults, defects


def main() -> int:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    after = len(sys.argv) < 4 or sys.argv[3] == "after"
    if len(sys.argv) > 4:
        warnings.simplefilter("ignore")
        call = Calls(seed, after)(int(sys.argv[4]))
        print(describe(*call[:3]), flush=True)
        print(attempt(call))
        return 0
    started = time.monotonic()
    faults, defects = sweep(count, seed, after)
    print(
        f"{count} calls with guard pages {'after' if after else 'before'} the operands, seed {seed}: {faults} faults, "
        f"{defects} batches with other defects, {time.monotonic() - started:.0f} s"
    )
    return 1 if faults or defects else 0


if __name__ == "__main__":
    sys.exit(main())
