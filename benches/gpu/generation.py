"""Generation with the shipped model on a GPU, from ids to ids: kernels of our own, and those of libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from octavo.lab.polynomials.data import splits
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq.cuda_graphs import Generator
from octavo.lab.polynomials.seq2seq.folded import FoldedHybrid
from octavo.lab.polynomials.seq2seq.fused import FusedHybrid
from octavo.lab.polynomials.shipped import load_shipped

from gpu.bars import Figure
from gpu.timing import DEVICE, microseconds

BATCHES = (1, 16, 256, 4096, 15_360)
LEAST_ALIKE = 0.995
"""Share of answers that are those of the native engine in float32."""
SAMPLE_BYTES = 1.5e6
"""What a sample may cost, in bytes of a copy."""


def run(copy_bytes_per_s: float) -> Iterator[Callable[[], Figure]]:
    """Yield what is measured, in order."""
    model, tokenizer = load_shipped()
    device = torch.empty(0, device=DEVICE).device
    routes: dict[str, Generator] = {"seq2seq graph": FoldedHybrid(model, torch.bfloat16).to(device)}
    if FusedHybrid.takes(model.config, device):
        routes["seq2seq"] = FusedHybrid(model, device)
    lines = [line.partition("=")[0] for line in splits().test[: max(BATCHES)]]
    wanted, ids = Engine.load().expand(lines), torch.from_numpy(tokenizer.encode(lines, 32, end=False)[0])

    def measure(name: str, batch: int) -> Figure:
        source = ids[:batch].to(device)
        found = tokenizer.decode(routes[name].generate_fixed(source).cpu().numpy())
        alike = sum(one == other for one, other in zip(found, wanted, strict=False)) / batch
        us = microseconds([lambda: routes[name].generate_fixed(source)])
        rate = batch / us * 1e6
        return {"kernel": name, "case": f"batch {batch}", "batch": batch, "us": us, "ms": us / 1e3,
                "samples_per_s": rate, "of_copy_rate": rate * SAMPLE_BYTES / copy_bytes_per_s, "alike": alike,
                "correct": alike * batch >= LEAST_ALIKE * batch - 1}  # fmt: skip

    for name in routes:
        for batch in BATCHES:
            yield lambda name=name, batch=batch: measure(name, batch)
