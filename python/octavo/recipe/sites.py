"""The tensors that rules decide about: those of a model's layers, and those of a checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octavo.errors import DTypeError, ModelError, ShapeError
from octavo.late_binding import late
from octavo.recipe.spec import ROLES
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import FLOATS, PackedTensor


@dataclass(frozen=True, eq=False)
class Site:
    """One tensor that a rule may decide about.

    ``paths``: of its module, the first one that of ``named_modules()``; ``name``: of the parameter inside the module,
    None for activations. ``axis``: along which blocks run. ``needs_name``: a vector that is no bias, such as the
    weight of a norm in a checkpoint: only a rule that names it in full means it. ``is_lookup``: rows of the weight are
    read, not multiplied. ``problem``: why no format can be given. ``of_model``: a tensor of a model, which packs a
    kernel as a matrix and where ``fp32`` leaves values as they are; one of a checkpoint is packed along its last axis
    and cast. ``held``: bytes of a tensor of a checkpoint as it is. ``matrix``: rows and columns of a kernel as it is
    rounded and packed, where those are not its first axis and all others. ``is_solved``: whether gptq has inputs of a
    product for it. ``part_of``: names of the parameter that it is a part of, in a module that is made of layers where
    one has a format.
    """

    paths: tuple[str, ...]
    role: str
    name: str | None
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    axis: int = -1
    classes: tuple[str, ...] = ()
    is_default: bool = False
    needs_name: bool = False
    is_lookup: bool = False
    problem: str | None = None
    of_model: bool = True
    held: int | None = None
    matrix: tuple[int, int] | None = None
    is_solved: bool = True
    tensor: Tensor | None = field(default=None, repr=False)
    part_of: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """Path of the module."""
        return self.paths[0]

    @property
    def path(self) -> str:
        """Full name of the tensor, ``encoder.0.query.weight``; of an activation, ``encoder.0.query input``."""
        if self.name is None:
            return f"{self.module or 'the model'} {self.role}"
        return join(self.module, self.name)

    def nbytes(self, fmt: Format | None) -> int:
        """Return the bytes of a parameter in a format, or as it is. Rows of a kernel run over all that a sum does."""
        assert self.shape is not None and self.dtype is not None  # activations alone have neither
        if fmt is None and self.held is not None:
            return self.held
        if fmt is None:
            return math.prod(self.shape) * self.dtype.itemsize
        return fmt.nbytes(self._matrix, self.axis)

    @property
    def row(self) -> int:
        """Elements of a row of a parameter that is no scalar, along which blocks run."""
        return self._matrix[self.axis]

    @property
    def _matrix(self) -> tuple[int, ...]:
        assert self.shape is not None
        if self.matrix is not None:
            return self.matrix
        is_kernel = self.of_model and len(self.shape) > 2
        return (self.shape[0], math.prod(self.shape[1:])) if is_kernel else self.shape

    @property
    def elements(self) -> int:
        """Number of elements of a parameter."""
        assert self.shape is not None  # activations alone have none
        return math.prod(self.shape)

    @property
    def names(self) -> Iterator[str]:
        """Everything that a path or pattern may match."""
        for path in self.paths:
            yield path
            if self.name is not None:
                yield join(path, self.name)
        yield from self.part_of


def join(module: str, name: str) -> str:
    """Return the path of a part of a module; the top module has no name."""
    return f"{module}.{name}" if module and name else module or name


# --- models ---------------------------------------------------------------------------------------------------------


def model_sites(model: nn.Module, *, rewritten: bool = True) -> list[Site]:
    """List the tensors of every layer, in the order of ``named_modules()``, then parameters that no rule can reach.

    ``rewritten``: modules that can be made of layers (:mod:`octavo.nn.rewriting`) are listed as those layers, which the
    model gets where one has a format; False lists their parameters, which no rule reaches.
    Raises DTypeError for what is no module, ModelError for one that TorchScript compiled, ShapeError for parameters
    that have no shape yet.
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(f"a recipe decides about a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            f"{type(model).__name__}: TorchScript compiled it, and its layers cannot be replaced; give the module that "
            "was traced or scripted"
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    reached, stand_ins = late("layers_in_reach")(model) if rewritten else (modules, {})
    paths: dict[nn.Module, list[str]] = {}
    for path, module in reached.items():
        paths.setdefault(module, []).append(path)
    sites: list[Site] = []
    whole: set[str] = set()  # modules whose parts are no layers of the model: quantizers, weights they read themselves
    for module, names in paths.items():
        if _is_within(names[0], whole):
            continue
        if roles := _roles(module):
            sites += _layer_sites(module, tuple(names), roles)
            whole.add(names[0])
        elif isinstance(module, nn.MultiheadAttention):
            reason = "torch.nn.MultiheadAttention reads its weights itself; write it with Linear layers"
            for inner, part in module.named_modules():
                sites += _unreachable(part, tuple(join(path, inner) for path in names), reason)
            whole.add(names[0])
        elif is_default(module):
            reason = f"{type(module).__name__} has a forward of its own, which no quantized layer stands in for"
            sites += _unreachable(module, tuple(names), reason)
        else:
            reason = f"{type(module).__name__} takes no formats"
            sites += _unreachable(module, tuple(names), reason)
    return _with_origins(sites, stand_ins) if stand_ins else sites


def _with_origins(sites: list[Site], stand_ins: Mapping[str, nn.Module]) -> list[Site]:
    """Give layers the names of the parameters that they are parts of: a rule that names one means all its layers."""
    whole: dict[str, str] = {}
    for path, module in stand_ins.items():
        for name, origin in late("made_from")(module).origins.items():
            whole |= {join(path, part): join(path, name) for part in origin.parts}

    def names(site: Site) -> tuple[str, ...]:
        # Inputs and outputs go by the weight.
        name = whole.get(site.path if site.name is not None else join(site.module, "weight"))
        return () if name is None else (name,)

    return [replace(site, part_of=names(site)) for site in sites]


def _is_within(path: str, modules: Collection[str]) -> bool:
    return any(path[: dot.start()] in modules for dot in re.finditer(r"\.", path))


def _class_names(module: nn.Module) -> tuple[str, ...]:
    return tuple(cls.__name__ for cls in type(module).__mro__)


def default_layers() -> str:
    """Return the names of the layers that the default selection means."""
    return ", ".join(kind.name for kind in late("float_kinds")())


def is_transposed(module: nn.Module) -> bool:
    """Whether it is a layer whose weight is stored ``[in, out]``, as transformers' Conv1D does."""
    kind = late("kind_of")(module)
    return kind is not None and kind.weight_axis == 0


def is_default(module: nn.Module) -> bool:
    """Whether the default selection means the module: it is of a float class that :mod:`octavo.nn` replaces."""
    kind = late("kind_of")(module)
    return kind is not None and kind.float_class is not None


def _roles(module: nn.Module) -> tuple[str, ...]:
    """Return the roles of a layer's tensors; none for a module that is no layer."""
    kind = late("kind_of")(module)
    if declared := getattr(module, "quant_roles", None):
        declared = declared if kind is None else kind.roles_of(module)
        return tuple(role for role in ROLES if role in declared)
    return () if kind is None or not kind.computes(module) else kind.roles_of(module)


def _layer_sites(module: nn.Module, paths: tuple[str, ...], roles: tuple[str, ...]) -> Iterator[Site]:
    classes, default = _class_names(module), is_default(module)
    kind = late("kind_of")(module)
    lookup = kind is not None and kind.is_lookup
    for role in roles:
        if role in ("input", "output"):
            yield Site(role=role, name=None, paths=paths, classes=classes, is_default=default)
            continue
        tensor = getattr(module, role, None)
        if isinstance(tensor, Tensor):
            axis = kind.weight_axis if role == "weight" and kind is not None else -1
            turned = role == "weight" and kind is not None and kind.packed is not None and tensor.ndim > 2
            yield _parameter_site(
                tensor, role, role, paths, classes, axis=axis, is_default=default, is_lookup=lookup,
                matrix=kind.packed.matrix_shape(module) if turned else None,
                is_solved=kind is None or (kind.is_solved and kind.own_class(module) is None),
            )  # fmt: skip


def _unreachable(module: nn.Module, paths: tuple[str, ...], reason: str) -> Iterator[Site]:
    for name, tensor in module.named_parameters(recurse=False):
        role = "bias" if name.endswith("bias") else "weight"
        yield _parameter_site(tensor, role, name, paths, _class_names(module), problem=reason)


def _parameter_site(
    tensor: Tensor,
    role: str,
    name: str,
    paths: tuple[str, ...],
    classes: tuple[str, ...],
    *,
    axis: int = -1,
    is_default: bool = False,
    is_lookup: bool = False,
    problem: str | None = None,
    matrix: tuple[int, int] | None = None,
    is_solved: bool = True,
) -> Site:
    if is_lazy(tensor):
        raise ShapeError(f"{join(paths[0], name)}: has no shape yet; run the model once before giving it a recipe")
    if tensor.dtype not in FLOATS:
        problem = f"dtype {dtype_name(tensor.dtype)}; accepted are {', '.join(map(dtype_name, FLOATS))}"
    return Site(
        paths=paths,
        role=role,
        name=name,
        shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        axis=axis,
        classes=classes,
        is_default=is_default,
        is_lookup=is_lookup,
        problem=problem,
        matrix=matrix,
        is_solved=is_solved,
        tensor=tensor,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


# --- checkpoints ----------------------------------------------------------------------------------------------------


def tensor_sites(tensors: Mapping[str, Tensor | PackedTensor]) -> list[Site]:
    """List the tensors of a checkpoint, in order: ``a.b.weight`` is the weight of the module ``a.b``.

    The default selection is the 2-D float weights, and the 3-D ones of batched experts: a checkpoint does not tell the
    types of its layers. Raises DTypeError for what is no mapping of texts to tensors.
    """
    if not isinstance(tensors, Mapping):
        raise DTypeError(f"a checkpoint is a mapping of names to tensors, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise DTypeError(f"the name of a tensor is {name!r}; accepted are texts such as 'encoder.weight'")
        if not isinstance(tensor, Tensor | PackedTensor):
            raise DTypeError(f"{name}: is a {type(tensor).__name__}; accepted are tensors and packed tensors")
    matrices = {
        name.rpartition(".")[0]
        for name, tensor in tensors.items()
        if tensor.ndim == 2 and _tensor_problem(tensor) is None and name.rpartition(".")[2] == "weight"
    }
    return [_tensor_site(name, tensor, matrices) for name, tensor in tensors.items()]


def _tensor_site(name: str, tensor: Tensor | PackedTensor, matrices: Collection[str]) -> Site:
    module, _, leaf = name.rpartition(".")
    is_bias = leaf == "bias" and tensor.ndim <= 1
    # Batched experts: matrices of all of them in one tensor, a row of biases for each.
    of_experts = module.rpartition(".")[2] == "experts"
    is_matrix = not leaf.endswith("bias") and tensor.ndim in (2, 3) if of_experts else tensor.ndim == 2
    problem = _tensor_problem(tensor)
    return Site(
        paths=(module,),
        role="bias" if is_bias else "weight",
        name=leaf,
        shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        is_default=module in matrices if is_bias else is_matrix,
        needs_name=tensor.ndim == 1 and not is_bias,
        problem=problem,
        of_model=False,
        held=tensor.nbytes,
    )


def _tensor_problem(tensor: Tensor | PackedTensor) -> str | None:
    if isinstance(tensor, PackedTensor):
        return f"already packed as '{tensor.format}' (octavo unpack comes first)"
    if tensor.dtype in FLOATS and tensor.ndim:
        return None
    return f"dtype {dtype_name(tensor.dtype)} and shape {tuple(tensor.shape)}"
