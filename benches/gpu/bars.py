"""What kernels must reach, as ratios to figures of the same run, and the verdict. Nothing here needs a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]
Range = tuple[float, float]
ANY: Range = (float("-inf"), float("inf"))
MB, MI = 10**6, 2**20
PASS, MISS, NOT_MEASURED = "pass", "miss", "not measured"
LAUNCH_US = 3.0
"""What a small decode may take beyond the time that its bytes need."""


@dataclass(frozen=True)
class Bar:
    """A promise about ``ratio`` of all figures of ``kernel`` that match: at least, or at most, ``bound``.

    ``where``: values that fields have (a tuple: one of them); ``within``: ranges of numbers. ``stretch``: what would be
    better still. A figure that is not ``correct`` misses, whatever its ratio.
    """

    name: str
    kernel: str
    ratio: str
    bound: float
    stretch: float | None = None
    at_least: bool = True
    where: tuple[tuple[str, Any], ...] = ()
    within: tuple[tuple[str, float, float], ...] = ()

    def matches(self, figure: Figure) -> bool:
        """Tell whether the promise is about a figure."""
        if figure.get("kernel") != self.kernel or self.ratio not in figure:
            return False
        for field, wanted in self.where:
            if figure.get(field) not in (wanted if isinstance(wanted, tuple) else (wanted,)):
                return False
        return all(field in figure and low <= figure[field] <= high for field, low, high in self.within)

    def kept(self, ratio: float | None, bound: float | None) -> bool:
        """Tell whether a ratio is on the right side; a missing one, and a NaN, is not."""
        if ratio is None or bound is None:
            return False
        return ratio >= bound if self.at_least else ratio <= bound


BLOCKS = (8, 16, 32, 64, 128, 256, 512)
WIDE = ("mxint4", "mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4", "mxint6")
EIGHT = ("mxint8", "int8:channel")
FOUR = ("mxint4", "mxint4/128", "int4:g32", "int4:g128")
INF = float("inf")
_SQUARE = (("m", (4096, 8192)), ("n", (4096, 8192)), ("k", (4096, 8192)))

BARS = (
    Bar("decode MXINT8, input >= 64 MB, blocks 8..512, of COPY", "decode", "of_copy", 0.92, 0.96,
        where=(("family", "mxint8"),), within=(("input_bytes", 64 * MB, INF),)),
    Bar(f"decode MXINT8, input 1..64 MB, time over 1.15 bytes/COPY + {LAUNCH_US:g} us", "decode", "of_allowance", 1.0,
        at_least=False, where=(("family", "mxint8"),), within=(("input_bytes", MB, 64 * MB),)),
    Bar("decode MXINT8 against mase-cuda, input >= 16 MB", "decode", "over_mase", 2.5,
        within=(("input_bytes", 16 * MB, INF),)),
    Bar("decode MXINT8 against mase-cuda where it takes several launches", "decode", "over_mase", 5.0,
        where=(("mase_chunks", True),)),
    Bar("decode MXINT8, all pairs of codes and scales", "decode all pairs", "equal", 1.0),
    Bar("decode other MX formats to bf16, >= 64 M elements, of COPY", "decode", "of_copy", 0.90, 0.95,
        where=(("family", WIDE), ("dtype", "bfloat16")), within=(("elements", 64 * MI, INF),)),
    Bar("encode bf16 and f32 to MX formats, >= 64 M elements, of COPY", "encode", "of_copy", 0.88, 0.94,
        within=(("elements", 64 * MI, INF),)),
    Bar("int8 GEMM to int32, 4096^3 and 8192^3, of MM", "int8_gemm", "of_mm", 0.90, 1.00, where=_SQUARE),
    Bar("int8 GEMM + bias + requantize, 4096^3, over MM + compiled torch", "int8_gemm requantized", "over_torch", 1.25,
        1.5, where=(("m", 4096),)),
    Bar("int8 GEMM, M <= 16 or odd K or N, over pad + MM + slice", "int8_gemm odd", "over_padded", 1.0, 2.0),
    Bar("int8 GEMM, wrong K, dtype, device, bias: typed errors", "int8_gemm refusals", "refused", 1.0),
    Bar("W8A16 linear, M <= 8, 4096^2, over LIN", "packed_linear", "over_lin", 1.6, 1.8,
        where=(("format", EIGHT), ("n", 4096), ("k", 4096)), within=(("m", 1, 8),)),
    Bar("W8A16 linear, M <= 8, from 8192^2 up, over LIN", "packed_linear", "over_lin", 1.75, 1.9,
        where=(("format", EIGHT),), within=(("m", 1, 8), ("weights", 8192**2, INF))),
    Bar("W8A16 linear, M = 1, weights >= 64 MB, of READ", "packed_linear", "of_read", 0.85, 0.92,
        where=(("format", EIGHT), ("m", 1)), within=(("weight_bytes", 64 * MB, INF),)),
    Bar("W4A16 linear, M <= 8, from 8192^2 up, over LIN", "packed_linear", "over_lin", 2.8, 3.3,
        where=(("format", FOUR),), within=(("m", 1, 8), ("weights", 8192**2, INF))),
    Bar("W8A16 linear, M = 16..64, 8192^2, time over its M = 1", "packed_linear", "of_one_row", 1.25, at_least=False,
        where=(("format", EIGHT), ("n", 8192), ("k", 8192)), within=(("m", 16, 64),)),
    Bar("host cost of an op, over torch.add", "host", "of_add", 2.0, 1.25, at_least=False),
    Bar("every op captured in a CUDA graph: bits of eager mode", "capture", "equal", 1.0),
    Bar("seq2seq on the GPU, batch >= 8192, samples/s over COPY / 1.5 MB", "seq2seq", "of_copy_rate", 1.0, 2.0,
        within=(("batch", 8192, INF),)),
    Bar("seq2seq on the GPU, batch 1, milliseconds", "seq2seq", "ms", 0.5, 0.2, at_least=False, where=(("batch", 1),)),
)  # fmt: skip
"""The promises. The last is the one that is no ratio."""


def judge(figures: Iterable[Figure], bars: Iterable[Bar] = BARS) -> list[dict[str, Any]]:
    """Return a verdict a bar: ``pass``, ``miss`` with the figures that missed, or ``not measured``."""
    figures, verdicts = list(figures), []
    for bar in bars:
        held = [figure for figure in figures if bar.matches(figure)]
        missed = [f for f in held if not f.get("correct", False) or not bar.kept(f[bar.ratio], bar.bound)]
        ratios = [f[bar.ratio] for f in held if f[bar.ratio] is not None]
        worst = (min if bar.at_least else max)(ratios, default=None)
        verdicts.append({
            "bar": f"{bar.name} {'>=' if bar.at_least else '<='} {bar.bound:g}",
            "verdict": NOT_MEASURED if not held else MISS if missed else PASS,
            "figures": len(held),
            "worst": worst,
            "stretch": bar.stretch,
            "stretch_reached": None if bar.stretch is None or not held else
            not missed and all(bar.kept(f[bar.ratio], bar.stretch) for f in held),
            "misses": [label(figure) + ("" if figure.get("correct") else " (wrong)") for figure in missed],
        })  # fmt: skip
    return verdicts


def label(figure: Figure) -> str:
    """Return in a few words what a figure is of."""
    names = ("format", "block", "dtype", "op", "elements", "m", "n", "k", "case")
    return " ".join([figure["kernel"], *(f"{name}={figure[name]}" for name in names if name in figure)])


# --- ratios ---------------------------------------------------------------------------------------------------------


def of_rate(nbytes: int, us: float, bytes_per_s: float) -> float:
    """Return bytes a second as a share of a yardstick's."""
    return nbytes / (us * 1e-6) / bytes_per_s


def of_allowance(nbytes: int, us: float, copy_bytes_per_s: float) -> float:
    """Return time as a share of what a small decode may take: 1.15 times its bytes at COPY, and a launch."""
    return us / (1.15 * nbytes / copy_bytes_per_s * 1e6 + LAUNCH_US)


def add_one_row(figures: Iterable[Figure]) -> None:
    """Give each product its time over that of one row with the same weights, ``of_one_row``."""

    def key(figure: Figure) -> tuple[Any, ...]:
        return figure["format"], figure["n"], figure["k"]

    products = [figure for figure in figures if figure["kernel"] == "packed_linear"]
    ones = {key(figure): figure["us"] for figure in products if figure["m"] == 1}
    for figure in products:
        if key(figure) in ones and figure["us"] is not None:
            figure["of_one_row"] = figure["us"] / ones[key(figure)]
