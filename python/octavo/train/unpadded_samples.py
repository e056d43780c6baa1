"""Samples of batches without padding, independent of how the caller grouped and padded them.

A sample is a batch of one, cut to the positions from the first to the last that its mask shows. Samples of one shape go
through a model together, in chunks that depend only on the samples. Therefore statistics do not depend on the batches,
and no position is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches, call_on, named_leaves, replaced_leaves, tensors_in
from octavo.nn.model_copies import shared_copy
from octavo.tensors.fixed_order import one_thread
from octavo.train.model_outputs import evaluating, is_plain

#: Names of the arguments that are masks, and the prefix of arguments that belong to the decoder's mask.
_MASK, _DECODER_MASK, _DECODER = "attention_mask", "decoder_attention_mask", "decoder_"
# Limits of a chunk: samples, ids, numbers, and numbers of the largest tensor that the model gives: 64 MB in float32.
_SAMPLES, _IDS, _NUMBERS, _GIVEN = 256, 1 << 12, 1 << 18, 1 << 24
# Tolerance between outputs of two samples together and separately, relative to the largest output.
_CLOSE = 1e-3


def unpadded(model: nn.Module, batches: Batches) -> Batches:
    """Return the samples of ``batches`` without padding, up to its limit, with samples of one shape together.

    A batch is cut along the first dimension of all its tensors. Its ``attention_mask``, and for arguments named
    ``decoder_...`` its ``decoder_attention_mask``, ``[samples, positions]``, give the positions of each sample.
    ``batches`` is returned unchanged if a batch cannot be cut, if the model refuses a sample, or if two samples
    together have other outputs than separately, as in models whose first dimension is not the sample.
    """
    samples = _cut_samples(model, batches)
    return batches if samples is None else Batches(samples.chunks(samples.ordered))


def _cut_samples(model: nn.Module, batches: Batches) -> _Samples | None:
    """Return the samples of :func:`unpadded`; None where there are none."""
    if not isinstance(model, nn.Module):
        return None  # the caller refuses it
    samples: list[Any] = []
    for batch in batches:
        cut = _cut(model, batch)
        if cut is None:
            return None
        samples += cut
        if batches.samples is not None and len(samples) >= batches.samples:
            samples = samples[: batches.samples]
            break
    groups = _alike(samples)
    sizes = _numbers_given(model, groups)
    return None if sizes is None else _Samples([sample for group in groups.values() for sample in group], sizes)


def parted(model: nn.Module, batches: Batches, every: int) -> tuple[list[Any], list[Any]]:
    """Split samples: return :func:`unpadded` batches of most samples, and of every ``every``-th one.

    Batches that cannot be cut into samples are split as batches. A single sample is in both parts.
    """
    samples = _cut_samples(model, batches)
    whole = list(batches) if samples is None else samples.ordered
    held_out = whole[1::every]
    rest = [one for place, one in enumerate(whole) if place % every != 1] if held_out else whole
    first = rest if samples is None else samples.chunks(rest)
    if not held_out:
        return first, first
    return first, held_out if samples is None else samples.chunks(held_out)


@dataclass(frozen=True)
class _Samples:
    """Samples, each a batch of one, those of one shape together.

    ``sizes``: for each shape, the numbers of the largest tensor that the model gives for one.
    """

    ordered: list[Any]
    sizes: dict[Any, int]

    def chunks(self, samples: Sequence[Any]) -> list[Any]:
        """Return batches of some of the samples, in order, of the size that :func:`_together` chooses."""
        batches = []
        for shape, group in _alike(samples).items():
            size = min(_together(group[0]), max(_GIVEN // max(self.sizes[shape], 1), 1))
            batches += [_joined(group[start : start + size]) for start in range(0, len(group), size)]
        return batches


def _alike(samples: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return the samples of each shape, in the order of the first occurrence of each shape."""
    alike: dict[Any, list[Any]] = {}
    for sample in samples:
        alike.setdefault(shape_of(sample), []).append(sample)
    return alike


def _together(sample: Any) -> int:
    """Return the number of samples of a shape in a chunk."""
    ids = max((tensor.numel() for tensor in tensors_in(sample) if not tensor.is_floating_point()), default=1)
    numbers = max((tensor.numel() for tensor in tensors_in(sample) if tensor.is_floating_point()), default=1)
    return max(min(_SAMPLES, _IDS // max(ids, 1), _NUMBERS // max(numbers, 1)), 1)


def shape_of(sample: Any) -> Any:
    """Return what two samples, or batches, of one shape have in common: shapes and dtypes of tensors, other values."""
    return tuple(
        (name, tuple(leaf.shape), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else (name, type(leaf), leaf)
        for name, leaf in named_leaves(sample)
    )


def _joined(samples: Sequence[Any]) -> Any:
    columns = zip(*(named_leaves(sample) for sample in samples), strict=True)
    joined = [
        torch.cat([leaf for _, leaf in column]) if isinstance(column[0][1], Tensor) else column[0][1]
        for column in columns
    ]
    return replaced_leaves(samples[0], joined)


def _cut(model: nn.Module, batch: Any) -> list[Any] | None:
    """Return the samples of a batch; None if its first dimension does not index samples."""
    leaves = named_leaves(batch, model)
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    plain = all(leaf is None or isinstance(leaf, Tensor | bool | int | float) for _, leaf in leaves)
    if not plain or not tensors or any(tensor.layout != torch.strided or not tensor.ndim for tensor in tensors):
        return None
    count = max(len(tensor) for tensor in tensors)
    if not count or any(len(tensor) not in (1, count) for tensor in tensors):
        return None
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point()):
        return None  # a later check refuses it, with the number of its batch
    masks = masks_of(model, batch)
    own = _own_mask(model, leaves)
    samples = []
    for row in range(count):
        seen = {name: _span(mask[min(row, len(mask) - 1)]) for name, mask in masks.items()}
        if None in seen.values():
            return None
        values = []
        for name, leaf in leaves:
            if isinstance(leaf, Tensor):
                leaf = leaf[min(row, len(leaf) - 1)][None]
                mask = own(name)
                span = seen.get(mask)
                if span is not None and leaf.ndim > 1 and leaf.shape[1] == masks[mask].shape[1]:
                    leaf = leaf[:, span]
            values.append(leaf)
        samples.append(replaced_leaves(batch, values))
    return samples


def masks_of(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Return the ``attention_mask`` and ``decoder_attention_mask`` of a batch that are ``[samples, positions]``."""
    return {
        name: leaf for name, leaf in named_leaves(batch, model) if name in (_MASK, _DECODER_MASK) and _is_mask(leaf)
    }


def _is_mask(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and (leaf.dtype == torch.bool or not leaf.is_floating_point())


def _own_mask(model: nn.Module, leaves: Sequence[tuple[str, Any]]) -> Callable[[str], str]:
    """Return a function from the name of an argument to its mask; labels belong to the decoder if there is one."""
    decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False) or any(
        name.startswith(_DECODER) for name, _ in leaves
    )

    def own(name: str) -> str:
        return _DECODER_MASK if name.startswith(_DECODER) or (decodes and name == "labels") else _MASK

    return own


def _span(mask: Tensor) -> slice | None:
    """Return the positions from the first to the last that a mask shows; None for an empty mask."""
    shown = mask.nonzero()
    return slice(int(shown[0]), int(shown[-1]) + 1) if len(shown) else None


def _numbers_given(model: nn.Module, groups: Mapping[Any, Sequence[Any]]) -> dict[Any, int] | None:
    """Return the numbers of the largest tensor that a sample of each shape gives.

    None where the model refuses one, or gives other numbers for samples together than separately.
    """
    several = next((shape for shape, group in groups.items() if len(group) > 1), None)
    own = shared_copy(model) if is_plain(model) else model
    with evaluating(own) as (run,), one_thread(), _same_buffers(run):
        try:
            sizes = {shape: _most_numbers(call_on(run, group[0])) for shape, group in groups.items()}
            return sizes if several is None or _together_as_apart(run, groups[several][:2]) else None
        except Exception:  # a model may raise anything; later passes over whole batches report it, with a number
            return None


def _most_numbers(output: Any) -> int:
    return max((tensor.numel() for tensor in _numbers(output)), default=0)


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    try:
        yield
    finally:
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def _together_as_apart(model: nn.Module, pair: Sequence[Any]) -> bool:
    alone = [list(_numbers(call_on(model, sample))) for sample in pair]
    both = list(_numbers(call_on(model, _joined(pair))))
    rows = [
        (torch.cat([a, b]), c)
        for a, b, c in zip(*alone, both, strict=False)
        if a.ndim and b.ndim and c.ndim and len(a) + len(b) == len(c)
    ]
    return bool(rows) and all(_close(apart, together) for apart, together in rows)


def _numbers(output: Any) -> Iterable[Tensor]:
    return (tensor for tensor in tensors_in(output) if tensor.is_floating_point())


def _close(apart: Tensor, together: Tensor) -> bool:
    if apart.shape != together.shape:
        return False
    size = float(apart.abs().max()) if apart.numel() else 0.0
    return bool(torch.allclose(apart.float(), together.float(), rtol=0, atol=_CLOSE * size, equal_nan=True))
