"""``compressed_tensors.json``: what a model folder keeps of the folder of compressed-tensors that it was made of.

It has the configuration of the packing, how each weight lay there (form, dtypes, shapes, the divisor of ``nvfp4``),
names that differ, and small tensors that have no place in the model, such as scales of activations. A folder that is
written of the model has them again. What the model holds otherwise by now counts for nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError
from octavo.interchange.compressed_tensors_config import WeightScheme, read_weight_scheme
from octavo.interchange.compressed_tensors_layout import GLOBAL, ORDER, ZERO
from octavo.interchange.compressed_tensors_pack import FORMATS, Former
from octavo.interchange.compressed_tensors_weights import CompressedWeight
from octavo.storage.reading import VOCABULARY_BYTES, member, parse_json, read_text, shown

NAME = "compressed_tensors.json"
_VERSION = 1
_JSON_VALUES = 8_000_000
_MOST_EXTRA = 1 << 20  # bytes of a tensor that has no place in the model
_DTYPES = (
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float64", "uint8", "int8",
    "int16", "int32", "int64", "bool",
)  # fmt: skip


@dataclass(frozen=True)
class FormerFolder:
    """What is kept. ``weights``: by name in the model. ``names``: in the folder, of other tensors where they differ.

    ``experts``: by name of a layer's weight in the model, the weights whose rows follow each other in it. ``extra``:
    tensors that have no place in the model.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Former]
    names: Mapping[str, str] = field(default_factory=dict)
    experts: Mapping[str, Sequence[Former]] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        weights: Mapping[str, CompressedWeight],
        names: Mapping[str, str],
        joined: Mapping[str, Sequence[str]],
        extra: Mapping[str, Tensor],
    ) -> FormerFolder:
        """Return what is kept of a folder.

        ``names``: in the model, by those in the folder. ``joined``: names in the folder of the weights whose rows
        follow each other in one of the model.
        """
        weights_of_model = {names[name]: _former(weight) for name, weight in weights.items() if name in names}
        others = {place: name for name, place in names.items() if name not in weights and name != place}
        small = {name: tensor for name, tensor in extra.items() if tensor.nbytes <= _MOST_EXTRA}
        experts = {name: [_former(weights[one]) for one in parts] for name, parts in joined.items()}
        return cls(config, weights_of_model, others, experts, small)

    @classmethod
    def read(cls, folder: Path) -> FormerFolder | None:
        """Return what a folder keeps, None where it has no such file. Raises ContainerError for one that is damaged."""
        path = folder / NAME
        if not path.exists():
            return None
        content = parse_json(read_text(path, VOCABULARY_BYTES), str(path), most=_JSON_VALUES)
        label = str(path)
        try:
            if content.get("version") != _VERSION:
                version = shown(content.get("version"))
                raise ContainerError(f"{label}: version is {version}; this Octavo reads {_VERSION}")
            return cls(
                member(content, "quantization_config", dict, label),
                {
                    name: _read_former(entry, f"{label}: {shown(name)}")
                    for name, entry in member(content, "weights", dict, label).items()
                },
                {name: _text(place, label) for name, place in member(content, "names", dict, label).items()},
                {
                    name: _read_formers(entries, f"{label}: {shown(name)}")
                    for name, entries in member(content, "experts", dict, label).items()
                },
                {
                    name: _read_tensor(entry, f"{label}: {shown(name)}")
                    for name, entry in member(content, "extra", dict, label).items()
                },
            )
        except ContainerError as error:
            raise ContainerError(f"{error}; remove the file to write the model without it") from None

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(
            {
                "version": _VERSION,
                "quantization_config": self.config,
                "weights": {name: _former_dict(former) for name, former in self.weights.items()},
                "names": dict(self.names),
                "experts": {name: [_former_dict(one) for one in parts] for name, parts in self.experts.items()},
                "extra": {name: _tensor_dict(tensor) for name, tensor in self.extra.items()},
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )


def _former(weight: CompressedWeight) -> Former:
    layout, scheme = weight.layout, weight.scheme
    parts = {part: (entry.dtype, tuple(entry.shape)) for part, entry in layout.parts.items()}
    fills = {}
    if ORDER in parts:
        order = weight.read(ORDER)
        fills[ORDER] = "-1" if order.numel() and int(order[0]) == -1 else "groups"
    if ZERO in parts and scheme.symmetric:
        fills[ZERO] = "0"
    divisor = float(weight.read(GLOBAL).flatten()[0]) if GLOBAL in parts else None
    if divisor is not None and not math.isfinite(divisor):
        divisor = None
    return Former(layout.layer, layout.form, layout.format, scheme, layout.dense, parts, fills, divisor)


def _former_dict(former: Former) -> dict[str, Any]:
    return {
        "layer": former.layer,
        "form": former.form,
        "format": former.format,
        "scheme": former.scheme.as_dict(),
        "dense": former.dense,
        "parts": {part: [dtype, list(shape)] for part, (dtype, shape) in former.parts.items()},
        "fills": dict(former.fills),
        "divisor": former.divisor,
    }


def _read_formers(entries: Any, label: str) -> list[Former]:
    if not isinstance(entries, list) or not entries:
        raise ContainerError(f"{label} is {shown(entries)}; accepted is a list")
    return [_read_former(entry, label) for entry in entries]


def _read_former(entry: Any, label: str) -> Former:
    if not isinstance(entry, dict):
        raise ContainerError(f"{label} is {shown(entry)}; accepted is an object")
    form, divisor = member(entry, "form", str, label), entry.get("divisor")
    fills = member(entry, "fills", dict, label)
    if form not in FORMATS or any(one not in ("0", "-1", "groups") for one in fills.values()):
        raise ContainerError(f"{label}: form {shown(form)} and fills {shown(fills)}, which this Octavo does not write")
    if divisor is not None and (type(divisor) not in (int, float) or not math.isfinite(divisor)):
        raise ContainerError(f"{label}: divisor is {shown(divisor)}; accepted is a number")
    parts = {}
    for part, value in member(entry, "parts", dict, label).items():
        is_pair = isinstance(value, list) and len(value) == 2 and value[0] in _DTYPES
        parts[part] = (value[0], _shape(value[1], label)) if is_pair else _refuse(value, label)
    if fills.keys() - parts.keys():
        raise ContainerError(f"{label}: fills is {shown(fills)}, of which parts lacks some")
    scheme: WeightScheme = read_weight_scheme(member(entry, "scheme", dict, label), f"{label}: scheme")
    layer, stated = _text(entry.get("layer"), label), _text(entry.get("format"), label)
    return Former(layer, form, stated, scheme, bool(entry.get("dense")), parts, fills, divisor)


def _tensor_dict(tensor: Tensor) -> dict[str, Any]:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "data": base64.b64encode(data).decode()}


def _read_tensor(entry: Any, label: str) -> Tensor:
    if not isinstance(entry, dict) or entry.get("dtype") not in _DTYPES:
        _refuse(entry, label)
    dtype, shape = getattr(torch, entry["dtype"]), _shape(entry.get("shape"), label)
    try:
        data = base64.b64decode(_text(entry.get("data"), label), validate=True)
    except (binascii.Error, ValueError):
        raise ContainerError(f"{label}: data is no base64") from None
    if len(data) != math.prod(shape) * dtype.itemsize or len(data) > _MOST_EXTRA:
        raise ContainerError(f"{label}: {len(data)} bytes, and the shape is {shown(list(shape))}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(shape)


def _shape(value: Any, label: str) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) <= 8 and all(type(one) is int and 0 <= one < 1 << 40 for one in value):
        return tuple(value)
    raise ContainerError(f"{label}: shape is {shown(value)}; accepted are whole numbers from 0")


def _text(value: Any, label: str) -> str:
    if isinstance(value, str):
        return value
    raise ContainerError(f"{label}: {shown(value)}; accepted is a text")


def _refuse(value: Any, label: str) -> Any:
    raise ContainerError(f"{label}: {shown(value)}; accepted are a dtype and a shape")
