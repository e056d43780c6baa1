"""The interface of passes: named analyses and transforms of a model, with a serialisable configuration.

A room with a pass creates a :class:`Pass`, and ``octavo/__init__.py`` names it under ``pass_NAME``. This room looks it
up there and imports no other room. Users register their own passes with :func:`register_pass`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo import late_binding
from octavo.errors import DTypeError, ModelError, OctavoError
from octavo.graph.analysis import Report
from octavo.graph.capture import capture
from octavo.graph.model_graph import Graph
from octavo.nn.model_copies import deep_copy
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.storage.arguments import check_fields, checks_arguments

STAGES = ("structure", "masks", "calibration", "quantization", "training", "fold", "pack")
"""The order of compression: a pass may follow passes of its own stage and of earlier ones."""

_PREFIX = "pass_"
_registered: dict[str, Pass] = {}


@dataclass
class PassInputs:
    """Data that passes read and no file of a pipeline contains. Extraction replaces it.

    ``inputs``: as for :func:`octavo.graph.capture`, for passes that use the operators or measure time.
    ``calibration``: batches, as for :func:`octavo.quantize_model`.
    """

    inputs: Any = None
    calibration: Iterable[Any] | None = None

    def __post_init__(self) -> None:
        """Check the types."""
        check_fields(self)

    @checks_arguments
    def graph(self, model: nn.Module, name: str) -> Graph:
        """Return the graph of a model on ``inputs``.

        Args:
            model: the model.
            name: of the pass, for errors.

        Returns:
            The graph.

        Raises:
            ModelError: without inputs.
        """
        if self.inputs is None:
            raise ModelError(f"{name}: it follows the model's operators, which needs inputs; give inputs=batch")
        return capture(model, self.inputs)


@dataclass(frozen=True)
class TransformReport(Report):
    """The report of a transform. ``settled``: its configuration with every measured choice made explicit, or None."""

    settled: Any = None


@dataclass(frozen=True)
class Pass:
    """A named analysis or transform of a model.

    ``stage``: one of ``STAGES`` for a transform; None for an analysis, which may run anywhere. ``config``: a frozen
    dataclass of plain values (texts, numbers, booleans, None and tuples of them) that checks itself. None is allowed
    only as a default, because TOML cannot express it. ``run``: for a transform a function from ``(model, config,
    pass_inputs)`` to ``(model, report)``, which changes the model in place; for an analysis it returns a report. A
    report has ``to_table()`` and ``to_json()``. ``also_after``: later stages that the pass may follow. ``also_on``:
    further stages that the model may have reached when the pass is called.
    """

    name: str
    stage: str | None
    config: type
    run: Callable[[nn.Module, Any, PassInputs], Any]
    also_after: tuple[str, ...] = ()
    also_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the stages."""
        check_fields(self)
        for stage in (self.stage, *self.also_after, *self.also_on):
            if stage is not None and stage not in STAGES:
                raise ModelError(f"pass {self.name}: unknown stage {stage!r}; accepted are {', '.join(STAGES)}")

    def configured(self, given: Any = None, **options: Any) -> Any:
        """Return a configuration from a mapping, from options, from both, or from a configuration.

        Args:
            given: a mapping or a configuration; it is not changed.
            options: fields of the configuration.

        Returns:
            The configuration.

        Raises:
            ModelError: for an unknown or missing key, with the nearest known one; and as the configuration.
            DTypeError: for other types.
        """
        if isinstance(given, self.config):
            return dataclasses.replace(given, **options) if options else given  # type: ignore[type-var]
        if given is not None and not isinstance(given, Mapping):
            raise DTypeError(
                f"{self.name}: its configuration is a {type(given).__name__}; accepted are a {self.config.__name__} "
                "and a mapping"
            )
        values = {key: _frozen(value) for key, value in {**(given or {}), **options}.items()}
        fields = {field.name: field for field in dataclasses.fields(self.config)}
        for key in values:
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"accepted are {', '.join(fields) or 'none'}"
                raise ModelError(f"{self.name}: unknown key {key!r}; {hint}")
        for key, field in fields.items():
            if key not in values and field.default is field.default_factory is dataclasses.MISSING:
                raise ModelError(f"{self.name}: {key} is not given; it has no default")
        try:
            return self.config(**values)
        except OctavoError as error:
            message = str(error)
            raise type(error)(message if message.startswith(self.name) else f"{self.name}: {message}") from None

    def __call__(
        self,
        model: nn.Module,
        config: Any = None,
        *,
        inputs: Any = None,
        calibration: Iterable[Any] | None = None,
        inplace: bool = False,
        **options: Any,
    ) -> Any:
        """Run the pass alone; return (model, report), or the report of an analysis.

        ``config`` or ``options``: the configuration. ``inplace=False``: run on a copy of the model. Raises ModelError,
        before work starts, for a model that has reached a stage which the pass may not follow.
        """
        configuration = self.configured(config, **options)
        require_stage(self, model)
        pass_inputs = PassInputs(inputs, calibration)
        if self.stage is None:
            return self.run(model, configuration, pass_inputs)
        return self.run(model if inplace else deep_copy(model), configuration, pass_inputs)


def _frozen(value: Any) -> Any:
    """Return a copy with tuples for lists, so that later changes of the original have no effect."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def plain_config(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values, without None."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: _thawed(value) for name, value in values.items() if value is not None}


def _thawed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_thawed(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return value


# --- order ------------------------------------------------------------------------------------------------------------


def reached(model: nn.Module) -> str | None:
    """Return the stage that a model has reached, by the classes of its layers: ``pack``, ``quantization`` or None."""
    if not isinstance(model, nn.Module):
        raise DTypeError(f"a pass takes a torch.nn.Module, got {type(model).__name__}")
    kinds = {type(module) for module in model.modules()}
    if any(issubclass(kind, PackedLayer) for kind in kinds):
        return "pack"
    return "quantization" if any(issubclass(kind, QuantLayer) for kind in kinds) else None


def require_stage(this: Pass, model: nn.Module) -> None:
    """Raise ModelError if a model has reached a stage that a pass may not follow."""
    stage = reached(model)
    if _too_late(this, stage, (*this.also_after, *this.also_on)):
        state = "packed" if stage == "pack" else "simulated"
        raise ModelError(
            f"{this.name}: {type(model).__name__} has {state} layers, and a pass of the stage {this.stage} comes "
            f"before {stage}: {_ORDER}; run it on the float model"
        )


def require_order(passes: Iterable[Pass]) -> None:
    """Raise ModelError if a pass follows a pass of a later stage."""
    before: list[Pass] = []
    for number, this in enumerate(passes, 1):
        wrong = next((other for other in before if _too_late(this, other.stage, this.also_after)), None)
        if wrong is not None:
            raise ModelError(
                f"pass {number}, {this.name} (stage {this.stage}), follows {wrong.name} (stage {wrong.stage}); the "
                f"order is {_ORDER}; move {this.name} before {wrong.name}"
            )
        before.append(this)


_ORDER = " -> ".join(STAGES)


def _too_late(this: Pass, stage: str | None, allowed: tuple[str, ...]) -> bool:
    if this.stage is None or stage is None or stage in allowed:
        return False
    return STAGES.index(stage) > STAGES.index(this.stage)


# --- names ------------------------------------------------------------------------------------------------------------


@checks_arguments
def register_pass(this: Pass) -> Pass:
    """Register a pass under its name.

    Args:
        this: the pass.

    Returns:
        The pass.

    Raises:
        ModelError: for a name that is taken.
    """
    if this.name in pass_names():
        raise ModelError(f"there is a pass {this.name!r} already; give the new one another name")
    _registered[this.name] = this
    return this


def pass_names() -> list[str]:
    """Return the names of all passes.

    Returns:
        Names, for :func:`find_pass`.

    Example:
        >>> octavo.graph.pass_names()[:6]
        ['block_counts', 'compact', 'costs', 'dead_branches', 'extract', 'fold_batchnorm']
    """
    return sorted({*_registered, *(name.removeprefix(_PREFIX) for name in late_binding.bound(_PREFIX))})


@checks_arguments
def find_pass(name: str) -> Pass:
    """Return the pass of a name.

    Args:
        name: of :func:`pass_names`.

    Returns:
        The pass.

    Raises:
        ModelError: for an unknown name; names the nearest known one.
    """
    if name in _registered:
        return _registered[name]
    known = pass_names()
    if name not in known:
        near = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"accepted are {', '.join(known)}"
        raise ModelError(f"no pass is called {name!r}; {hint}")
    bound = late_binding.late(_PREFIX + name)
    assert isinstance(bound, Pass)  # the package binds nothing else under this prefix
    return bound
