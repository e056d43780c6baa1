"""Rotations of GGUF files: keys below ``rope.`` and tensors of factors, as the ``rope_parameters`` of transformers.

Source: llama.cpp, ``convert_hf_to_gguf.py`` and ``src/llama-model.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError
from octavo.interchange.ggml_decode import decode
from octavo.interchange.gguf_config import Config, Fields, Keys
from octavo.interchange.gguf_metadata import Typed, f32, text, u32

FACTORS = "rope_freqs.weight"
"""Tensor of the factors that wave lengths of rotations are multiplied by; it has no place in a model."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Those of LongRoPE: of texts longer than the model was first trained on, and of others."""
BASE = 10000.0
"""Base of frequencies where a file has none."""
# Llama 3 was trained on so many positions. Frequencies with fewer turns over them are divided by the largest factor,
# those with more are kept, and between them the share of both changes.
_LLAMA3_POSITIONS, _LEAST_TURNS, _MOST_TURNS = 8192, 1.0, 4.0
_NEAR = 1e-5  # of a share to 0 or 1, which is that
_ROUNDING = 1e-4  # factors are computed in float32, and multiplied by up to 4 between the two
_FLOAT32 = 1e-6  # what rounding to float32 moves a number
_ORIGINAL = "original_max_position_embeddings"
_SCALING = "rope.scaling."
_YARN = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def rotation(fields: Fields, size: int, *, base: float = BASE) -> dict[str, Any]:
    """Return the parameters of rotations of heads of ``size`` elements; ``base``: where the file has none.

    Plain, linear and YaRN, and those of Llama 3, of which a file has the factor of each frequency. Raises
    ContainerError for others, and for factors that Llama 3 does not have.
    """
    theta = {"rope_theta": fields.real("rope.freq_base", base)}
    kind = fields.file.metadata.get(f"{fields.architecture}.{_SCALING}type", "none")
    _without_other_scales(fields)
    if FACTORS in fields.file.tensors:
        fields.without(f"{_SCALING}type", "none")
        return {**theta, **_llama3(fields, size, theta["rope_theta"])}
    if kind == "none":
        fields.without(f"{_SCALING}factor", 0, 1, 0.0, 1.0)
        return {"rope_type": "default", **theta}
    if kind == "linear":
        return {"rope_type": "linear", **theta, "factor": fields.real(f"{_SCALING}factor")}
    if kind != "yarn":
        raise fields.refused(f"{_SCALING}type", kind, "'none', 'linear' or 'yarn'")
    fields.without(f"{_SCALING}yarn_ext_factor", -1.0, 1.0)
    fields.without(f"{_SCALING}yarn_log_multiplier", 0.0)
    named = {
        ours: fields.real(_SCALING + key)
        for key, ours in _YARN.items()
        if f"{fields.architecture}.{_SCALING}{key}" in fields.file.metadata
    }
    positions = fields.whole(f"{_SCALING}original_context_length", fields.whole("context_length"))
    return {"rope_type": "yarn", **theta, "factor": fields.real(f"{_SCALING}factor"), _ORIGINAL: positions, **named}


def _without_other_scales(fields: Fields) -> None:
    """Refuse a file with scales of rotations that no configuration has."""
    for key, plain in (("rope.scale_linear", 1.0), (f"{_SCALING}attn_factor", 1.0), (f"{_SCALING}alpha", 0.0)):
        fields.without(key, plain)


def partial_rotation(fields: Fields, size: int) -> dict[str, Any]:
    """Return the parameters of rotations of the first elements of heads of ``size``.

    Raises ContainerError for scaled ones, and for more elements than a head has.
    """
    fields.without(f"{_SCALING}type", "none")
    _without_other_scales(fields)
    return {
        "rope_type": "default",
        "rope_theta": fields.real("rope.freq_base", BASE),
        "partial_rotary_factor": share_rotated(fields, size),
    }


def share_rotated(fields: Fields, size: int) -> float:
    """Return the share of a head's elements that are rotated."""
    rotated = fields.whole("rope.dimension_count", size)
    if not 0 < rotated <= size or rotated % 2:
        raise fields.refused("rope.dimension_count", rotated, f"an even number up to {size}, the size of a head")
    share = rotated / size
    return share if int(size * share) == rotated else math.nextafter(share, 2)  # transformers cuts the product


def long_rotation(fields: Fields, size: int) -> dict[str, Any]:
    """Return the parameters of rotations of Phi-3: plain, or LongRoPE with its tensors of factors."""
    tensors = fields.file.tensors
    if LONG_FACTORS not in tensors and SHORT_FACTORS not in tensors:
        return partial_rotation(fields, size)
    fields.without(f"{_SCALING}type", "longrope")
    share = share_rotated(fields, size)
    positions = fields.whole(f"{_SCALING}original_context_length", fields.whole("context_length"))
    result = {
        "rope_type": "longrope",
        "rope_theta": fields.real("rope.freq_base", BASE),
        "partial_rotary_factor": share,
        _ORIGINAL: positions,
        "long_factor": _factors(fields, LONG_FACTORS, int(size * share) // 2),
        "short_factor": _factors(fields, SHORT_FACTORS, int(size * share) // 2),
    }
    usual = _long_attention(fields.whole("context_length"), positions)
    attention = fields.real(f"{_SCALING}attn_factor", usual)
    return result if abs(attention / usual - 1) <= _FLOAT32 else {**result, "attention_factor": attention}


def _long_attention(positions: int, original: int) -> float:
    """Return the factor of scores of LongRoPE that a configuration need not say."""
    scale = positions / max(original, 1)
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0


def rotation_keys(config: Config, size: int) -> Keys:
    """Return the keys of the rotations of heads of ``size``, all of whose elements turn.

    Raises ModelError for kinds that files lack.
    """
    values = rotation_of(config)
    values.only("rope_type", "default", "linear", "yarn", "llama3")
    values.only("partial_rotary_factor", 1, 1.0)
    kind = values.values.get("rope_type")
    needed: dict[str, Typed] = {}
    if kind == "linear":
        needed = {f"{_SCALING}type": text("linear"), f"{_SCALING}factor": f32(values.real("factor"))}
    elif kind == "yarn":
        for name in ("mscale", "mscale_all_dim", "truncate"):
            values.only(name, *((True,) if name == "truncate" else ()))
        needed = {
            f"{_SCALING}type": text("yarn"),
            f"{_SCALING}factor": f32(values.real("factor")),
            f"{_SCALING}original_context_length": u32(values.whole(_ORIGINAL)),
        }
        for key, name in _YARN.items():
            if values.values.get(name) is not None:
                needed[_SCALING + key] = f32(values.real(name))
    return _with_base(values, needed, {"rope.dimension_count": u32(size)})


def partial_keys(config: Config, size: int) -> Keys:
    """Return the keys of plain rotations of the first elements of heads. Raises ModelError for other kinds."""
    values = rotation_of(config)
    values.only("rope_type", "default")
    return _with_base(values, {"rope.dimension_count": u32(_rotated(values, size))}, {})


def long_keys(config: Config, size: int) -> Keys:
    """Return the keys of rotations of Phi-3. Raises ModelError for other kinds."""
    values = rotation_of(config)
    values.only("rope_type", "default", "longrope")
    needed: dict[str, Typed] = {"rope.dimension_count": u32(_rotated(values, size))}
    positions = config.whole("max_position_embeddings")
    if values.values.get("rope_type") != "longrope":
        return _with_base(values, needed, {f"{_SCALING}original_context_length": u32(positions)})
    original = values.whole(_ORIGINAL)
    attention = values.values.get("attention_factor")
    attention = _long_attention(positions, original) if attention is None else values.real("attention_factor")
    needed |= {
        f"{_SCALING}type": text("longrope"),
        f"{_SCALING}original_context_length": u32(original),
        f"{_SCALING}attn_factor": f32(attention),
    }
    return _with_base(values, needed, {})


def _with_base(values: Config, needed: dict[str, Typed], customary: dict[str, Typed]) -> Keys:
    base = values.real("rope_theta")
    (customary if base == BASE else needed)["rope.freq_base"] = f32(base)
    return Keys(needed, customary)


def _rotated(values: Config, size: int) -> int:
    share = values.values.get("partial_rotary_factor")
    return size if share is None else int(size * values.real("partial_rotary_factor"))


def rotation_of(config: Config, kind: str | None = None) -> Config:
    """Return the parameters of rotations of a configuration; ``kind``: of the layers of one kind alone."""
    values = config.values.get("rope_parameters")
    place = f"{config.place}: rope_parameters"
    if kind is not None:
        values, place = (values.get(kind) if isinstance(values, Mapping) else None), f"{place}.{kind}"
    return Config(place, values if isinstance(values, Mapping) else {})


def no_factors(config: Config, size: int) -> dict[str, Tensor]:
    """Return no tensors: those of architectures whose rotations have no factors of their own."""
    return {}


def llama3_factors(config: Config, size: int) -> dict[str, Tensor]:
    """Return the factors of wave lengths of Llama 3, float32 ``[half of a head]``; none of other rotations.

    Source: llama.cpp, ``convert_hf_to_gguf.py``, and the configuration's own rule, of which they are the inverse.
    """
    values = rotation_of(config)
    if values.values.get("rope_type") != "llama3":
        return {}
    most, low, high = (values.real(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise values.refused("high_freq_factor", "one above low_freq_factor")
    positions = values.whole(_ORIGINAL)
    frequencies = 1.0 / values.real("rope_theta") ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    turns = positions * frequencies / (2 * math.pi)
    slow = ((high - turns) / (high - low)).clamp(0, 1)
    return {FACTORS: 1 / (slow / most + 1 - slow)}


def long_factors(config: Config, size: int) -> dict[str, Tensor]:
    """Return the factors of LongRoPE, float32 ``[half of what turns of a head]`` each; none of other rotations."""
    values = rotation_of(config)
    if values.values.get("rope_type") != "longrope":
        return {}
    tensors = {}
    for name, field in ((LONG_FACTORS, "long_factor"), (SHORT_FACTORS, "short_factor")):
        numbers = values.values.get(field)
        if not isinstance(numbers, list) or len(numbers) != _rotated(values, size) // 2:
            raise values.refused(field, f"{_rotated(values, size) // 2} numbers")
        tensors[name] = torch.tensor(numbers, dtype=torch.float32)
    return tensors


def _factors(fields: Fields, name: str, count: int) -> list[float]:
    """Return a tensor of factors. Raises ContainerError where it is missing, or not ``count`` F32."""
    tensor = fields.file.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (count,):
        label = "missing" if tensor is None else f"{tensor.type.name} of shape {list(tensor.shape)}"
        raise ContainerError(f"{fields.file.path}: tensor '{name}': {label}; accepted are {count} factors as F32")
    factors: list[float] = decode(fields.file.read(name), tensor.type).flatten().tolist()
    if not all(0 < factor < math.inf for factor in factors):
        raise ContainerError(f"{fields.file.path}: tensor '{name}' has factors that are not finite and above 0")
    return factors


def _llama3(fields: Fields, size: int, base: float) -> dict[str, Any]:
    tensor = fields.file.tensors[FACTORS]
    refusal = ContainerError(
        f"{fields.file.path}: tensor '{FACTORS}': {tensor.type.name} of shape {list(tensor.shape)}; accepted are the "
        f"{size // 2} factors of Llama 3 as F32"
    )
    if tensor.type.name != "F32" or tensor.shape != (size // 2,):
        raise refusal
    factors = decode(fields.file.read(FACTORS), tensor.type).flatten().tolist()
    largest = max(factors)
    if not 0 < largest < math.inf:
        raise refusal
    turns = [_LLAMA3_POSITIONS / (2 * math.pi * base ** (2 * number / size)) for number in range(size // 2)]

    def fits(least: float, most: float) -> bool:
        slow = [min(max((most - one) / (most - least), 0.0), 1.0) for one in turns]
        pairs = zip(factors, slow, strict=True)
        return all(abs(factor * (one / largest + 1 - one) - 1) <= _ROUNDING for factor, one in pairs)

    for least, most in ((_LEAST_TURNS, _MOST_TURNS), _bounds(turns, factors)):
        if least < most and fits(least, most):
            return {
                "rope_type": "llama3",
                "factor": largest,
                "low_freq_factor": least,
                "high_freq_factor": most,
                _ORIGINAL: _LLAMA3_POSITIONS,
            }
    raise refusal


def _bounds(turns: list[float], factors: list[float]) -> tuple[float, float]:
    """Return the turns below which waves are slow, and above which they are fast, that give some factors.

    Between them the share of the slow grows as turns fall: a line. A file does not say of how many positions turns are
    counted; those of another number are the same bounds, scaled.
    """
    span = 1 - 1 / max(factors)
    shares = [(1 - 1 / factor) / span if span > 0 and factor > 0 else 0.0 for factor in factors]
    inside = [(turn, share) for turn, share in zip(turns, shares, strict=True) if _NEAR < share < 1 - _NEAR]
    least = max((turn for turn, share in zip(turns, shares, strict=True) if share >= 1 - _NEAR), default=0.0)
    most = min((turn for turn, share in zip(turns, shares, strict=True) if share <= _NEAR), default=2 * turns[0])
    if not inside:
        return least, most
    (turn, share), (other, its) = inside[0], inside[-1]
    if len(inside) > 1:
        width = (turn - other) / (its - share) if its > share else 0.0
    else:
        width = min((most - turn) / share, (turn - least) / (1 - share))
    return turn + share * width - width, turn + share * width
