"""Where tensors of GGUF files go in models of transformers, and tensors of models in files.

Source: llama.cpp, ``gguf-py/gguf/tensor_mapping.py`` and ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from octavo.errors import ContainerError, ModelError
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_architecture import HEADS, Architecture, RowOrder
from octavo.interchange.gguf_architectures.all_architectures import ARCHITECTURES
from octavo.interchange.gguf_config import Config, Fields, Keys
from octavo.interchange.gguf_metadata import f32, u32
from octavo.storage.reading import shown

_NUMBER = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
_NAME = re.compile(r"(?:blk\.(0|[1-9]\d{0,5})\.)?(\w+?)(?:\.(0|[1-9]\d{0,5}))?\.(weight|bias)", re.ASCII)
# Matrices of experts: stacked in one tensor, or in older files one tensor each, "ffn_gate.3.weight".
_GATE, _UP, _DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
_OF_ONE = {"ffn_gate": _GATE, "ffn_up": _UP, "ffn_down": _DOWN}
_GATE_UP, _DOWN_PARAMETER = "gate_up_proj", "down_proj"


@dataclass(frozen=True)
class Source:
    """Rows of a tensor of a file: all of them, or one of its matrices, by number along its first axis."""

    name: str
    number: int | None = None

    def __str__(self) -> str:
        """Return the name."""
        return self.name if self.number is None else f"{self.name}[{self.number}]"


@dataclass(frozen=True)
class Place:
    """Where tensors of a file go: the name in the model, and how the values are there.

    ``sources``: rows of the file, which follow each other. ``row_rule``: the order of rows in the file, None for the
    model's own. ``turned``: plain weights are transposed. ``added``: how much more the values are in the file.
    ``experts``: how many matrices it stacks, 0 for a matrix or vector.
    """

    name: str
    sources: tuple[Source, ...]
    row_rule: RowOrder | None = None
    turned: bool = False
    added: float = 0.0
    experts: int = 0

    @property
    def label(self) -> str:
        """Name of what it is made of."""
        if self.experts:
            return " + ".join(dict.fromkeys(source.name for source in self.sources))
        return " + ".join(map(str, self.sources))

    def row_order(self, rows: int) -> Tensor | None:
        """Return which row of the file each row of the model is; None where the order is the same."""
        return None if self.row_rule is None else self.row_rule.order(rows)


def architecture_of(file: GgufFile) -> tuple[Architecture, Fields]:
    """Return the architecture of a file, and its metadata. Raises ContainerError for one that is not read."""
    name = file.metadata.get("general.architecture")
    named = [one for one in ARCHITECTURES if one.name == name]
    if not named or not isinstance(name, str):
        known = ", ".join(dict.fromkeys(one.name for one in ARCHITECTURES))
        raise ContainerError(
            f"{file.path}: general.architecture is {shown(name)}; models are read of {known}; "
            "octavo.interchange.gguf_tensors.load_gguf reads the tensors"
        )
    if file.metadata.get("split.count", 1) != 1:
        raise ContainerError(
            f"{file.path}: one of {shown(file.metadata['split.count'])} files of a model; merge them by "
            "llama-gguf-split of llama.cpp"
        )
    fields = Fields(file, name)
    architecture = next((one for one in named if one.is_in(file)), None)
    if architecture is None:
        value = file.metadata.get(f"{name}.expert_count")
        raise fields.refused("expert_count", value, "0, or the number of experts of an architecture that has some")
    return architecture, fields


def places_of(names: Iterable[str], architecture: Architecture, fields: Fields) -> list[Place]:
    """Return where tensors go, in their order. Raises ContainerError for names that the architecture does not have."""
    places: list[Place] = []
    experts: dict[int, dict[str, list[Source]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        block, part, number, kind = _parsed(name)
        role = part if number is None else _OF_ONE.get(part, "")
        is_expert = architecture.experts is not None and kind == "weight" and role in _OF_ONE.values()
        if block is not None and is_expert:
            experts[block][role].extend(_matrices(name, None if number is None else int(number), fields))
        elif part in architecture.stacked and block is not None and number is None:
            path = f"{architecture.layers}.{block}.{architecture.stacked[part]}.{kind}"
            matrices = enumerate(_matrices(name, None, fields))
            places += [Place(path.format(row), (source,)) for row, source in matrices]
        else:
            places.append(place_of(name, architecture, fields))
    for block, roles in experts.items():
        places += _places_of_experts(block, roles, architecture, fields)
    return places


def _matrices(name: str, number: int | None, fields: Fields) -> list[Source]:
    """Return the matrices of experts, or vectors of heads, of a tensor. Raises ContainerError for one without axes."""
    if number is not None:
        return [Source(name)]
    shape = fields.file.tensors[name].shape
    if len(shape) < 2:
        raise ContainerError(f"{fields.file.path}: tensor {shown(name)}: shape {list(shape)}; accepted are stacks")
    return [Source(name, row) for row in range(shape[0])]


def _places_of_experts(
    block: int, roles: Mapping[str, list[Source]], architecture: Architecture, fields: Fields
) -> list[Place]:
    """Return the places of the experts of a block: gate and up are one parameter."""
    label = f"{fields.file.path}: experts of block {block}"
    count = fields.whole("expert_count")
    for role in (_GATE, _UP, _DOWN):
        number = len(roles.get(role, ()))
        if number != count:
            raise ContainerError(f"{label}: {number} of {role}; {fields.architecture}.expert_count is {count}")
    path = f"{architecture.layers}.{block}.{architecture.experts}"
    both = [one for pair in zip(roles[_GATE], roles[_UP], strict=True) for one in pair]
    return [
        Place(f"{path}.{_GATE_UP}", tuple(both), experts=count),
        Place(f"{path}.{_DOWN_PARAMETER}", tuple(roles[_DOWN]), experts=count),
    ]


def expert_places(place: Place) -> list[Place]:
    """Return the places of single experts that a place stacks, as layers."""
    path, _, parameter = place.name.rpartition(".")
    each = len(place.sources) // place.experts
    return [
        Place(f"{path}.{number}.{parameter}.weight", place.sources[number * each : (number + 1) * each])
        for number in range(place.experts)
    ]


def _parsed(name: str) -> tuple[int | None, str, str | None, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        return None, "", None, ""
    block, part, number, kind = match.groups()
    return None if block is None else int(block), part, number, kind


def place_of(name: str, architecture: Architecture, fields: Fields) -> Place:
    """Return where a tensor goes that is one in both.

    Raises ContainerError for a name that the architecture does not have.
    """
    block, part, number, kind = _parsed(name)
    ours = (architecture.whole if block is None else architecture.block).get(part)
    if ours is None or number is not None:
        raise ContainerError(
            f"{fields.file.path}: tensor {shown(name)} has no place in a {architecture.model}; this version does not "
            "read it"
        )
    path = ours if block is None else f"{architecture.layers}.{block}.{ours}"
    rule = None
    if block is not None and part in architecture.orders:
        rule = architecture.orders[part](lambda key: fields.whole(key, fields.whole(HEADS)))
        shape = fields.file.tensors[name].shape
        rows = shape[0] if shape else 1
        if not rule.fits(rows):
            raise ContainerError(
                f"{fields.file.path}: tensor {shown(name)} has {rows} rows; accepted are {rule.accepted}"
            )
    added = architecture.added if architecture.is_moved(part) else 0.0
    is_turned = part in architecture.turned and kind == "weight"
    return Place(f"{path}.{kind}", (Source(name),), rule, is_turned, added)


def config_of(architecture: Architecture, fields: Fields) -> dict[str, Any]:
    """Return the configuration of transformers that metadata say. Raises ContainerError for what is not read."""
    rest = architecture.config(fields)
    return {
        **{ours: fields.whole(key) for key, ours in architecture.numbers.items() if ours not in rest},
        **{ours: fields.real(key) for key, ours in architecture.reals.items()},
        **rest,
    }


def keys_of(architecture: Architecture, config: Config) -> Keys:
    """Return the metadata that a configuration of transformers is. Raises ModelError for what a file cannot say."""
    rest = architecture.keys(config)
    others = rest.needed.keys() | rest.customary.keys()
    numbers = {key: u32(config.whole(ours)) for key, ours in architecture.numbers.items() if key not in others}
    reals = {key: f32(config.real(ours)) for key, ours in architecture.reals.items()}
    return Keys({**numbers, **reals, **rest.needed}, {"vocab_size": u32(config.whole("vocab_size")), **rest.customary})


@dataclass(frozen=True)
class FilePlace:
    """Where a tensor of a model, or rows of it, go in a file: the name there, and its place among others.

    ``row_rule``, ``turned``, ``added``: as for :class:`Place`. ``half``: which half of the rows it is, None for all.
    ``number``: of the matrix of the file that it is; None for all of it. ``is_stack``: the tensor is such matrices.
    """

    name: str
    order: tuple[int, ...]
    row_rule: RowOrder | None = None
    turned: bool = False
    added: float = 0.0
    half: int | None = None
    number: int | None = None
    is_stack: bool = False

    def row_order(self, rows: int) -> Tensor | None:
        """Return which row of the model each row of the file is; None where the order is the same."""
        return None if self.row_rule is None else self.row_rule.order(rows).argsort()


@dataclass(frozen=True)
class FileNames:
    """Names of tensors in files of an architecture, by those in a model of a configuration."""

    architecture: Architecture
    config: Config
    counts: Mapping[str, int]

    @classmethod
    def of(cls, architecture: Architecture, config: Config) -> FileNames:
        """Return the names. Raises ModelError for a configuration that a file cannot say."""
        keys = keys_of(architecture, config)
        counts = {
            key: one.value for key, one in {**keys.customary, **keys.needed}.items() if isinstance(one.value, int)
        }
        return cls(architecture, config, counts)

    def places(self, name: str) -> list[FilePlace]:
        """Return where a tensor goes: of experts, gate and up are two tensors of a file. Raises ModelError for none."""
        whole, block = self._tables
        layers = f"{self.architecture.layers}."
        number, _, inside = name.removeprefix(layers).partition(".")
        is_block = name.startswith(layers) and _NUMBER.fullmatch(number) is not None
        if is_block and (stacked := self._stacked(inside, int(number))):
            return stacked
        path, _, kind = (inside if is_block else name).rpartition(".")
        part = (block if is_block else whole).get(path)
        if part is None or kind not in ("weight", "bias"):
            raise ModelError(
                f"{self.config.place}: {shown(name)} of a {self.architecture.model} has no place in a GGUF file; this "
                "version does not write it"
            )
        added = self.architecture.added if self.architecture.is_moved(part) else 0.0
        if not is_block:
            names = list(self.architecture.whole)
            order: tuple[int, ...] = (2 * part.startswith("output"), 0, names.index(part), kind == "bias")
            return [FilePlace(f"{part}.{kind}", order, added=added)]
        rule = None
        if part in self.architecture.orders:
            rule = self.architecture.orders[part](self._count)
        order = (1, int(number), list(self.architecture.block).index(part), int(kind == "bias"))
        is_turned = part in self.architecture.turned and kind == "weight"
        return [FilePlace(f"blk.{int(number)}.{part}.{kind}", order, rule, is_turned, added)]

    def _count(self, key: str) -> int:
        count = self.counts.get(key, self.counts[HEADS])
        if count < 1:
            raise ModelError(f"{self.config.place}: {count} heads; GGUF files hold models with some")
        return count

    @property
    def _tables(self) -> tuple[dict[str, str], dict[str, str]]:
        whole, block = self.architecture.whole, self.architecture.block
        return {ours: part for part, ours in whole.items()}, {ours: part for part, ours in block.items()}

    def _stacked(self, inside: str, block: int) -> list[FilePlace]:
        """Return where an expert, all experts, or a vector of a head go; nothing for other tensors."""
        behind = len(self.architecture.block)
        for rank, (part, path) in enumerate(self.architecture.stacked.items()):
            match = re.fullmatch(re.escape(path).replace(r"\{\}", "(\\d{1,6})") + r"\.(weight|bias)", inside)
            if match is not None:
                order = (1, block, behind + rank, int(match[2] == "bias"))
                return [FilePlace(f"blk.{block}.{part}.{match[2]}", order, number=int(match[1]), is_stack=True)]
        if self.architecture.experts is None:
            return []
        match = re.fullmatch(
            re.escape(self.architecture.experts) + rf"\.(?:(\d{{1,6}})\.)?({_GATE_UP}|{_DOWN_PARAMETER})(\.weight)?",
            inside,
        )
        if match is None or (match[1] is None) != (match[3] is None):
            return []
        number = None if match[1] is None else int(match[1])
        halves = ((_GATE, 0), (_UP, 1)) if match[2] == _GATE_UP else ((_DOWN, None),)
        return [
            FilePlace(f"blk.{block}.{part}.weight", (1, block, behind + rank), half=half, number=number, is_stack=True)
            for rank, (part, half) in enumerate(halves, start=2 * (match[2] == _DOWN_PARAMETER))
        ]


def architecture_of_class(place: str, model: str, config: Config) -> Architecture:
    """Return the architecture of a class of transformers. Raises ModelError for another class, or configuration."""
    named = [one for one in ARCHITECTURES if model in (one.model, *one.others)]
    if not named:
        classes = ", ".join(dict.fromkeys(name for one in ARCHITECTURES for name in (one.model, *one.others)))
        raise ModelError(f"{place}: a {model}; GGUF files are written of {classes}")
    return next((one for one in named if one.is_of(config)), named[0])
