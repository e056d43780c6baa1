"""The study of decoding: latency and bandwidth by size and group on each device, and the size where a GPU wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import octavo
from octavo.errors import FormatError, SettingError
from octavo.lab.mase import mxint8_dequantize
from octavo.lab.studies.attention_speed import DTYPES
from octavo.lab.studies.stopwatch import machine, once
from octavo.search.journal import Journal
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

SIZES = tuple(1024 * 4**power for power in range(8))
GROUPS = (8, 32, 128, 512)
WARM_UP = 3  # calls that nobody counts


@dataclass(frozen=True)
class Dequantize:
    """The study: a flat tensor of each of ``sizes`` elements, in groups of each of ``groups``, decoded to ``dtype``.

    ``format``: its text, without a group where ``groups`` are given. No groups: those that the text names, or none.
    ``rounds``: single calls, each timed until its result is there; the median counts. Raises SettingError for values
    that are not accepted, FormatError for an unknown format.
    """

    format: str = "mxint8"
    sizes: tuple[int, ...] = SIZES
    groups: tuple[int, ...] = GROUPS
    dtype: str = "bfloat16"
    rounds: int = 30

    def __post_init__(self) -> None:
        """Check names and numbers before anything is made."""
        if not self.sizes:
            raise SettingError("--sizes is empty; accepted: one number of elements, at least")
        for name, value in (*(("sizes", n) for n in self.sizes), *(("groups", n) for n in self.groups),
                            ("rounds", self.rounds)):  # fmt: skip
            if value < 1:
                raise SettingError(f"--{name}: {value}; accepted are whole numbers of at least 1")
        if self.dtype not in DTYPES:
            raise SettingError(f"unknown dtype {self.dtype!r}; accepted are {', '.join(DTYPES)}")
        for group, format in self.formats().items():
            if not group:
                continue
            for size in self.sizes:
                if size % group:
                    raise SettingError(f"--sizes: {size} elements do not fill groups of {group} ({format})")

    def formats(self) -> dict[int, Format]:
        """Return the format of each group size; 0 for a format without groups."""
        if not self.groups:
            own = Format(self.format)
            return {own.block or 0: own}
        return {group: grouped(self.format, group) for group in sorted(set(self.groups))}

    def run(
        self, journal: Journal, devices: Mapping[str, torch.device], tell: Callable[..., None]
    ) -> list[dict[str, Any]]:
        """Return a row for each group and size, with seconds and GB/s of each device by its name.

        Bytes are those of codes and scales, read once, and of the values, written once. ``unlike_mase``: elements whose
        bits differ from mase-cuda's rule, for MXINT8 in bfloat16; else None.
        """
        formats, sizes = self.formats(), sorted(set(self.sizes))
        points = [(group, size, name) for group in formats for size in sizes for name in devices]
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for position, (group, size, name) in enumerate(points):
            tell(f"{formats[group]}, {size:,} elements, {name}", position / len(points))
            point = self._point(journal, formats[group], size, devices[name])
            row = rows.setdefault((group, size), {"format": str(formats[group]), "group": group, "elements": size})
            row |= {f"{name}_s": point["seconds"], f"{name}_gb_s": point["bytes"] / point["seconds"] / 1e9}
            counts = [count for count in (row.get("unlike_mase"), point["unlike_mase"]) if count is not None]
            row["unlike_mase"] = max(counts, default=None)
        return list(rows.values())

    def _point(self, journal: Journal, format: Format, size: int, device: torch.device) -> dict[str, Any]:
        own = {name: value for name, value in asdict(self).items() if name not in ("sizes", "groups", "format")}
        settings = {"study": "dequantize", "format": str(format), "elements": size, **own, "machine": machine(device)}
        record = journal.find(settings, "row")
        if record is None:
            record = journal.add(settings, row=self._measure(format, size, device))
        row: dict[str, Any] = record["row"]
        return row

    @torch.no_grad()
    def _measure(self, format: Format, size: int, device: torch.device) -> dict[str, Any]:
        dtype = DTYPES[self.dtype]
        values = torch.randn(size, generator=torch.Generator().manual_seed(0))
        packed = octavo.encode(values, format).to(device=device)
        out = torch.empty(size, dtype=dtype, device=device)
        decode = partial(octavo.decode, packed, out=out)
        for _ in range(WARM_UP):
            once(decode, device)
        seconds = median(once(decode, device) for _ in range(self.rounds))
        unlike = unlike_mase(packed, out) if format.family == "mxint" and format.width == 8 else None
        return {"seconds": seconds, "bytes": packed.nbytes + out.nbytes, "unlike_mase": unlike}


def grouped(text: str, group: int) -> Format:
    """Return a format with groups of ``group`` elements. Raises SettingError for one that has no such groups."""
    for candidate in (f"{text}/{group}", f"{text}:g{group}"):
        try:
            return Format(candidate)
        except FormatError:
            continue
    format = Format(text)
    if format.block == group:
        return format
    own = f"groups of {format.block}" if format.block else "no groups"
    raise SettingError(f"--groups: {group}; format {text!r} has {own}, and no text of it has groups of {group}; leave "
                       "--groups out")  # fmt: skip


def has_groups(text: str) -> bool:
    """Whether a format's text may be followed by the size of its groups, as ``mxint8`` and ``int4`` are.

    Raises FormatError for an unknown format.
    """
    try:
        grouped(text, GROUPS[-1])
    except SettingError:
        return False
    return True


def unlike_mase(packed: PackedTensor, values: Tensor) -> int | None:
    """Return how many bfloat16 values have other bits than mase-cuda's rule gives for the codes of an MXINT8 tensor."""
    if values.dtype != torch.bfloat16:
        return None
    group = packed.format.block or packed.shape[-1]
    rule = mxint8_dequantize(packed.codes.view(torch.int8).flatten(), packed.scales.flatten(), group)
    return int((rule.view(torch.int16) != values.view(torch.int16)).sum())


def crossing(sizes: Sequence[int], first: Sequence[float], second: Sequence[float]) -> tuple[int, float] | None:
    """Return from which size on ``second`` is the faster one at all larger sizes, and the estimated crossing point.

    ``first``, ``second``: seconds at ``sizes``, which ascend. The estimate is interpolated, logarithms of sizes against
    those of ratios; it is the smallest size where ``second`` always wins. None where ``first`` wins at the largest.
    """
    ratios = [math.log(a / b) for a, b in zip(first, second, strict=True)]  # above 0: second is faster
    wins = len(ratios)
    while wins and ratios[wins - 1] > 0:
        wins -= 1
    if wins == len(ratios):
        return None
    if wins == 0:
        return sizes[0], float(sizes[0])
    low, high = ratios[wins - 1], ratios[wins]
    share = -low / (high - low)
    return sizes[wins], math.exp(math.log(sizes[wins - 1]) * (1 - share) + math.log(sizes[wins]) * share)
