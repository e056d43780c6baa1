"""A model folder packed tensor by tensor: what quantize_model, pack_model and save_model make of its model.

The architecture is built without memory for its weights, the recipe decides about its layers, and one weight at a time
is read, packed and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.errors import ContainerError, FormatError
from octavo.model_folder.companion_files import copy_companions
from octavo.model_folder.features.described_layers import build_layer, packed_class, plain
from octavo.model_folder.infer_structure import as_layer, model_of, packable
from octavo.model_folder.model_card import write_card
from octavo.model_folder.model_config import CONFIG, own_model
from octavo.model_folder.pack_checkpoint import Errors, Progress, TensorReport, measure, with_reasons, with_zeros
from octavo.model_folder.place_tensors import assign_plain, fits, refuse_empty
from octavo.model_folder.quantization_entry import entry_of, write_entry
from octavo.model_folder.save_load import save_weights, write_config
from octavo.model_folder.tensor_names import Placed, Places
from octavo.model_folder.weight_files import PACKED_NAME, Checkpoint, layers_of, replaced
from octavo.nn import PackedLayer, QuantLayer
from octavo.nn.rewriting import layers_in_reach, rewritten_modules
from octavo.nn.tied_weights import TIED_FIELD, Untied, untie_heads
from octavo.quant.apply_recipe import check_weights, prepare_weights, solve_weight
from octavo.quant.pack_layers import leave_out_zeros, pack_layer, share_codes
from octavo.recipe import Recipe
from octavo.recipe.decide import Decision
from octavo.recipe.model_decisions import decide_model, layer_plans
from octavo.recipe.note import note_recipe
from octavo.recipe.sites import dtype_name, join
from octavo.recipe.spec import LayerPlan, Spec
from octavo.storage import files, folders
from octavo.storage.reading import read_json, shown
from octavo.tensors.packed_tensor import PackedTensor


@dataclass
class PackedFolder:
    """A packed model and a report for each tensor. ``left_out``: tensors of the folder that the model has not."""

    model: nn.Module
    reports: list[TensorReport] = field(default_factory=list)
    left_out: tuple[str, ...] = ()


@dataclass
class OpenFolder:
    """The model that a folder is of, its weights not read: on the meta device, and the tensors by their names in it."""

    source: Checkpoint
    model: nn.Module
    found: Places
    untied: Untied | None = None

    @classmethod
    def open(cls, source: Checkpoint, *, untie: bool = False) -> OpenFolder:
        """Build the model; ``untie``: with a weight of its own for a head that has the table of the embedding.

        Raises FormatError for a model that is packed already, ModelError where transformers or ``config.json`` is
        missing or nothing is tied, ContainerError where transformers does not know the model or a weight is missing.
        """
        packed = list(layers_of(source))
        if not packed:
            model, found = model_of(source)
            if own_model(source.folder) is not None:  # packed by 0.1, which load_model reads as it is
                packed = [name for name, tensor in found.tensors.items() if isinstance(tensor, PackedTensor)]
        if packed:
            raise FormatError(
                f"{source.path}: already packed, as {shown(packed[0])} is; octavo.load_model reads it (octavo unpack "
                "comes first to pack it anew)"
            )
        if not untie:
            return cls(source, model, found)
        untied = untie_heads(model)
        for name in {*untied.tables, *untied.tables.values()} & found.ties.keys():
            found.tensors[name] = found.tensors[found.ties.pop(name)]
        return cls(source, model, found, untied)

    @property
    def is_packed(self) -> bool:
        """Whether ``octavo pack`` of 0.1 has packed tensors of it."""
        return any(isinstance(tensor, PackedTensor) for tensor in self.found.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensors."""
        return sum(tensor.nbytes for tensor in self.found.tensors.values())

    def plan(self, recipe: Recipe | None) -> list[TensorReport]:
        """Tell what :meth:`pack` would do, from names and shapes alone. Refuses the recipes that it refuses."""
        formats: dict[str, tuple[str, int]] = {}
        decisions: list[Decision] = []
        parts: dict[str, list[TensorReport]] = {}
        if recipe is not None:
            self._refuse_packed()
        if recipe is None:
            for path, given in self._stored_plan().items():
                name = self._first(join(path, "weight"))
                spec, tensor = given.weight, self.found.tensors[name]
                assert spec is not None
                formats[name] = str(spec.format), tensor.nbytes
        else:
            decisions = decide_model(recipe.rules, self.model)
            check_weights(self.model, layer_plans(decisions), str(recipe))
            for decision in decisions:
                site, fmt = decision.site, decision.format
                if site.role != "weight":
                    continue
                if site.part_of and site.tensor is not None:
                    text = None if fmt is None else str(fmt)
                    part = _report(site.path, site.tensor, text, site.nbytes(fmt))
                    parts.setdefault(self._first(site.part_of[0]), []).append(part)
                elif fmt is not None:
                    formats[self._first(site.path)] = str(fmt), site.nbytes(fmt)
        reports = []
        for name, tensor in self.found.tensors.items():
            if name in parts:
                reports.append(_joined(_report(name, tensor, None, tensor.nbytes), parts[name]))
                continue
            text, nbytes = formats.get(name, (None, tensor.nbytes))
            reports.append(_report(name, tensor, text, nbytes))
        return with_reasons(reports, decisions)

    def pack(self, recipe: Recipe | None, *, sparse: bool = False, progress: Progress | None = None) -> PackedFolder:
        """Return the packed model: bit for bit what quantize_model and pack_model make of the float one.

        ``sparse``: as for pack_model. ``recipe`` None: packed tensors keep their formats, for folders that
        ``octavo pack`` of 0.1 wrote. The model is this one, whose layers are replaced. Raises FormatError and
        DTypeError as :func:`octavo.quantize_model`, CalibrationError where the recipe asks for data, NonFiniteError
        with the tensor's name.
        """
        decisions = [] if recipe is None else decide_model(recipe.rules, self.model)
        plan = self._stored_plan() if recipe is None else layer_plans(decisions)
        if recipe is not None:
            self._refuse_packed()
        reached, _ = layers_in_reach(self.model)
        skeletons = {path: reached[path] for path in plan}
        model = prepare_weights(self.model, plan, None if recipe is None else str(recipe))
        rewritten = dict(rewritten_modules(model))
        places = self.found.split(rewritten)
        reports, done = _pack_weights(model, skeletons, places, sparse, progress)
        rest = {name: places.value(name) for name in (*places.tensors, *places.ties) if name not in done}
        assign_plain(model, places.ties, rest, done)
        refuse_empty(model)
        note_recipe(model, None if recipe is None else str(recipe))
        for name, tensor in places.tensors.items():
            if name not in reports:
                nbytes = rest[name].nbytes if name in rest else tensor.nbytes
                reports[name] = _report(name, tensor, None, nbytes)
        for path, source in rewritten.items():
            for name, origin in source.origins.items():
                whole = join(path, name)
                of_parts = [reports[join(path, part)] for part in origin.parts]
                reports[whole] = _joined(_report(whole, self.found.tensors[whole], None, 0), of_parts)
        rows = with_reasons((reports[name] for name in self.found.tensors), decisions)
        return PackedFolder(model.eval(), rows, places.left_out)

    def _stored_plan(self) -> dict[str, LayerPlan]:
        """Return the formats that weights are packed in already, by layer."""
        sites = packable(self.model)
        plan = {}
        for name, site in sites.items():
            tensor = self.found.tensors.get(self._first(name))
            if isinstance(tensor, PackedTensor):
                plan[site.module] = LayerPlan(weight=Spec(tensor.format, None, tensor.scale))
        return plan

    def _first(self, name: str) -> str:
        return self.found.ties.get(name, name)

    def _refuse_packed(self) -> None:
        for name, tensor in self.found.tensors.items():
            if isinstance(tensor, PackedTensor):
                raise FormatError(
                    f"{name}: already packed as '{tensor.format}'; leave --recipe out, which keeps its format "
                    "(to pack it anew, octavo unpack comes first)"
                )


def write_folder(
    source: Checkpoint, folder: Path, model: nn.Module, *, own_config: bool = False, untied: bool = False
) -> Path:
    """Write a packed model of ``source`` and copies of its other files into ``folder``. Return the weights' file.

    ``own_config``: the configuration is that of ``model``, which has other sizes than that of ``source``. ``untied``:
    heads have weights of their own, which the configuration says.
    """
    copy_companions(source.folder, folder)
    if own_config:
        write_config(model, folder)
    elif untied:
        files.write(folder / CONFIG, json.dumps(_untied(read_json(folder / CONFIG, finite=False)), indent=2) + "\n")
    entry = entry_of(model)
    if not own_config:
        write_entry(folder, entry)
    if entry is not None and hasattr(model, "save_pretrained"):
        write_card(model, folder)
    save_weights(model, folder / PACKED_NAME, source.metadata())
    return folder / PACKED_NAME


def _untied(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of transformers that ties no head, that of the text model within it included."""
    inner = {name: _untied(value) for name, value in config.items() if isinstance(value, dict) and TIED_FIELD in value}
    return {**config, **inner, TIED_FIELD: False}


def save_folder(
    source: Checkpoint, target: Path, model: nn.Module, *, force: bool, own_config: bool = False, untied: bool = False
) -> Path:
    """Write a packed model of ``source`` and copies of its other files to ``target``, whole or not at all.

    ``own_config``, ``untied``: as for :func:`write_folder`. Returns the file with the weights. With ``force``, weights,
    configuration, tokenizer and files of the same name are replaced.
    """
    with folders.whole(target, owned=replaced(target, PACKED_NAME), overwrite=force) as folder:
        write_folder(source, folder, model, own_config=own_config, untied=untied)
    return target / PACKED_NAME


def _pack_weights(
    model: nn.Module,
    skeletons: Mapping[str, nn.Module],
    found: Places,
    sparse: bool,
    progress: Progress | None,
) -> tuple[dict[str, TensorReport], set[str]]:
    """Replace the simulated layers of ``model`` whose weight has a format, one weight at a time.

    Returns a report for each weight, and the names of the tensors that are in packed layers now.
    """
    groups: dict[int, list[str]] = {}
    paths: dict[int, list[str]] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None:
            if id(layer) not in paths:
                groups.setdefault(id(layer._own("weight")), []).append(path)
            paths.setdefault(id(layer), []).append(path)
    reports: dict[str, TensorReport] = {}
    done: set[str] = set()
    for group in groups.values():
        twins: list[PackedLayer] = []
        measured: dict[str, tuple[PackedLayer, Errors | None]] = {}
        for path in group:
            layer = model.get_submodule(path)
            assert isinstance(layer, QuantLayer)
            name = found.ties.get(join(path, "weight"), join(path, "weight"))
            made, errors = _pack_one(model, path, layer, skeletons[path], found)
            share_codes(made, twins)
            for one in paths[id(layer)]:
                parent, _, last = one.rpartition(".")
                setattr(model.get_submodule(parent), last, made)
                done |= {part for part in (join(one, "weight"), join(one, "bias")) if part in found}
            if name not in measured:
                measured[name] = made, errors
                if progress:
                    progress(name, found.tensors[name].nbytes)
        if sparse:
            leave_out_zeros(twins)
        for name, (made, errors) in measured.items():
            weight = made.packed_weight
            told = _report(name, found.tensors[name], str(made.format), weight.nbytes, errors)
            reports.setdefault(name, with_zeros(told, weight))
    return reports, done


def _pack_one(
    model: nn.Module, path: str, layer: QuantLayer, skeleton: nn.Module, found: Places
) -> tuple[PackedLayer, Errors | None]:
    """Return the packed form of one layer, and what its weight lost."""
    name, bias_name = join(path, "weight"), join(path, "bias")
    stored, bias = found.stored(name), found.value(bias_name) if bias_name in found else None
    place = skeleton.weight
    assert isinstance(place, Tensor)
    site = packable(skeleton).get("weight")
    if isinstance(stored, PackedTensor) and site is not None and as_layer(site, stored):
        kind = packed_class(skeleton)
        assert kind is not None
        inside = {"weight": stored} | ({} if bias is None else {"bias": bias})
        record = {"class": kind.stored_class(), **plain(kind.description(skeleton))}
        kept = build_layer(path, record, skeleton, inside)
        assert isinstance(kept, PackedLayer)
        return kept, None
    _give(layer, "weight", found.value(name), name)
    if bias is not None:
        _give(layer, "bias", bias, bias_name)
    before = layer.weight_matrix().detach()
    if layer.plan.weight is not None and layer.plan.weight.calibration is not None:
        # hqq changes the weight, which may be a tied one and comes once more.
        _give(layer, "weight", found.value(name).clone(), name)
    solve_weight(model, layer)
    made = pack_layer(path, layer)
    errors = measure(before, made.packed_weight.decode())
    layer._parameters["weight"] = None
    return made, errors


def _give(layer: nn.Module, part: str, value: Tensor, name: str) -> None:
    """Put a tensor of the file in the place of one without values."""
    place = layer._parameters[part]
    assert place is not None
    if value.shape != place.shape:
        raise ContainerError(f"{name}: shape {tuple(value.shape)}, but the model has {tuple(place.shape)} there")
    if not fits(value.dtype, place.dtype):
        raise ContainerError(f"{name}: dtype {value.dtype}, but the model has {place.dtype} there")
    layer._parameters[part] = nn.Parameter(value, requires_grad=False)


def _report(name: str, tensor: Placed, text: str | None, nbytes: int, errors: Errors | None = None) -> TensorReport:
    return TensorReport(name, tuple(tensor.shape), dtype_name(tensor.dtype), text, tensor.nbytes, nbytes, errors)


def _joined(report: TensorReport, parts: Sequence[TensorReport]) -> TensorReport:
    """Return the report of a tensor that is packed in parts; ``report``: of the tensor as it is."""
    formats = list(dict.fromkeys(part.format or "float" for part in parts))
    measured = [part.errors for part in parts if part.errors is not None]
    return replace(
        report,
        format=None if formats == ["float"] else ", ".join(formats),
        nbytes=sum(part.nbytes for part in parts),
        errors=sum(measured, Errors()) if measured else None,
    )
