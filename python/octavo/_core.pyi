"""The Rust core. Names with an underscore take addresses; each belongs to one room.

Codecs and products belong to ``octavo.ops``, ``_cuda_*`` to ``octavo.ops``, ``octavo.cuda`` and ``octavo.settings``,
those of seq2seq to ``octavo.lab.polynomials.seq2seq``.

Addresses are integers; 0 stands for a part that is not there. Dtype codes: 0 float32, 1 float16, 2 bfloat16. Parts are
the addresses of codes, scales, zeros and levels; spans are an address and a number of bytes.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self, SupportsIndex, TypeAlias, final

from torch import Tensor, dtype

__all__ = [
    "Format",
    "_BytePairs",
    "_CharTokenizer",
    "_ContainerReader",
    "_ContainerWriter",
    "_Decoder",
    "_EncodedIds",
    "_Encoder",
    "_Engine",
    "_EngineStream",
    "_Generation",
    "_KnownWeight",
    "_MergeLearner",
    "_PieceCounts",
    "_PolynomialStream",
    "__version__",
    "_adamw",
    "_add_outer_products",
    "_cuda_archs",
    "_cuda_attention",
    "_cuda_attention_scratch",
    "_cuda_configure",
    "_cuda_decode",
    "_cuda_devices",
    "_cuda_dropout_norm",
    "_cuda_dropout_norm_backward",
    "_cuda_dropout_norm_parts",
    "_cuda_encode",
    "_cuda_info",
    "_cuda_int8_gemm",
    "_cuda_int8_gemm_scratch",
    "_cuda_integer_linear",
    "_cuda_integer_linear_scratch",
    "_cuda_linear_kernel",
    "_cuda_packed_linear",
    "_cuda_packed_linear_scratch",
    "_cuda_prebuild",
    "_cuda_programs",
    "_cuda_quantize",
    "_cuda_quantize_backward",
    "_cuda_scratch",
    "_cuda_seq2seq_decode",
    "_cuda_seq2seq_encode",
    "_cuda_seq2seq_scratch",
    "_cuda_warmup",
    "_decode",
    "_digest",
    "_dropout_norm",
    "_dropout_norm_backward",
    "_encode",
    "_factor",
    "_feed_back",
    "_fit_scales",
    "_gptq_block",
    "_huge_pages",
    "_integer_linear",
    "_linear_kernel",
    "_losses",
    "_pack",
    "_packed_embedding",
    "_packed_linear",
    "_pass_marked",
    "_polynomial_expand",
    "_polynomial_kind",
    "_quantize",
    "_quantize_backward",
    "_rounded_kernel",
    "_rounded_linear",
    "_sparse_compress",
    "_sparse_count",
    "_sparse_expand",
    "_sparse_kernel",
    "_sparse_linear",
    "_sparse_starts",
    "_sparse_takes",
    "_take_squares",
    "_unpack",
    "_use_openmp",
    "debug_build",
    "force_simd",
    "formats",
    "num_threads",
    "set_num_threads",
    "simd_level",
]

_Address: TypeAlias = int
_Parts: TypeAlias = tuple[_Address, _Address, _Address, _Address]
_Span: TypeAlias = tuple[_Address, int]
_Bias: TypeAlias = tuple[_Address, int]

__version__: str
debug_build: bool

@final
class Format:
    """A number format: what an element may be, and how many elements share a scale."""

    def __new__(cls, text: str) -> Format: ...
    @staticmethod
    def parse(text: str) -> Format: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __lt__(self, value: object, /) -> bool: ...
    def __le__(self, value: object, /) -> bool: ...
    def __gt__(self, value: object, /) -> bool: ...
    def __ge__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[Format], tuple[str]]: ...
    @property
    def family(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def granularity(self) -> str: ...
    @property
    def block(self) -> int | None: ...
    @property
    def scale_type(self) -> str | None: ...
    @property
    def scales_per_group(self) -> int: ...
    @property
    def has_zeros(self) -> bool: ...
    @property
    def has_levels(self) -> bool: ...
    @property
    def has_offsets(self) -> bool: ...
    @property
    def instead(self) -> str | None: ...
    @property
    def is_block(self) -> bool: ...
    @property
    def has_nan(self) -> bool: ...
    @property
    def bits(self) -> float: ...
    @property
    def range(self) -> tuple[float, float]: ...
    @property
    def smallest(self) -> float: ...
    def saturates(self, rule: str, given: bool) -> bool: ...
    def _marks(self, shape: Sequence[SupportsIndex], axis: SupportsIndex) -> int: ...
    def bits_per_element(self, k: SupportsIndex) -> float: ...
    def values(self) -> list[tuple[int, float]]: ...
    def nbytes(self, shape: Sequence[SupportsIndex], axis: SupportsIndex = ...) -> int: ...
    def _sizes(
        self, shape: Sequence[SupportsIndex], axis: SupportsIndex
    ) -> tuple[int, int, int, int, int, int, int, int, int]: ...

def formats() -> list[str]: ...
def simd_level() -> str: ...
def force_simd(level: str | None) -> None: ...
def num_threads() -> int: ...
def _use_openmp(parallel: _Address) -> None: ...
def _huge_pages(address: _Address, bytes: int) -> bool: ...
def set_num_threads(threads: int) -> None: ...
def _encode(
    format: Format,
    dtype_code: int,
    shape: Sequence[SupportsIndex],
    axis: SupportsIndex,
    x: _Address,
    out: _Parts,
    rule: str,
    nonfinite: str,
    given: _Parts | None,
) -> None: ...
def _digest(parts: Sequence[_Span]) -> str: ...
def _decode(
    format: Format, dtype_code: int, shape: Sequence[SupportsIndex], axis: SupportsIndex, parts: _Parts, out: _Address
) -> None: ...
def _quantize(
    format: Format,
    dtype_code: int,
    shape: Sequence[SupportsIndex],
    axis: SupportsIndex,
    x: _Address,
    out: _Address,
    rule: str,
    given: _Parts | None,
    look: bool = ...,
    marks: _Address = ...,
) -> bool: ...
def _adamw(
    format: Format | None,
    count: int,
    weights: _Address,
    gradients: _Address,
    first: tuple[_Address, _Address],
    second: tuple[_Address, _Address],
    step: tuple[float, float, float, float, float, float],
) -> None: ...
def _dropout_norm(
    sizes: tuple[int, int],
    x: _Span,
    branch: _Span,
    gain: _Address,
    how: tuple[float, float, int, float],
    stream: _Span,
    normed: _Address,
    rates: _Address,
) -> None: ...
def _dropout_norm_backward(
    sizes: tuple[int, int],
    inputs: tuple[_Address, _Address, _Address, int],
    rates: _Address,
    gain: _Address,
    how: tuple[float, float, int, float],
    of_x: _Span,
    of_branch: _Span,
    of_gain: _Address,
) -> None: ...
def _pass_marked(
    format: Format, dtype_code: int, count: int, grad: _Address, marks: _Address, out: _Address
) -> None: ...
def _quantize_backward(
    format: Format,
    dtype_code: int,
    shape: Sequence[SupportsIndex],
    axis: SupportsIndex,
    grad: _Address,
    x: _Address,
    out: _Address,
    rule: str,
    given: _Parts | None,
    scale_grad: _Address,
) -> None: ...
def _gptq_block(
    format: Format,
    choice: str,
    rows: int,
    columns: int,
    groups: int,
    values: _Address,
    errors: _Address,
    feedback: _Address,
    weights: _Address,
    column_groups: _Address,
    loss: _Address,
    scales: tuple[_Address, _Address, float],
) -> None: ...
def _fit_scales(
    format: Format,
    rows: int,
    k: int,
    groups: int,
    x: _Address,
    weights: _Address,
    power: float,
    iterations: int,
    scales: tuple[_Address, _Address, float],
) -> None: ...
def _add_outer_products(rows: int, k: int, x: _Address, sums: _Address) -> None: ...
def _factor(k: int, h: _Address) -> bool: ...
def _feed_back(
    rows: int, k: int, start: int, columns: int, values: _Address, errors: _Address, feedback: _Address
) -> None: ...
def _losses(
    rows: int, k: int, errors: _Address, feedback: _Address, costs: _Address, damping: float, loss: _Address
) -> None: ...
def _take_squares(rows: int, k: int, errors: _Address, factor: float, loss: _Address) -> None: ...
def _pack(width: int, rows: int, k: int, codes: _Address, out: _Address) -> None: ...
def _unpack(width: int, rows: int, k: int, packed: _Address, out: _Address) -> None: ...

# A bias is its address and dtype code; 3 is int32. Ids and input scales are an address and a number of elements.
def _packed_linear(
    format: Format,
    dtype_code: int,
    m: int,
    n: int,
    k: int,
    x: _Address,
    parts: _Parts,
    bias: _Bias | None,
    out: _Address,
) -> None: ...
def _rounded_linear(
    format: Format,
    input_format: Format,
    rule: str,
    dtype_code: int,
    m: int,
    n: int,
    k: int,
    x: _Address,
    parts: _Parts,
    scales: _Parts | None,
    bias: _Bias | None,
    out: _Address,
) -> None: ...

# Sparse codes are the address and bytes of the codes, and the addresses of the bitmap and of the starts of panels.
def _sparse_takes(format: Format) -> bool: ...
def _sparse_count(width: int, rows: int, k: int, codes: _Address) -> int: ...
def _sparse_compress(width: int, rows: int, k: int, nonzero: int, codes: _Address, out: _Span) -> None: ...
def _sparse_starts(rows: int, k: int, nonzero: int, bitmap: _Address, out: _Address) -> None: ...
def _sparse_expand(width: int, rows: int, k: int, first: int, some: int, codes: _Parts, out: _Address) -> None: ...
def _sparse_kernel(format: Format, m: int, n: int, k: int) -> str | None: ...
def _sparse_linear(
    format: Format,
    dtype_code: int,
    m: int,
    n: int,
    k: int,
    x: _Address,
    codes: _Parts,
    parts: _Parts,
    bias: _Bias | None,
    out: _Address,
) -> None: ...

@final
class _KnownWeight:
    def __new__(
        cls,
        format: Format,
        rows: int,
        columns: int,
        parts: _Parts,
        bias: tuple[int, int] | None,
        inputs: tuple[Format, str | None, _Parts | None] | None,
        rounding: tuple[str, str | None] | None,
        operands: Sequence[Tensor | None],
        dtypes: Sequence[dtype],
    ) -> Self: ...
    @property
    def rounding(self) -> tuple[str, str | None] | None: ...
    def is_still(self, operands: tuple[Tensor | None, ...]) -> bool: ...
    def multiply(self, x: Tensor, operands: tuple[Tensor | None, ...]) -> Tensor | None: ...

def _integer_linear(
    format: Format,
    input_format: Format,
    dtype_code: int,
    m: int,
    n: int,
    k: int,
    x: _Address,
    parts: _Parts,
    input_scales: _Span | None,
    bias: _Bias | None,
    out: _Address,
) -> None: ...
def _packed_embedding(
    format: Format, dtype_code: int, ids: _Span, rows: int, width: int, parts: _Parts, out: _Address
) -> None: ...
def _rounded_kernel(format: Format, input_format: Format, m: int, n: int, k: int) -> str: ...
def _linear_kernel(format: Format, input_format: Format | None, m: int, n: int, k: int, dtype_code: int = 0) -> str: ...

@final
class _ContainerWriter:
    """Writes a container: entries are announced, then put in any order, then the writer is finished."""

    def __new__(
        cls,
        path: str | os.PathLike[str] | None,
        plain: Sequence[tuple[str, str, Sequence[int]]],
        packed: Sequence[tuple[str, Format, str, Sequence[int], str, int, int | None]],
        metadata: Mapping[str, str],
        overwrite: bool,
    ) -> _ContainerWriter: ...
    def put_plain(self, name: str, data: _Span) -> None: ...
    def put_packed(self, name: str, parts: tuple[_Span, _Span, _Span, _Span, _Span]) -> None: ...
    def finish(self) -> bytes | None: ...
    def abandon(self) -> None: ...

@final
class _ContainerReader:
    """A checked container: a file, a mapping of a file, or bytes; its buffer is the whole container, but for a file."""

    def __new__(cls, path: str | os.PathLike[str], mmap: bool) -> _ContainerReader: ...
    @staticmethod
    def from_bytes(data: bytes | bytearray) -> _ContainerReader: ...
    def entries(
        self,
    ) -> list[tuple[str, Format | None, str | None, list[int], str, int | None, int, int | None]]: ...
    def part(self, stored: str) -> tuple[int, int] | None: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def is_octavo(self) -> bool: ...
    @property
    def file_bytes(self) -> int: ...
    def read_into(self, stored: str, address: int, count: int) -> None: ...
    def verify(self) -> None: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class _BytePairs:
    """A vocabulary of byte pairs; texts are bytes, `how` tells what special tokens become: ids, errors or text."""

    @staticmethod
    def from_json(text: bytes) -> _BytePairs: ...
    @staticmethod
    def from_merges(merges: bytes, vocabulary: bytes, name: str) -> _BytePairs: ...
    @staticmethod
    def from_ranks(text: bytes, name: str, special: Sequence[tuple[str, int]]) -> _BytePairs: ...
    def to_json(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def pattern(self) -> str: ...
    @property
    def composed(self) -> bool: ...
    @property
    def added(self) -> list[tuple[str, int, bool]]: ...
    @property
    def around(self) -> tuple[list[int], list[int]]: ...
    def token(self, id: int) -> bytes | None: ...
    def id(self, token: bytes) -> int | None: ...
    def encode(self, texts: Sequence[bytes], how: int, around: bool) -> _EncodedIds: ...
    def settled(self, text: bytes, how: int) -> int: ...
    def decode(self, ids: _Span, width: int) -> bytes: ...

@final
class _EncodedIds:
    """Ids of texts, until Python has memory for them."""

    def __len__(self) -> int: ...
    @property
    def offsets(self) -> list[int]: ...
    def put(self, ids: _Span, width: int) -> None: ...

@final
class _PieceCounts:
    """Counts of the pieces of texts."""

    def __new__(cls, name: str, special: Sequence[str]) -> _PieceCounts: ...
    def add(self, text: bytes) -> None: ...
    def settled(self, text: bytes) -> int: ...
    @property
    def totals(self) -> tuple[int, int]: ...
    def save(self) -> bytes: ...
    def restore(self, saved: bytes) -> None: ...

@final
class _MergeLearner:
    """Learns merges from counts."""

    def __new__(cls, counts: _PieceCounts, size: int, special: Sequence[str], least: int) -> _MergeLearner: ...
    @property
    def merges(self) -> tuple[int, int]: ...
    def advance(self, most: int) -> bool: ...
    def finish(self) -> _BytePairs: ...

@final
class _CharTokenizer:
    """A vocabulary of single characters; a text is the span of UTF-8 lines separated by line feeds."""

    @staticmethod
    def from_characters(characters: str) -> _CharTokenizer: ...
    @staticmethod
    def from_lines(text: _Span) -> _CharTokenizer: ...
    @staticmethod
    def polynomials() -> _CharTokenizer: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> _CharTokenizer: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    @property
    def characters(self) -> str: ...
    @staticmethod
    def measure(text: _Span) -> tuple[int, int]: ...
    def encode(
        self, text: _Span, rows: int, width: int, around: tuple[bool, bool], wide: bool, ids: int, lengths: int
    ) -> None: ...
    def decode(self, ids: int, rows: int, width: int, wide: bool) -> str: ...

@final
class _PolynomialStream:
    """Polynomial lines by number, without those whose left sides are given; a text has a line feed after each."""

    def __new__(cls, seed: int, excluded: Sequence[str]) -> _PolynomialStream: ...
    @property
    def excluded(self) -> int: ...
    def text(self, start: int, count: int) -> bytes: ...
    def batch(
        self,
        start: int,
        count: int,
        tokenizer: _CharTokenizer,
        source: _Span,
        target: _Span,
        pad_to: tuple[int, int] | None,
    ) -> tuple[int, int]: ...

def _cuda_archs() -> list[str]: ...
def _cuda_attention(
    on: tuple[int, int],
    sizes: tuple[int, int, int, int, int, bool, int, int, int],
    format: Format | None,
    query: int,
    pages: tuple[int, int, int, int],
    places: tuple[int, int],
    out: int,
    scale: float,
    scratch: int,
) -> None: ...
def _cuda_attention_scratch(
    number: int, sizes: tuple[int, int, int, int, int, bool, int, int, int], format: Format | None
) -> int | None: ...
def _cuda_configure(packages: Sequence[str | os.PathLike[str]]) -> None: ...
def _cuda_devices() -> int: ...
def _cuda_dropout_norm(
    on: tuple[int, int],
    shape: tuple[int, int, int, int, int],
    x: int,
    branch: int,
    operands: tuple[int, int, int, float, float, float],
    out: tuple[int, int, int],
) -> None: ...
def _cuda_dropout_norm_backward(
    on: tuple[int, int],
    shape: tuple[int, int, int, int, int],
    results: tuple[int, int, int, int],
    operands: tuple[int, int, int, float, float, float],
    out: tuple[int, int, int],
) -> None: ...
def _cuda_dropout_norm_parts(number: int, shape: tuple[int, int, int, int, int]) -> int: ...
def _cuda_info() -> dict[str, Any]: ...
def _cuda_int8_gemm(
    on: tuple[int, int],
    sizes: tuple[int, int, int],
    a: int,
    b: int,
    bias: tuple[int, int] | None,
    rows: tuple[int, bool],
    columns: tuple[int, bool],
    out: tuple[int, int],
    zero: int,
    scratch: int,
) -> None: ...
def _cuda_int8_gemm_scratch(number: int, sizes: tuple[int, int, int], offsets: tuple[int, int]) -> int: ...
def _cuda_integer_linear(
    format: Format,
    input: Format,
    on: tuple[int, int],
    sizes: tuple[int, int, int],
    x: tuple[int, int],
    parts: tuple[int, int],
    input_scales: int,
    bias: tuple[int, int] | None,
    out: int,
    scratch: int,
) -> None: ...
def _cuda_integer_linear_scratch(
    format: Format,
    input: Format,
    number: int,
    sizes: tuple[int, int, int],
    x_code: int,
    bias_code: int | None,
    offset: int,
) -> int: ...
def _cuda_linear_kernel(
    format: Format, input: Format | None, sizes: tuple[int, int, int], x_code: int
) -> str | None: ...
def _cuda_packed_linear(
    format: Format,
    on: tuple[int, int],
    sizes: tuple[int, int, int],
    x: tuple[int, int],
    parts: tuple[int, int, int, int],
    bias: tuple[int, int] | None,
    out: int,
    scratch: int,
) -> None: ...
def _cuda_packed_linear_scratch(
    format: Format, number: int, sizes: tuple[int, int, int], x_code: int, bias_code: int | None, offset: int
) -> int | None: ...
def _cuda_prebuild(format: Format, arch: str, index: int) -> bool: ...
def _cuda_programs(format: Format, arch: str) -> list[tuple[str, str]]: ...
def _cuda_seq2seq_decode(
    on: tuple[int, int],
    model: tuple[int, ...],
    rows: int,
    weights: tuple[int, int],
    encoded: tuple[int, int, int],
    scratch: int,
    tokens: int,
    epsilon: float,
) -> None: ...
def _cuda_seq2seq_encode(
    on: tuple[int, int],
    model: tuple[int, ...],
    rows: int,
    weights: tuple[int, int],
    source: int,
    states: int,
    ends: int,
) -> None: ...
def _cuda_seq2seq_scratch(number: int, model: tuple[int, ...], rows: int) -> int | None: ...
def _cuda_warmup(formats: Sequence[Format], device: int) -> int: ...
def _polynomial_expand(left: str) -> str: ...
def _polynomial_kind(left: str) -> tuple[int, bool]: ...

@final
class _Engine:
    """A loaded model; places are counted from 0."""

    @staticmethod
    def load(path: str | os.PathLike[str], precision: str, route: str, threads: int) -> _Engine: ...
    @property
    def config(self) -> dict[str, str | int]: ...
    @property
    def precision(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def prepared_nbytes(self) -> int: ...
    def expand(self, lines: Sequence[str], beam: int) -> tuple[list[str], list[tuple[int, str]]]: ...
    def expand_scored(self, lines: Sequence[str], beam: int) -> list[tuple[str, float]]: ...

@final
class _Encoder:
    """A loaded text encoder."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> _Encoder: ...
    @property
    def width(self) -> int: ...
    @property
    def positions(self) -> int: ...
    def embed(self, texts: Sequence[str], limit: int) -> bytes: ...
    def ids(self, text: str, limit: int) -> list[int]: ...

@final
class _Decoder:
    """A loaded language model."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> _Decoder: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def positions(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...
    def position_nbytes(self, format: Format | None) -> int: ...
    def scores(self, ids: Sequence[int], format: Format | None = None) -> bytes: ...

@final
class _Generation:
    """Texts that grow; sampling is temperature, top_k, top_p and seed."""

    def __new__(
        cls,
        decoder: _Decoder,
        prompts: Sequence[Sequence[int]],
        sampling: tuple[float, int, float, int],
        keeps: bool,
        pages: int,
        format: Format | None = None,
    ) -> _Generation: ...
    def feed(self) -> int: ...
    def advance(self) -> list[int | None]: ...
    def replace(self, text: int, ids: Sequence[int]) -> None: ...
    def end(self, text: int) -> None: ...
    @property
    def pages_left(self) -> int: ...

@final
class _EngineStream:
    """Lines on their way through an engine; numbers are counted from 1."""

    def __new__(cls, engine: _Engine, beam: int, form: str) -> _EngineStream: ...
    def push(self, bytes: bytes | None) -> None: ...
    def run(self) -> tuple[int, bytes, list[tuple[int, str]]]: ...

_Memory: TypeAlias = tuple[_Address, int]
_FourParts: TypeAlias = tuple[_Memory, _Memory, _Memory, _Memory]
_Place: TypeAlias = tuple[int, int]
_Rows: TypeAlias = tuple[int, int, int]

def _cuda_scratch(format: Format, rows: int, k: int) -> tuple[int, bool]: ...
def _cuda_encode(
    format: Format,
    on: _Place,
    shape: _Rows,
    x: _Memory,
    out: _FourParts,
    scratch: _Memory,
    rule: str,
    nonfinite: str,
    given: bool,
    first: int,
) -> None: ...
def _cuda_decode(format: Format, on: _Place, shape: _Rows, encoded: _FourParts, out: _Memory) -> None: ...
def _cuda_quantize(
    format: Format,
    on: _Place,
    shape: _Rows,
    x: _Memory,
    out: _Memory,
    given: _FourParts | None,
    scratch: _Memory,
    rule: str,
) -> None: ...
def _cuda_quantize_backward(
    format: Format,
    on: _Place,
    shape: _Rows,
    grad: _Memory,
    x: _Memory,
    out: _Memory,
    given: _FourParts | None,
    scratch: _Memory,
    rule: str,
    scale_grad: _Memory,
) -> None: ...
