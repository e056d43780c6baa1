"""Records of a model without its operators: modules, weights with their formats and bytes, buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.errors import OctavoError
from octavo.graph.records import ModuleRecord, TensorRecord
from octavo.nn.format_layer import FormatLayer
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.recipe.sites import Site, join, model_sites

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True)
class ModelRecords:
    """The modules and tensors of a model.

    ``tensors``: weights and buffers by name, shared ones once. ``places``: the name of the record of every entry of the
    state dict. ``sites``: the tensors that recipes decide about, without values, or an error text if recipes refuse the
    model.
    """

    modules: tuple[ModuleRecord, ...]
    tensors: Mapping[str, TensorRecord]
    places: Mapping[str, str]
    sites: tuple[Site, ...] | str


def model_records(model: nn.Module) -> ModelRecords:
    """Read a model's modules and weights. Values are not read, so a model on the meta device is accepted."""
    sites = _sites(model)
    by_tensor = {id(site.tensor): site for site in sites} if not isinstance(sites, str) else {}
    tensors: dict[str, TensorRecord] = {}
    places: dict[str, str] = {}
    names: dict[int, str] = {}
    modules: dict[int, ModuleRecord] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in modules:
            first = modules[id(module)]
            modules[id(module)] = dataclasses.replace(first, paths=(*first.paths, path))
        packed = isinstance(module, PackedLayer)
        own: list[str] = []
        if isinstance(module, PackedLayer):
            own.append(_packed_weight(path, module, tensors, places, names))
        for inner, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                continue
            name = names.setdefault(id(parameter), join(path, inner))
            places[join(path, inner)] = name
            own.append(name)
            site = by_tensor.get(id(parameter))
            text = _weight_format(module, inner)
            if name not in tensors or (text is not None and tensors[name].format is None):
                tensors[name] = _weight(name, parameter, text, site)
        for inner, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            full = join(path, inner)
            if full in places:
                continue
            name = places[full] = names.setdefault(id(buffer), full)
            counted = packed and inner == "bias"  # an int32 bias is a buffer
            if counted:
                own.append(name)
            tensors.setdefault(name, _record(name, "weight" if counted else "buffer", buffer))
        if id(module) not in modules:
            modules[id(module)] = ModuleRecord(
                path, type(module).__name__, (path,), tuple(dict.fromkeys(own)), layer_formats(module),
                is_leaf=_is_leaf(module), training=module.training, description=module.extra_repr(),
            )  # fmt: skip
    blocks = _block_paths(model)
    records = tuple(dataclasses.replace(record, is_block=record.path in blocks) for record in modules.values())
    return ModelRecords(records, tensors, places, sites if isinstance(sites, str) else _without_values(sites))


def _is_leaf(module: nn.Module) -> bool:
    """Whether ``torch.fx.Tracer`` would take the module as one call; ours count as those of ``torch.nn``."""
    own = type(module).__module__.startswith(("torch.nn.", "torch.ao.nn.", "octavo.nn."))
    return own and not isinstance(module, _CONTAINERS)


def _sites(model: nn.Module) -> tuple[Site, ...] | str:
    try:
        return tuple(model_sites(model))
    except OctavoError as error:
        return str(error)


def _without_values(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Return the sites with tensors on the meta device, one for each tensor of the model."""
    empty: dict[int, Tensor] = {}
    stubs = []
    for site in sites:
        tensor = site.tensor
        if tensor is not None:
            stands = empty.setdefault(id(tensor), torch.empty_like(tensor, device="meta"))
            site = dataclasses.replace(site, tensor=stands)
        stubs.append(site)
    return tuple(stubs)


def _packed_weight(
    path: str, layer: PackedLayer, tensors: dict[str, TensorRecord], places: dict[str, str], names: dict[int, str]
) -> str:
    """Record a packed weight as one tensor; the names of its codes, scales, zeros and levels refer to it."""
    packed = layer.packed_weight
    name = names.setdefault(id(layer.weight_codes), join(path, "weight"))
    for part in ("codes", "scales", "zeros", "levels", "bitmap", "starts", "format"):
        places[join(path, f"weight_{part}")] = name
    codes, shape = layer.weight_codes, tuple(packed.shape)
    record = TensorRecord(
        name, "weight", shape, packed.dtype, str(codes.device), str(packed.format), nbytes=packed.nbytes, is_packed=True
    )
    tensors.setdefault(name, record)
    return name


def _weight(name: str, parameter: Tensor, text: str | None, site: Site | None) -> TensorRecord:
    from octavo.tensors.formats import Format

    record = _record(name, "weight", parameter)
    if text is None or site is None:
        return record
    return dataclasses.replace(record, format=text, nbytes=site.nbytes(Format(text)))


def _record(name: str, kind: str, tensor: Tensor) -> TensorRecord:
    return TensorRecord(name, kind, tuple(tensor.shape), tensor.dtype, str(tensor.device))


def _weight_format(module: nn.Module, role: str) -> str | None:
    return layer_formats(module).get(role) if isinstance(module, QuantLayer) and role in ("weight", "bias") else None


def layer_formats(module: nn.Module) -> dict[str, str]:
    """Return the format of each tensor of a quantized or packed layer by role, without disabled quantizers."""
    if not isinstance(module, FormatLayer):
        return {}
    formats = {}
    for role, quantizer in module.role_quantizers().items():
        if getattr(quantizer, "enabled", True):
            fmt = quantizer.format if isinstance(quantizer, Quantizer) else "int32"
            if str(fmt) not in ("fp32", "int32"):
                formats[role] = str(fmt)
    if isinstance(module, PackedLayer):
        formats["weight"] = str(module.format)
    return formats


def _block_paths(model: nn.Module) -> set[str]:
    """Return the paths of the modules that are nodes of the module level.

    The walk from the model down opens containers, and modules that contain a stack (a container whose elements have
    children). An element of a stack, and any other module, is one node.
    """
    paths: set[str] = set()

    def visit(path: str, module: nn.Module) -> None:
        children = [(join(path, name), child) for name, child in module.named_children()]
        if not children:
            paths.add(path)
            return
        stack = _is_stack(module)
        for inner, child in children:
            opened = isinstance(child, _CONTAINERS) if stack else isinstance(child, _CONTAINERS) or _holds_stack(child)
            if opened:
                visit(inner, child)
            else:
                paths.add(inner)

    visit("", model)
    return paths


def _is_stack(module: nn.Module) -> bool:
    if not isinstance(module, _CONTAINERS):
        return False
    return any(next(child.children(), None) is not None for child in module.children())


def _holds_stack(module: nn.Module) -> bool:
    return any(_is_stack(inner) for inner in module.modules())
