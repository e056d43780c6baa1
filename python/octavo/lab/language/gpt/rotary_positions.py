"""Rotary position embeddings: pairs of a head's values are turned by angles that grow with the position."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import library as registry

from octavo.lab.language.gpt import gpu_code


def frequencies(size: int, kind: str, base: float, device: torch.device) -> Tensor:
    """Return the angle a position of each of ``size // 2`` pairs, float32, in radians.

    ``full``: ``base ** (-2 i / size)``. ``half``: the first half of the pairs runs geometrically from 1 to 1/1024, the
    rest stays at 0, for content that no position changes. Source: Su et al. 2021, equation 15.
    """
    pairs = size // 2
    if kind == "full":
        return base ** (-2 / size * torch.arange(pairs, dtype=torch.float32, device=device))
    turned = (pairs + 1) // 2
    steps = torch.arange(turned, dtype=torch.float32, device=device) / max(turned - 1, 1)
    return torch.cat([(1 / 1024) ** steps, torch.zeros(pairs - turned, device=device)])


def apply_rotary(x_BHTd: Tensor, positions_T: Tensor, frequencies_p: Tensor) -> Tensor:
    """Return ``x`` with value i and value ``i + d / 2`` of each head turned as a pair; dtype as given.

    Angles are float32 and the result is cast back, so that queries and keys keep the dtype of the values. Code that is
    compiled for a GPU reads cosines and sines from memory; it would compute those of every value of every head anew.
    """
    if gpu_code.compiled(x_BHTd):
        cosine, sine = torch.ops.octavo_lab.rotary_table(positions_T, frequencies_p)
    else:
        cosine, sine = _rotary_table(positions_T, frequencies_p)
    first, second = x_BHTd.float().chunk(2, dim=-1)
    turned_BHTd = torch.cat([first * cosine + second * sine, second * cosine - first * sine], dim=-1)
    return turned_BHTd.to(x_BHTd.dtype)


def _rotary_table(positions_T: Tensor, frequencies_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosine and the sine of every angle, float32 ``[T, p]``."""
    angles_Tp = positions_T.float()[:, None] * frequencies_p
    return angles_Tp.cos(), angles_Tp.sin()


def _rotary_table_shapes(positions_T: Tensor, frequencies_p: Tensor) -> tuple[Tensor, Tensor]:
    angles_Tp = frequencies_p.new_empty(positions_T.shape[0], frequencies_p.shape[0])
    return angles_Tp, torch.empty_like(angles_Tp)


# A namespace of its own: `torch.ops.octavo` has the operations of formats, whatever else has been imported.
_library = registry.Library("octavo_lab", "DEF")
_library.define("rotary_table(Tensor positions, Tensor frequencies) -> (Tensor, Tensor)")
_library.impl("rotary_table", _rotary_table, "CompositeExplicitAutograd")
registry.register_fake("octavo_lab::rotary_table", _rotary_table_shapes, lib=_library)
