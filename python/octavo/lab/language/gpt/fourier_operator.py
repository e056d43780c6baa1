"""AFNO for text: the adaptive Fourier neural operator by chunks, with a short convolution, and without attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.lab.language.gpt.chunk_spectral import ChunkSpectral, ChunkSpectralMixer
from octavo.lab.language.gpt.gated_convolution import GatedConvolution, GatedConvolutionMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import register, whole


@dataclass(frozen=True, kw_only=True)
class AFNO:
    """Adaptive Fourier neural operator: transform, an MLP on the spectrum, soft shrinkage, and back.

    The operator of :class:`ChunkSpectral` on finished chunks of ``chunk`` positions. A position of the next chunk gets
    its result at its own place; a gated convolution over ``reach`` positions mixes those near by. ``blocks`` of
    channels, ``shrink``: as there. The operator of the paper sees all positions, so it is not causal: a non-linearity
    in the spectrum of the whole sequence would see the future whatever the padding. Source: Guibas et al. 2021.
    """

    chunk: int = 64
    blocks: int = 8
    reach: int = 4
    shrink: float = 0.01

    def __post_init__(self) -> None:
        """Check every field."""
        ChunkSpectral(chunk=self.chunk, blocks=self.blocks, shrink=self.shrink)
        whole(self, "reach", least=1, most=4096)


@register("mixer", "afno", AFNO, examples=(AFNO(chunk=8, blocks=2),), lags=(0, 1, 3, 5, 12))
class AFNOMixer(ChunkSpectralMixer):
    """:class:`AFNO` as a mixer."""

    local_restarts = False

    def __init__(self, config: AFNO, width: int) -> None:
        """Make the operator and the convolution. Raises SettingError if the blocks do not divide the width."""
        super().__init__(config, width)

    def local(self, width: int) -> nn.Module:
        """Return the mixer of positions near by: a gated convolution."""
        return GatedConvolutionMixer(GatedConvolution(reach=self.config.reach), width)

    def near(self, context: MixingContext, batch: int) -> Any:
        """Return the context of the convolution, which reads on from chunk to chunk."""
        return context
