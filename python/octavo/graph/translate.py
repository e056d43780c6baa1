"""Translation of an exported program into nodes and tensor records."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from octavo.graph.exporting import FlatInputs
from octavo.graph.model_records import ModelRecords
from octavo.graph.records import Node, Ref, TensorRecord, refs

_ROOT = "model"  # the attribute of the exported wrapper that has the model
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
_ROUNDING = ("octavo.quantize", "octavo.quantize_plain")
# Higher-order operators with one body that runs once; they are replaced by the operators of the body.
_BODIES = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "hints_wrapper", "strict_mode", "invoke_subgraph")

# Methods by which Python's operators reach torch, and their names in the module operator.
_ARITHMETIC = {
    **{name: name for name in ("add", "sub", "mul", "matmul", "neg", "abs", "gt", "ge", "lt", "le", "eq", "ne")},
    **{"div": "truediv", "remainder": "mod", "pow": "pow"},
    **{f"{name}_": f"i{name}" for name in ("add", "sub", "mul")},
    "div_": "itruediv",
}
_REFLECTED = {"rsub": "sub", "rpow": "pow", "rdiv": "truediv", "rtruediv": "truediv", "rmatmul": "matmul"}


class Translation:
    """Walks the graph of an exported program once; the results are its attributes.

    ``nodes``; ``tensors``: inputs, constants and activations; ``inputs`` and ``outputs``: names of tensors.
    """

    def __init__(self, program: Any, flat: FlatInputs, model: ModelRecords) -> None:
        """Translate ``program``."""
        self.nodes: list[Node] = []
        self.tensors: dict[str, TensorRecord] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self._model, self._flat = model, flat
        self._values: dict[Any, Any] = {}
        self._storages: dict[int, str] = {}
        self._live_storages: list[Any] = []  # storages stay alive, so that their addresses are their identities
        self._symbols: dict[Any, Any] = {}
        self._classes = {place: record.module_class for record in model.modules for place in record.paths}
        self._first = {place: record.path for record in model.modules for place in record.paths}
        graph = program.graph_module
        self._placeholders(program)
        self._walk(graph)
        for node in graph.graph.nodes:
            if node.op == "output":
                produced = refs(self._value(node.args[0]))
                mutated = set(getattr(program.graph_signature, "buffers_to_mutate", None) or ())
                self.outputs = list(dict.fromkeys(ref.name for ref in produced if ref.name not in mutated))

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _placeholders(self, program: Any) -> None:
        kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        inputs = iter(zip(self._flat.names, self._flat.symbols, strict=True))
        for node in placeholders:  # symbols have their names before any size is read
            if kinds[node.name].kind.name == "USER_INPUT" and isinstance(node.meta.get("val"), Tensor):
                name, symbols = next(inputs)
                self._name_symbols(node.meta["val"].shape, symbols)
                self._values[node] = name
        for node in placeholders:
            spec, value = kinds[node.name], node.meta.get("val")
            if not isinstance(value, Tensor):
                continue
            if spec.kind.name == "USER_INPUT":
                name = self._add(self._values[node], "input", value)
                self.inputs.append(name)
            else:
                name = self._model_tensor(str(spec.target), value)
            self._values[node] = Ref(name)

    def _model_tensor(self, target: str, value: Tensor) -> str:
        """Return the name of the record of a weight, buffer or constant of the model, and remember its storage."""
        place = target.removeprefix(f"{_ROOT}.")
        name = self._model.places.get(place)
        if name is None:
            return self._add(place, "constant", value)
        self._storages.setdefault(self._storage(value), name)
        return name

    def _storage(self, value: Tensor) -> int:
        storage = value.untyped_storage()
        self._live_storages.append(storage)
        return int(storage._cdata)

    def _add(self, name: str, kind: str, value: Tensor, fmt: str | None = None, alias: str | None = None) -> str:
        taken = self._model.tensors
        while name in self.tensors or name in taken:
            name += "_"
        storage = self._storage(value)
        alias = alias or self._storages.setdefault(storage, name)
        if alias != name:
            base = self.tensors.get(alias) or taken[alias]
            fmt = fmt or (base.format if base.kind == "activation" else None)
        shape = tuple(map(self._size, value.shape))
        self.tensors[name] = TensorRecord(
            name, kind, shape, value.dtype, str(value.device), fmt, None if alias == name else alias
        )
        return name

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _name_symbols(self, shape: Any, names: tuple[str | None, ...]) -> None:
        import sympy

        for size, name in zip(shape, names, strict=True):
            if name is None or isinstance(size, int):
                continue
            symbol = _expression(size)
            if symbol.is_Symbol:
                self._symbols.setdefault(symbol, sympy.Symbol(name, integer=True, positive=True))

    def _size(self, size: Any) -> Any:
        """Return an int, or an expression of named symbols."""
        if isinstance(size, int | float | bool):
            return size
        expression = _expression(size).xreplace(self._symbols)
        if expression.is_Integer:
            return int(expression)
        return float(expression) if expression.is_Number else expression

    # --- operators ----------------------------------------------------------------------------------------------------

    def _walk(self, module: Any) -> None:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self._values[node] = self._attribute(module, node)
            elif node.op == "call_function":
                self._call(module, node)

    def _attribute(self, module: Any, node: Any) -> Any:
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return Ref(self._add(str(node.target), "constant", value)) if isinstance(value, Tensor) else value

    def _call(self, module: Any, node: Any) -> None:
        target, value = node.target, node.meta.get("val")
        if target is operator.getitem:
            result = self._value(node.args[0])
            self._values[node] = result[node.args[1]] if isinstance(result, tuple | list) else result
        elif isinstance(target, torch._ops.HigherOrderOperator) and self._inline(target, node):
            return
        elif _holds_tensors(value) or _mutates(target):
            self._operator(node, value)
        else:  # an assertion, or arithmetic on sizes
            self._values[node] = self._size(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value

    def _inline(self, target: Any, node: Any) -> bool:
        """Replace a higher-order operator by the operators of its body, if the body runs once."""
        arguments = [self._value(argument) for argument in node.args]
        bodies = [argument for argument in arguments if isinstance(argument, torch.fx.GraphModule)]
        if target.name() not in _BODIES or len(bodies) != 1:
            return False
        body = bodies[0]
        handed = arguments[arguments.index(body) + 1 :]
        if target.name() == "invoke_subgraph":
            handed = handed[1:]
        places = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
        for inner, argument in zip(places, handed, strict=False):
            self._values[inner] = argument
        self._walk(body)
        last = next(inner for inner in body.graph.nodes if inner.op == "output")
        self._values[node] = self._value(last.args[0])
        return True

    def _operator(self, node: Any, value: Any) -> None:
        op, arguments = operator_name(node.target), self._arguments(node)
        path, cls = self._module(node)
        fmt = arguments.get("format") if op in _ROUNDING else None
        read = list(refs(tuple(arguments.values())))
        outputs: list[str] = []

        def record(item: Any) -> Any:
            if isinstance(item, Tensor):
                name = node.name if not isinstance(value, tuple | list) else f"{node.name}_{len(outputs)}"
                alias = self._alias(op, arguments, read)
                outputs.append(self._add(name, "activation", item, fmt, alias))
                return Ref(outputs[-1])
            if isinstance(item, tuple | list):
                return tuple(map(record, item))
            return self._size(item) if isinstance(item, torch.SymInt) else item

        self._values[node] = record(value)
        self.nodes.append(
            Node(
                node.name,
                op,
                path,
                cls,
                tuple(outputs),
                MappingProxyType(arguments),
                _stack(node.meta.get("stack_trace")),
                _function(node),
                self._modules(node),
            )
        )

    def _alias(self, op: str, arguments: Mapping[str, Any], read: list[Ref]) -> str | None:
        """Return the base tensor of a drop-out that its arguments make an identity; None for other operators."""
        is_dropout = op in ("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout")
        if is_dropout and read and (not arguments.get("train", True) or arguments.get("p") == 0):
            first = self.tensors.get(read[0].name)
            return (first.alias_of if first is not None else None) or read[0].name
        return None

    def _arguments(self, node: Any) -> dict[str, Any]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            names = [f"argument_{number}" for number in range(len(node.args))]
        else:
            names = [argument.name for argument in schema.arguments]
        arguments = {name: self._value(value) for name, value in zip(names, node.args, strict=False)}
        arguments.update({name: self._value(value) for name, value in node.kwargs.items()})
        for argument in () if schema is None else schema.arguments:
            if argument.name not in arguments and argument.has_default_value() and argument.default_value is not None:
                arguments[argument.name] = argument.default_value
        return arguments

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self._values.get(argument)
        if isinstance(argument, tuple | list):
            return tuple(map(self._value, argument))
        if isinstance(argument, dict):
            return tuple(map(self._value, argument.values()))
        return argument

    def _module(self, node: Any) -> tuple[str, str]:
        """Return path and class of the innermost module whose forward calls an operator."""
        stack = node.meta.get("nn_module_stack") or {}
        for path, _ in reversed(list(stack.values())):
            place = str(path).split("@")[0].removeprefix(_ROOT).removeprefix(".")
            if place in self._first:
                return self._first[place], self._classes[place]
        return "", self._classes[""]

    def _modules(self, node: Any) -> tuple[str, ...]:
        """Return the paths of the modules around an operator, outermost first, with the numbers of their calls."""
        stack = node.meta.get("nn_module_stack") or {}
        calls = (
            (str(path).removeprefix(_ROOT).removeprefix("."), str(key).partition("@"))
            for key, (path, _) in stack.items()
        )
        return tuple(path + at + number for path, (_, at, number) in calls if path in self._first)


def _function(node: Any) -> tuple[str, str] | None:
    """Return the call in Python behind an operator: a name that tells calls apart, and its kind and name.

    Python's operators reach torch as methods: ``x + y`` is ``method_descriptor.add``, as ``x.add(y)`` is. They are
    told apart by the source line.
    """
    call = node.meta.get("torch_fn")
    if call is None:
        return None
    name, function = map(str, call)
    kind, _, short = function.partition(".")
    line = str(node.meta.get("stack_trace") or "").rstrip().rpartition("\n")[2]
    if kind == "method_descriptor" and short in _ARITHMETIC and f".{short}(" not in line:
        kind, short = "operator", _ARITHMETIC[short]
    elif short.startswith("__") and short != "__get__":
        bare = short.strip("_")
        kind, short = "operator", _REFLECTED.get(bare, bare)
    return name, f"{kind}.{short}"


def operator_name(target: Any) -> str:
    """Return ``aten.linear`` for ``torch.ops.aten.linear.default``, and the plain name of other callables."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return str(getattr(target, "__name__", target))


def _expression(size: Any) -> Any:
    """Return the expression of a symbolic size, simplified by the constraints that the export derived."""
    node = size.node
    return node.shape_env.simplify(node.expr) if getattr(node, "shape_env", None) is not None else node.expr


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(map(_holds_tensors, value)))


def _mutates(target: Any) -> bool:
    """Whether an operator writes to its arguments."""
    schema = getattr(target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def _stack(text: str | None) -> tuple[str, ...]:
    """Return the frames of a stack trace outside of torch, innermost first."""
    frames = _FRAME.findall(text or "")
    return tuple(f"{file}:{line} in {function}" for file, line, function in reversed(frames) if "/torch/" not in file)
