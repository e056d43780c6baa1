"""Graphs of models: operators, tensors and modules as typed records, captured without running the model.

::

    graph = octavo.graph.capture(model, {"input_ids": ids, "attention_mask": mask})
    print(graph)
    for block in graph.blocks:
        print(block.count, block.module_class, block.paths)
    print(graph.costs("int4:g32 input=int8").at(batch=8, sequence=128))

A graph is a read-only view of a model: changes of the model appear in the next :func:`capture`.

A pass analyses or changes a model. A :class:`Pipeline` is a sequence of passes that can be saved and replayed::

    pipeline = octavo.graph.Pipeline(["remove_dropout", ("quantize", {"recipe": "int8"}), "pack"])
    model = pipeline.run(model).model
"""

from octavo.graph import analysis_passes as _analysis_passes  # noqa: F401 - registers them
from octavo.graph.analysis import (
    Report,
    block_counts,
    dead_branches,
    module_counts,
    operator_counts,
    sparsity,
    tensor_statistics,
)
from octavo.graph.batchnorm_folding import fold_batchnorm
from octavo.graph.capture import capture
from octavo.graph.costs import Costs, NodeCost, Totals
from octavo.graph.difference import Change, Difference, diff
from octavo.graph.dot import to_dot
from octavo.graph.dropout_removal import remove_dropout
from octavo.graph.extraction import extract, module_inputs
from octavo.graph.fx_view import FxNode, fx_nodes
from octavo.graph.model_graph import Graph
from octavo.graph.model_passes import STAGES, Pass, PassInputs, TransformReport, find_pass, pass_names, register_pass
from octavo.graph.page import to_html
from octavo.graph.pipeline import Pipeline, PipelineResult, Step
from octavo.graph.qkv_fusion import fuse_qkv
from octavo.graph.records import Block, ModuleNode, ModuleRecord, Node, Ref, TensorRecord

__all__ = [
    "STAGES",
    "Block",
    "Change",
    "Costs",
    "Difference",
    "FxNode",
    "Graph",
    "ModuleNode",
    "ModuleRecord",
    "Node",
    "NodeCost",
    "Pass",
    "PassInputs",
    "Pipeline",
    "PipelineResult",
    "Ref",
    "Report",
    "Step",
    "TensorRecord",
    "Totals",
    "TransformReport",
    "block_counts",
    "capture",
    "dead_branches",
    "diff",
    "extract",
    "find_pass",
    "fold_batchnorm",
    "fuse_qkv",
    "fx_nodes",
    "module_counts",
    "module_inputs",
    "operator_counts",
    "pass_names",
    "register_pass",
    "remove_dropout",
    "sparsity",
    "tensor_statistics",
    "to_dot",
    "to_html",
]
