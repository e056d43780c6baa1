"""What a compression is asked for: its goal, the formats that it tries, and how it works; one value for all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from octavo.errors import ConfigError, SettingError
from octavo.recipe import Recipe
from octavo.recipe.rule import Rule
from octavo.recipe.sites import model_sites
from octavo.search.forked_workers import check_workers
from octavo.search.measured_divergences import METHODS
from octavo.search.peers import Peer
from octavo.storage.arguments import is_finite

#: The budget where no goal is given: bits for each parameter.
BUDGET = 4.5


@dataclass(frozen=True)
class Goal:
    """What is asked for: at most ``bits`` for each parameter, ``nbytes`` of weights, or ``max_loss`` of quality.

    ``max_loss``: of accuracy or cosine in their own unit (0.01 is a point), of KL and of a perplexity's logarithm in
    nats. One of them at most is given. ``latency``: seconds of a call on ``samples`` samples, beside it or alone.
    ``unbounded``: a recipe is packed as it is, and nothing bounds it.
    Raises ConfigError for no goal, several, or values that nothing can reach.
    """

    bits: float | None = None
    nbytes: int | None = None
    max_loss: float | None = None
    latency: float | None = None
    samples: int = 1
    unbounded: bool = False

    def __post_init__(self) -> None:
        """Check that there is one, and the values."""
        if len(self._bounds) > 1 or not (self._bounds or self.latency is not None or self.unbounded):
            names = " and ".join(self._bounds) or "none"
            raise ConfigError(f"a compression has one goal: bits, nbytes or max_loss; got {names}")
        if self.latency is not None and not 0 < self.latency < math.inf:
            raise ConfigError(f"latency is {self.latency!r} s; accepted are numbers above 0")
        if type(self.samples) is not int or self.samples < 1:
            raise ConfigError(f"a latency of {self.samples!r} samples; accepted are whole numbers from 1 on")
        for name, value in self._bounds.items():
            self._check(name, value)

    def _check(self, name: str, value: float) -> None:
        if not is_finite(value) or (value <= 0 if name != "max_loss" else value < 0):
            least = "of at least" if name == "max_loss" else "above"
            raise ConfigError(f"{name} is {value!r}; accepted are numbers {least} 0")

    @classmethod
    def of(
        cls,
        bits: float | None,
        nbytes: int | None,
        max_loss: float | None,
        latency: float | None,
        samples: int,
        *,
        searched: bool = True,
    ) -> Goal:
        """Return the goal of a caller's arguments; without any it is 4.5 bits, or none where nothing is ``searched``.

        Raises ConfigError.
        """
        absent = bits is None and nbytes is None and max_loss is None and latency is None
        if absent and searched:
            bits = BUDGET
        return cls(bits, nbytes, max_loss, latency, samples, unbounded=absent and not searched)

    @property
    def name(self) -> str:
        """What the goal is, for people."""
        names = {"bits": "average bits", "nbytes": "bytes", "max_loss": "loss of quality"}
        return names.get(self._one[0], f"latency, batch {self.samples}")

    @property
    def limit(self) -> float:
        """Its value."""
        return float(self._one[1])

    @property
    def unit(self) -> str:
        """Its unit in reports."""
        return {"bits": "bits", "nbytes": "B", "max_loss": "", "latency": "s"}[self._one[0]]

    @property
    def _bounds(self) -> dict[str, float]:
        bounds = {"bits": self.bits, "nbytes": self.nbytes, "max_loss": self.max_loss}
        return {name: value for name, value in bounds.items() if value is not None}

    @property
    def _one(self) -> tuple[str, float]:
        if self._bounds:
            return next(iter(self._bounds.items()))
        assert self.latency is not None  # one is given
        return "latency", self.latency

    def most_bytes(self, parameters: int) -> float:
        """Return the bytes that a model of so many parameters may have; infinite for a bound of the loss."""
        if self.nbytes is not None:
            return self.nbytes
        return math.inf if self.bits is None else self.bits * parameters / 8


@dataclass(frozen=True)
class Options:
    """Everything about a compression but its model and data, as :func:`octavo.compress_model` takes it.

    ``formats``: candidates of every layer; None: those of the job. ``recipe``: nothing is searched, this is packed.
    ``fast``: sensitivities of one backward pass, and the chosen point alone. ``sensitivity``: how they are measured
    otherwise, as :func:`octavo.search.measure_sensitivity` takes it. ``share``, ``exclude``: selectors of
    layers with one format together, and of layers that stay as is. ``prune``: the share of the weights that are set to
    0 first. ``train``: train the best model through its formats, ``train_steps`` updates; None: as many as the job
    takes. ``workers``: processes that measure. ``peers``: formats of other libraries, evaluated beside the model.
    ``notes``: sentences for the report. ``journal``: a folder where the same compression goes on; None: none is kept.
    Raises FormatError, ConfigError for an empty recipe, no format and no worker, SettingError for a share.
    """

    goal: Goal
    formats: tuple[str, ...] | None = None
    recipe: Recipe | None = None
    fast: bool = False
    sensitivity: str = "auto"
    share: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prune: float | None = None
    train: bool = False
    train_steps: int | None = None
    workers: int = 1
    peers: tuple[Peer, ...] = ()
    notes: tuple[str, ...] = ()
    journal: Path | None = None

    def __post_init__(self) -> None:
        """Check the values that no model is needed for."""
        if self.formats is not None:
            canonical(self.formats)
        if self.recipe is not None and not self.recipe:
            raise ConfigError("the recipe has no rules; give one, such as 'mxint8'")
        if self.prune is not None and not 0 < self.prune < 1:
            raise SettingError(f"prune is {self.prune:g}; accepted are shares above 0 and below 1")
        if self.sensitivity not in METHODS:
            raise SettingError(f"sensitivity is {self.sensitivity!r}; accepted are {', '.join(METHODS)}")
        check_workers(self.workers)


def canonical(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of formats, each once, sorted: their order changes nothing. Raises FormatError, ConfigError."""
    texts = []
    for text in formats:
        rule = Rule(weight=text)
        texts.append(str(dict(rule.gives)["weight"]))
    if not texts:
        raise ConfigError("no format to choose from; give some, such as 'int4:g32, nf4'")
    return tuple(sorted(dict.fromkeys(texts)))


def with_lookups(formats: tuple[str, ...], model: nn.Module) -> tuple[str, ...]:
    """Return formats as :func:`canonical` does, and those of gptq without it where ``model`` looks rows up.

    Such rows have no inputs that gptq could solve for: embeddings would be left with the formats that name no solver.
    """
    formats = canonical(formats)
    if not any(site.is_lookup and site.tensor is not None for site in model_sites(model)):
        return formats
    specs = [spec for text in formats if (spec := dict(Rule(weight=text).gives)["weight"]) is not None]
    solved = [spec for spec in specs if spec.calibration is not None and spec.calibration.method == "gptq"]
    return canonical((*formats, *(str(spec.format) for spec in solved)))
