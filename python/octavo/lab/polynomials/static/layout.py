"""The parts of an integer model: its layers by name, groups of layers that share a scale, its tensors in a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from octavo.errors import ContainerError, FormatError
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig
from octavo.tensors.packed_tensor import PackedTensor

FORMAT = "int8:channel"
# Bits of the codes of a linear layer's input; those of weights and of the states of LSTMs have 8.
BITS = (8, 16)
# The largest int32. What is added to a sum of products leaves room for it, so that no accumulator wraps.
ACCUMULATOR = 2**31 - 1
# Most inputs of a layer that reads int16: the sums of their products take half of the range, and biases have the rest.
WIDEST = 256


def largest(bits: int = 8) -> int:
    """Return the largest magnitude of a code: 127 for 8 bits, 32767 for 16."""
    return (1 << (bits - 1)) - 1


def linears(config: Seq2SeqConfig) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of every linear layer of the hybrid model, by the name of the layer."""
    hidden, both, inner = config.hidden, 2 * config.encoder, config.feedforward
    found = {"bridge": (2 * hidden, both)}
    found |= {f"self_attention.{part}": (hidden, hidden) for part in ("query", "key", "value", "output")}
    for number in range(config.layers):
        cross, feedforward = f"blocks.{number}.cross_attention", f"blocks.{number}.feedforward"
        found |= {f"{cross}.query": (hidden, hidden), f"{cross}.key": (hidden, both), f"{cross}.value": (hidden, both)}
        found |= {f"{cross}.output": (hidden, hidden)}
        found |= {f"{feedforward}.expand": (inner, hidden), f"{feedforward}.contract": (hidden, inner)}
    return found | {"output": (config.vocabulary, hidden)}


def lstms(config: Seq2SeqConfig) -> dict[str, int]:
    """Return the units of every LSTM of the hybrid model, by its name."""
    return {"encoder.forwards": config.encoder, "encoder.backwards": config.encoder, "decoder": config.hidden}


def norms(config: Seq2SeqConfig) -> dict[str, int]:
    """Return the width of every norm of the hybrid model, by its name."""
    blocks = [
        f"blocks.{number}.{norm}" for number in range(config.layers) for norm in ("cross_norm", "feedforward_norm")
    ]
    return {"memory_norm": 2 * config.encoder, **dict.fromkeys(["self_norm", *blocks, "output_norm"], config.hidden)}


def site(name: str) -> str:
    """Return what a layer's scale belongs to: the layer, or the norm whose output it shares with other layers."""
    if name.endswith((".cross_attention.key", ".cross_attention.value")):
        return "memory_norm"
    if name.startswith("self_attention.") and not name.endswith(".output"):
        return "self_norm"
    return name


def shapes(config: Seq2SeqConfig) -> dict[str, tuple[torch.dtype | None, tuple[int, ...]]]:
    """Return dtype and shape of every tensor of the integer model; the dtype of an ``int8:channel`` tensor is None."""
    found: dict[str, tuple[torch.dtype | None, tuple[int, ...]]] = {}
    for name, (outputs, inputs) in linears(config).items():
        found[f"{name}.weight"] = None, (outputs, inputs)
        found[f"{name}.bias"] = torch.int32, (outputs,)
        found[f"{name}.input_scale"] = torch.float32, ()
        found[f"{name}.input_bits"] = torch.int32, ()
    for name, units in lstms(config).items():
        found[f"{name}.weight_hh"] = None, (4 * units, units)
        found[f"{name}.table"] = torch.int32, (config.vocabulary, 4 * units)
        found[f"{name}.state_scale"] = torch.float32, ()
    for name, width in norms(config).items():
        found |= {f"{name}.{part}": (torch.float32, (width,)) for part in ("weight", "bias")}
    return found


def check(tensors: Mapping[str, Tensor | PackedTensor], config: Seq2SeqConfig) -> None:
    """Refuse tensors that are not those of an integer model of ``config``, or that could not be computed with.

    Raises ContainerError with the name of the first that is missing, unknown, of another dtype or shape; that holds
    NaN, infinity, the code -128, or a scale that is not positive; bits that are not 8 or 16; whose accumulators
    could exceed int32; or whose scale or bits differ from those of another layer that reads the same tensor.
    """
    wanted = shapes(config)
    differing = sorted(tensors.keys() ^ wanted.keys())
    if differing:
        problem = "is no tensor of the model" if differing[0] in tensors else "is missing"
        raise ContainerError(f"{differing[0]} {problem} ({len(differing)} such names)")
    for name, (dtype, shape) in wanted.items():
        _check_one(name, tensors[name], dtype, shape)
    for name in linears(config):
        bits = int(plain(tensors, f"{name}.input_bits"))
        _check_range(f"{name}.weight", tensors[f"{name}.weight"], f"{name}.bias", tensors[f"{name}.bias"], bits)
    for name in lstms(config):
        _check_range(f"{name}.weight_hh", tensors[f"{name}.weight_hh"], f"{name}.table", tensors[f"{name}.table"])
    first: dict[str, str] = {}
    for name in linears(config):
        other = first.setdefault(site(name), name)
        for part in ("input_scale", "input_bits"):
            value, its = (plain(tensors, f"{layer}.{part}").item() for layer in (name, other))
            if value != its:
                raise ContainerError(f"{name}.{part} is {value}, and {other}, which reads the same, has {its}")


def plain(tensors: Mapping[str, Tensor | PackedTensor], name: str) -> Tensor:
    """Return a tensor of a checked model that is not packed."""
    tensor = tensors[name]
    assert isinstance(tensor, Tensor)
    return tensor


def check_scales(scales: Mapping[str, float], config: Seq2SeqConfig) -> None:
    """Refuse scales that :func:`calibrate` could not have returned for a model of ``config``.

    Raises FormatError for one that is missing, unknown or not positive, and where layers that read the same differ.
    """
    names = [*linears(config), *lstms(config)]
    differing = sorted(scales.keys() ^ set(names))
    if differing:
        problem = "unknown" if differing[0] in scales else "missing"
        raise FormatError(f"{problem} scale {differing[0]!r} ({len(differing)} such names)")
    first: dict[str, str] = {}
    for name in names:
        scale, other = torch.tensor(scales[name], dtype=torch.float32), first.setdefault(site(name), name)
        if not (0 < scale < torch.inf and (scale / 256).reciprocal().isfinite()):  # 256: as of int16
            raise FormatError(f"scale of {name} is {scales[name]}; accepted are positive numbers with a finite inverse")
        if scales[name] != scales[other]:
            raise FormatError(
                f"scale of {name} is {scales[name]}, and {other}, which reads the same, has {scales[other]}"
            )


def check_wide(wide: Collection[str], config: Seq2SeqConfig) -> None:
    """Refuse names of layers with 16-bit inputs that are no linear layers, too wide, or not all that read a tensor.

    Raises FormatError.
    """
    unknown = sorted(set(wide) - linears(config).keys())
    if unknown:
        raise FormatError(
            f"{unknown[0]!r} is no linear layer, whose input may have 16 bits ({len(unknown)} such names)"
        )
    sites = {site(name): name for name in wide}
    for name, (_, inputs) in linears(config).items():
        if name in wide and inputs > WIDEST:
            raise FormatError(f"{name} has {inputs} inputs; with 16 bits accepted are up to {WIDEST}")
        if site(name) in sites and name not in wide:
            raise FormatError(f"{sites[site(name)]} is wide, and {name}, which reads the same, is not")


def _check_one(name: str, tensor: Tensor | PackedTensor, dtype: torch.dtype | None, shape: tuple[int, ...]) -> None:
    packed = isinstance(tensor, PackedTensor)
    if packed != (dtype is None) or tuple(tensor.shape) != shape or (not packed and tensor.dtype != dtype):
        given = f"'{tensor.format}'" if isinstance(tensor, PackedTensor) else str(tensor.dtype)
        accepted = f"'{FORMAT}'" if dtype is None else dtype
        raise ContainerError(f"{name} is {given} {tuple(tensor.shape)}; accepted is {accepted} {shape}")
    if isinstance(tensor, PackedTensor):
        given = f"'{tensor.format}' of {tensor.dtype} along axis {tensor.axis}"
        if given != (accepted := f"'{FORMAT}' of torch.float32 along axis 1"):
            raise ContainerError(f"{name} is {given}; accepted is {accepted}")
        if (tensor.codes.view(torch.int8) < -largest()).any():
            raise ContainerError(f"{name} holds the code -128; accepted are -{largest()} to {largest()}")
        if not tensor.scales.isfinite().all() or (tensor.scales < 0).any():
            raise ContainerError(f"{name} has a scale that is negative or not finite")
    elif tensor.is_floating_point() and not tensor.isfinite().all():
        raise ContainerError(f"{name} holds NaN or infinity")
    elif name.endswith("_scale") and not (tensor > 0 and tensor.reciprocal().isfinite()):
        raise ContainerError(f"{name} is {float(tensor)}; accepted are positive numbers whose inverse is finite")
    elif name.endswith("_bits") and int(tensor) not in BITS:
        raise ContainerError(f"{name} is {int(tensor)}; accepted are {' and '.join(map(str, BITS))}")


def _check_range(
    weight: str, packed: Tensor | PackedTensor, added: str, offsets: Tensor | PackedTensor, bits: int = 8
) -> None:
    assert isinstance(packed, PackedTensor) and isinstance(offsets, Tensor)  # checked above
    products = largest(bits) * packed.codes.view(torch.int8).long().abs().sum(1)
    most = (products + offsets.long().abs()).max()
    if most > ACCUMULATOR:
        raise ContainerError(f"{added}: with {weight} an accumulator may reach {most}, which int32 cannot hold")
