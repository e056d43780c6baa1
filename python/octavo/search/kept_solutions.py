"""Solutions of layers in files beside a journal, so that no layer is solved twice, also after ``kill -9``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.errors import ContainerError
from octavo.quant.algorithms.solution import Solution
from octavo.search.journal import Journal, identity
from octavo.tensors import container
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_WEIGHT, _LAYER, _TOLD, _DIGESTS = "weight", "layer", "told", "digests"
_BIASES = "the biases of all layers"


class KeptSolutions:
    """The solved layers of one model, recipe and data; each is a file that appears whole."""

    def __init__(self, journal: Journal, settings: Mapping[str, Any]) -> None:
        """Name the folder, beside the journal. ``settings``: what tells model, recipe and data from others."""
        self._folder = journal.path.parent / f"solved-{identity(settings)[:16]}"

    def has(self, name: str) -> bool:
        """Whether there is a file of a layer's solution, which may turn out to be broken."""
        return self._file(name).exists()

    def find(self, name: str) -> tuple[Solution, str] | None:
        """Return the solution of a layer, and the word about its inputs; None where there is none that can be read."""
        tensors, facts = self._read(name) or ({}, {})
        weight = tensors.get(_WEIGHT)
        if not isinstance(weight, PackedTensor) or facts.get(_LAYER) != name:
            return None
        return Solution.of(weight), facts[_TOLD]

    def add(self, name: str, solution: Solution, format: Format, facts: str) -> None:
        """Write the solution of a layer. Raises OSError as the system gives it."""
        tensors = {_WEIGHT: solution.encode(format)}
        self._write(name, tensors, {_LAYER: name, _TOLD: facts})

    def biases(self) -> dict[str, Tensor] | None:
        """Return what was added to the bias of each layer, by its name; None where it was not kept."""
        read = self._read(_BIASES)
        return None if read is None else {name: one for name, one in read[0].items() if isinstance(one, Tensor)}

    def add_biases(self, added: Mapping[str, Tensor]) -> None:
        """Write what was added to biases. Raises OSError as the system gives it."""
        self._write(_BIASES, dict(added), {})

    def _read(self, name: str) -> tuple[dict[str, Tensor | PackedTensor], dict[str, str]] | None:
        file = self._file(name)
        try:
            container.verify(file)
            return container.load(file), container.metadata(file)
        except (FileNotFoundError, ContainerError):
            return None

    def _write(self, name: str, tensors: Mapping[str, Tensor | PackedTensor], facts: dict[str, str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        digests = json.dumps(container.digests(tensors))
        container.save(tensors, self._file(name), metadata={**facts, _DIGESTS: digests})

    def _file(self, name: str) -> Path:
        return self._folder / f"{sha256(name.encode()).hexdigest()[:32]}.safetensors"
