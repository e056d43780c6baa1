"""Keys as they are before the rotary embedding, caught where a model computes them, and the embedding of them later."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.tensors.formats import Format
from octavo.transformers.packed_states import PackedStates

_LAST_STEPS = ("k_norm", "k_layernorm", "key_layernorm", "k_proj")
"""Modules whose output may be the keys that are rotated, those nearest to the rotation first."""
_RECENT = 4
"""Spans of the table that new angles are compared with: those of a model's ropes, in this call and the one before."""

Rotation = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PlainKeys:
    """New keys of one layer before the rotation, the angles of their tokens, and the rotation of the model."""

    keys: Tensor
    cos: Tensor
    sin: Tensor
    rotate: Rotation


class _Slot:
    """What has been seen of the call of one attention layer."""

    def __init__(self) -> None:
        self.angles: tuple[Tensor, Tensor] | None = None
        self.outputs: dict[str, Tensor] = {}


class KeysBeforeRope:
    """Hooks on the attention layers of a model, as long as this object lives.

    They note what a layer computes while it is called with ``cache``, whose ``before_rope`` is this object. Raises
    ModelError for a model without attention layers that have keys by one of the usual names.
    """

    def __init__(self, model: nn.Module) -> None:
        """Register the hooks."""
        self._slots: dict[int, _Slot] = {}
        self._modules: dict[int, nn.Module] = {}
        handles = []
        own = weakref.ref(self)
        for module in model.modules():
            index = getattr(module, "layer_idx", None)
            sources = [name for name in _LAST_STEPS if isinstance(getattr(module, name, None), nn.Module)]
            if not isinstance(index, int) or not sources:
                continue
            self._slots[index], self._modules[index] = slot, _ = _Slot(), module
            handles.append(module.register_forward_pre_hook(_opens(slot, own), with_kwargs=True))
            handles += [getattr(module, name).register_forward_hook(_notes(slot, name)) for name in sources]
        if not handles:
            raise ModelError(
                f"QuantizedCache(before_rope=): {type(model).__name__} has no attention layer with {_LAST_STEPS[-1]}; "
                "without before_rope keys are rounded after the rotary embedding"
            )
        weakref.finalize(self, _remove, handles)

    def __deepcopy__(self, memo: dict[int, Any]) -> KeysBeforeRope:
        """Copies of a cache are used with the same model."""
        return self

    def take(self, layer: int, rotated: Tensor) -> PlainKeys:
        """Return the keys of a layer that became ``rotated``, ``[batch, heads, tokens, width]``.

        Raises ModelError where no output of the layer, rotated by the model's own function, has its bits.
        """
        slot = self._slots.get(layer)
        if slot is None or slot.angles is None:
            raise ModelError(
                f"QuantizedCache(before_rope=): keys of layer {layer} come from a call in which no rotary embedding "
                "was seen; give before_rope the model that uses the cache, with layers that take position_embeddings"
            )
        (cos, sin), slot.angles = slot.angles, None
        outputs, slot.outputs = slot.outputs, {}
        with torch.no_grad():
            for keys in _shaped(outputs, rotated):
                for rotate in _rotations(self._modules[layer]):
                    with suppress(RuntimeError, TypeError, ValueError):  # a rotation for angles of another kind
                        if torch.equal(rotate(keys, cos, sin), rotated):
                            return PlainKeys(keys, cos, sin, rotate)
        raise ModelError(
            f"QuantizedCache(before_rope=): the keys of layer {layer} ({type(self._modules[layer]).__name__}) are not "
            f"the rotated output of {', '.join(outputs) or 'any module'}; without before_rope keys are rounded after "
            "the rotary embedding"
        )


def _opens(slot: _Slot, own: Callable[[], KeysBeforeRope | None]) -> Callable[..., None]:
    def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        cache, angles = kwargs.get("cache", kwargs.get("past_key_values")), kwargs.get("position_embeddings")
        is_ours = cache is not None and getattr(cache, "before_rope", None) is own()
        slot.angles = angles if is_ours and isinstance(angles, tuple) and len(angles) == 2 else None
        slot.outputs = {}

    return before


def _notes(slot: _Slot, name: str) -> Callable[..., None]:
    def after(module: nn.Module, args: Any, output: Any) -> None:
        if slot.angles is not None and isinstance(output, Tensor):
            slot.outputs[name] = output

    return after


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


def _shaped(outputs: dict[str, Tensor], like: Tensor) -> Iterator[Tensor]:
    """Yield outputs of modules in the shape of ``like``, in every order of axes that a model may have."""
    for name in _LAST_STEPS:
        output = outputs.get(name)
        if output is None or output.numel() != like.numel() or output.dtype != like.dtype:
            continue
        if output.ndim == 4 and output.shape == like.shape:
            yield output
        batch, heads, tokens, width = like.shape
        if output.shape[:2] == (batch, tokens):
            yield output.reshape(batch, tokens, heads, width).transpose(1, 2)


def _rotations(module: nn.Module) -> Iterator[Rotation]:
    """Yield the rotation of a model: of whole vectors, of their first elements, none at all."""
    function = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if function is not None:

        def whole(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            rotated: Tensor = function(keys, keys, cos, sin)[1]
            return rotated

        def first(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            size = cos.shape[-1]
            return torch.cat([whole(keys[..., :size], cos, sin), keys[..., size:]], dim=-1)

        yield whole
        yield first
    yield lambda keys, cos, sin: keys


class Angles:
    """Cosines and sines of the positions that a cache has seen, each once: ``[rows, width]``."""

    def __init__(self) -> None:
        """Hold none yet."""
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        self._recent: list[tuple[int, int]] = []

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(table.nbytes for table in (self.cos, self.sin) if table is not None)

    def rows(self, cos: Tensor, sin: Tensor, batch: int) -> Tensor:
        """Return the rows of new tokens, int32 ``[batch, tokens]``; angles that are not there yet are added."""
        if len(cos) > 1 and bool((cos == cos[:1]).all()) and bool((sin == sin[:1]).all()):
            cos, sin = cos[:1], sin[:1]
        texts, tokens, width = cos.shape
        flat = [table.reshape(texts * tokens, width) for table in (cos, sin)]
        if self.cos is None or self.sin is None:
            self.cos, self.sin = (table[:0].clone() for table in flat)
        start = self._found(*flat)
        if start is None:
            start = len(self.cos)
            self.cos, self.sin = torch.cat([self.cos, flat[0]]), torch.cat([self.sin, flat[1]])
            self._recent = [*self._recent[1 - _RECENT :], (start, len(flat[0]))]
        rows = torch.arange(start, start + texts * tokens, dtype=torch.int32, device=cos.device)
        return rows.view(texts, tokens).expand(batch, tokens)

    def _found(self, cos: Tensor, sin: Tensor) -> int | None:
        """Where these angles were added by another layer of this call, or by the call before."""
        assert self.cos is not None and self.sin is not None
        for start, count in self._recent:
            span = slice(start, start + count)
            if count == len(cos) and torch.equal(self.cos[span], cos) and torch.equal(self.sin[span], sin):
                return start
        return None

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of tokens, ``[batch, tokens, width]``."""
        assert self.cos is not None and self.sin is not None
        return self.cos[rows], self.sin[rows]

    def keep(self, count: int) -> None:
        """Keep the first rows, which are in use."""
        if self.cos is not None and self.sin is not None and count < len(self.cos):
            self.cos, self.sin = self.cos[:count].clone(), self.sin[:count].clone()
            self._recent = [(start, size) for start, size in self._recent if start + size <= count]


class RotatedStates(PackedStates):
    """Keys that are packed before the rotation, and rotated at each reading."""

    def __init__(self, like: Tensor, format: Format, scale: str, residual: int, angles: Angles) -> None:
        """Hold no token yet; ``angles`` belong to all layers of the cache."""
        super().__init__(like, format, scale, residual)
        self.angles = angles
        self.rows = torch.zeros(len(like), 0, dtype=torch.int32, device=like.device)
        self._rotate: Rotation = lambda keys, cos, sin: keys

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the angles."""
        return super().nbytes + self.rows.nbytes

    def rotated(self, plain: PlainKeys) -> Tensor:
        """Add tokens; return all of them after the rotation."""
        self._rotate = plain.rotate
        new = self.angles.rows(plain.cos, plain.sin, len(plain.keys))
        self.rows = torch.cat([self.rows, new], dim=1)
        return self._turned(super().extended(plain.keys))

    def decoded(self) -> Tensor:
        """Return all tokens after the rotation."""
        return self._turned(super().decoded())

    def _turned(self, keys: Tensor) -> Tensor:
        return self._rotate(keys, *self.angles.of(self.rows)) if self.tokens else keys

    def keep(self, first: int, last: int) -> None:
        """Keep the tokens from ``first`` up to ``last``."""
        super().keep(first, last)
        if first > 0 or last < self.rows.shape[1]:
            self.rows = self.rows[:, first:last].clone()

    def select(self, rows: Tensor) -> None:
        """Put the rows of the batch in another order."""
        super().select(rows)
        self.rows = self.rows[rows.to(self.rows.device)]

    def repeat(self, times: int) -> None:
        """Repeat every row of the batch."""
        super().repeat(times)
        self.rows = self.rows.repeat_interleave(times, dim=0)
