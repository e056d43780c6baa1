"""Pipelines: ordered passes, serialised as TOML or JSON, that can be replayed to the same bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.data.batches import Batches
from octavo.errors import ModelError
from octavo.graph.model_passes import Pass, PassInputs, find_pass, plain_config, require_order, require_stage
from octavo.nn.model_copies import deep_copy
from octavo.recipe.toml import read_toml, write_toml
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import parse_json, read_text, shown

_MOST = 1 << 20  # bytes of a file of a pipeline


@dataclass(frozen=True)
class Step:
    """A pass and its configuration."""

    run: Pass
    config: Any

    @classmethod
    def of(cls, given: Any) -> Step:
        """Return a step of any of its written forms.

        Args:
            given: a step, a name, a pair of name and configuration, or ``{"pass": name, **config}``.

        Returns:
            The step.

        Raises:
            ModelError: for an unknown pass or key, and for another kind of object.
        """
        if isinstance(given, Step):
            return given
        if isinstance(given, Mapping):
            options = dict(given)
            name, config = options.pop("pass", None), options
        elif isinstance(given, list | tuple) and len(given) == 2:
            name, config = given
        else:
            name, config = given, {}
        if not isinstance(name, str):
            raise ModelError(
                f"a step of a pipeline is {shown(given)}; accepted are the name of a pass, (name, configuration) and "
                "{'pass': name, ...}"
            )
        pass_ = find_pass(name)
        return cls(pass_, pass_.configured(config))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: the name under ``pass``, and every option that is not None.

        Returns:
            A dictionary.
        """
        return {"pass": self.run.name, **plain_config(self.config)}


@dataclass(frozen=True)
class PipelineResult:
    """The result of a pipeline: the model, a (name, report) for each pass, and the pipeline with explicit choices.

    ``pipeline`` replays to the same model on every machine, because choices that a pass made by measurement are in its
    configurations. ``inputs``: inputs of the resulting model, which is a part of the original after an extraction.
    """

    model: nn.Module
    reports: tuple[tuple[str, Any], ...]
    pipeline: Pipeline
    inputs: Any = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            A dictionary.
        """
        return {
            "pipeline": self.pipeline.as_dict(),
            "reports": [
                {
                    "pass": name,
                    "report": parse_json(report.to_json(), name, kind=object, finite=False, error=ModelError),
                }
                for name, report in self.reports
            ],
        }

    def to_json(self) -> str:
        """Return :meth:`as_dict` as JSON.

        Returns:
            A text.
        """
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)


class Pipeline:
    """Passes in execution order, each with its configuration. An immutable value without a model.

    Args:
        steps: names of passes, pairs of name and options, or steps; they are not changed.

    Raises:
        ModelError: for an unknown pass or key, and for an order that contradicts ``octavo.graph.STAGES``.

    Example:
        >>> pipeline = octavo.graph.Pipeline(["remove_dropout", ("quantize", {"recipe": "int8"}), "pack"])
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1))
        >>> type(pipeline.run(model).model[0]).__name__
        'PackedLinear'
    """

    __slots__ = ("steps",)

    steps: tuple[Step, ...]

    def __init__(self, steps: Iterable[Any] = ()) -> None:
        """Take steps: names, pairs of name and configuration, or dictionaries."""
        if isinstance(steps, str | Mapping) or not isinstance(steps, Iterable):
            raise ModelError(
                f"a pipeline is a list of passes, got {shown(steps)}; a file is read by Pipeline.from_toml"
            )
        parsed = tuple(map(Step.of, steps))
        require_order(step.run for step in parsed)
        object.__setattr__(self, "steps", parsed)

    @checks_arguments
    def run(
        self,
        model: nn.Module,
        *,
        inputs: Any = None,
        calibration: Iterable[Any] | None = None,
        inplace: bool = False,
    ) -> PipelineResult:
        """Run the passes on a model, in order.

        The same pipeline on the same model gives the same bytes; an empty pipeline changes no bit.

        Args:
            model: the model.
            inputs: inputs of the model, for passes that use its operators or measure.
            calibration: batches, for passes that choose scales.
            inplace: change ``model`` itself; else a deep copy of it.

        Returns:
            The model, a report for each pass, and the pipeline with explicit choices.

        Raises:
            ModelError: before work starts, for a model that has reached a later stage than a pass may follow; and as
                the passes.
        """
        for step in self.steps:
            require_stage(step.run, model)
        if not inplace:
            model = deep_copy(model)
        pass_inputs = PassInputs(inputs, None if calibration is None else Batches(calibration))
        reports, settled = [], []
        for step in self.steps:
            if step.run.stage is None:
                report = step.run.run(model, step.config, pass_inputs)
            else:
                model, report = step.run.run(model, step.config, pass_inputs)
            reports.append((step.run.name, report))
            settled.append(Step(step.run, getattr(report, "settled", None) or step.config))
        return PipelineResult(model, tuple(reports), Pipeline(settled), pass_inputs.inputs)

    # --- written forms ----------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, given: Any) -> Pipeline:
        """Return the pipeline of any of its written forms.

        Args:
            given: a pipeline, a list of steps, its dictionary, or the path of a TOML or JSON file.

        Returns:
            The pipeline.

        Raises:
            ModelError: as the class.
        """
        if isinstance(given, Pipeline):
            return given
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        if isinstance(given, os.PathLike):
            return cls.from_json(given) if os.fspath(given).endswith(".json") else cls.from_toml(given)
        return cls(given)

    @classmethod
    @checks_arguments
    def from_dict(cls, given: Mapping[str, Any]) -> Pipeline:
        """Read plain values.

        Args:
            given: ``{"passes": [{"pass": NAME, OPTION: VALUE, ...}]}``.

        Returns:
            The pipeline.

        Raises:
            ModelError: as the class.
        """
        steps = given.get("passes") if isinstance(given, Mapping) else None
        if not isinstance(steps, list | tuple) or len(given) != 1 or not all(isinstance(s, Mapping) for s in steps):
            raise ModelError("a pipeline is {'passes': [...]}, each pass like {'pass': 'quantize', 'recipe': 'int8'}")
        return cls(steps)

    @classmethod
    @checks_arguments
    def from_json(cls, given: str | os.PathLike[str]) -> Pipeline:
        """Read JSON.

        Args:
            given: a text, or the path of a file.

        Returns:
            The pipeline.

        Raises:
            ModelError: as the class, and for a text that is no JSON.
            OSError: for a file that cannot be read.
        """
        return cls.from_dict(parse_json(_text(given), "pipeline", error=ModelError))

    @classmethod
    @checks_arguments
    def from_toml(cls, given: str | os.PathLike[str]) -> Pipeline:
        """Read TOML: one ``[[passes]]`` table per pass.

        Args:
            given: a text, or the path of a file.

        Returns:
            The pipeline.

        Raises:
            ModelError: as the class, and for a text that is no TOML.
            OSError: for a file that cannot be read.
        """
        return cls.from_dict(read_toml(_text(given), "pipeline", "passes", error=ModelError))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            A dictionary; ``Pipeline.from_dict(pipeline.as_dict()) == pipeline``.
        """
        return {"passes": [step.as_dict() for step in self.steps]}

    def to_json(self) -> str:
        """Return the pipeline as JSON.

        Returns:
            A text; ``Pipeline.from_json(pipeline.to_json()) == pipeline``.
        """
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def to_toml(self) -> str:
        """Return the pipeline as TOML.

        Returns:
            A text; ``Pipeline.from_toml(pipeline.to_toml()) == pipeline``.
        """
        return write_toml("passes", self.as_dict()["passes"])

    # --- a value ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Return the call that makes this pipeline."""
        return f"Pipeline({self.as_dict()['passes']!r})"

    def __eq__(self, other: object) -> bool:
        """Compare passes and configurations, in order."""
        return isinstance(other, Pipeline) and other.steps == self.steps

    def __hash__(self) -> int:
        """Hash the written form."""
        return hash(self.to_json())

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps."""
        return iter(self.steps)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: pipelines are immutable."""
        raise AttributeError(f"Pipeline is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as the steps."""
        return Pipeline, (self.steps,)


def _text(source: str | os.PathLike[str]) -> str:
    return read_text(source, _MOST, error=ModelError) if isinstance(source, os.PathLike) else source
