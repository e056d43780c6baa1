"""decode and encode on a GPU: checked against the CPU's bits, then timed, beside mase-cuda where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import octavo
import torch
from octavo import PackedTensor
from torch import Tensor

from gpu.bars import BLOCKS, MI, Figure, of_allowance, of_rate
from gpu.timing import DEVICE, microseconds, rotation, same_bits

# The cases that mase-cuda publishes: elements, and sizes of groups.
SIZES = (1024, 512 * 4096, 4096 * 4096, 4096 * 14336, 8192 * 28672)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OTHERS = ("mxint6", "mxint4", "mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4")
LARGE = 64 * MI
"""Elements of what is held against COPY."""
COLUMNS = 4096
CHUNK = 8 * 65_535
"""Groups past which mase-cuda decodes in chunks and concatenates them: eight a block, and the most blocks of a grid."""


def random_packed(elements: int, format: str, seed: int = 0) -> PackedTensor:
    """Return packed random values on the GPU, in rows of up to COLUMNS."""
    columns = min(elements, COLUMNS)
    generator = torch.Generator(DEVICE).manual_seed(seed)
    x = torch.randn(elements // columns, columns, generator=generator, device=DEVICE)
    return octavo.encode(x, format)


def on_cpu(packed: PackedTensor) -> PackedTensor:
    """Return the same parts on the CPU."""
    return packed.to(device="cpu")


def copied(packed: PackedTensor) -> PackedTensor:
    """Return the same parts elsewhere in memory."""
    parts = (part.clone() for part in packed.parts)
    return PackedTensor(packed.format, *parts, shape=packed.shape, dtype=packed.dtype, axis=packed.axis)


def decoded_poison(packed: PackedTensor, dtype: torch.dtype) -> Tensor:
    """Decode into poisoned memory."""
    out = torch.empty(packed.shape, dtype=dtype, device=packed.device)
    out.view(torch.uint8).fill_(0xA5)
    return octavo.decode(packed, out=out)


def all_pairs() -> Iterator[Figure]:
    """Decode all 65,536 pairs of code and scale and compare with the formula: ``m * 2^(e - 133)``, scale 255 a NaN.

    What a dtype cannot hold becomes its largest value (FORMATS.md, section 6).
    """
    for block in BLOCKS:
        codes = torch.arange(256, dtype=torch.uint8).repeat(256, max(1, block // 256))
        codes = codes.view(256, -1)[:, : max(256, block)].contiguous()
        scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, codes.shape[1] // block).contiguous()
        none = (torch.empty(0, dtype=torch.uint8), torch.empty(0))
        format = octavo.Format(f"mxint8/{block}")
        packed = PackedTensor(format, codes, scales, *none, shape=tuple(codes.shape), dtype=torch.float32)
        exact = codes.view(torch.int8).double() * torch.exp2(torch.arange(256).double()[:, None] - 133)
        exact[255] = float("nan")
        for dtype in DTYPES:
            most = torch.finfo(dtype).max
            right = same_bits(decoded_poison(packed.to(device=DEVICE), dtype).cpu(), exact.clamp(-most, most).to(dtype))
            yield {"kernel": "decode all pairs", "format": "mxint8", "block": block, "dtype": str(dtype)[6:],
                   "equal": float(right), "correct": right}  # fmt: skip


def decode(elements: int, family: str, block: int | None, dtype: torch.dtype, copy: float) -> Figure:
    """Check and time one decode."""
    format = family if block is None else f"{family}/{block}"
    packed = random_packed(elements, format)
    right = same_bits(decoded_poison(packed, dtype), octavo.decode(on_cpu(packed), dtype=dtype))
    nbytes = packed.nbytes + elements * dtype.itemsize
    turns = [(packed if not turn else copied(packed), torch.empty(packed.shape, dtype=dtype, device=DEVICE))
             for turn in range(rotation(nbytes))]  # fmt: skip
    us = microseconds([lambda p=p, o=o: octavo.decode(p, out=o) for p, o in turns])
    figure: Figure = {
        "kernel": "decode", "family": family, "format": format, "block": block, "dtype": str(dtype)[6:],
        "elements": elements, "input_bytes": packed.nbytes, "bytes": nbytes, "us": us, "correct": right,
        "of_copy": of_rate(nbytes, us, copy), "of_allowance": of_allowance(nbytes, us, copy),
    }  # fmt: skip
    rival = mase()
    if rival and family == "mxint8" and block and dtype == torch.bfloat16:
        parts = [(p.parts[0].flatten(), p.parts[1].flatten()) for p, _ in turns]
        theirs = microseconds([lambda c=c, s=s: rival(c, s, block) for c, s in parts])
        figure |= {"mase_us": theirs, "over_mase": theirs / us, "mase_chunks": elements // block > CHUNK}
    return figure


def encode(elements: int, format: str, dtype: torch.dtype, copy: float) -> Figure:
    """Check and time one encode; values that are not finite are no error, so that a graph can hold it."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    x = torch.randn(elements // COLUMNS, COLUMNS, generator=generator, device=DEVICE).to(dtype)
    first = octavo.encode(x, format, nonfinite="saturate")
    wanted = octavo.encode(x.cpu(), format, nonfinite="saturate")
    for part in first.parts:
        part.view(torch.uint8).fill_(0xA5)
    octavo.encode(x, format, nonfinite="saturate", out=first)
    right = all(same_bits(ours.cpu(), theirs) for ours, theirs in zip(first.parts, wanted.parts, strict=True))
    nbytes = first.nbytes + x.numel() * dtype.itemsize
    turns = [(x.clone(), copied(first)) for _ in range(rotation(nbytes))]
    us = microseconds([lambda x=x, p=p: octavo.encode(x, format, nonfinite="saturate", out=p) for x, p in turns])
    return {"kernel": "encode", "format": format, "dtype": str(dtype)[6:], "elements": elements, "bytes": nbytes,
            "us": us, "correct": right, "of_copy": of_rate(nbytes, us, copy)}  # fmt: skip


def mase() -> Callable[[Tensor, Tensor, int], Tensor] | None:
    """Return mase-cuda's decoder; None where it is not installed."""
    try:
        from mase_cuda.mxint8.dequantize import dequantize1d
    except (ImportError, OSError):
        return None
    return dequantize1d


def run(copy: float) -> Iterator[Callable[[], Figure]]:
    """Yield what is measured, in order."""
    for elements in SIZES:
        for block in BLOCKS:
            yield lambda e=elements, b=block: decode(e, "mxint8", b, torch.bfloat16, copy)
    for block in BLOCKS:
        for dtype in DTYPES:
            yield lambda b=block, d=dtype: decode(LARGE, "mxint8", b, d, copy)
    for family in OTHERS:
        for dtype in DTYPES:
            yield lambda f=family, d=dtype: decode(LARGE, f, None, d, copy)
    for format in ("mxint8", *OTHERS):
        for dtype in DTYPES[::2]:
            yield lambda f=format, d=dtype: encode(LARGE, f, d, copy)
