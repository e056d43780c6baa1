"""The bench of attention: what a prompt and a decoded token cost by kind of attention and length of the context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.errors import ContractError, SettingError
from octavo.lab.language.gpt.attention_masks import causal_product, step_product
from octavo.lab.language.gpt.latent_attention import LatentAttention, LatentMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.paged_attention import paged_attention
from octavo.lab.language.gpt.paged_cache import PagedCache
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.studies.attention_speed import DTYPES, peak
from octavo.lab.studies.kernel_profile import dominant_kernel
from octavo.lab.studies.stopwatch import machine, timed
from octavo.lab.studies.training_costs import allocated
from octavo.search.journal import Journal

KINDS = ("mha", "gqa", "mla", "mla_absorbed", "paged", "gqa_pages", "mla_pages")
PHASES = ("prompt", "decode")
AGREE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest difference of two forms of one attention, of the largest value: sums in another order."""
READ_BYTES = 1 << 26  # past the caches of processors, as the cache of a long context is


@dataclass(frozen=True)
class AttentionCosts:
    """The bench: attention from given queries to mixed heads, without the projections that all kinds share.

    ``kinds``: ``mha``, a key and a value for each of ``heads``; ``gqa``, for each of ``kv_heads``; ``mla``, latents of
    ``rank`` and a turned key of ``rotary`` in the cache, widened to keys and values of all heads; ``mla_absorbed``, the
    same without widening; ``paged``, those of ``mha`` gathered from pages of ``page`` positions; ``gqa_pages`` and
    ``mla_pages``, tokens of ``gqa`` and ``mla_absorbed`` that attend to pages where they lie, on a GPU by a kernel.
    ``contexts``: positions of the prompt, and those in the cache when a token is decoded. ``runs``: timings of each.
    ``profile``: name the dominant kernel of each phase. Raises SettingError for values that are not accepted.
    """

    contexts: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    kinds: tuple[str, ...] = KINDS
    phases: tuple[str, ...] = PHASES
    heads: int = 12
    head_size: int = 64
    kv_heads: int = 3
    rank: int = 128
    rotary: int = 32
    page: int = 64
    batch: int = 1
    dtype: str = "float32"
    runs: int = 5
    profile: bool = False

    def __post_init__(self) -> None:
        """Check names and numbers before anything is made."""
        for name, accepted in (("kinds", KINDS), ("phases", PHASES)):
            if not getattr(self, name):
                raise SettingError(f"--{name} is empty; accepted are {', '.join(accepted)}")
            for word in getattr(self, name):
                if word not in accepted:
                    raise SettingError(f"--{name}: {word!r}; accepted are {', '.join(accepted)}")
        if self.dtype not in DTYPES:
            raise SettingError(f"unknown dtype {self.dtype!r}; accepted are {', '.join(DTYPES)}")
        counts = ("heads", "head_size", "kv_heads", "rank", "rotary", "page", "batch", "runs")
        for name, value in (*(("contexts", n) for n in self.contexts), *((n, getattr(self, n)) for n in counts)):
            if value < 1:
                raise SettingError(f"--{name.replace('_', '-')} is {value}; accepted are whole numbers of at least 1")
        if not self.contexts:
            raise SettingError("--contexts is empty; accepted: one length, at least")
        if self.heads % self.kv_heads:
            raise SettingError(f"--kv-heads is {self.kv_heads}; accepted are divisors of --heads, {self.heads}")
        if self.rotary % 2:
            raise SettingError(f"--rotary is {self.rotary}; accepted are even numbers: values turn in pairs")

    def run(self, journal: Journal, device: torch.device, tell: Callable[..., None]) -> list[dict[str, Any]]:
        """Return a row for each kind and context: medians over the runs, rates, bytes.

        Every run is a line of the journal. All points of a run are measured before the next run, and beside them how
        fast the device reads memory. Raises ContractError where two forms of one attention differ.
        """
        points = [(context, kind, phase) for context in sorted(set(self.contexts)) for kind in self.kinds
                  for phase in self.phases]  # fmt: skip
        lines: list[dict[str, Any]] = []
        for number in range(self.runs):
            begin = number * len(points)
            lines.append(self._point(journal, device, number, 0, "read", "read"))
            for place, (context, kind, phase) in enumerate(points):
                tell(f"run {number + 1}: {kind}, {context:,}, {phase}", (begin + place) / len(points) / self.runs)
                lines.append(self._point(journal, device, number, context, kind, phase))
        rows = self._rows(lines)
        for row in rows if self.profile else ():
            for phase in self.phases:
                line = self._point(journal, device, 0, row["context"], row["kind"], phase, profile=True)
                row |= {f"{phase}_kernel": line["kernel"], f"{phase}_kernel_share": line["share"]}
        return rows

    def rates(self, journal: Journal, device: torch.device) -> list[dict[str, Any]]:
        """Return TFLOP/s and GB/s of every timing of :meth:`run`, by ``kind``, ``context``, ``phase`` and ``run``."""
        return [
            {
                "kind": kind, "context": context, "phase": phase, "run": number,
                "tflops": line["flops"] / line["seconds"] / 1e12, "gb_s": line["bytes"] / line["seconds"] / 1e9,
            }
            for kind in self.kinds
            for context in sorted(set(self.contexts))
            for phase in self.phases
            for number in range(self.runs)
            for line in [self._point(journal, device, number, context, kind, phase)]
        ]  # fmt: skip

    def _point(
        self, journal: Journal, device: torch.device, number: int, context: int, kind: str, phase: str,
        *, profile: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Return one line of the journal, measured where it is missing: a timing, or the dominant kernel."""
        many = ("contexts", "kinds", "phases", "runs", "profile")
        shape = {name: value for name, value in asdict(self).items() if name not in many}
        settings = {"study": "attention costs", "kind": kind, "context": context, "phase": phase, "run": number}
        settings |= {**shape, "machine": machine(device), **({"profile": True} if profile else {})}
        found = journal.find(settings, "row")
        if found is None:
            if profile:
                with torch.no_grad():
                    kernel, share = dominant_kernel(attentions(self, kind, context, phase, device)[kind], device)
                measured = {"kernel": kernel, "share": share}
            elif kind == "read":
                measured = self._read(device)
            else:
                measured = self._measure(kind, context, phase, device, number)
            found = journal.add(settings, row={"kind": kind, "context": context, "phase": phase, **measured})
        row: dict[str, Any] = found["row"]
        return row

    def _read(self, device: torch.device) -> dict[str, Any]:
        data = torch.ones(READ_BYTES // 4, device=device)
        return {"seconds": timed(data.sum, device), "bytes": data.nbytes}

    @torch.no_grad()
    def _measure(self, kind: str, context: int, phase: str, device: torch.device, number: int) -> dict[str, Any]:
        calls = attentions(self, kind, context, phase, device)
        chosen = calls[kind]
        facts: dict[str, Any] = {"flops": self.flops(kind, context, phase), "bytes": self.nbytes(kind, context, phase)}
        if number == 0:
            if phase == "decode":
                _check(calls, DTYPES[self.dtype], context)
            facts["peak_bytes"] = peak(chosen, device) if device.type == "cuda" else allocated(chosen)
        return {"seconds": timed(chosen, device), **facts}

    def cached_values(self, kind: str) -> int:
        """Return the numbers that a cache of this kind holds a position."""
        if kind.startswith("mla"):
            return self.rank + self.rotary
        return 2 * (self.kv_heads if kind.startswith("gqa") else self.heads) * self.head_size

    def cache_bytes(self, kind: str, context: int) -> int:
        """Return the bytes of the caches of all sequences; of pages the last one's free rows, too."""
        rows = -(-context // self.page) * self.page if kind.startswith("paged") or kind.endswith("pages") else context
        return self.batch * rows * self.cached_values(kind) * DTYPES[self.dtype].itemsize

    def flops(self, kind: str, context: int, phase: str) -> int:
        """Return the floating point operations that the mathematics needs: two a product, half of the pairs where
        positions see earlier ones alone."""
        queries = context if phase == "prompt" else 1
        pairs = self.batch * self.heads * (context * (context + 1) // 2 if phase == "prompt" else context)
        size, rank, rotary = self.head_size, self.rank, self.rotary
        if kind == "mla" or (kind == "mla_pages" and phase == "prompt"):
            return 2 * (size + rotary + size) * pairs + 4 * self.batch * context * rank * self.heads * size
        if kind.startswith("mla"):
            return 2 * (rank + rotary + rank) * pairs + 4 * self.batch * queries * rank * self.heads * size
        return 4 * size * pairs

    def nbytes(self, kind: str, context: int, phase: str) -> int:
        """Return the bytes that must be moved: of the cache, read once; of a prompt queries and results, too."""
        held = self.batch * context * self.cached_values(kind) * DTYPES[self.dtype].itemsize
        if phase == "decode":
            return held
        query = self.head_size + (self.rotary if kind.startswith("mla") else 0)
        rows = self.batch * context * self.heads * (query + self.head_size)
        return held + rows * DTYPES[self.dtype].itemsize

    def _rows(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        read = median(line["bytes"] / line["seconds"] for line in lines if line["kind"] == "read")
        rows = []
        for kind in self.kinds:
            for context in sorted(set(self.contexts)):
                row: dict[str, Any] = {"kind": kind, "context": context, "cache_bytes": self.cache_bytes(kind, context)}
                for phase in self.phases:
                    found = [one for one in lines if (one["kind"], one["context"], one["phase"])
                             == (kind, context, phase)]  # fmt: skip
                    seconds = median(one["seconds"] for one in found)
                    row |= {
                        f"{phase}_s": seconds,
                        f"{phase}_tflops": found[0]["flops"] / seconds / 1e12,
                        f"{phase}_gb_s": found[0]["bytes"] / seconds / 1e9,
                        f"{phase}_peak_bytes": found[0]["peak_bytes"],
                    }
                rows.append(row | {"read_gb_s": read / 1e9})
        return rows


def attentions(
    costs: AttentionCosts, kind: str, context: int, phase: str, device: torch.device
) -> Mapping[str, Callable[[], Tensor]]:
    """Return the attention of a kind as a function, and beside it another form of the same where there is one."""
    dtype = DTYPES[costs.dtype]
    generator = torch.Generator().manual_seed(context)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    batch, heads, size = costs.batch, costs.heads, costs.head_size
    queries = context if phase == "prompt" else 1
    query = drawn(batch, heads, queries, size)
    around = MixingContext(torch.arange(context, device=device))
    if kind.startswith("mla"):
        turned, cached = drawn(batch, heads, queries, costs.rotary), drawn(batch, context, costs.rank + costs.rotary)
        mixer, is_prompt = _latent(costs, device), phase == "prompt"
        calls = {
            "mla": lambda: mixer.naive(query, turned, cached, around if is_prompt else None),
            "mla_absorbed": lambda: mixer.absorbed(query, turned, cached, None, causal=is_prompt),
        }
        if kind == "mla_pages":
            pages = _FilledPages(costs, cached[:, None], costs.rank)
            in_place = partial(mixer.absorbed_into, query, turned, partial(pages.attend, scale=mixer.scale))
            calls["mla_pages"] = pages.before(calls["mla"]) if is_prompt else in_place
        return calls
    kv_heads = costs.kv_heads if kind.startswith("gqa") else heads
    key, value = drawn(batch, kv_heads, context, size), drawn(batch, kv_heads, context, size)

    def whole() -> Tensor:
        if phase == "prompt":
            return causal_product(query, key, value, around, window=None)
        return step_product(query, key, value, None)

    def explicit() -> Tensor:
        every_key, every_value = (part.repeat_interleave(heads // kv_heads, 1) for part in (key, value))
        return scaled_dot_product_attention(query, every_key, every_value, is_causal=phase == "prompt")

    if kind not in ("paged", "gqa_pages"):
        return {kind: whole} | ({"explicit": explicit} if kind == "gqa" else {})
    pages = _FilledPages(costs, key, value)
    if phase == "prompt":
        return {"whole": whole, kind: pages.before(whole)}
    gathered = lambda: step_product(query, *pages.cache.rows(pages.sequences, 0), None)  # noqa: E731
    return {"whole": whole, kind: gathered if kind == "paged" else partial(pages.attend, query, scale=size**-0.5)}


def _latent(costs: AttentionCosts, device: torch.device) -> LatentMixer:
    config = LatentAttention(heads=costs.heads, head_size=costs.head_size, rank=costs.rank, rotary_size=costs.rotary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = LatentMixer(config, costs.heads * costs.head_size)
        initialize(mixer, "torch")
    return mixer.to(device, DTYPES[costs.dtype])


class _FilledPages:
    """Keys and values of a batch in pages; ``value`` may be the count of first numbers of a key that are its value."""

    def __init__(self, costs: AttentionCosts, key: Tensor, value: Tensor | int) -> None:
        batch, heads, context, size = key.shape
        pages, columns = -(-context // costs.page), value if isinstance(value, int) else 0
        self.key, self.value = key, [None] * batch if isinstance(value, int) else value
        self.cache = PagedCache(
            [(heads, size, columns)], batch * pages, page=costs.page, dtype=key.dtype, device=key.device
        )
        self.sequences = [self.cache.join() for _ in range(batch)]
        for position in range(0, context, costs.page):  # in turns, so that no sequence has pages side by side
            for sequence in self.sequences:
                self.cache.grow(sequence, min(costs.page, context - position))
        self.tables = self.cache.tables(self.sequences)
        self.store()

    def store(self) -> None:
        """Write all rows."""
        for sequence, own_key, own_value in zip(self.sequences, self.key, self.value, strict=True):
            self.cache.write(sequence, 0, 0, own_key, own_value)

    def before(self, prompt: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a prompt's attention that writes all rows first."""

        def stored() -> Tensor:
            self.store()
            return prompt()

        return stored

    def attend(self, query_BH1d: Tensor, *, scale: float) -> Tensor:
        """Return attention to all rows, where they lie: ``[B, H, 1, v]``."""
        return paged_attention(query_BH1d[:, :, 0], *self.cache.pages(0), *self.tables, scale=scale)[:, :, None]


def _check(calls: Mapping[str, Callable[[], Tensor]], dtype: torch.dtype, context: int) -> None:
    """Refuse forms of one attention that give other results."""
    results = {name: call().float() for name, call in calls.items()}
    (first, wanted), *others = results.items()
    for name, found in others:
        off = float((found - wanted).abs().max() / wanted.abs().max())
        if not off <= AGREE[dtype]:
            raise ContractError(f"{name} differs from {first} by {off:.2g} of the largest value at context {context}")
