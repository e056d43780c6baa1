"""Adam's moments in 8 bits or any block format: codecs of blocks, and an update that decodes, updates and encodes.

``dynamic8``: codes count the levels of a map with more of them near 0 than a linear one has near its end: decades from
1e-7 to 1 of the block's largest magnitude, each with twice the levels of the one below. Levels of the first moment have
signs, those of the second are all positive: linear codes would round small second moments to 0, and the update that is
divided by their root would explode. Source: Dettmers et al. 2021, section 2.2.
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

# Tensors of fewer numbers keep moments in float32: they are few bytes, and vectors train less well.
SMALLEST = 4096
# Numbers that are decoded at once: the float32 copies stay in a cache. Whole blocks of every format.
_CHUNK = 1 << 18
_DECADES = 7
# Of the first moment. Below it the native operation, which adds (1 - beta) (g - m) to m, rounds a gradient away that is
# small beside m although m becomes it, nearly; torch's update starts from g there.
_LEAST_KEPT = 0.5


def check_moments(form: str | None) -> None:
    """Refuse what moments cannot be held in; None is float32. Raises ConfigError."""
    if form is None or form == DYNAMIC:
        return
    accepted = f"accepted: None, {DYNAMIC}, or a format whose blocks divide {BLOCK}, such as bm8e4/256"
    try:
        format = Format(form)
    except FormatError as error:
        raise ConfigError(f"moments is {form!r}; {accepted}: {error}") from None
    if format.block is None or BLOCK % format.block or format.family in ("uint", "nvfp4"):
        raise ConfigError(f"moments is {form!r}; {accepted}, with scales alone beside its codes")


@cache
def levels(signed: bool) -> Tensor:
    """Return the 256 levels of the dynamic map, ascending, float32, from -1 or 0 to 1.

    Decade i, from 0, holds the middles of ``2 ** i`` (signed: each sign) or ``2 ** (i + 1)`` equal parts of
    ``10 ** (i - 6)`` times 0.1 to 1; 0 and 1 come with them.
    """
    found = [0.0, 1.0]
    for decade in range(_DECADES):
        parts = 2 ** (decade if signed else decade + 1)
        middles = [10.0 ** (decade + 1 - _DECADES) * (0.1 + 0.9 * (at + 0.5) / parts) for at in range(parts)]
        found += [*middles, *(-middle for middle in middles)] if signed else middles
    return torch.tensor(sorted(found), dtype=torch.float64).float()


@cache
def _search(signed: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the levels, and for the upper 16 bits of a float32 the lower code and the value from which the next is.

    Two neighbouring levels differ by more than a 128th, so that no 16 bits have more than one border among the values
    that begin with them.
    """
    table = levels(signed).double()
    borders = ((table[:-1] + table[1:]) / 2).float()
    first = (torch.arange(1 << 16, dtype=torch.int32) << 16).view(torch.float32)
    last = ((torch.arange(1 << 16, dtype=torch.int32) << 16) | 0xFFFF).view(torch.float32)
    least = torch.minimum(first, last).nan_to_num(0.0)  # of a negative number the later bits are the lower value
    code = torch.bucketize(least, borders)
    after = torch.cat([borders, torch.tensor([torch.inf])])[code]
    return tuple(part.to(device) for part in (levels(signed), code.to(torch.uint8), after))  # type: ignore[return-value]


def dynamic_codes(values_N: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Return the codes uint8 ``[N]`` of the nearest levels, the lower of two, and blocks' largest magnitudes, float32.

    ``values_N``: float32, blocks of 256, the last may be short; not negative where ``signed`` is False. A block with a
    value that is infinite or NaN has that for its largest magnitude, and the codes of 0: all its values become NaN.
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
    """Write the values that codes stand for, float32 ``[N]``, into ``out_N`` and return it."""
    table = _search(signed, codes_N.device)[0]
    count = len(codes_N)
    torch.index_select(table, 0, codes_N.int(), out=out_N)
    whole = count // BLOCK * BLOCK
    out_N[:whole].view(-1, BLOCK).mul_(largest_N[: whole // BLOCK, None])
    out_N[whole:].mul_(largest_N[-1])
    return out_N


class Moment:
    """One moment of a parameter of ``count`` numbers: views of its codes and scales, which ``state`` holds.

    ``name``: of the moment, to which ``_codes`` and ``_scales`` are added in the state of an optimizer; codes of zeros
    where the state has none. ``signed``: whether it may be negative.
    """

    def __init__(self, state: dict[str, Any], name: str, like: Tensor, form: str, *, signed: bool) -> None:
        """Make the codes where there are none; ``like``: the parameter."""
        self._format = None if form == DYNAMIC else Format(form)
        self._signed = signed
        if f"{name}_codes" not in state:
            zeros = torch.zeros(like.numel(), device=like.device)
            made = dynamic_codes(zeros, signed) if self._format is None else encode(zeros, form).parts[:2]
            state[f"{name}_codes"], state[f"{name}_scales"] = made
        self._codes, self._scales = state[f"{name}_codes"], state[f"{name}_scales"]

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the codes and the scales."""
        return self._codes, self._scales

    def read(self, begin: int, out_N: Tensor) -> Tensor:
        """Return the values from ``begin`` on, where a block begins, written into ``out_N``."""
        part = self._part(begin, len(out_N))
        if isinstance(part, PackedTensor):
            return decode(part, out=out_N)
        return dynamic_values(*part, self._signed, out_N)

    def write(self, begin: int, values_N: Tensor) -> None:
        """Encode values in place of those from ``begin`` on."""
        part = self._part(begin, len(values_N))
        if isinstance(part, PackedTensor):
            encode(values_N, part.format, nonfinite="saturate", out=part)
            return
        for held, new in zip(part, dynamic_codes(values_N, self._signed), strict=True):
            held.copy_(new)

    def _part(self, begin: int, count: int) -> PackedTensor | tuple[Tensor, Tensor]:
        width, block = (8, BLOCK) if self._format is None else (self._format.width, self._format.block or BLOCK)
        codes = self._codes[begin * width // 8 : -(-(begin + count) * width // 8)]
        scales = self._scales[begin // block : -(-(begin + count) // block)]
        if self._format is None:
            return codes, scales
        none = torch.empty(0, dtype=torch.uint8, device=codes.device)
        return PackedTensor(self._format, codes, scales, none, none.float(), shape=(count,), dtype=torch.float32)


def update(group: dict[str, Any], weight: Tensor, state: dict[str, Any]) -> None:
    """Make AdamW's update of one parameter whose moments are codes: decoded, updated in float32, encoded again.

    One native operation for float32 on a CPU, where the first moment keeps at least half of itself; else parts that a
    cache holds, with torch's update.

    ``group``: its settings. ``state``: of the parameter; ``step`` and codes of zeros are made where it is empty.
    """
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
    first = Moment(state, "exp_avg", weight, group["moments"], signed=True)
    second = Moment(state, "exp_avg_sq", weight, group["moments"], signed=False)
    assert weight.grad is not None  # the optimizer leaves out parameters without one
    own = weight.detach()
    dense = own.contiguous()
    flat, slopes = dense.view(-1), weight.grad.contiguous().view(-1)
    if _is_native(flat, slopes) and group["betas"][0] >= _LEAST_KEPT:
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
        # The step counts for every part alike.
        fused_adamw(group, [flat[part]], [slopes[part]], [m_N], [v_N], [step.clone()])
        first.write(begin, m_N)
        second.write(begin, v_N)
