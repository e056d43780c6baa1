"""Bytes of the file of weights for any assignment of formats, header included, from shapes alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from octavo.errors import OctavoError
from octavo.model_folder.features.described_layers import packed_class, plain
from octavo.nn.model_copies import shared_copy
from octavo.nn.replace_modules import Undo, replace_modules
from octavo.recipe.fit import misfit
from octavo.recipe.note import note_recipe
from octavo.recipe.rule import KEEP, read_spec
from octavo.recipe.spec import Calibration, Spec
from octavo.search.assignment_recipe import rule_of_each, to_recipe
from octavo.search.layer_groups import LayerGroup, find_groups
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.pareto_front import Front, Point
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.tensor_parts import part_specs

Size = Callable[[nn.Module], int]
_K = TypeVar("_K")
_SOLVER = Calibration("gptq")  # of the solvers that a recipe may name later the one with the longest text
_PADDING = 8  # a header is padded to a multiple of so many bytes
_CORRECTIONS = 8


class FileSizes:
    """The sizes of the files that a search may write.

    ``table``: bytes by group and format as :class:`Sensitivity` has them, without losses. Every entry has its share of
    the header. With ``fixed_nbytes`` their sum is an upper bound of the file, whose recipe may have a rule and a solver
    for each layer. :meth:`exact` is the size to the byte.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        formats: Sequence[str],
        *,
        size: Size,
        tensors: Size,
        share: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        """Group the layers by a forward pass of ``batch``.

        ``size``, ``tensors``: the bytes of a model's file, and those without its header. Raises as
        :func:`octavo.search.measure_sensitivity` does.
        """
        self._size, self._tensors, self._model = size, tensors, shared_copy(model)
        layer_groups = find_groups(self._model, batch, ("weight",), share, exclude)
        self._groups, texts = layer_groups.groups, (*formats, KEEP)
        self._weights: dict[tuple[int, str], PackedTensor] = {}
        digits = len(str(size(model)))
        nbytes = [[self._share(group, text, digits) for text in texts] for group in layer_groups.groups]
        possible = np.array([[size is not None for size in row] for row in nbytes])
        self.table = Sensitivity(
            groups=tuple(group.group for group in layer_groups.groups),
            formats=texts,
            loss=np.where(possible, 0.0, np.nan),
            nbytes=np.array([[size or 0 for size in row] for row in nbytes], dtype=np.int64),
            fixed_nbytes=0,
            parameters=layer_groups.parameters,
            kept=layer_groups.kept,
        )
        self.fixed_nbytes = self._fixed(possible)

    def of(self, sensitivity: Sensitivity) -> tuple[NDArray[np.int64], int]:
        """Return the bytes of the file by group and format, and of the rest, for a sensitivity of the same groups."""
        rows = {group.name: row for row, group in enumerate(self.table.groups)}
        columns = [self.table.formats.index(text) for text in sensitivity.formats]
        order = [rows[group.name] for group in sensitivity.groups]
        return self.table.nbytes[np.ix_(order, columns)], self.fixed_nbytes

    def exact(self, choice: Mapping[str, str], *, tuned: bool = False) -> int:
        """Return the bytes of the file of an assignment.

        ``tuned``: with the longest recipe that solvers may make of it.
        """
        recipe = rule_of_each(_solved(choice), self.table) if tuned else to_recipe(choice, self.table)
        return self._measured(choice, str(recipe))

    def tensor_bytes(self, choice: Mapping[str, str]) -> int:
        """Return the bytes of the tensors alone in the file of an assignment."""
        return self._of_file(choice, str(to_recipe(choice, self.table)), self._tensors)

    def least(self) -> dict[str, str]:
        """Return the assignment of fewest bytes."""
        sizes = np.where(np.isnan(self.table.loss), np.iinfo(np.int64).max, self.table.nbytes)
        picks = sizes.argmin(axis=1)
        return {group.name: self.table.formats[pick] for group, pick in zip(self.table.groups, picks, strict=True)}

    def point(self, front: Front, most: float) -> Point:
        """Return the point of least predicted loss whose file has at most ``most`` bytes, room for solvers included.

        Where solvers find no room beside the smallest assignment, that one. Raises ConfigError where no file fits.
        """
        smallest = int(front.nbytes.min())
        point = front.at(nbytes=max(most, smallest))
        for _ in range(_CORRECTIONS):
            spare = most - self.exact(point.choice, tuned=True)
            if spare < 0 and point.nbytes > smallest:
                point = front.at(nbytes=max(point.nbytes + min(spare, -1), smallest))
                continue
            larger = front.at(nbytes=point.nbytes + max(spare, 0))
            if larger.nbytes == point.nbytes or self.exact(larger.choice, tuned=True) > most:
                break
            point = larger
        return point

    # --- parts of a size --------------------------------------------------------------------------------------------

    def _fixed(self, possible: NDArray[np.bool_]) -> int:
        """Return the largest difference between a file and the sum of the table, over all uniform assignments.

        The files have the longest recipe: a rule for each layer, with the longest format.
        """
        names = [group.name for group in self.table.groups]
        solved = _solved(dict(enumerate(self.table.formats))).values()
        longest = str(rule_of_each(dict.fromkeys(names, max(solved, key=len)), self.table))
        rest, keep = 0, len(self.table.formats) - 1
        for column in range(len(self.table.formats)):
            picks = np.where(possible[:, column], column, keep)
            choice = {name: self.table.formats[pick] for name, pick in zip(names, picks, strict=True)}
            entries = int(self.table.nbytes[np.arange(len(picks)), picks].sum())
            rest = max(rest, self._measured(choice, longest) - entries)
        return rest + _PADDING

    def _share(self, group: LayerGroup, text: str, digits: int) -> int | None:
        """Return the bytes of a group in a format with its part of the header; None where it cannot have it."""
        spec = read_spec(text)
        if spec is None:
            return group.nbytes + sum(_plain_entry(site.path, site.shape or (), digits) for site in group.unique)
        if misfit("weight", spec) is not None:
            return None
        total = 0
        try:
            for site in group.unique:
                total += site.nbytes(spec.format) + self._packed_entry(site.module, site.path, spec, digits)
        except OctavoError:  # a group that the rows do not hold
            return None
        for site in group.sites:
            layer = self._model.get_submodule(site.module)
            kind = packed_class(layer)
            assert kind is not None  # groups hold such layers alone
            record = {"class": kind.stored_class(), **plain(kind.description(layer))}
            total += sum(len(json.dumps(json.dumps({path: record}))) for path in site.paths)
        return total

    def _packed_entry(self, module: str, name: str, spec: Spec, digits: int) -> int:
        shape = self._matrix(self._model.get_submodule(module))
        parts = part_specs(spec.format.core, shape, 1)
        stored = [(f"{name}.{part}", size) for part, _, size in parts if size.numel()]
        packing = {"format": str(spec.format), "scale": spec.scale, "shape": shape, "dtype": "bfloat16", "axis": 1}
        about = json.dumps({f"octavo.tensor.{name}": json.dumps(packing, separators=(",", ":"))})
        return len(about) + sum(_plain_entry(part, tuple(size), digits) for part, size in stored)

    @staticmethod
    def _matrix(layer: nn.Module) -> tuple[int, int]:
        kind = packed_class(layer)
        shape = None if kind is None else kind.matrix_shape(layer)
        assert shape is not None  # groups hold such layers alone
        return shape

    # --- a file of a model without values ---------------------------------------------------------------------------

    def _measured(self, choice: Mapping[str, str], recipe: str) -> int:
        return self._of_file(choice, recipe, self._size)

    def _of_file(self, choice: Mapping[str, str], recipe: str, size: Size) -> int:
        """Return a size of the file of an assignment with the text of a recipe."""
        formats = {
            site.module: spec
            for group in self._groups
            if (spec := read_spec(choice[group.group.name])) is not None
            for site in group.sites
        }
        undo: Undo = []
        packed = replace_modules(self._model, self._hollow(formats), undo)
        try:
            note_recipe(packed, recipe)
            return size(packed)
        finally:
            note_recipe(packed, None)
            for step in reversed(undo):
                step()

    def _hollow(self, formats: Mapping[str, Spec]) -> dict[int, nn.Module]:
        """Return packed layers whose codes are zeros that take no memory, by the id of what they replace."""
        layers: dict[int, nn.Module] = {}
        for path, spec in formats.items():
            layer = self._model.get_submodule(path)
            if id(layer) not in layers:
                kind = packed_class(layer)
                assert kind is not None  # groups hold such layers alone
                bias = getattr(layer, "bias", None)
                layers[id(layer)] = kind._like(layer, path, self._weight(layer, spec), bias, None, None)
        return layers

    def _weight(self, layer: nn.Module, spec: Spec) -> PackedTensor:
        """Return a packed weight without values; layers with one parameter have one."""
        parameter = layer.weight
        assert isinstance(parameter, Tensor)
        key = id(parameter), f"{spec.format} {spec.scale}"
        if key not in self._weights:
            shape = self._matrix(layer)
            parts = [_hollow_part(size, dtype) for _, dtype, size in part_specs(spec.format.core, shape, 1)]
            self._weights[key] = PackedTensor(
                spec.format, *parts, shape=shape, dtype=parameter.dtype, axis=1, scale=spec.scale
            )
        return self._weights[key]


def _hollow_part(size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return zeros that the system gives memory when they are read, which nothing does; a heap would write them."""
    nbytes = size.numel() * dtype.itemsize
    return torch.frombuffer(mmap(-1, nbytes), dtype=dtype).view(size) if nbytes else torch.zeros(size, dtype=dtype)


def _plain_entry(name: str, shape: Sequence[int], digits: int) -> int:
    """Return the bytes of one tensor's entry in a header, with offsets of so many digits."""
    entry = {name: {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, 0]}}
    return len(json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()) + 2 * digits


def _solved(choice: Mapping[_K, str]) -> dict[_K, str]:
    """Return formats with a solver wherever they can name one."""
    solved = {}
    for name, text in choice.items():
        spec = read_spec(text)
        plain_spec = spec is not None and spec.calibration is None and spec.scale == "floor"
        solved[name] = str(Spec(spec.format, _SOLVER)) if spec is not None and plain_spec else text
    return solved
