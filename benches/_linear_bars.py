"""What products with packed weights have to be held against, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FORMATS = (
    "mxint8 int8:g32 int8:channel e4m3 e5m2 mxfp8e4m3 mxfp8e5m2 mxint6 mxfp6e2m3 mxfp6e3m2 int4:g32 uint4:g32 mxint4 "
    "mxfp4 nvfp4 nf4 int3:g32 int2:g32 ternary:channel int4:channel"
)
BYTES = "mxint8 int8:g32 int8:channel"
MINIFLOATS = "e4m3 e5m2 mxfp8e4m3 mxfp8e5m2"
NIBBLES = "int4:g32 uint4:g32 mxint4 mxfp4 nf4"
READ = "read"
"""Peer: reading the bytes of the weight at the bandwidth of the machine."""
ONE_ROW = "batch 1"
"""Peer: the same product with one row of inputs, in the same run."""
MOST_OF_READ = 0.85
"""Share of the read bandwidth above which ggml leaves nothing to win: a bar against it is then 1."""


@dataclass(frozen=True)
class Bar:
    """A promise: how many times faster than ``peer`` the products of ``formats`` are at a batch, at least.

    ``inputs``: what inputs are rounded to, the dtype of their tensors, or nothing. ``level``: holds at this SIMD level,
    to which torch is limited as well; else at the highest.
    """

    batch: int
    formats: str
    inputs: str
    peer: str
    least: float
    level: str = ""

    @property
    def rows(self) -> list[str]:
        """Names of the products."""
        return [f"{text} x {self.inputs}" if self.inputs else text for text in self.formats.split()]

    def __str__(self) -> str:
        """Say the promise."""
        level = f"{self.level}, " if self.level else ""
        inputs = f" x {self.inputs}" if self.inputs else ""
        return f"{level}batch {self.batch}, {self.formats}{inputs}: {self.least:.3g}x {self.peer}"


def _bars() -> Iterator[Bar]:
    for peer, formats in {
        "ggml q8_0": "mxint8 int8:g32",
        "ggml q6_K": "mxint6 mxfp6e2m3 mxfp6e3m2",
        "ggml q4_0": "int4:g32 mxint4 nf4",
        "ggml q4_1": "uint4:g32",
        "ggml mxfp4": "mxfp4",
        "ggml nvfp4": "nvfp4",
    }.items():
        yield Bar(1, formats, "int8:g32", peer, 1.1)
        yield Bar(1, formats, "", peer, 0.9)
        yield Bar(4, formats, "int8:g32", peer, 1.0)
    yield Bar(1, BYTES, "", READ, 0.85)
    yield Bar(1, NIBBLES, "", READ, 0.75)
    yield Bar(4, BYTES, "", ONE_ROW, 1 / 1.3)
    for level in ("", "avx2"):
        yield Bar(1, MINIFLOATS, "", READ, 0.85, level)
        for batch in (1, 2, 4, 8):
            yield Bar(batch, MINIFLOATS, "", "bfloat16", 1.0, level)
    for batch in (32, 128, 1024):
        yield Bar(batch, FORMATS, "bfloat16", "bfloat16", 1.0)
        yield Bar(batch, FORMATS, "bf16", "bfloat16", 1.0)
        yield Bar(batch, FORMATS, "int8:g32", "bfloat16", 1.0)
        yield Bar(batch, "int8:channel", "int8:channel", "bfloat16", 1 / 0.7)
        yield Bar(batch, FORMATS, "", "float32", 1 / 0.6)
        yield Bar(batch, "int8:channel", "int8:channel", "float32", 1 / 0.7, "avx2")


BARS = tuple(_bars())


def judge(results: list[dict], level: str) -> list[dict[str, object]]:
    """Hold ratios against the bars of a SIMD level (empty: the highest); those without a product are left out."""
    verdicts: list[dict[str, object]] = []
    at_memory: dict[tuple[int, str], bool] = {}
    for r in results:  # ggml's rows: TYPE, MEMORY
        peer = (r["batch"], r["row"].partition(",")[0])
        at_memory[peer] = at_memory.get(peer, False) or r["over"][READ] > MOST_OF_READ
    measured = {(r["batch"], r["row"]): r["over"] for r in results}
    for bar in BARS:
        ratios = {row: measured.get((bar.batch, row), {}).get(bar.peer) for row in bar.rows}
        held = {row: ratio for row, ratio in ratios.items() if ratio is not None}
        if bar.level != level or not held:
            continue
        misses = {}
        for row, ratio in held.items():
            least = min(bar.least, 1.0) if at_memory.get((bar.batch, bar.peer)) else bar.least
            if ratio < least:
                misses[row] = ratio
        verdicts.append({"bar": str(bar), "ratios": held, "misses": misses, "verdict": "miss" if misses else "met"})
    return verdicts
