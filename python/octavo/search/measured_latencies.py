"""measure_latency: seconds of this machine's kernels, by shape of the layer, format and shape of the input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.cuda.machine import computer, cpu, versions
from octavo.data.batches import call_numbered, call_on, samples_of
from octavo.display.progress import Report, Stages
from octavo.errors import ConfigError, OctavoError
from octavo.nn.model_copies import shared_copy
from octavo.nn.registry import kind_of
from octavo.nn.rewriting import rewrite_modules
from octavo.quant.pack_layers import pack_layer
from octavo.recipe.rule import KEEP, read_spec
from octavo.recipe.spec import Spec
from octavo.search.journal import Journal
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.rounded_layers import simulated
from octavo.storage.arguments import checks_arguments
from octavo.train.model_outputs import evaluating

_COPIES = 4  # layers of one shape that are called in turn, so that weights do not stay in the L1 cache
_ROUNDS, _BURST_S, _MOST_S = 9, 2e-3, 0.25  # timings of an entry, and seconds of a burst and of an entry


@checks_arguments
def measure_latency(
    model: nn.Module,
    batch: Any,
    sensitivity: Sensitivity,
    *,
    table: Journal | Path | str | None = None,
    progress: bool | Report = True,
) -> LatencyTable:
    """Return the seconds that each group of layers takes in each format on one batch.

    Every layer that ``batch`` reaches is packed separately and called on inputs of the shape it has there. Layers with
    the same class, shape and input are measured once; their formats take turns. The ``rest`` is the seconds of the
    float model minus those of its layers. The result is a prediction: a layer alone finds other cache contents than a
    layer in a model.

    Args:
        model: the float model of ``sensitivity``.
        batch: one batch, as :func:`octavo.quantize_model` takes them.
        sensitivity: of weights.
        table: a folder, or an open Journal, which stores each entry with the machine that it was measured on. An
            interrupted call continues there, and other models reuse entries of equal shapes.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        Seconds by group and format.

    Raises:
        ConfigError: for a sensitivity of inputs or of another model.
        CalibrationError: for a batch that the model cannot take.
    """
    if any(group.role != "weight" for group in sensitivity.groups):
        raise ConfigError("latencies are of weights in formats; give a sensitivity of roles=('weight',)")
    paths = [path for group in sensitivity.groups for path in group.layers]
    model = rewrite_modules(shared_copy(model))
    try:
        layers = {path: model.get_submodule(path) for path in paths}
    except AttributeError as error:
        raise ConfigError(f"the sensitivity is of another model: {error}") from None
    show = Stages(progress)
    with evaluating(model.eval()), ExitStack() as stack:
        entries = _entries(layers, _calls(model, batch, layers))
        journal = table if isinstance(table, Journal) or table is None else stack.enter_context(Journal(table))
        specs = [None if text == KEEP else read_spec(text) for text in sensitivity.formats]
        table_entries = _EntryTable(journal)
        with show.stage("measuring latencies of layers", len(entries)) as advance:
            for entry in entries:
                table_entries.fill(entry, specs)
                advance()
        whole = table_entries.whole(model, batch)
    own = {path: np.zeros(len(specs)) for path in paths}
    for entry in entries:
        row = np.array([entry.seconds.get(_text(spec), np.nan) for spec in specs])
        for path in entry.paths:
            own[path] = own[path] + row
    seconds = np.array([sum(own[path] for path in group.layers) for group in sensitivity.groups])
    keep = sensitivity.formats.index(KEEP)
    return LatencyTable(seconds, max(whole - float(seconds[:, keep].sum()), 0.0), whole, max(samples_of(batch), 1))


@dataclass(eq=False)
class _Entry:
    """Calls that take equal time: of layers of one class and shape, on inputs of one shape.

    ``paths``: the layer of each call. ``layers``: some of these layers. ``arguments``: those of one call.
    """

    key: dict[str, Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    paths: list[str] = field(default_factory=list)
    layers: dict[str, nn.Module] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


_Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def _calls(model: nn.Module, batch: Any, layers: dict[str, nn.Module]) -> list[_Call]:
    """Return each call of a layer in one forward pass, with its arguments."""
    calls: list[_Call] = []

    def see(path: str) -> Callable[..., None]:
        return lambda _, args, kwargs: calls.append((path, args, dict(kwargs)))

    first = {id(layer): path for path, layer in reversed(layers.items())}
    handles = [layers[path].register_forward_pre_hook(see(path), with_kwargs=True) for path in first.values()]
    try:
        call_numbered(model, batch, 0)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _entries(layers: dict[str, nn.Module], calls: Sequence[_Call]) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for path, args, kwargs in calls:
        layer = layers[path]
        shapes = [
            f"{value.dtype} {tuple(value.shape)}" for value in (*args, *kwargs.values()) if isinstance(value, Tensor)
        ]
        weight = layer.weight
        assert isinstance(weight, Tensor)  # groups hold such layers alone
        key = {
            "class": f"{type(layer).__module__}.{type(layer).__qualname__}",
            "weight": f"{weight.dtype} {tuple(weight.shape)}", "inputs": shapes,
            "bias": isinstance(getattr(layer, "bias", None), Tensor), "options": layer.extra_repr(),
        }  # fmt: skip
        entry = entries.setdefault(str(key), _Entry(key, (args, kwargs)))
        entry.paths.append(path)
        if len(entry.layers) < _COPIES:
            entry.layers[path] = layer
    return list(entries.values())


class _EntryTable:
    """The table of entries: read from the journal, or measured and added to it."""

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self._machine = machine()

    def fill(self, entry: _Entry, specs: Sequence[Spec | None]) -> None:
        """Set the seconds of an entry in each format that the layer can have."""
        wanted = {}
        for spec in specs:
            timing = self._find(entry.key, _text(spec))
            if timing is None:
                wanted[_text(spec)] = spec
            elif timing["seconds"] is not None:
                entry.seconds[_text(spec)] = timing["seconds"]
        args, kwargs = entry.arguments
        calls = {}
        for text, spec in wanted.items():
            if (layers := _packed(entry, spec)) is None:
                self._add(entry.key, text, None)
            else:
                calls[text] = [_bound(layer, args, kwargs) for layer in layers]
        for text, seconds in _in_turn(calls).items():
            self._add(entry.key, text, seconds)
            entry.seconds[text] = seconds

    def whole(self, model: nn.Module, batch: Any) -> float:
        """Return the seconds of the float model, which are not stored in the journal."""
        return _in_turn({"": [lambda: call_on(model, batch)]})[""]

    def _settings(self, key: dict[str, Any], text: str) -> dict[str, Any]:
        return {"latency": key, "format": text, "machine": self._machine}

    def _find(self, key: dict[str, Any], text: str) -> dict[str, float | None] | None:
        """Return the entry of the journal, or None if it has none.

        Its ``seconds`` are None for a format that the layer cannot have.
        """
        record = None if self.journal is None else self.journal.find(self._settings(key, text), "row")
        if self.journal is None or record is None:
            return None
        with self.journal.decoding():
            seconds = record["row"]["seconds"]
            return {"seconds": None if seconds is None else float(seconds)}

    def _add(self, key: dict[str, Any], text: str, seconds: float | None) -> None:
        if self.journal is not None:
            self.journal.add(self._settings(key, text), row={"seconds": seconds})


def machine() -> dict[str, Any]:
    """Return the facts that latencies depend on: processor, instructions, threads, versions."""
    here, release, facts = computer(torch.device("cpu")), versions(), cpu()
    return {
        "cpu": facts["name"], "cores": facts["cores"], "simd": facts["simd_level"], "threads": facts["threads"],
        "torch_threads": here["threads"], "torch": release["torch"], "octavo": release["octavo"],
    }  # fmt: skip


def _text(spec: Spec | None) -> str:
    """Return the format without its calibration, because times do not depend on calibration."""
    return KEEP if spec is None else str(spec.format)


def _packed(entry: _Entry, spec: Spec | None) -> list[nn.Module] | None:
    if spec is None:
        return list(entry.layers.values())
    try:
        return [
            pack_layer(path, simulated(layer, Spec(spec.format), path)).eval()
            for path, layer in entry.layers.items()
            if kind_of(layer) is not None
        ]
    except OctavoError:  # a group that the rows do not hold: the sensitivity has no loss there either
        return None


def _bound(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
    return lambda: layer(*args, **kwargs)


@contextmanager
def _clock(into: list[float], calls: int) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    into.append((time.perf_counter() - begin) / calls)


def _in_turn(calls: dict[str, list[Callable[[], object]]]) -> dict[str, float]:
    """Return the lower quartile of the seconds of a call for each name; other programs disturb it less than a mean.

    Names take turns, and so do the calls of a name.
    """
    bursts, seconds = {}, {name: list[float]() for name in calls}
    for name, own in calls.items():
        for call in own:
            call()
        first: list[float] = []
        with _clock(first, 1):
            own[0]()
        bursts[name] = max(1, round(_BURST_S / max(first[0], 1e-9) / len(own)))
    end = time.perf_counter() + _MOST_S * max(len(calls), 1)
    rounds = 0
    while rounds < 3 or (rounds < _ROUNDS and time.perf_counter() < end):
        rounds += 1
        for name, own in calls.items():
            with _clock(seconds[name], bursts[name] * len(own)):
                for _ in range(bursts[name]):
                    for call in own:
                        call()
    return {name: quantiles(values, n=4, method="inclusive")[0] for name, values in seconds.items()}
