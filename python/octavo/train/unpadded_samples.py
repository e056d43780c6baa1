"""Samples of batches, without padding: what a model sees of each, however its caller grouped and padded them.

A sample is a batch of one, cut to the positions between the first and the last that its mask shows. Samples of one
shape go through a model together, in chunks that depend on the samples alone, so that no statistic over them depends
on batches, and no position is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches, call_on, named_leaves, replaced_leaves, tensors_in
from octavo.nn.model_copies import shared_copy
from octavo.tensors.fixed_order import one_thread
from octavo.train.model_outputs import evaluating, is_plain

#: Masks by the name of their argument, and the beginning of the names of what they mask besides.
_MASK, _DECODER_MASK, _DECODER = "attention_mask", "decoder_attention_mask", "decoder_"
# What a chunk holds at most: samples, ids, numbers.
_SAMPLES, _IDS, _NUMBERS = 256, 1 << 12, 1 << 18
# How far the outputs of two samples together may be from those of each alone, of the largest.
_CLOSE = 1e-3


def unpadded(model: nn.Module, batches: Batches) -> Batches:
    """Return the samples of ``batches``, as many as it is asked for, without padding, those of one shape together.

    A batch is cut along the first dimension of all its tensors. Its ``attention_mask``, and for arguments named
    ``decoder_...`` its ``decoder_attention_mask``, ``[samples, positions]``, tell the positions of each sample. Where a
    batch cannot be cut so, or the model does not take a sample of each shape, or gives two together anything but what
    it gives each alone, as models do whose first dimension is no sample, ``batches`` comes back as it is.
    """
    samples = cut_samples(model, batches)
    return batches if samples is None else Batches(chunks(samples))


def cut_samples(model: nn.Module, batches: Batches) -> list[Any] | None:
    """Return the samples of :func:`unpadded`, each a batch of one, in the order of its chunks; None without samples."""
    if not isinstance(model, nn.Module):
        return None  # is refused by what it is for
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
    return [sample for group in groups for sample in group] if _independent(model, groups) else None


def parted(model: nn.Module, batches: Batches, every: int) -> tuple[list[Any], list[Any]]:
    """Return batches of most samples, and of every so many-th, :func:`unpadded`: batches where there are no samples.

    All are in both where there is only one.
    """
    samples = cut_samples(model, batches)
    whole = list(batches) if samples is None else samples
    held = whole[1::every]
    kept = [one for place, one in enumerate(whole) if place % every != 1] if held else whole
    first = kept if samples is None else chunks(kept)
    if not held:
        return first, first
    return first, held if samples is None else chunks(held)


def chunks(samples: Sequence[Any]) -> list[Any]:
    """Return batches of samples: those of one shape, in their order, as many together as is worth it."""
    made = []
    for group in _alike(samples):
        size = _together(group[0])
        made += [_joined(group[start : start + size]) for start in range(0, len(group), size)]
    return made


def _alike(samples: Sequence[Any]) -> list[list[Any]]:
    """Return samples of one shape together, in the order in which shapes occur first."""
    alike: dict[Any, list[Any]] = {}
    for sample in samples:
        alike.setdefault(_shape(sample), []).append(sample)
    return list(alike.values())


def _together(sample: Any) -> int:
    """Return how many samples of a shape make a chunk."""
    ids = max((tensor.numel() for tensor in tensors_in(sample) if not tensor.is_floating_point()), default=1)
    numbers = max((tensor.numel() for tensor in tensors_in(sample) if tensor.is_floating_point()), default=1)
    return max(min(_SAMPLES, _IDS // max(ids, 1), _NUMBERS // max(numbers, 1)), 1)


def _shape(sample: Any) -> Any:
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
    """Return the samples of a batch; None for one that holds other things than samples side by side."""
    leaves = named_leaves(batch, model)
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    plain = all(leaf is None or isinstance(leaf, Tensor | bool | int | float) for _, leaf in leaves)
    if not plain or not tensors or any(tensor.layout != torch.strided or not tensor.ndim for tensor in tensors):
        return None
    count = max(len(tensor) for tensor in tensors)
    if not count or any(len(tensor) not in (1, count) for tensor in tensors):
        return None
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point()):
        return None  # is refused with the number of its batch
    masks = masks_of(model, batch)
    own = _own_mask(model, leaves)
    samples = []
    for row in range(count):
        seen = {name: _span(mask[min(row, len(mask) - 1)]) for name, mask in masks.items()}
        if None in seen.values():
            return None
        made = []
        for name, leaf in leaves:
            if isinstance(leaf, Tensor):
                leaf = leaf[min(row, len(leaf) - 1)][None]
                mask = own(name)
                span = seen.get(mask)
                if span is not None and leaf.ndim > 1 and leaf.shape[1] == masks[mask].shape[1]:
                    leaf = leaf[:, span]
            made.append(leaf)
        samples.append(replaced_leaves(batch, made))
    return samples


def masks_of(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Return the ``attention_mask`` and ``decoder_attention_mask`` of a batch that are ``[samples, positions]``."""
    return {
        name: leaf for name, leaf in named_leaves(batch, model) if name in (_MASK, _DECODER_MASK) and _is_mask(leaf)
    }


def _is_mask(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and (leaf.dtype == torch.bool or not leaf.is_floating_point())


def _own_mask(model: nn.Module, leaves: Sequence[tuple[str, Any]]) -> Callable[[str], str]:
    """Return what tells the mask of an argument: labels belong to what a decoder reads, where there is one."""
    decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False) or any(
        name.startswith(_DECODER) for name, _ in leaves
    )

    def own(name: str) -> str:
        return _DECODER_MASK if name.startswith(_DECODER) or (decodes and name == "labels") else _MASK

    return own


def _span(mask: Tensor) -> slice | None:
    """Return the positions from the first to the last that a mask shows; None where it shows none."""
    shown = mask.nonzero()
    return slice(int(shown[0]), int(shown[-1]) + 1) if len(shown) else None


def _independent(model: nn.Module, groups: Sequence[Sequence[Any]]) -> bool:
    """Whether the model takes a sample of every shape, and gives two of one shape together what it gives each alone."""
    pair = next((group[:2] for group in groups if len(group) > 1), None)
    own = shared_copy(model) if is_plain(model) else model
    with evaluating(own) as (run,), one_thread(), _same_buffers(run):
        try:
            for group in groups:
                if pair is None or group[0] is not pair[0]:
                    call_on(run, group[0])
            return pair is None or _together_as_apart(run, pair)
        except Exception:  # whatever a model raises; passes over the batches as they are tell it, with a number
            return False


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
