"""The study of attention: naive against torch's fused one; time, memory and difference by length and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.errors import SettingError
from octavo.lab.studies.kernel_profile import dominant_kernel
from octavo.lab.studies.stopwatch import in_turn, machine, wait
from octavo.search.journal import Journal

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Attention:
    """The study: ``softmax(Q K^T / sqrt(d)) V`` and torch's ``scaled_dot_product_attention`` on the same numbers.

    Q, K and V are ``[batch, heads, length, width]``, normally distributed. ``causal``: no token sees a later one.
    ``rounds``: timings of each. ``profile``: name the dominant kernel of both. Raises SettingError for values that are
    not accepted.
    """

    lengths: tuple[int, ...] = (128, 512, 2048)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    batch: int = 1
    heads: int = 8
    width: int = 64
    causal: bool = False
    rounds: int = 7
    profile: bool = False

    def __post_init__(self) -> None:
        """Check names and numbers before anything is made."""
        if not self.lengths or not self.dtypes:
            raise SettingError("lengths and dtypes; accepted: one of each, at least")
        for name, value in (*(("lengths", n) for n in self.lengths), *((n, getattr(self, n)) for n in _COUNTS)):
            if value < 1:
                raise SettingError(f"--{name} is {value}; accepted are whole numbers of at least 1")
        for name in self.dtypes:
            if name not in DTYPES:
                raise SettingError(f"unknown dtype {name!r}; accepted are {', '.join(DTYPES)}")

    def run(self, journal: Journal, device: torch.device, tell: Callable[..., None]) -> list[dict[str, Any]]:
        """Return a row for each dtype and length: seconds, bytes (None on the CPU) and the largest difference."""
        rows = []
        points = [(dtype, length) for dtype in self.dtypes for length in sorted(set(self.lengths))]
        for position, (dtype, length) in enumerate(points):
            tell(f"{dtype}, {length} tokens", position / len(points))
            given = {name: value for name, value in asdict(self).items() if name not in _MANY}
            settings = {"study": "attention", "dtype": dtype, "length": length, **given, "machine": machine(device)}
            found = journal.find(settings, "row")
            if found is None:
                measured = self._measure(DTYPES[dtype], length, device)
                found = journal.add(settings, row={"dtype": dtype, "length": length, **measured})
            row = dict(found["row"])
            if self.profile:
                settings["profile"] = True
                kernels = journal.find(settings, "row")
                if kernels is None:
                    kernels = journal.add(settings, row=self._kernels(DTYPES[dtype], length, device))
                row |= kernels["row"]
            rows.append(row)
        return rows

    def _calls(self, dtype: torch.dtype, length: int, device: torch.device) -> dict[str, Callable[[], Tensor]]:
        generator = torch.Generator().manual_seed(0)
        shape = (3, self.batch, self.heads, length, self.width)
        query, key, value = torch.randn(shape, generator=generator).to(device, dtype)
        return {
            "naive": lambda: naive(query, key, value, causal=self.causal),
            "sdpa": lambda: scaled_dot_product_attention(query, key, value, is_causal=self.causal),
        }

    @torch.no_grad()
    def _kernels(self, dtype: torch.dtype, length: int, device: torch.device) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, call in self._calls(dtype, length, device).items():
            row[f"{name}_kernel"], row[f"{name}_kernel_share"] = dominant_kernel(call, device)
        return row

    @torch.no_grad()
    def _measure(self, dtype: torch.dtype, length: int, device: torch.device) -> dict[str, Any]:
        calls = self._calls(dtype, length, device)
        difference = (calls["naive"]().float() - calls["sdpa"]().float()).abs().max().item()
        peaks = {f"{name}_peak_bytes": peak(call, device) for name, call in calls.items()}
        times = in_turn(calls, self.rounds, device)
        return {
            "naive_s": times["naive"],
            "sdpa_s": times["sdpa"],
            "speed_up": times["naive"] / times["sdpa"],
            **peaks,
            "score_bytes": self.batch * self.heads * length * length * dtype.itemsize,
            "largest_difference": difference,
        }


_MANY = ("lengths", "dtypes", "profile")  # of which a point is one, or a record of its own
_COUNTS = ("batch", "heads", "width", "rounds")


def naive(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False) -> Tensor:
    """Return ``softmax(Q K^T / sqrt(d)) V``, with all scores in memory at once; tensors are ``[..., T, d]``."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return torch.softmax(scores, -1) @ value


def peak(call: Callable[[], object], device: torch.device) -> int | None:
    """Return the most bytes that a call allocates on a GPU beyond its inputs; None on the CPU, which counts none."""
    if device.type != "cuda":
        return None
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before
