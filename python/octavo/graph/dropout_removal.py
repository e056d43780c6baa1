"""Removal of drop-out from a model: modules, attributes, and functions that modules call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from octavo.graph.analysis import in_mode
from octavo.graph.analysis_passes import NoOptions
from octavo.graph.capture import capture
from octavo.graph.model_graph import Graph
from octavo.graph.model_passes import Pass, PassInputs, TransformReport, register_pass
from octavo.graph.records import Node
from octavo.nn.model_copies import deep_copy
from octavo.recipe.sites import join
from octavo.storage.arguments import checks_arguments

_NAMES = re.compile(r"dropout|pdrop$")
_DROPPING = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout,
    torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_, torch.feature_dropout, torch.feature_dropout_,
    torch.feature_alpha_dropout, torch.feature_alpha_dropout_,
}  # fmt: skip
_SHARES = {"dropout_p", "dropout"}  # arguments of attention and recurrent operators


class NoDropout(nn.Identity):
    """Replaces a drop-out module; ``p`` is 0, for code that reads the probability and drops by itself."""

    p = 0.0
    inplace = False


class _WithoutDropout(TorchFunctionMode):
    """Makes all functional drop-out the identity inside."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the input of a drop-out; call other functions."""
        options = kwargs or {}
        if func in _DROPPING:
            return args[0] if args else options["input"]
        if func is F.scaled_dot_product_attention:
            args, options = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**options}
            if "dropout_p" in options:
                options["dropout_p"] = 0.0
        return func(*args, **options)


def _forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the forward of a module's class without drop-out."""
    with _WithoutDropout():
        return type(module).forward(module, *args, **kwargs)


@torch.no_grad()
@checks_arguments
def remove_dropout(model: nn.Module, inputs: Any = None, *, inplace: bool = False) -> tuple[nn.Module, TransformReport]:
    """Return the model without drop-out, and a report of the removed parts.

    Modules of drop-out are replaced by the identity. Attributes and entries of a ``config`` with a probability, such as
    ``attention_dropout``, become 0. Without inputs, calls of drop-out as a function stay, with the probability that
    their module passes. State-dict names do not change. Batch normalization keeps its training mode.

    Args:
        model: any model.
        inputs: as for :func:`capture`. The model is captured in training mode, and the forward of modules that call
            drop-out as a function is wrapped.
        inplace: change ``model`` itself; else a copy.

    Returns:
        The model, and the report.
    """
    model = model if inplace else deep_copy(model)
    rows: list[tuple[str, str, str]] = []
    for path, module in list(model.named_modules(remove_duplicate=False)):
        for name, child in list(module._modules.items()):
            if isinstance(child, _DropoutNd):
                setattr(module, name, NoDropout().train(child.training))
                rows.append((join(path, name), type(child).__name__, f"{child.p:g}"))
        rows += _attributes(path, vars(module))
    rows += _attributes("config", getattr(getattr(model, "config", None), "__dict__", {}))
    if isinstance(model, _DropoutNd):
        rows.append(("", type(model).__name__, f"{model.p:g}"))
        return NoDropout().train(model.training), TransformReport(_COLUMNS, tuple(rows))
    if inputs is not None:
        rows += _functional(model, inputs)
    return model, TransformReport(_COLUMNS, tuple(rows))


_COLUMNS = ("module", "drop-out", "share")


def _attributes(path: str, attributes: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Set the probabilities among attributes to 0, and return a row for each that was not 0."""
    rows = []
    for name, value in attributes.items():
        if _NAMES.search(name) and isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
            attributes[name] = 0.0
            rows.append((path, name, f"{value:g}"))
    return rows


def _functional(model: nn.Module, inputs: Any) -> list[tuple[str, str, str]]:
    """Wrap the modules whose own forward still drops, according to the graph of the model in training mode."""
    rows = []
    for path, node in dropping(training_graph(model, inputs)).items():
        module = model.get_submodule(path)
        if "forward" in vars(module):  # wrapped before, or replaced by the user: not changed
            continue
        bound: Any = functools.partial(_forward, module)
        bound.__signature__ = inspect.signature(module.forward)
        module.forward = bound
        rows.append((path, node.op, ""))
    return rows


def training_graph(model: nn.Module, inputs: Any) -> Graph:
    """Return the graph of a model in training mode; the modes of the model are restored."""
    with in_mode(model, True):
        graph = capture(model, inputs)
    graph.require_operators("removing functional drop-out")
    return graph


def dropping(graph: Graph) -> dict[str, Node]:
    """Return the modules that use drop-out, by path, with the first such operator of each."""
    modules: dict[str, Node] = {}
    for node in graph.nodes:
        shares = [value for name, value in node.arguments.items() if name in _SHARES]
        if "dropout" in node.op or any(isinstance(share, float | int) and share > 0 for share in shares):
            modules.setdefault(node.module_path, node)
    return modules


def _run(model: nn.Module, config: NoOptions, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    return remove_dropout(model, pass_inputs.inputs, inplace=True)


register_pass(
    Pass("remove_dropout", "structure", NoOptions, _run, also_after=("masks", "calibration", "quantization", "training",
                                                                    "fold", "pack"))
)  # fmt: skip
