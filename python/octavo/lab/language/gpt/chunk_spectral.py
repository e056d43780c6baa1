"""A spectral mixer that is causal by chunks: the full operator on finished chunks, attention inside the open one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention, AttentionMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class ChunkSpectral:
    """Fourier transform over the ``chunk`` positions of a finished chunk, an MLP on its spectrum, and back.

    The complex MLP has ``blocks`` blocks of channels and two layers, shared by all frequencies; results below
    ``shrink`` become 0. A position gets the result of the chunk before its own, at its own place, and attends with
    ``heads`` heads to the earlier positions of its own chunk. Source: adaptive Fourier neural operators, Guibas et al.
    2021, which are not causal by themselves.
    """

    chunk: int = 64
    blocks: int = 8
    heads: int = 12
    shrink: float = 0.01

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "chunk", least=2)
        whole(self, "blocks", least=1)
        whole(self, "heads", least=1)
        number(self, "shrink", least=0, most=1e3)


@register("mixer", "chunk_spectral", ChunkSpectral, examples=(ChunkSpectral(chunk=8, blocks=2, heads=4),),
          lags=(0, 1, 4, 5, 12))  # fmt: skip
class ChunkSpectralMixer(nn.Module):
    """:class:`ChunkSpectral` as a mixer."""

    keeps_documents = False
    takes_values = False
    local_restarts = True  # the local mixer sees nothing of the chunk before

    def __init__(self, config: Any, width: int) -> None:
        """Make the operator and the local mixer; ``config`` has ``blocks``, ``chunk`` and ``shrink``.

        Raises SettingError if the blocks do not divide the width.
        """
        super().__init__()
        if width % config.blocks:
            raise SettingError(f"blocks is {config.blocks}; accepted are divisors of the width, {width}")
        self.config = config
        self.inside: Any = self.local(width)
        shape = (2, config.blocks, width // config.blocks, width // config.blocks)  # real and imaginary parts
        self.first, self.second = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.out = nn.Linear(width, width, bias=False)
        self.rules = {"first": "matrix", "second": "matrix", "out.weight": "output"}

    def local(self, width: int) -> nn.Module:
        """Return the mixer of positions near by: attention inside the chunk."""
        return AttentionMixer(Attention(heads=self.config.heads), width)

    def operator(self, x_BSD: Tensor) -> Tensor:
        """Return the operator's result on whole chunks, ``[..., chunk, D]``; in float32."""
        with torch.autocast(x_BSD.device.type, enabled=False):
            spectrum = torch.fft.rfft(x_BSD.float(), dim=-2, norm="ortho").unflatten(-1, (self.config.blocks, -1))
            real, imaginary = self._product(spectrum.real, spectrum.imag, self.first)
            real, imaginary = self._product(real.relu(), imaginary.relu(), self.second)
            shrunk = [functional.softshrink(part, self.config.shrink) for part in (real, imaginary)]
            return torch.fft.irfft(torch.complex(*shrunk).flatten(-2), n=x_BSD.shape[-2], dim=-2, norm="ortho")

    @staticmethod
    def _product(real: Tensor, imaginary: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the complex product with a matrix for every block."""

        def times(part: Tensor, side: Tensor) -> Tensor:
            return torch.einsum("...bi,bio->...bo", part, side)

        both = times(real, weight[0]) - times(imaginary, weight[1])
        return both, times(real, weight[1]) + times(imaginary, weight[0])

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        batch, length, width = x_BTD.shape
        chunk = self.config.chunk
        finished = (length - 1) // chunk  # the last chunk, whole or not, tells no other
        told_BTD = x_BTD.new_zeros(batch, length, width)
        if finished:
            chunks = x_BTD[:, : finished * chunk].unflatten(1, (finished, chunk))
            told = self.operator(chunks).flatten(1, 2).to(x_BTD.dtype)
            told_BTD = torch.cat([x_BTD.new_zeros(batch, chunk, width), told], 1)[:, :length]
        return self.out(told_BTD) + self.inside(x_BTD, self.near(context, batch))

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an open chunk without positions, and nothing told."""
        width = self.out.in_features
        none = torch.zeros(batch, self.config.chunk, width, device=device)
        return {"open": none[:, :0], "told": none, "inside": self.inside.first_state(batch, device)}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the state; a chunk that it finishes is transformed."""
        place = state["open"].shape[1]
        begins = self.local_restarts and not place
        inside = self.inside.first_state(len(x_BD), x_BD.device) if begins else state["inside"]
        near_BD, inside = self.inside.step(x_BD, inside, self.near(context, len(x_BD)))
        mixed_BD = self.out(state["told"][:, place].to(x_BD.dtype)) + near_BD
        open_, told = torch.cat([state["open"], x_BD[:, None]], 1), state["told"]
        if place + 1 == self.config.chunk:
            open_, told = open_[:, :0], self.operator(open_)
        return mixed_BD, {"open": open_, "told": told, "inside": inside}

    def near(self, context: MixingContext, batch: int) -> MixingContext:
        """Return the context of the local mixer: every chunk is a document of its own."""
        return replace(context, documents_BT=(context.positions_T // self.config.chunk).expand(batch, -1))
