"""Export of a graph as DOT, the language of Graphviz."""

from __future__ import annotations

from typing import Literal

from octavo.graph.graph_content import GraphContent
from octavo.graph.records import ModuleNode, Node
from octavo.storage.arguments import checks_arguments


@checks_arguments
def to_dot(graph: GraphContent, level: Literal["module", "operator"] = "module") -> str:
    """Return a graph as DOT: a box for each node of a level, an arrow for each tensor between two nodes.

    Args:
        graph: of :func:`capture`.
        level: ``module`` or ``operator``.

    Returns:
        A text for Graphviz.

    Raises:
        ModelError: for ``level="operator"`` if the graph has no operators.
    """
    nodes: tuple[Node | ModuleNode, ...] = graph.level("operator") if level == "operator" else graph.level("module")
    lines = ["digraph model {", "  rankdir=TB; node [shape=box];"]
    roots = {name: record.alias_of or name for name, record in graph.tensors.items()}
    makers: dict[str, str] = {}
    for name in graph.inputs:
        lines.append(f"  {_quoted(f'input {name}')} [shape=ellipse];")
        makers[name] = f"input {name}"
    for node in nodes:
        title = node.op if isinstance(node, Node) else node.module_class
        label = _quoted((node.id or graph.model_class) + "\\n" + title)
        lines.append(f"  {_quoted(_key(node))} [label={label}];")
        for name in node.outputs:
            makers[name] = _key(node)
    for node in nodes:
        for name in node.inputs:
            maker = makers.get(name) or makers.get(roots[name])
            if maker is not None and maker != _key(node):
                lines.append(f"  {_quoted(maker)} -> {_quoted(_key(node))};")
    return "\n".join([*dict.fromkeys(lines), "}"])


def _key(node: Node | ModuleNode) -> str:
    return f"node {node.id}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
