"""Folding of batch normalization into the convolution or linear layer before it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from octavo.errors import ModelError
from octavo.graph.analysis_passes import NoOptions
from octavo.graph.capture import capture
from octavo.graph.model_graph import Graph
from octavo.graph.model_passes import Pass, PassInputs, TransformReport, register_pass
from octavo.graph.records import Node
from octavo.nn.folded_norm import FoldedNorm
from octavo.nn.model_copies import deep_copy
from octavo.nn.replace_modules import replace_modules
from octavo.storage.arguments import checks_arguments

_NORMS = ("aten.batch_norm", "aten.native_batch_norm", "aten._native_batch_norm_legit_no_training")


@torch.no_grad()
@checks_arguments
def fold_batchnorm(model: nn.Module, inputs: Any, *, inplace: bool = False) -> tuple[nn.Module, TransformReport]:
    """Return the model with each batch normalization that follows a layer folded into its weight and bias.

    ``w' = w g / sqrt(v + eps)``, ``b' = (b - m) g / sqrt(v + eps) + beta``, in float64, rounded once to the weight's
    dtype. Layers: ``nn.Conv1d``, ``Conv2d``, ``Conv3d``, and ``nn.Linear`` with an output of two dimensions. A pair is
    not folded if the layer's output is read elsewhere, a weight is shared, either runs twice or has hooks, or the
    normalization has no running statistics; the report has the reason. Afterwards the state dict has a bias for the
    layer and no entries of the normalization. :func:`octavo.save_model` records this, and so does ``save_pretrained``
    of a model of transformers; :func:`octavo.load_model` restores it.

    Args:
        model: in evaluation mode.
        inputs: as for :func:`capture`, whose graph shows which layer a normalization reads.
        inplace: change ``model`` itself; else a copy.

    Returns:
        The model, and a report of the pairs.

    Raises:
        ModelError: for a model in training mode, whose normalization depends on the batch, and if ``torch.export``
            refuses the model.

    Example:
        >>> model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4)).eval()
        >>> x = torch.randn(2, 4, 8)
        >>> folded, report = octavo.graph.fold_batchnorm(model, x)
        >>> sorted(folded.state_dict()), torch.allclose(folded(x), model(x), atol=1e-6)
        (['0.bias', '0.weight'], True)
    """
    model = model if inplace else deep_copy(model)
    norms = [(path, module) for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
    training = next((path for path, norm in norms if norm.training), None)
    if training is not None:
        raise ModelError(f"fold_batchnorm: {training} is in training, where it depends on the batch; call model.eval()")
    if not norms:
        return model, TransformReport(_COLUMNS, ())
    graph = capture(model, inputs)
    graph.require_operators("folding batch normalization")
    rows: list[tuple[str, str, str]] = []
    folded: dict[int, nn.Module] = {}
    for path, norm in norms:
        layer_path, reason = _layer_before(model, graph, path, norm)
        if reason is None:
            _fold(model.get_submodule(layer_path), norm)
            folded[id(norm)] = FoldedNorm().train(norm.training)
        rows.append((path, layer_path, "folded" if reason is None else f"stays: {reason}"))
    return replace_modules(model, folded), TransformReport(_COLUMNS, tuple(rows))


_COLUMNS = ("normalization", "layer", "what")


def _layer_before(model: nn.Module, graph: Graph, path: str, norm: _BatchNorm) -> tuple[str, str | None]:
    """Return the path of the layer that a normalization reads, and why the pair cannot be folded, or None."""
    runs = Counter(node.module_path for node in graph.nodes if _computes(node))
    readers = [node for node in graph.nodes if node.module_path == path and node.op in _NORMS]
    if len(readers) != 1:
        return "", f"it runs {len(readers)} times"
    if norm.running_mean is None or norm.running_var is None:
        return "", "it has no running statistics"
    source = readers[0].inputs[0]
    maker = next((node for node in graph.nodes if source in node.outputs), None)
    layer = None if maker is None else model.get_submodule(maker.module_path)
    if maker is None or layer is None or not _takes_norm(layer) or not _computes(maker):
        return "", "it reads no convolution or linear layer"
    if isinstance(layer, nn.Linear) and len(graph.tensors[source].shape) != 2:
        return maker.module_path, "the output of the linear layer has more than two dimensions"
    if runs[maker.module_path] != 1:
        return maker.module_path, "the layer runs more than once"
    if source in graph.outputs or sum(source in node.inputs for node in graph.nodes) > 1:
        return maker.module_path, "the output of the layer is read elsewhere, too"
    if _shared(model, layer):
        return maker.module_path, "the layer's weight is shared or computed"
    if any(_hooks(module) for module in (layer, norm)):
        return maker.module_path, "it has hooks"
    return maker.module_path, _aliased(graph, source)


def _takes_norm(layer: nn.Module) -> bool:
    """Whether a layer is torch's own convolution or linear layer; subclasses may compute something else."""
    if isinstance(layer, _ConvNd):
        return type(layer).__module__ == _ConvNd.__module__ and not isinstance(layer, _ConvTransposeNd)
    return type(layer) is nn.Linear


def _computes(node: Node) -> bool:
    """Whether an operator is a layer's product. Padding with other values than zeros is a separate operator."""
    return "conv" in node.op or node.op == "aten.linear"


def _aliased(graph: Graph, source: str) -> str | None:
    views = [record.name for record in graph.tensors.values() if record.alias_of == source]
    return (
        "a view of the layer's output is read, too" if set(views) & {n for x in graph.nodes for n in x.inputs} else None
    )


def _shared(model: nn.Module, layer: nn.Module) -> bool:
    own = {id(parameter) for parameter in layer._parameters.values() if parameter is not None}
    if hasattr(layer, "parametrizations") or "weight" not in layer._parameters:
        return True
    places = [id(p) for module in model.modules() for p in module._parameters.values() if id(p) in own]
    return len(places) != len(own)


def _hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _fold(layer: Any, norm: _BatchNorm) -> None:
    """Put a normalization into a layer's weight and bias."""
    weight: Tensor = layer.weight
    assert norm.running_mean is not None and norm.running_var is not None
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    gain = torch.ones_like(mean) if norm.weight is None else norm.weight.double()
    shift = torch.zeros_like(mean) if norm.bias is None else norm.bias.double()
    bias = torch.zeros_like(mean) if layer.bias is None else layer.bias.double()
    factor = gain / torch.sqrt(variance + norm.eps)
    folded = weight.double() * factor.reshape(-1, *[1] * (weight.ndim - 1))
    trained = weight.requires_grad
    layer.weight = nn.Parameter(folded.to(weight.dtype), requires_grad=trained)
    layer.bias = nn.Parameter(((bias - mean) * factor + shift).to(weight.dtype), requires_grad=trained)


def _run(model: nn.Module, config: NoOptions, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return model, TransformReport(_COLUMNS, ())
    pass_inputs.graph(model, "fold_batchnorm")
    return fold_batchnorm(model, pass_inputs.inputs, inplace=True)


register_pass(Pass("fold_batchnorm", "structure", NoOptions, _run))
