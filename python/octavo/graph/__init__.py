"""A model seen whole: its operators, tensors and modules as typed records, without running it.

::

    graph = octavo.graph.capture(model, {"input_ids": ids, "attention_mask": mask})
    print(graph)
    for block in graph.blocks:
        print(block.count, block.module_class, block.paths)
    print(graph.costs("int4:g32 input=int8").at(batch=8, sequence=128))

The model is the truth and the graph a view of it: a change of the model is seen by the next :func:`capture`.
"""

from octavo.graph.analysis import (
    Report,
    block_counts,
    dead_branches,
    module_counts,
    operator_counts,
    sparsity,
    tensor_statistics,
)
from octavo.graph.capture import capture
from octavo.graph.costs import Costs, NodeCost, Totals
from octavo.graph.difference import Change, Difference, diff
from octavo.graph.dot import to_dot
from octavo.graph.model_graph import Graph
from octavo.graph.records import Block, ModuleNode, ModuleRecord, Node, Ref, TensorRecord

__all__ = [
    "Block",
    "Change",
    "Costs",
    "Difference",
    "Graph",
    "ModuleNode",
    "ModuleRecord",
    "Node",
    "NodeCost",
    "Ref",
    "Report",
    "TensorRecord",
    "Totals",
    "block_counts",
    "capture",
    "dead_branches",
    "diff",
    "module_counts",
    "operator_counts",
    "sparsity",
    "tensor_statistics",
    "to_dot",
]
