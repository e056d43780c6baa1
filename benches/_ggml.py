"""Products of ggml, called in a built library through ctypes: what llama.cpp multiplies packed weights with on a CPU.

Only public functions are called and no field of a struct is read, so that libraries of other versions work too. What a
library lacks is told by name. README.md here says how to build one.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import torch
from octavo import OctavoError
from torch import Tensor

TYPES = {"q8_0": 8, "q6_K": 14, "q4_0": 2, "q4_1": 3, "q4_K": 12, "q3_K": 11, "q2_K": 10, "mxfp4": 39, "nvfp4": 40}
"""Numbers of packed types, which files hold and so no version changes."""
_F32 = 0
PLAIN = "CPU"
"""Name of the buffer that holds weights as files do."""
_SPARE = 4096
"""Bytes for a struct of options that ggml fills and reads itself; it has some 530."""

_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "ggml_init": (c_void_p, ()),
    "ggml_free": (None, (c_void_p,)),
    "ggml_blck_size": (c_int64, (c_int,)),
    "ggml_row_size": (c_size_t, (c_int, c_int64)),
    "ggml_tensor_overhead": (c_size_t, ()),
    "ggml_graph_overhead_custom": (c_size_t, (c_size_t, c_bool)),
    "ggml_new_tensor_2d": (c_void_p, (c_void_p, c_int, c_int64, c_int64)),
    "ggml_new_graph_custom": (c_void_p, (c_void_p, c_size_t, c_bool)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_mul_mat": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "ggml_quantize_chunk": (c_size_t, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)),
    "ggml_backend_cpu_init": (c_void_p, ()),
    "ggml_backend_get_device": (c_void_p, (c_void_p,)),
    "ggml_backend_dev_backend_reg": (c_void_p, (c_void_p,)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_get_default_buffer_type": (c_void_p, (c_void_p,)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_backend_buft_alloc_buffer": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_buffer_get_base": (c_void_p, (c_void_p,)),
    "ggml_backend_buffer_free": (None, (c_void_p,)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, (c_void_p, c_void_p)),
    "ggml_backend_tensor_alloc": (c_int, (c_void_p, c_void_p, c_void_p)),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_supports_op": (c_bool, (c_void_p, c_void_p)),
    "ggml_backend_graph_compute": (c_int, (c_void_p, c_void_p)),
    "ggml_threadpool_params_init": (None, (c_void_p, c_int)),
    "ggml_log_set": (None, (c_void_p, c_void_p)),
}


_SILENT = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(lambda *_: None)
"""Takes what ggml logs, a line for each weight that it reorders."""


class GgmlError(OctavoError):
    """A library of ggml that is not there, or lacks a function, a type or memory."""


class _Options(ctypes.Structure):
    """Of ``ggml_init``: bytes for what a context describes, and whether tensors get their memory elsewhere."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def find(path: Path) -> list[Path]:
    """Find the libraries below a folder, or beside a file: ggml-base first, whose symbols the others use.

    Raises GgmlError where there is none.
    """
    if not path.exists():
        raise GgmlError(f"ggml: no file or folder {path}")
    folder = path if path.is_dir() else path.parent
    endings = (".so", ".dylib", ".dll")
    libraries = sorted(file for file in folder.rglob("*ggml-*") if file.suffix in endings)
    pair = [file for part in ("ggml-base", "ggml-cpu") for file in libraries if file.stem.removeprefix("lib") == part]
    if len(pair) < 2 and path.is_dir():
        raise GgmlError(f"ggml: {path} holds no ggml-base and ggml-cpu, shared libraries; build ggml with them")
    return pair[:2] if len(pair) >= 2 else [path]


class Library:
    """A built ggml: its functions, its kinds of memory and a backend that computes on ``threads`` threads."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load the libraries at ``path``. Raises GgmlError, naming what they lack."""
        try:
            self._loaded = [ctypes.CDLL(str(file.resolve()), ctypes.RTLD_GLOBAL) for file in find(path)]
        except OSError as error:
            raise GgmlError(f"ggml: {path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _FUNCTIONS.items():
            setattr(self, name, self._function(name, result, arguments))
        self.ggml_init.argtypes = (_Options,)
        self.ggml_log_set(_SILENT, None)
        self.backend = self.ggml_backend_cpu_init()
        self._registry = self.ggml_backend_dev_backend_reg(self.ggml_backend_get_device(self.backend))
        self._use(threads)
        self.buffers = list(self._buffers())

    def _function(self, name: str, result: object, arguments: tuple[object, ...]) -> Callable:
        for library in self._loaded:
            found = getattr(library, name, None)
            if found is not None:
                found.restype, found.argtypes = result, arguments
                return found
        raise GgmlError(f"ggml: {self._loaded[0]._name} and its neighbour have no function {name}; build a newer ggml")

    def _procedure(self, name: str, result: object, *arguments: object) -> Callable | None:
        """Look up a function that the CPU backend gives by name alone."""
        address = self.ggml_backend_reg_get_proc_address(self._registry, name.encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None

    def _use(self, threads: int) -> None:
        """Give the backend its threads, which wait between products as llama.cpp's do."""
        limit = self._procedure("ggml_backend_set_n_threads", None, c_void_p, c_int)
        make = self._procedure("ggml_threadpool_new", c_void_p, c_void_p)
        take = self._procedure("ggml_backend_cpu_set_threadpool", None, c_void_p, c_void_p)
        if limit is None or make is None or take is None:
            raise GgmlError("ggml: its CPU backend gives no functions for threads; build a newer ggml")
        options = ctypes.create_string_buffer(_SPARE)
        self.ggml_threadpool_params_init(options, threads)
        take(self.backend, make(options))
        limit(self.backend, threads)

    def _buffers(self) -> Iterator[tuple[str, int]]:
        """Kinds of memory for weights, by name: as in files, and those that hold them in another order."""
        plain = self.ggml_backend_get_default_buffer_type(self.backend)
        yield PLAIN, plain
        extra = self._procedure("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(c_void_p), c_void_p)
        if extra is not None:
            for kind in extra(self.ggml_backend_get_device(self.backend)):
                if not kind:
                    return
                yield self.ggml_backend_buft_name(kind).decode(), kind

    def context(self, tensors: int, graphs: int = 0) -> int:
        """Make room for the descriptions of tensors and of graphs of one product."""
        room = tensors * self.ggml_tensor_overhead() + graphs * self.ggml_graph_overhead_custom(8, False)
        made = self.ggml_init(_Options(room + 1024, None, True))
        if not made:
            raise GgmlError(f"ggml: no memory for {tensors} tensors")
        return made

    def encode(self, weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Quantize a float32 matrix; returns its bytes and the float32 values that they stand for.

        Raises GgmlError for a type that the library lacks or whose blocks do not divide a row.
        """
        try:
            decode = self._function(f"dequantize_row_{kind}", None, (c_void_p, c_void_p, c_int64))
        except GgmlError as error:
            raise GgmlError(f"ggml {kind}: this library has no such type") from error
        rows, columns = weight.shape
        number = TYPES[kind]
        block = self.ggml_blck_size(number)
        if columns % block:
            raise GgmlError(f"ggml {kind}: rows of {columns} values are no whole blocks of {block}")
        codes = torch.empty(rows * self.ggml_row_size(number, columns), dtype=torch.uint8)
        weight = weight.contiguous()
        self.ggml_quantize_chunk(number, weight.data_ptr(), codes.data_ptr(), 0, rows, columns, None)
        values = torch.empty(rows, columns)
        decode(codes.data_ptr(), values.data_ptr(), rows * columns)
        return codes, values


class Products:
    """Graphs of one product each, ``x W^T``, with equal weights in a kind of memory; they write one result."""

    def __init__(
        self, library: Library, kind: str, codes: Tensor, x: Tensor, rows: int, buffer: int, copies: int
    ) -> None:
        """Copy ``codes`` of type ``kind`` into ``copies`` weights of ``rows`` rows in memory of kind ``buffer``.

        Raises GgmlError where that kind of memory has no product for the type.
        """
        self._library = library
        m, columns = x.shape
        held: list[tuple[Callable, int]] = []
        self._close = weakref.finalize(self, _free, held)

        def allocate(context: int, where: int) -> None:
            memory = library.ggml_backend_alloc_ctx_tensors_from_buft(context, where)
            if not memory:
                raise GgmlError(f"ggml {kind}: no memory for weights")
            held.append((library.ggml_backend_buffer_free, memory))

        plain = library.buffers[0][1]
        inputs, weights, results = library.context(1), library.context(copies), library.context(copies, copies)
        held += [(library.ggml_free, context) for context in (inputs, weights, results)]
        given = library.ggml_new_tensor_2d(inputs, _F32, columns, m)
        allocate(inputs, plain)
        library.ggml_backend_tensor_set(given, x.contiguous().data_ptr(), 0, x.nbytes)
        matrices = [library.ggml_new_tensor_2d(weights, TYPES[kind], columns, rows) for _ in range(copies)]
        allocate(weights, buffer)
        memory = library.ggml_backend_buft_alloc_buffer(plain, m * rows * 4 + 64)
        held.append((library.ggml_backend_buffer_free, memory))
        base = library.ggml_backend_buffer_get_base(memory)
        self.result = torch.frombuffer((ctypes.c_float * (m * rows)).from_address(base), dtype=torch.float32)
        self.result = self.result.view(m, rows)
        self.graphs = []
        """Addresses of graphs, each a product with its own weight."""
        for matrix in matrices:
            product = library.ggml_mul_mat(results, matrix, given)
            if not library.ggml_backend_supports_op(library.backend, product):
                raise GgmlError(f"ggml {kind}: no product in this kind of memory")
            library.ggml_backend_tensor_set(matrix, codes.data_ptr(), 0, codes.nbytes)
            library.ggml_backend_tensor_alloc(memory, product, base)
            graph = library.ggml_new_graph_custom(results, 8, False)
            library.ggml_build_forward_expand(graph, product)
            self.graphs.append(graph)

    def compute(self, graph: int) -> Tensor:
        """Compute one of ``graphs``; returns ``result``, ``[m, rows]``, which the next one overwrites."""
        status = self._library.ggml_backend_graph_compute(self._library.backend, graph)
        if status:
            raise GgmlError(f"ggml: a product failed with status {status}")
        return self.result


def _free(held: list[tuple[Callable, int]]) -> None:
    for free, what in reversed(held):
        free(what)
