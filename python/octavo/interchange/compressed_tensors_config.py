"""``quantization_config`` of compressed-tensors: its schemes, and the layers that each is for. torch is not loaded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from octavo.errors import ContainerError
from octavo.model_folder.quantization_entry import PACK_OTHERWISE
from octavo.storage.reading import member, shown

METHOD = "compressed-tensors"
FORMATS = (
    "dense", "pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mxfp4-pack-quantized",
    "mxfp6-pack-quantized", "mxfp8-quantized", "nvfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
_REGEX = "re:"
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_OF_WEIGHTS = {
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "scale_dtype",
    "zp_dtype", "observer", "observer_kwargs",
}  # fmt: skip
# Steps of trying a regular expression on all names: a bound of backtracking, of which real ones take a small part.
_STEPS = 4_000_000_000
_MOST_EXPRESSIONS, _MOST_CHARACTERS = 4096, 1000


@dataclass(frozen=True)
class WeightScheme:
    """How the weights of a group are stored.

    ``kind``: ``int`` or ``float``. ``block``: rows and columns of a block. ``group_size``: columns of a group.
    """

    bits: int
    kind: str
    symmetric: bool
    strategy: str
    group_size: int | None = None
    block: tuple[int, int] | None = None

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """Return the shape of the scales of a matrix; of one scale ``(1,)``."""
        if self.strategy == "tensor":
            return (1,)
        if self.strategy == "channel":
            return rows, 1
        if self.block is not None:
            return -(-rows // self.block[0]), -(-columns // self.block[1])
        assert self.group_size is not None  # the strategy has groups
        return rows, -(-columns // self.group_size)

    def as_dict(self) -> dict[str, Any]:
        """Return the scheme as a configuration has it."""
        scheme: dict[str, Any] = {
            "num_bits": self.bits, "type": self.kind, "symmetric": self.symmetric, "strategy": self.strategy,
            "dynamic": False,
        }  # fmt: skip
        if self.group_size is not None:
            scheme["group_size"] = self.group_size
        if self.block is not None:
            scheme["block_structure"] = list(self.block)
        return scheme

    def __str__(self) -> str:
        """Return a text for people, such as ``4-bit int, groups of 128``."""
        sizes = {
            "group": f"groups of {self.group_size}", "tensor_group": f"groups of {self.group_size}",
            "block": "blocks of {} by {}".format(*(self.block or (0, 0))), "channel": "channels", "tensor": "one scale",
        }  # fmt: skip
        return f"{self.bits}-bit {self.kind}, {sizes[self.strategy]}{'' if self.symmetric else ', zero points'}"


@dataclass(frozen=True)
class Scheme:
    """A group of ``config_groups``.

    ``inputs``, ``outputs``: how they are rounded, as a text; None where they are not.
    """

    name: str
    targets: tuple[str, ...]
    weights: WeightScheme | None
    format: str | None
    inputs: str | None
    outputs: str | None


@dataclass(frozen=True)
class CompressedTensorsConfig:
    """What ``quantization_config`` says. ``values``: as they are in the file. ``label``: the file, for errors."""

    values: Mapping[str, Any]
    schemes: tuple[Scheme, ...]
    format: str
    version: str | None
    cache: str | None
    label: str

    @classmethod
    def read(cls, values: Mapping[str, Any], label: str) -> CompressedTensorsConfig:
        """Check the values of a file. Raises ContainerError naming the field, also for what is not read."""
        label = f"{label}: quantization_config"
        stated = values.get("format", "dense")
        if stated not in FORMATS:
            raise ContainerError(f"{label}: format is {shown(stated)}; read are {', '.join(FORMATS)}; {PACK_OTHERWISE}")
        for field in ("sparsity_config", "transform_config"):
            entry = values.get(field)
            is_sparse = isinstance(entry, Mapping) and entry.get("format", "dense") != "dense"
            if is_sparse or (field == "transform_config" and entry):
                raise ContainerError(f"{label}: {field} is {shown(entry)}, which is not read")
        groups = member(values, "config_groups", dict, label)
        schemes = tuple(
            _scheme(name, group, f"{label}: config_groups: {shown(name)}") for name, group in groups.items()
        )
        cache = values.get("kv_cache_scheme")
        version = values.get("version")
        return cls(
            values,
            schemes,
            stated,
            version[:32] if isinstance(version, str) else None,
            None if cache is None else _arguments(cache, f"{label}: kv_cache_scheme"),
            label,
        )

    def scheme_of(self, names: Sequence[str], classes: Sequence[str]) -> Scheme:
        """Return the scheme of a layer, the way compressed-tensors chooses it: by name, by expression, by class.

        ``names``: in the file and in the model. ``classes``: of the layer, its own first. Raises ContainerError where
        none is for the layer, and there are several.
        """
        with_weights = [scheme for scheme in self.schemes if scheme.weights is not None]
        if len(with_weights) == 1:
            return with_weights[0]
        by_target, expressions = self._targets
        for name in names:
            if name in by_target:
                return by_target[name]
        for expression, scheme in expressions:
            if any(expression.match(name) for name in names):
                return scheme
        matched = [kind for kind in classes if kind in by_target]
        if matched:
            return by_target[min(matched)]
        raise ContainerError(f"{self.label}: no target of config_groups is for {shown(names[0])}")

    @cached_property
    def _targets(self) -> tuple[Mapping[str, Scheme], Sequence[tuple[re.Pattern[str], Scheme]]]:
        """Return the schemes by name and class, and those of expressions in the order in which they are tried."""
        schemes = [scheme for scheme in self.schemes if scheme.weights is not None]
        by_target = {target: scheme for scheme in schemes for target in scheme.targets}
        expressions = sorted(target for target in by_target if target.startswith(_REGEX))
        return by_target, [(re.compile(one.removeprefix(_REGEX)), by_target[one]) for one in expressions]

    def check_expressions(self, names: Iterable[str]) -> None:
        """Refuse regular expressions that would take too long on ``names``, or are none. Raises ContainerError."""
        lengths = Counter(len(name) for name in names)
        expressions = [
            target.removeprefix(_REGEX)
            for scheme in self.schemes
            for target in scheme.targets
            if target.startswith(_REGEX)
        ]
        if len(expressions) > _MOST_EXPRESSIONS:
            raise ContainerError(
                f"{self.label}: {len(expressions)} targets are expressions; accepted are up to {_MOST_EXPRESSIONS}"
            )
        steps = 0
        for text in expressions:
            label = f"{self.label}: the target {shown(_REGEX + text)}"
            repeats, nested = _repeats(text)
            is_long = len(text) > _MOST_CHARACTERS or nested
            steps += 0 if is_long else sum(count * math.comb(n + repeats, repeats) for n, count in lengths.items())
            if is_long or steps > _STEPS:
                raise ContainerError(f"{label} repeats so much that matching may take hours; name the layers")
            try:
                re.compile(text)
            except (re.error, OverflowError, RecursionError) as error:
                raise ContainerError(f"{label} is no regular expression: {error}") from None


def _scheme(name: str, group: Any, label: str) -> Scheme:
    if not isinstance(group, Mapping):
        raise ContainerError(f"{label} is {shown(group)}; accepted is an object with targets and weights")
    targets = member(group, "targets", list, label)
    if not all(isinstance(target, str) for target in targets):
        raise ContainerError(f"{label}: targets is {shown(targets)}; accepted are texts")
    weights, form = group.get("weights"), group.get("format")
    if form is not None and form not in FORMATS[:-1]:
        raise ContainerError(f"{label}: format is {shown(form)}; read are {', '.join(FORMATS[:-1])}; {PACK_OTHERWISE}")
    rounded = {
        role: None if group.get(f"{role}_activations") is None
        else _arguments(group[f"{role}_activations"], f"{label}: {role}_activations")
        for role in ("input", "output")
    }  # fmt: skip
    scheme = None if weights is None else read_weight_scheme(weights, f"{label}: weights")
    return Scheme(name, tuple(targets), scheme, form, rounded["input"], rounded["output"])


def read_weight_scheme(values: Any, label: str) -> WeightScheme:
    """Return the scheme of weights. Raises ContainerError naming the field."""
    if not isinstance(values, Mapping):
        raise ContainerError(f"{label} is {shown(values)}; accepted is an object")
    unknown = sorted(values.keys() - _OF_WEIGHTS)
    if unknown:
        raise ContainerError(
            f"{label}: {shown(unknown[0])} is not known; accepted are {', '.join(sorted(_OF_WEIGHTS))}"
        )
    bits, kind = values.get("num_bits", 8), values.get("type", "int")
    accepted = {"int": range(1, 9), "float": (4, 6, 8)}
    if kind not in ("int", "float") or type(bits) is not int or bits not in accepted[kind]:
        raise ContainerError(
            f"{label}: num_bits {shown(bits)} of type {shown(kind)}; read are int 1 to 8, float 4, 6 and 8; "
            f"{PACK_OTHERWISE}"
        )
    group = values.get("group_size")
    if group is not None and (type(group) is not int or group < -1 or group == 0 or group > 1 << 40):
        raise ContainerError(f"{label}: group_size is {shown(group)}; accepted are whole numbers above 0, and -1")
    strategy = values.get("strategy")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy not in _STRATEGIES:
        raise ContainerError(
            f"{label}: strategy is {shown(strategy)}; read are {', '.join(_STRATEGIES)}; {PACK_OTHERWISE}"
        )
    has_groups = strategy in ("group", "tensor_group")
    if has_groups and (group is None or group < 1):
        raise ContainerError(f"{label}: group_size is {shown(group)}, and strategy is {strategy!r}; give the size")
    block = _block(values.get("block_structure"), label) if strategy == "block" else None
    symmetric = values.get("symmetric", True)
    if not isinstance(symmetric, bool):
        raise ContainerError(f"{label}: symmetric is {shown(symmetric)}; accepted is a boolean")
    if kind == "float" and not symmetric:
        raise ContainerError(f"{label}: symmetric is false, and type is 'float'; floats have no zero points")
    return WeightScheme(bits, kind, symmetric, strategy, group if has_groups else None, block)


def _block(value: Any, label: str) -> tuple[int, int]:
    """Return rows and columns of a block."""
    if isinstance(value, list) and len(value) == 2 and all(type(size) is int and 0 < size <= 1 << 40 for size in value):
        return value[0], value[1]
    raise ContainerError(f"{label}: block_structure is {shown(value)}; accepted are two whole numbers above 0")


def _arguments(values: Any, label: str) -> str:
    """Return how activations are rounded, for people."""
    if not isinstance(values, Mapping):
        raise ContainerError(f"{label} is {shown(values)}; accepted is an object")
    dynamic, strategy = values.get("dynamic", False), values.get("strategy")
    when = "scales of each call" if dynamic else "scales of the file"
    return (
        f"{shown(values.get('num_bits', 8))}-bit {values.get('type', 'int')!s:.8}, {strategy or 'tensor'!s:.16}, {when}"
    )


def _repeats(text: str) -> tuple[int, bool]:
    """Return how many repeats an expression has, and whether one repeats a group with a choice in it.

    Every repeat counts as unbounded: the number of ways to match is then a power of the length. A choice in a repeat
    makes it exponential.
    """
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "a", text, flags=re.DOTALL).replace("(?:", "(")
    plain = re.sub(r"([*+?}])[?+]", r"\1", plain)  # lazy and possessive ones
    groups, count, nested, has_choice = [False], 0, False, False
    for character in plain:
        if character in "*+?{":
            count += 1
            nested = nested or (has_choice and character != "?")
            groups[-1] = True
        elif character == "|":
            groups[-1] = True
        elif character == "(":
            groups.append(False)
        has_choice = character == ")" and len(groups) > 1 and groups.pop()
        groups[-1] = groups[-1] or has_choice
    return count, nested
