"""The study of memory: packed against float32, counted by component and measured in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

import octavo
from octavo.data.batches import call_on
from octavo.errors import OctavoError, SettingError
from octavo.lab.studies.measured_points import SAMPLES, Laboratory, made
from octavo.lab.studies.probe_batches import ANSWERS, INPUTS, flat, highest
from octavo.lab.studies.subject import Subject
from octavo.recipe import Recipe
from octavo.storage import children, folders
from octavo.tensors import container

FP32 = "fp32"
#: Components in the order of the table; a module is of the first whose words are in its path.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "embeddings": ("embedding",),
    "attention": ("attention", "query", "key", "value"),
    "feed-forward": ("feed_forward", "feedforward", "intermediate", "mlp", "encoder.layer"),
    "other": ("",),
}
#: Texts answered at once while memory is measured: few, so that activations do not hide the weights.
BATCH = 8


@dataclass(frozen=True)
class Memory:
    """The study: the float32 model and one packed by each of ``recipes``, answering ``texts`` test texts.

    Raises SettingError for no recipe or no text, FormatError for a recipe that cannot be read.
    """

    recipes: tuple[str, ...] = ("mxint8", "int4:g32")
    texts: int = 1000

    def __post_init__(self) -> None:
        """Check the recipes before a model is loaded."""
        if not self.recipes or self.texts < 1:
            raise SettingError(f"{len(self.recipes)} recipes, {self.texts} texts; accepted: one of each, at least")
        for recipe in self.recipes:
            Recipe.parse(recipe)

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Return the rows of the table: ``model``, ``what``, ``kind`` (counted, measured) and ``bytes``.

        Rows of ``kind`` ``answers`` hold no bytes: ``texts``, and on how many of them the model in the other process
        has the same highest score (``same``), and the same three highest in order (``same_top``, which records of 0.1
        do not have), as the simulated model here.
        """
        names, rows = (FP32, *self.recipes), []
        for number, name in enumerate(names):
            laboratory.tell(f"{name}: counted here, measured in a process of its own", number / len(names))
            rows += self._rows(laboratory, name)
        return rows

    def _rows(self, laboratory: Laboratory, name: str) -> list[dict[str, Any]]:
        subject, journal = laboratory.subject, laboratory.journal
        settings = {"subject": subject.identity, "study": "memory", "recipe": name, "texts": self.texts, "batch": BATCH}
        found = journal.find(settings, "rows")
        if found is None:
            simulated = subject.model() if name == FP32 else _simulated(subject, name)
            packed = simulated if name == FP32 else octavo.pack_model(simulated)
            rows = [_row(name, what, "counted", count) for what, count in by_component(packed).items()]
            rows += measured(name, simulated, packed, subject.blueprint, subject.inputs(self.texts, BATCH))
            found = journal.add(settings, rows=rows, made=made(subject.device))
        return found["rows"]


def _simulated(subject: Subject, recipe: str) -> nn.Module:
    batches = subject.calibration(SAMPLES, 0)
    return octavo.quantize_model(subject.model(), recipe, calibration=batches, inplace=True, progress=False).eval()


def by_component(model: nn.Module) -> dict[str, int]:
    """Return bytes of parameters and buffers by component, shared memory once, and their sum as ``all weights``."""
    found = dict.fromkeys(COMPONENTS, 0)
    seen = set()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.numel() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            found[component(name)] += tensor.nbytes
    return {**found, "all weights": sum(found.values())}


def component(path: str) -> str:
    """Return the component that a module or parameter belongs to, judged by its path."""
    path = path.lower()
    return next(name for name, words in COMPONENTS.items() if any(word in path for word in words))


def measured(
    name: str, simulated: nn.Module, packed: nn.Module, blueprint: Mapping[str, Any], inputs: list[Any]
) -> list[dict[str, Any]]:
    """Save ``packed``, load it in a fresh process, answer there, and compare with what ``simulated`` answers here.

    Bytes are what the process grew by after its imports: ``loaded``, and ``peak`` while it loaded and answered.
    """
    with folders.scratch() as folder:
        octavo.save_model(packed, folder / "model")
        container.save(flat(inputs), folder / INPUTS)
        told = _probe(folder, blueprint)
        answers = cast("torch.Tensor", container.load(folder / ANSWERS)["classes"]).clone()
        size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    with torch.inference_mode():
        here = torch.cat([highest(call_on(simulated, batch)) for batch in inputs])
    return [
        _row(name, "file", "measured", size),
        _row(name, "loaded", "measured", told["loaded"] - told["imports"]),
        _row(name, "peak", "measured", told["peak"] - told["imports"]),
        {
            "model": name,
            "what": "same answers",
            "kind": "answers",
            "texts": len(here),
            "same": int((here[:, 0] == answers[:, 0]).sum()),
            "same_top": int((here == answers).all(-1).sum()),
        },
    ]


def _probe(folder: Path, blueprint: Mapping[str, Any]) -> dict[str, int]:
    """Run :mod:`octavo.lab.studies.memory_probe` and return what it measured."""
    command = children.command(["-m", "octavo.lab.studies.memory_probe", str(folder), json.dumps(blueprint)])
    # The package that runs here, wherever it was imported from.
    paths = [str(Path(octavo.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode:
        raise OctavoError(f"the measuring process ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def _row(model: str, what: str, kind: str, count: int) -> dict[str, Any]:
    return {"model": model, "what": what, "kind": kind, "bytes": count}
