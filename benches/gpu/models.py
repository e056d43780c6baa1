"""Memory of a real model on a GPU, in float32, in bfloat16 and packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import octavo
import torch
from octavo.errors import OctavoError
from torch import Tensor, nn

from gpu.bars import Figure
from gpu.timing import DEVICE

RECIPES = ("mxint8", "int4:g32")
MOST_ERROR = 0.05
"""Of the difference between a model on the GPU and the same model on the CPU, in bfloat16 too."""


def opened(folder: Path | None) -> tuple[str, nn.Module, Any]:
    """Return a model's name, the model, and a batch: of a transformers folder, else MiniLM, else the shipped model."""
    torch.manual_seed(0)
    if folder is None:
        try:
            from octavo.storage.named_models import MINILM, carried

            folder = carried(MINILM)
        except OctavoError:
            from octavo.lab.polynomials.shipped import load_shipped

            model, _ = load_shipped()
            return "polynomials", model.eval(), (torch.randint(4, 20, (64, 20)), torch.randint(4, 20, (64, 20)))
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    return folder.name, model, {"input_ids": torch.randint(5, 1000, (8, 128))}


def memory(case: str, model: nn.Module, batch: Any) -> Figure:
    """Move a model to the GPU, call it, compare with the CPU, and return the bytes it took: loaded, and at most."""
    with torch.inference_mode():
        wanted = _call(model, batch).float()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        model, batch = model.to(DEVICE), _moved(batch)
        loaded = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        found = _call(model, batch).float().cpu()
        peak = torch.cuda.max_memory_allocated() - before
    error = float((found - wanted).norm() / wanted.norm())
    return {"kernel": "memory", "case": case, "loaded_bytes": loaded, "peak_bytes": peak, "error": error,
            "correct": error <= MOST_ERROR}  # fmt: skip


def run(folder: Path | None) -> Iterator[Callable[[], Figure]]:
    """Yield what is measured, in order."""
    name, model, batch = opened(folder)
    yield lambda: memory(f"{name} float32", deepcopy(model), batch)
    yield lambda: memory(f"{name} bfloat16", deepcopy(model).bfloat16(), batch)
    for recipe in RECIPES:
        yield lambda r=recipe: memory(f"{name} {r}", packed(model, r), batch)


def packed(model: nn.Module, recipe: str) -> nn.Module:
    """Return a packed copy of a model."""
    return octavo.pack_model(octavo.quantize_model(deepcopy(model), recipe, inplace=True, progress=False).eval())


def _call(model: nn.Module, batch: Any) -> Tensor:
    given = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    return given if isinstance(given, Tensor) else given.last_hidden_state


def _moved(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {key: tensor.to(DEVICE) for key, tensor in batch.items()}
    return tuple(tensor.to(DEVICE) for tensor in batch)
