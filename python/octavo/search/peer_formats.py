"""Formats of ggml and torchao for comparison with a compression: same weights, same evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor, nn

from octavo.errors import ConfigError
from octavo.search import ggml
from octavo.search.peers import Peer

LIBRARIES = ("ggml", "torchao")
_GROUP = 32  # weights that share one bfloat16 scale in torchao's formats
_WIDTHS = (8, 7, 6, 5, 4, 3, 2)


def peers(names: Sequence[str] = LIBRARIES) -> tuple[list[Peer], list[str]]:
    """Return the formats of libraries, and a sentence for each library that is not installed.

    ggml's encoders are implemented in :mod:`octavo.search.ggml` and need no library; torchao's own encoders are called.

    Args:
        names: of libraries.

    Returns:
        Formats, and sentences.

    Raises:
        ConfigError: for another name.
    """
    formats: list[Peer] = []
    notes = []
    for name in names:
        if name not in LIBRARIES:
            raise ConfigError(f"unknown peer {name!r}; accepted are {', '.join(LIBRARIES)}")
        if name == "ggml":
            formats += [Peer("ggml", text, partial(_ggml_bytes, text), partial(_ggml, text)) for text in ggml.FORMATS]
            continue
        try:
            release = version("torchao")
        except PackageNotFoundError:
            notes.append("torchao is not installed and has no rows: pip install torchao")
            continue
        formats += [_torchao(width, release) for width in _WIDTHS]
    return formats, notes


def _ggml_bytes(text: str, shape: tuple[int, int]) -> int | None:
    return ggml.nbytes(shape, text)


def _ggml(text: str, matrix: Tensor) -> Tensor:
    return ggml.rounded(matrix, text)


def _torchao(width: int, release: str) -> Peer:
    def nbytes(shape: tuple[int, int]) -> int | None:
        return None if shape[1] % _GROUP else shape[0] * shape[1] // _GROUP * (_GROUP * width // 8 + 2)

    return Peer(f"torchao {release}", f"int{width} by {_GROUP}", nbytes, _torchao_rounding(width))


def _torchao_rounding(width: int) -> Callable[[Tensor], Tensor]:
    def rounded(matrix: Tensor) -> Tensor:
        import torch
        from torchao.quantization import IntxWeightOnlyConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        with torch.device("meta"):
            layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        layer.weight = nn.Parameter(matrix.detach().float().clone(), requires_grad=False)
        config = IntxWeightOnlyConfig(
            weight_dtype=getattr(torch, f"int{width}"), granularity=PerGroup(_GROUP), scale_dtype=torch.bfloat16
        )
        quantize_(layer, config)
        weight: Any = layer.weight
        values: Tensor = weight.dequantize().float()
        return values

    return rounded
