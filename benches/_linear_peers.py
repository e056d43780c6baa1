"""Products of other libraries with packed weights, as contestants of ``linear.py``, each beside formats alike."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator

import torch
from _ggml import GgmlError, Library, Products
from _peers import one_line
from _rotation import Rotation, copies, exact
from torch import Tensor

GGML = "ggml "
ALIKE = {
    "mxint8": "ggml q8_0",
    "int8:g32": "ggml q8_0",
    "int8:channel": "torch int8pack, torchao int8, torch dynamic int8",
    "mxint6": "ggml q6_K",
    "mxfp6e2m3": "ggml q6_K",
    "mxfp6e3m2": "ggml q6_K",
    "int4:g32": "ggml q4_0, ggml q4_K",
    "mxint4": "ggml q4_0, ggml q4_K",
    "uint4:g32": "ggml q4_1, torch int4pack",
    "nf4": "ggml q4_0, bitsandbytes nf4, bitsandbytes nf4 bfloat16",
    "mxfp4": "ggml mxfp4",
    "nvfp4": "ggml nvfp4",
    "int3:g32": "ggml q3_K",
    "int2:g32": "ggml q2_K",
}
"""Peers of each format: about as many bits, and weights of the same kind."""
Build = Callable[[Tensor, Tensor, int], Rotation]


def groups(formats: list[str]) -> list[tuple[list[str], list[str]]]:
    """Formats that have the same peers, and those peers; a format without any is alone."""
    found: dict[str, list[str]] = {}
    for text in formats:
        found.setdefault(ALIKE.get(text, text), []).append(text)
    return [(texts, ALIKE[texts[0]].split(", ") if texts[0] in ALIKE else []) for texts in found.values()]


def peers(
    names: list[str], x: Tensor, weight: Tensor, rotate: int, ggml: Library | None
) -> tuple[dict[str, Rotation], list[str]]:
    """Rotations of peers, those of ggml in every kind of memory that has the product (``NAME, MEMORY``), and a line for
    each that is missing or fails."""
    found: dict[str, Rotation] = {}
    complaints: list[str] = []
    logging.disable(logging.WARNING)  # torchao and bitsandbytes tell on import which parts they lack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                if not name.startswith(GGML):
                    found[name] = _BUILDS[name](x, weight, rotate)
                elif ggml is not None:
                    found |= _ggml(ggml, name.removeprefix(GGML), x, weight, rotate)
            except Exception as error:  # whatever a foreign library raises: the bench goes on without it
                complaints.append(one_line(name, error))
    logging.disable(logging.NOTSET)
    return found, complaints


def _ggml(library: Library, kind: str, x: Tensor, weight: Tensor, rotate: int) -> Iterator[tuple[str, Rotation]]:
    """Products of a type of ggml: the buffer of files, and those that hold weights in another order."""
    codes, values = library.encode(weight, kind)
    expected = exact(x, values)
    for memory, number in library.buffers:
        try:
            one = Products(library, kind, codes, x, len(weight), number, copies(codes.nbytes, rotate))
        except GgmlError:
            if memory == library.buffers[0][0]:
                raise
            continue
        yield f"{GGML}{kind}, {memory}", Rotation(one.graphs, one.compute, codes.nbytes, expected)


def _int8pack(x: Tensor, weight: Tensor, rotate: int) -> Rotation:
    """torch's kernel for int8 codes with a scale a row, bfloat16 inputs."""
    narrow = x.bfloat16()
    scales = (weight.abs().amax(1) / 127).bfloat16()
    codes = (weight / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    turns = [codes.clone() for _ in range(copies(codes.nbytes, rotate))]
    expected = exact(x, codes * scales.float()[:, None])
    return Rotation(turns, lambda w: torch._weight_int8pack_mm(narrow, w, scales), codes.nbytes, expected)


def _int4pack(x: Tensor, weight: Tensor, rotate: int) -> Rotation:
    """torch's kernel for uint4 codes with a scale and an offset for 32 values, bfloat16 inputs."""
    narrow, size = x.bfloat16(), 32
    groups = weight.view(len(weight), -1, size)
    scales = ((groups.amax(2) - groups.amin(2)) / 15).bfloat16()
    middles = (groups.amin(2) + 8 * scales).bfloat16()
    codes = ((groups - middles[..., None]) / scales[..., None] + 8).round().clamp(0, 15)
    values = (codes - 8) * scales[..., None].float() + middles[..., None].float()
    first = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.view_as(weight).to(torch.int32), 1)
    both = torch.stack((scales, middles), 2).transpose(0, 1).contiguous()
    nbytes = first.nbytes + both.nbytes
    turns = [(first.clone(), both.clone()) for _ in range(copies(nbytes, rotate))]
    product = torch.ops.aten._weight_int4pack_mm_for_cpu
    return Rotation(turns, lambda w: product(narrow, w[0], size, w[1]), nbytes, exact(x, values.view_as(weight)))


def _dynamic(x: Tensor, weight: Tensor, rotate: int) -> Rotation:
    """torch's int8 product, a scale a row of weights and one for all inputs."""
    scales = (weight.abs().amax(1) / 127).double()
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    codes = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    nbytes = weight.numel() + scales.nbytes
    turns = [torch.ops.quantized.linear_prepack(codes, None) for _ in range(copies(nbytes, rotate))]
    product = torch.ops.quantized.linear_dynamic
    return Rotation(turns, lambda w: product(x, w, False), nbytes, exact(x, codes.dequantize()))


def _torchao(x: Tensor, weight: Tensor, rotate: int) -> Rotation:
    """torchao's int8 weights with inputs rounded to int8, a scale a row of each, without torch.compile."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    def layer() -> torch.nn.Module:
        made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        made.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        holder = torch.nn.Sequential(made)
        quantize_(holder, Int8DynamicActivationInt8WeightConfig())
        return holder[0]

    nbytes = weight.numel() + len(weight) * 4
    turns = [layer() for _ in range(copies(nbytes, rotate))]
    return Rotation(turns, lambda w: w(x), nbytes, exact(x, turns[0].weight.dequantize()))


def _bitsandbytes(x: Tensor, weight: Tensor, rotate: int, dtype: torch.dtype) -> Rotation:
    """bitsandbytes' NF4, blocks of 64, with inputs of a dtype."""
    from bitsandbytes import functional, matmul_4bit

    given = x.to(dtype)
    first, state = functional.quantize_4bit(weight.to(dtype), quant_type="nf4", blocksize=64)
    nbytes = first.nbytes + state.absmax.nbytes
    turns = [first.clone() for _ in range(copies(nbytes, rotate))]
    expected = exact(x, functional.dequantize_4bit(first, state).float())
    return Rotation(turns, lambda w: matmul_4bit(given, w.t(), state), nbytes, expected)


_BUILDS: dict[str, Build] = {
    "torch int8pack": _int8pack,
    "torch int4pack": _int4pack,
    "torch dynamic int8": _dynamic,
    "torchao int8": _torchao,
    "bitsandbytes nf4": lambda x, w, rotate: _bitsandbytes(x, w, rotate, torch.float32),
    "bitsandbytes nf4 bfloat16": lambda x, w, rotate: _bitsandbytes(x, w, rotate, torch.bfloat16),
}
