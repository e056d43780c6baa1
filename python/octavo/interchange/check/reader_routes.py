"""Which reader takes which layer, and by what: the facts of the layouts' own readers, from their sources.

vLLM: ``model_executor/layers/quantization``; llama.cpp: ``conversion/base.py`` and ``ggml``; transformers: its
quantizers; octavo: what :mod:`octavo.interchange` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.errors import ConfigError, ContainerError
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    AWQ,
    BNB4,
    BNB8,
    FP8,
    FP8_BLOCKS,
    GGML,
    GPT_OSS,
    GPTQ,
    INT8,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP6,
    MXFP8,
    NVFP4,
    OCTAVO,
    WORDS,
    Layer,
    Model,
)
from octavo.interchange.foreign_readers import Reader, reader_of

READERS = ("vllm", "llama.cpp", "transformers", "octavo")
Verdict = Literal["takes", "decodes", "with conditions", "wrong values", "refuses"]


@dataclass(frozen=True)
class Route:
    """How a reader treats a number of layers."""

    layout: str
    verdict: Verdict
    how: str
    layers: int
    example: str


def routes(model: Model, settings: Settings, reader: str) -> list[Route]:
    """Return how a reader treats the layers of a checkpoint.

    Args:
        model: the checkpoint, measured.
        settings: of the checkpoint.
        reader: one of ``READERS``.

    Returns:
        An entry for each layout and verdict.

    Raises:
        ConfigError: for another reader.
    """
    if reader not in READERS:
        raise ConfigError(f"reader {reader!r}; accepted are {', '.join(READERS)}")
    judge = _JUDGES[reader]
    if reader == "octavo" and (own := reader_of(model.source.path)) is not None and model.source.gguf is None:
        judge = _judge_of(own, model.source.path)

    counts: dict[tuple[str, Verdict, str], list[str]] = {}
    verdict: Verdict
    for layer in model.layers:
        kind = layer.codes.dtype if layer.layout == GGML else layer.layout
        if layer.layout == WORDS and layer.bits:
            kind = f"{kind}, {layer.bits} bits"
        verdict, how = ("refuses", "its parts contradict each other") if layer.broken else judge(layer, settings)
        counts.setdefault((kind, verdict, how), []).append(layer.name)
    return [Route(kind, verdict, how, len(names), names[0]) for (kind, verdict, how), names in counts.items()]


def _vllm(layer: Layer, settings: Settings) -> tuple[Verdict, str]:
    if layer.layout == WORDS:
        if not layer.dense:
            return "wrong values", "words of whole codes are read as a dense stream"
        if layer.bits not in (4, 8):
            zeros = "zeros" in layer.parts
            return (
                ("with conditions", "Humming kernels; zero points of this width were not compared")
                if zeros
                else ("takes", "Humming kernels of newer versions (2, 3, 5, 6, 7 bits)")
            )
        if layer.group in (32, 64, 128, layer.columns) and layer.rows % 64 == 0 and layer.columns % 128 == 0:
            return "takes", "Marlin; scales are cast to the model's dtype"
        return "with conditions", "Marlin wants rows % 64, columns % 128, groups of 32, 64, 128"
    facts: dict[str, tuple[Verdict, str]] = {
        INT8: ("takes", "int8 products; scales stay float32"),
        FP8: ("takes", "float8 products, E4M3"),
        MXFP8: ("takes", "MXFP8 kernels of newer versions"),
        MXFP4: ("takes", "MXFP4 weights, E8M0 scales"),
        MXFP6: ("refuses", "no scheme of E2M3 with block scales"),
        NVFP4: ("takes", "FP4 products; joined layers take the largest global scale"),
        MODELOPT_NVFP4: ("takes", "FP4 products; joined layers take the largest global scale"),
        FP8_BLOCKS: ("takes", "float8 products with a scale for each square block"),
        GPT_OSS: ("takes", "MXFP4 experts"),
        GPTQ: ("takes", "GPTQ kernels; checkpoint_format says which zero points"),
        AWQ: ("takes", "AWQ kernels, gemm order"),
        BNB4: ("takes", "bitsandbytes kernels"),
        BNB8: ("takes", "bitsandbytes kernels"),
        GGML: ("refuses", "GGUF files left vLLM"),
        OCTAVO: ("refuses", "our containers have no reader there"),
    }
    return facts[layer.layout]


def _llama(layer: Layer, settings: Settings) -> tuple[Verdict, str]:
    """What ``convert_hf_to_gguf.py`` does, by ``dequant_model`` of llama.cpp's ``conversion/base.py``."""
    if layer.layout == GGML:
        return "takes", "its own blocks"
    if len(settings.groups) > 1:
        return "refuses", "the converter takes one config group"
    group = settings.group_of(layer.module)
    strategy = "" if group is None else group.weights.get("strategy")
    if layer.layout == WORDS:
        if layer.dense and 32 % layer.bits:
            return "refuses", "the converter expects whole codes in each word, which are too few here"
        if strategy != "group":
            return "refuses", "the converter takes words of strategy group alone"
        return "decodes", "to float, by the converter"
    if layer.layout in (INT8, FP8, FP8_BLOCKS):
        if settings.method == "compressed-tensors" and strategy not in ("channel", "block"):
            return "refuses", "the converter takes strategies channel and block"
        return "decodes", "to float, by the converter"
    if layer.layout == GPTQ:
        if layer.bits == 3:
            return "refuses", "the converter has no 3 bits of GPTQ"
        if "g_idx" not in layer.parts:
            return "refuses", "the converter needs g_idx"
        return "decodes", "to float, by the converter; checkpoint_format says which zero points"
    if layer.layout == GPT_OSS:
        return "takes", "the converter packs the same codes anew"
    if layer.layout in (NVFP4, MODELOPT_NVFP4):
        return "with conditions", "the converter packs the same codes anew; reported wrong (llama.cpp 27178)"
    return "refuses", f"the converter has no case for {settings.method or layer.layout}"


def _transformers(layer: Layer, settings: Settings) -> tuple[Verdict, str]:
    """What ``from_pretrained`` does, by ``quantizers/auto.py`` of transformers 5.24."""
    if layer.layout == GGML:
        return "decodes", "gguf_file= decodes to float, on a CPU always"
    if layer.layout == OCTAVO:
        return "takes", "after import octavo.transformers"
    if settings.method not in _QUANTIZERS:
        method = f"quant_method {settings.method!r}" if settings.method else "a folder without quant_method"
        return "wrong values", f"{method} has no quantizer; codes are loaded as weights, with a warning"
    if layer.layout == WORDS and not layer.dense:
        return "wrong values", "compressed-tensors from 0.18 reads a dense stream"
    return "takes", f"with {_QUANTIZERS[settings.method]}"


# Methods of transformers 5.24, and the packages that they need.
_QUANTIZERS = {
    "compressed-tensors": "compressed-tensors",
    "gptq": "GPTQModel and optimum",
    "awq": "GPTQModel",
    "auto-round": "auto-round",
    "bitsandbytes": "bitsandbytes",
    "fp8": "its own kernels",
    "fbgemm_fp8": "fbgemm",
    "mxfp4": "its own kernels",
    "mxfp8": "its own kernels",
    "torchao": "torchao",
    "quark": "Quark",
}


def _octavo(layer: Layer, settings: Settings) -> tuple[Verdict, str]:
    if layer.layout == OCTAVO:
        return "takes", "packed layers"
    if layer.layout == GGML:
        from octavo.interchange.ggml_carry import CARRIERS
        from octavo.interchange.ggml_decode import DECODERS

        kind = layer.codes.dtype
        if kind in CARRIERS:
            return "takes", f"stays packed as {CARRIERS[kind][0].format}"
        return ("decodes", "to float32") if kind in DECODERS else ("refuses", "no definition of its blocks")
    return "refuses", "no reader of such folders"


def _judge_of(own: Reader, path: Path) -> Callable[[Layer, Settings], tuple[Verdict, str]]:
    """Return what tells how a reader of ours treats the layers of a folder: it carries each, and says into what."""
    kind = own.kind
    if own.weights is None:
        return lambda layer, settings: ("takes", f"read as {kind}; weights that a format holds stay packed")
    try:
        weights = own.weights(path)
    except ContainerError as error:
        problem = str(error)
        return lambda layer, settings: ("refuses", problem)

    def judge(layer: Layer, settings: Settings) -> tuple[Verdict, str]:
        import torch

        weight = weights.get(f"{layer.module}.weight", weights.get(layer.name))
        if weight is None:
            return "refuses", f"no weight of {kind}"
        matrices = weight.matrices()
        try:
            carried = (matrices[0] if matrices else weight).carry(torch.float32)
        except ContainerError as error:
            return "refuses", str(error)
        if isinstance(carried, str):
            return "decodes", _PLACE.sub("", carried)
        return "takes", f"stays packed as {carried.format}"

    return judge


_PLACE = re.compile(r"^(row|group|block) \d+(, group \d+)?: ")


_JUDGES: dict[str, Callable[[Layer, Settings], tuple[Verdict, str]]] = {
    "vllm": _vllm,
    "llama.cpp": _llama,
    "transformers": _transformers,
    "octavo": _octavo,
}
