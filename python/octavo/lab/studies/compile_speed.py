"""The study of torch.compile: the first call, later calls and graph breaks, by kind of model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import octavo
from octavo.compress.text_models import positions_of, task_of
from octavo.errors import OctavoError, SettingError
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.studies.stopwatch import in_turn, machine, once
from octavo.recipe import Recipe
from octavo.search.fingerprints import identity_of
from octavo.search.journal import Journal
from octavo.storage import folders

BACKENDS = ("inductor", "aot_eager", "eager")
FP32 = "fp32"
VOCABULARY = 1000


@dataclass(frozen=True)
class Compile:
    """The study: a tiny BERT with fresh weights in float32, quantized by ``recipe``, and packed.

    ``folder``: of a model of transformers, which takes the place of the tiny BERT.

    ``batch`` texts of ``length`` tokens; ``layers`` of ``width``; ``rounds``: timings of every contestant.
    ``backend``: of torch.compile; ``eager`` and ``aot_eager`` capture graphs and compile nothing. ``calls``: numbers of
    calls whose total time is measured, the first call, which compiles, in.
    Raises SettingError for values that are not accepted, FormatError for a recipe that cannot be read.
    """

    recipe: str = "type:Linear mxint8"
    backend: str = "inductor"
    batch: int = 8
    length: int = 64
    layers: int = 2
    width: int = 128
    rounds: int = 15
    calls: tuple[int, ...] = ()
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check names and numbers before anything is made."""
        for name in ("batch", "length", "layers", "rounds"):
            if getattr(self, name) < 1:
                raise SettingError(f"--{name} is {getattr(self, name)}; accepted are whole numbers of at least 1")
        if self.calls and min(self.calls) < 1:
            raise SettingError(f"--calls has {min(self.calls)}; accepted are whole numbers of at least 1")
        if self.width < 64 or self.width % 64:
            raise SettingError(f"--width is {self.width}; accepted are multiples of 64, the width of a head")
        if self.backend not in BACKENDS:
            raise SettingError(f"unknown backend {self.backend!r}; accepted are {', '.join(BACKENDS)}")
        Recipe.parse(self.recipe)

    def run(self, journal: Journal, device: torch.device, tell: Callable[..., None]) -> list[dict[str, Any]]:
        """Return a row a kind of model: times in seconds, graphs, graph breaks and the largest difference to eager."""
        own = {name: value for name, value in asdict(self).items() if name not in ("calls", "folder")}
        if self.folder is not None:
            own |= {"folder": Path(self.folder).resolve().name, **identity_of(weights=self.model(FP32)).digests}
        rows: list[dict[str, Any]] = []
        for position, kind in enumerate((FP32, "quantized", "packed")):
            tell(f"{kind}: torch.compile", position / 3)
            settings = {"study": "compile", "model": kind, **own, "machine": machine(device)}
            found = journal.find(settings, "row")
            if found is None:
                found = journal.add(settings, row={"model": kind, **self._measure(kind, device)})
            row = dict(found["row"])
            if self.calls:
                settings["calls"] = sorted(set(self.calls))
                totals = journal.find(settings, "row")
                if totals is None:
                    totals = journal.add(settings, row=self._totals(kind, device))
                row |= totals["row"]
            rows.append(row)
        return rows

    def model(self, kind: str) -> nn.Module:
        """Return one of the models, always with the same weights. Raises as :func:`scores_of_folder`."""
        if self.folder is not None:
            return self._of_kind(scores_of_folder(self.folder, self.length)[0], kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made: nn.Module = Classifier(
                ClassifierConfig(
                    vocabulary=VOCABULARY,
                    width=self.width,
                    layers=self.layers,
                    heads=self.width // 64,
                    feed_forward=4 * self.width,
                    positions=self.length,
                )
            ).eval()
        return self._of_kind(made, kind)

    def _of_kind(self, model: nn.Module, kind: str) -> nn.Module:
        if kind == FP32:
            return model
        ids = self.inputs(torch.device("cpu"))
        model = octavo.quantize_model(model, self.recipe, calibration=[(ids,)], inplace=True, progress=False).eval()
        return octavo.pack_model(model) if kind == "packed" else model

    def inputs(self, device: torch.device) -> Tensor:
        """Return ids ``[batch, length]``, none of them padding."""
        generator = torch.Generator().manual_seed(1)
        words = VOCABULARY if self.folder is None else scores_of_folder(self.folder, self.length)[1]
        return torch.randint(
            min(5, words - 1) if self.folder else 1, words, (self.batch, self.length), generator=generator
        ).to(device)

    @torch.no_grad()
    def _measure(self, kind: str, device: torch.device) -> dict[str, Any]:
        model, ids = self.model(kind).to(device), self.inputs(device)
        with _failures_named(kind, self.backend), _fresh_caches():
            once(lambda: torch.compile(_little, backend=self.backend)(ids), device)  # imports are not the model's
            torch._dynamo.reset()
            explained = torch._dynamo.explain(deepcopy(model))(ids)
            torch._dynamo.reset()
            compiled = torch.compile(model, backend=self.backend)
            cold = once(lambda: compiled(ids), device)
            times = in_turn({"eager": lambda: model(ids), "compiled": lambda: compiled(ids)}, self.rounds, device)
            difference = (compiled(ids) - model(ids)).abs().max().item()
        torch._dynamo.reset()
        saved = times["eager"] - times["compiled"]
        return {
            "backend": self.backend,
            "cold_s": cold,
            "eager_s": times["eager"],
            "compiled_s": times["compiled"],
            "speed_up": times["eager"] / times["compiled"],
            "calls_to_pay": round(cold / saved) if saved > 0 else None,
            "graphs": explained.graph_count,
            "graph_breaks": explained.graph_break_count,
            "break_reasons": " | ".join(str(reason.reason).splitlines()[0] for reason in explained.break_reasons),
            "largest_difference": difference,
        }

    @torch.no_grad()
    def _totals(self, kind: str, device: torch.device) -> dict[str, float]:
        """Return seconds of the first calls of a fresh model, by number of calls: eager, then compiled."""
        model, ids = self.model(kind).to(device), self.inputs(device)
        totals: dict[str, float] = {}
        with _failures_named(kind, self.backend), _fresh_caches():
            once(lambda: torch.compile(_little, backend=self.backend)(ids), device)  # imports are not the model's
            torch._dynamo.reset()
            for name, run in (("eager", model), ("compiled", torch.compile(deepcopy(model), backend=self.backend))):
                sums = list(accumulate(once(partial(run, ids), device) for _ in range(max(self.calls))))
                totals |= {f"{name}_{count}_calls_s": sums[count - 1] for count in sorted(set(self.calls))}
        torch._dynamo.reset()
        return totals


class FirstTensor(nn.Module):
    """A model of transformers that is called with ids alone and returns the first tensor of its output."""

    def __init__(self, network: nn.Module) -> None:
        """Wrap a model."""
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores, or hidden states."""
        return self.network(input_ids=ids, return_dict=False)[0]


@lru_cache(maxsize=1)
def _opened(folder: str) -> nn.Module:
    from octavo.compress.graph_subjects import subject

    model, _ = subject(folder, values=True)
    return model


def scores_of_folder(folder: str, length: int) -> tuple[nn.Module, int]:
    """Return a copy of the model in a folder of transformers, called with ids alone, and the size of its vocabulary.

    Raises SettingError for a model that reads no texts, or none of ``length`` tokens, and as
    :func:`octavo.load_model`.
    """
    model = _opened(folder)
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    if not Path(folder).is_dir() or not isinstance(words, int) or task_of(model) == "other":
        raise SettingError(f"{folder}: a {type(model).__name__}; accepted are folders of transformers that read texts")
    if length > positions_of(model):
        raise SettingError(f"--length is {length}; {folder} reads up to {positions_of(model)} tokens")
    return FirstTensor(deepcopy(model).float().eval()), words


def _little(ids: Tensor) -> Tensor:
    return torch.softmax(ids.float(), -1) @ ids.float().mT


@contextmanager
def _fresh_caches() -> Iterator[None]:
    """Let compiled code of earlier runs, on disk and in memory, be forgotten."""
    from torch._inductor import utils

    fresh = utils.fresh_cache if hasattr(utils, "fresh_cache") else utils.fresh_inductor_cache  # renamed in torch 2.8
    torch._dynamo.reset()
    with folders.scratch() as folder, fresh(dir=str(folder)):
        yield


@contextmanager
def _failures_named(kind: str, backend: str) -> Iterator[None]:
    """Tell which compilation failed, in a line, and what it may need. Raises OctavoError."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise OctavoError(
            f"torch.compile(backend={backend!r}) of the {kind} model failed: {lines[0]}; inductor needs a C++ "
            "compiler, on GPUs Triton (--backend aot_eager compiles nothing)"
        ) from error
