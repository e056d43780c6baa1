"""Adam's moments in 8 bits or any block format: block codecs, and an update that decodes, updates and encodes.

``dynamic8``: codes index the levels of a map with decades from 1e-7 to 1 of the block's largest magnitude; each decade
has twice the levels of the one below. The map of the first moment is signed, that of the second is positive. Linear
codes would round small second moments to 0, and the update, which is divided by their root, would explode. Source:
Dettmers et al. 2021, section 2.2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from octavo.errors import ConfigError, FormatError
from octavo.ops import decode, encode
from octavo.ops.adamw import BLOCK, DYNAMIC, adamw_in_codes
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.train.fused_adamw import fused_adamw

# Smaller tensors keep moments in float32: the saving is small, and vectors train worse with codes.
SMALLEST = 4096
# Numbers that are decoded at once: the float32 copies stay in cache. A multiple of the blocks of every format.
_CHUNK = 1 << 18
_DECADES = 7
# Least beta of the first moment for the native operation. It adds (1 - beta) (g - m) to m, which for smaller beta loses
# a gradient that is small beside m; torch's update starts from g there.
_NATIVE_BETA = 0.5


def check_moments(form: str | None) -> None:
    """Refuse formats that moments cannot have; None is float32. Raises ConfigError."""
    if form is None or form == DYNAMIC:
        return
    accepted = f"accepted: None, {DYNAMIC}, or a format whose blocks divide {BLOCK}, such as bm8e4/256"
    try:
        format = Format(form)
    except FormatError as error:
        raise ConfigError(f"moments is {form!r}; {accepted}: {error}") from None
    if format.block is None or BLOCK % format.block or format.family in ("uint", "affine", "nvfp4"):
        raise ConfigError(f"moments is {form!r}; {accepted}, with scales alone beside its codes")


@cache
def levels(signed: bool) -> Tensor:
    """Return the 256 levels of the dynamic map, ascending, float32, from -1 or 0 to 1.

    Decade i, from 0, has the centres of ``2 ** i`` (signed: for each sign) or ``2 ** (i + 1)`` equal parts of
    ``10 ** (i - 6)`` times 0.1 to 1. 0 and 1 are levels too.
    """
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        parts = 2 ** (decade if signed else decade + 1)
        middles = [10.0 ** (decade + 1 - _DECADES) * (0.1 + 0.9 * (at + 0.5) / parts) for at in range(parts)]
        values += [*middles, *(-middle for middle in middles)] if signed else middles
    return torch.tensor(sorted(values), dtype=torch.float64).float()


@cache
def _search(signed: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the levels, and for the upper 16 bits of a float32 the lower code and the border to the next code.

    Neighbouring levels differ by more than a 128th, so the values with the same upper 16 bits contain at most one
    border.
    """
    table = levels(signed).double()
    borders = ((table[:-1] + table[1:]) / 2).float()
    first = (torch.arange(1 << 16, dtype=torch.int32) << 16).view(torch.float32)
    last = ((torch.arange(1 << 16, dtype=torch.int32) << 16) | 0xFFFF).view(torch.float32)
    least = torch.minimum(first, last).nan_to_num(0.0)  # for negative numbers larger bits are the lower value
    code = torch.bucketize(least, borders)
    after = torch.cat([borders, torch.tensor([torch.inf])])[code]
    return tuple(part.to(device) for part in (levels(signed), code.to(torch.uint8), after))  # type: ignore[return-value]


def dynamic_codes(values_N: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Return codes uint8 ``[N]`` of the nearest levels (ties: the lower), and largest magnitudes of blocks, float32.

    ``values_N``: float32, blocks of 256, the last may be short; not negative if ``signed`` is False. A block with an
    infinite or NaN value has that as its largest magnitude, and codes of 0, so all its values decode to NaN.
    """
    count = len(values_N)
    if count % BLOCK:
        values_N = functional.pad(values_N, (0, -count % BLOCK))
    values_NB = values_N.view(-1, BLOCK)
    largest_N1 = values_NB.abs().amax(1, keepdim=True)  # ten times as fast as the norm
    unit_N = (values_NB / largest_N1.clamp_min(torch.finfo(torch.float32).tiny)).view(-1)
    _, code, after = _search(signed, values_N.device)
    key_N = (unit_N.view(torch.int32) >> 16).bitwise_and_(0xFFFF)  # NaN may have a sign on either map
    codes_N = code.index_select(0, key_N).add_(unit_N > after.index_select(0, key_N))
    return codes_N[:count], largest_N1[:, 0]


def dynamic_values(codes_N: Tensor, largest_N: Tensor, signed: bool, out_N: Tensor) -> Tensor:
    """Write the values of codes, float32 ``[N]``, into ``out_N`` and return it."""
    table = _search(signed, codes_N.device)[0]
    count = len(codes_N)
    torch.index_select(table, 0, codes_N.int(), out=out_N)
    whole = count // BLOCK * BLOCK
    out_N[:whole].view(-1, BLOCK).mul_(largest_N[: whole // BLOCK, None])
    out_N[whole:].mul_(largest_N[-1])
    return out_N


class Moment:
    """One moment of a parameter: references to its codes and scales in ``state``, the optimizer's state.

    ``name``: the keys in ``state`` are this name with ``_codes`` and ``_scales``; missing codes are created as zeros.
    ``signed``: whether the moment may be negative.
    """

    def __init__(self, state: dict[str, Any], name: str, like: Tensor, form: str, *, signed: bool) -> None:
        """Create missing codes; ``like``: the parameter."""
        self._format = None if form == DYNAMIC else Format(form)
        self._signed = signed
        if f"{name}_codes" not in state:
            zeros = torch.zeros(like.numel(), device=like.device)
            parts = dynamic_codes(zeros, signed) if self._format is None else encode(zeros, form).parts[:2]
            state[f"{name}_codes"], state[f"{name}_scales"] = parts
        self._codes, self._scales = state[f"{name}_codes"], state[f"{name}_scales"]

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the codes and the scales."""
        return self._codes, self._scales

    def read(self, begin: int, out_N: Tensor) -> Tensor:
        """Write the values from ``begin``, a start of a block, into ``out_N`` and return it."""
        part = self._part(begin, len(out_N))
        if isinstance(part, PackedTensor):
            return decode(part, out=out_N)
        return dynamic_values(*part, self._signed, out_N)

    def write(self, begin: int, values_N: Tensor) -> None:
        """Replace the values from ``begin`` on."""
        part = self._part(begin, len(values_N))
        if isinstance(part, PackedTensor):
            encode(values_N, part.format, nonfinite="saturate", out=part)
            return
        for old, new in zip(part, dynamic_codes(values_N, self._signed), strict=True):
            old.copy_(new)

    def _part(self, begin: int, count: int) -> PackedTensor | tuple[Tensor, Tensor]:
        width, block = (8, BLOCK) if self._format is None else (self._format.width, self._format.block or BLOCK)
        codes = self._codes[begin * width // 8 : -(-(begin + count) * width // 8)]
        scales = self._scales[begin // block : -(-(begin + count) // block)]
        if self._format is None:
            return codes, scales
        none = torch.empty(0, dtype=torch.uint8, device=codes.device)
        return PackedTensor(self._format, codes, scales, none, none.float(), shape=(count,), dtype=torch.float32)


def update(group: dict[str, Any], weight: Tensor, state: dict[str, Any]) -> None:
    """Make AdamW's update of one parameter with encoded moments: decode, update in float32, encode.

    Float32 on a CPU, with a first beta of at least 0.5, uses one native operation. Otherwise torch's update runs on
    chunks that fit the cache.

    ``group``: settings of the group. ``state``: state of the parameter; an empty one gets ``step`` and codes of zeros.
    """
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
    first = Moment(state, "exp_avg", weight, group["moments"], signed=True)
    second = Moment(state, "exp_avg_sq", weight, group["moments"], signed=False)
    assert weight.grad is not None  # the optimizer leaves out parameters without one
    own = weight.detach()
    dense = own.contiguous()
    flat, slopes = dense.view(-1), weight.grad.contiguous().view(-1)
    if _is_native(flat, slopes) and group["betas"][0] >= _NATIVE_BETA:
        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        count = int(state["step"].item()) + 1
        adamw_in_codes(flat, slopes, first.parts(), second.parts(), group["moments"], step=count, **settings)
    else:
        _update_parts(group, flat, slopes, first, second, state["step"])
    if dense is not own:
        own.copy_(dense)
    state["step"] += 1


def _is_native(flat: Tensor, slopes: Tensor) -> bool:
    return flat.is_cpu and flat.dtype == slopes.dtype == torch.float32


def _update_parts(
    group: dict[str, Any], flat: Tensor, slopes: Tensor, first: Moment, second: Moment, step: Tensor
) -> None:
    buffers = torch.empty(2, min(_CHUNK, len(flat)), device=flat.device)
    for begin in range(0, len(flat), _CHUNK):
        part = slice(begin, min(begin + _CHUNK, len(flat)))
        m_N, v_N = (buffer[: part.stop - begin] for buffer in buffers)
        m_N, v_N = first.read(begin, m_N), second.read(begin, v_N)
        # Every part uses the same step, so each gets a copy.
        fused_adamw(group, [flat[part]], [slopes[part]], [m_N], [v_N], [step.clone()])
        first.write(begin, m_N)
        second.write(begin, v_N)
