"""What a pruned model costs: bytes of its file, float and packed, and seconds of a forward pass, float and packed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import octavo
from octavo.data.batches import call_on
from octavo.lab.studies.stopwatch import in_turn
from octavo.lab.studies.subject import Subject
from octavo.nn.masks import masked_layers
from octavo.nn.quant_layer import QuantLayer
from octavo.storage import folders

TEXTS, ROUNDS = 8, 5
PACKED = "type:Linear int8:channel"  # the recipe of the packed model that bytes and times are of


def forward_costs(
    models: Mapping[str, nn.Module], subject: Subject, structured: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the costs of pruned models, by name.

    ``file_bytes`` and ``packed_bytes``: of the saved model, float and with Linear layers packed to 8 bits.
    ``forward_s`` and ``packed_s``: median seconds of both on eight test texts; all of them take turns. A model with
    masks is folded first, and from those called in ``structured`` heads, neurons and layers are taken out that reach
    nothing; one that is quantized is packed by its own recipe, and has no float numbers.
    ``parameters``: that are left.
    """
    batch = subject.inputs(TEXTS, TEXTS)[0]
    calls: dict[str, Callable[[], object]] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, model in models.items():
        is_quantized = any(isinstance(module, QuantLayer) for module in model.modules())
        plain = octavo.prune.fold_model(model) if next(masked_layers(model), None) is not None else model
        if name in structured and not is_quantized:
            plain, _ = octavo.prune.compact_model(plain, batch)
        packed = octavo.pack_model(plain if is_quantized else _quantized(plain)).eval()
        found[name] = {
            "parameters": sum(parameter.numel() for parameter in plain.parameters()),
            "file_bytes": None if is_quantized else saved_bytes(plain),
            "packed_bytes": saved_bytes(packed),
            "forward_s": None,
            "packed_s": None,
        }
        calls[f"{name} packed_s"] = partial(_run, packed, batch)
        if not is_quantized:
            calls[f"{name} forward_s"] = partial(_run, plain.eval(), batch)
    for place, seconds in in_turn(calls, ROUNDS, subject.device).items():
        name, _, fact = place.rpartition(" ")
        found[name][fact] = seconds
    return found


def saved_bytes(model: nn.Module) -> int:
    """Return the bytes of the tensors' file that octavo.save_model writes."""
    with folders.scratch() as folder:
        octavo.save_model(model, folder / "model")
        return sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))


def _quantized(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.CoverageWarning)  # what share is quantized is not the question
        return octavo.quantize_model(model, PACKED, progress=False)


def _run(model: nn.Module, batch: Any) -> object:
    with torch.inference_mode():
        return call_on(model, batch)
