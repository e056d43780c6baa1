"""The study of memory on a device: the peak of float32 and of packed models, in parts that add up to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import octavo
from octavo.data.batches import call_on, map_leaves
from octavo.errors import SettingError
from octavo.lab.studies.measured_points import SAMPLES, Laboratory, made
from octavo.lab.studies.memory import BATCH, FP32
from octavo.lab.studies.probe_batches import TOP
from octavo.lab.studies.stopwatch import machine
from octavo.lab.studies.subject import Subject
from octavo.nn.weight_buffers import FORMAT, WeightBuffers
from octavo.recipe import Recipe

PARTS = ("weights", "scales", "float", "allocator", "inputs", "activations", "temporaries")
"""Parts of the peak, from the ground up; :func:`parts` says what they are."""
LINEAR, EVERYTHING = "type:Linear mxint8", "mxint8"
_OF_CODES = ("weight_codes", "weight_bitmap", "weight_starts")
_OF_SCALES = ("weight_scales", "weight_zeros", "weight_levels")


class Meter(Protocol):
    """What a device's allocator counts, in bytes."""

    def allocated(self) -> int:
        """Return the bytes that are allocated now."""
        ...

    def begin(self) -> None:
        """Give back cached memory, and count the peak from now on."""
        ...

    def peak(self) -> int:
        """Return the most bytes that were allocated at once since :meth:`begin`."""
        ...

    def reserved(self) -> int:
        """Return the most bytes that the allocator held at once since :meth:`begin`, its cache included."""
        ...


class CudaMeter:
    """The caching allocator of torch on a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Count the memory of ``device``."""
        self._device = device

    def allocated(self) -> int:
        """Return the bytes that are allocated now."""
        return torch.cuda.memory_allocated(self._device)

    def begin(self) -> None:
        """Give back cached memory, and count the peak from now on."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Return the most bytes that were allocated at once."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def reserved(self) -> int:
        """Return the most bytes that the allocator held."""
        return torch.cuda.max_memory_reserved(self._device)


@dataclass(frozen=True)
class DeviceMemory:
    """The study: the float32 model and one packed by each of ``recipes``, answering ``texts`` test texts on a device.

    Raises SettingError for no recipe or no text, FormatError for a recipe that cannot be read.
    """

    recipes: tuple[str, ...] = (LINEAR, EVERYTHING)
    texts: int = 64
    batch: int = BATCH

    def __post_init__(self) -> None:
        """Check the recipes before a model is loaded."""
        if not self.recipes or self.texts < 1 or self.batch < 1:
            raise SettingError(
                f"{len(self.recipes)} recipes, {self.texts} texts, {self.batch} a call; accepted: one of each, at least"
            )
        for recipe in self.recipes:
            Recipe.parse(recipe)

    def run(self, laboratory: Laboratory, meter: Meter | None = None) -> list[dict[str, Any]]:
        """Return a row for each model: ``model``, bytes by :data:`PARTS`, ``peak``, ``reserved``, and answers.

        ``texts``; ``same_labels``, ``same_top``: on how many of them the highest score, and the three highest in order,
        are those of the float32 model; ``difference``: the largest between their scores. ``meter``: None for CUDA's.
        """
        subject, journal = laboratory.subject, laboratory.journal
        meter = CudaMeter(subject.device) if meter is None else meter
        reference: Tensor | None = None
        rows = []
        for number, name in enumerate((FP32, *self.recipes)):
            laboratory.tell(f"{name}: memory on {subject.device}", number / (1 + len(self.recipes)))
            settings = {
                "subject": subject.identity, "study": "device memory", "recipe": name, "texts": self.texts,
                "batch": self.batch, "machine": machine(subject.device),
            }  # fmt: skip
            record = journal.find(settings, "row")
            if record is None:
                if reference is None:  # and the device has what its libraries allocate at their first product
                    reference, _ = measured(subject, FP32, self, meter)
                scores, costs = measured(subject, name, self, meter)
                row = {"model": name, **costs, **agreement(scores, reference)}
                record = journal.add(settings, row=row, made=made(subject.device))
            rows.append(record["row"])
        return rows


def measured(subject: Subject, name: str, study: DeviceMemory, meter: Meter) -> tuple[Tensor, dict[str, int]]:
    """Return the scores of a subject's model, float32 or packed by a recipe, and its memory on the subject's device."""
    model = subject.model()
    if name != FP32:
        batches = subject.calibration(SAMPLES, 0)
        model = octavo.quantize_model(model, name, calibration=batches, inplace=True, progress=False).eval()
        model = octavo.pack_model(model, inplace=True)
    inputs = [map_leaves(lambda leaf: leaf.cpu(), batch) for batch in subject.inputs(study.texts, study.batch)]
    model.cpu()
    gc.collect()
    return parts(model, inputs, meter, subject.device)


def parts(model: nn.Module, inputs: Sequence[Any], meter: Meter, device: torch.device) -> tuple[Tensor, dict[str, int]]:
    """Return the scores of a model on ``inputs``, ``[texts, classes]``, and bytes by part, ``peak`` and ``reserved``.

    The model and the inputs come from the CPU. ``weights``: packed codes. ``scales``: scales, zero points and levels of
    packed weights. ``float``: parameters and buffers that are no packed weight. ``allocator``: bytes by which it rounds
    up the model's tensors. ``inputs``: one batch. ``activations``: most bytes alive beside those before or after a
    layer. ``temporaries``: what the peak has beyond, taken inside a layer while it runs. They add up to ``peak``.
    """
    meter.begin()
    before = meter.allocated()
    model = model.to(device)
    loaded = meter.allocated()
    own = held_bytes(model)
    scores, most = [], {"inputs": 0, "activations": 0, "peak": 0, "reserved": 0}
    for batch in inputs:
        there = map_leaves(lambda leaf: leaf.to(device), batch)
        ready = meter.allocated()
        meter.begin()
        with torch.inference_mode(), _between_layers(model, meter) as between:
            scores.append(scores_of(call_on(model, there)).cpu())
        peak = meter.peak() - before
        if peak > most["peak"]:
            most = {
                "inputs": ready - loaded,
                "activations": max(between, default=ready) - ready,
                "peak": peak,
                "reserved": meter.reserved(),
            }
        del there
    costs = {**own, "allocator": loaded - before - sum(own.values()), **most}
    costs["temporaries"] = costs["peak"] - sum(costs[part] for part in PARTS if part != "temporaries")
    model.cpu()
    return torch.cat(scores), costs


def held_bytes(model: nn.Module) -> dict[str, int]:
    """Return bytes of the tensors of a model, shared ones once: packed ``weights``, ``scales``, and the rest, float."""
    kinds = dict.fromkeys(("weights", "scales", "float"), 0)
    seen: set[int] = set()
    for module in model.modules():
        packed = isinstance(module, WeightBuffers)
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            storage = tensor.untyped_storage()
            if not storage.nbytes() or storage.data_ptr() in seen or (packed and name == FORMAT):
                continue
            seen.add(storage.data_ptr())
            kind = "weights" if packed and name in _OF_CODES else "scales" if packed and name in _OF_SCALES else "float"
            kinds[kind] += storage.nbytes()
    return kinds


@contextmanager
def _between_layers(model: nn.Module, meter: Meter) -> Iterator[list[int]]:
    """Collect the allocated bytes before and after each layer without children that runs."""
    between: list[int] = []

    def note(*_: object) -> None:
        between.append(meter.allocated())

    layers = [module for module in model.modules() if next(module.children(), None) is None]
    handles = [
        hook(note) for layer in layers for hook in (layer.register_forward_pre_hook, layer.register_forward_hook)
    ]
    try:
        yield between
    finally:
        for handle in handles:
            handle.remove()


def scores_of(output: Any) -> Tensor:
    """Return scores as float32, flattened to ``[texts or tokens, classes]``."""
    scores = output if isinstance(output, Tensor) else output.logits
    return scores.float().flatten(0, -2)


def agreement(scores: Tensor, reference: Tensor) -> dict[str, Any]:
    """Return on how many texts the highest score, and the three highest in order, are those of the reference."""
    top = min(TOP, scores.shape[-1])
    ranks, wanted = scores.topk(top).indices, reference.topk(top).indices
    return {
        "texts": len(scores),
        "same_labels": int((ranks[:, 0] == wanted[:, 0]).sum()),
        "same_top": int((ranks == wanted).all(-1).sum()),
        "difference": float((scores - reference).abs().max()),
    }
