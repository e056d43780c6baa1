"""QuantizedCache: keys and values of transformers' attention in a number format, packed in memory."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from octavo.errors import FormatError, ModelError, SettingError, ShapeError
from octavo.storage.arguments import checks_arguments
from octavo.tensors.formats import Format
from octavo.transformers.keys_before_rope import Angles, KeysBeforeRope, PlainKeys, RotatedStates
from octavo.transformers.packed_states import PackedStates


class QuantizedCache(DynamicCache):
    """A cache of keys and values in a number format, for ``model(..., cache=)`` and ``model.generate(..., cache=)``.

    Each vector of a head and a token is encoded when it comes, and never again. Attention sees decoded values, the same
    bits that :func:`octavo.quantize` gives; those of the tokens that have just come, too. So results do not depend on
    how a text is cut into calls, unless ``residual`` is above 0. Keys are rounded as transformers stores them, after
    the rotary embedding, or before it with ``before_rope``.

    It does what ``transformers.DynamicCache`` does: beam search, assisted generation, sliding windows, prefixes that
    several texts share (``copy.deepcopy``), a half of ``transformers.EncoderDecoderCache``. The states of linear
    attention and state spaces stay float. It is not compiled: ``torch.compile`` breaks the graph at each layer's cache.

    Args:
        format: format of keys and values, or its text. A format whose scale belongs to a whole tensor does not fit, for
            the tokens are not known together.
        values: format of values, where it is another.
        config: ``model.config``; with it layers with a sliding window hold no more tokens than the window needs.
        residual: number of the newest tokens that stay float. Attention then sees a token rounded once so many
            have followed it.
        scale: rule of the block scale, as :func:`octavo.encode` takes it.
        before_rope: the model, to round keys before the rotary embedding; the cache then rotates them at each reading.
            Hooks note the keys of its attention layers as long as the cache lives. Every call checks that the model's
            own rotation makes the bits that the model has given, so a model that does it in another way is refused.

    Raises:
        FormatError: for an unknown format, and one with a scale for a whole tensor.
        SettingError: for a residual below 0.
        ModelError: for a config with layers that hold something else than keys and values; with ``before_rope`` for a
            model, also at a call, whose keys before the rotary embedding are not seen.
        NonFiniteError: at a call, for keys or values that are NaN or infinite.

    Example:
        >>> import octavo.transformers
        >>> cache = octavo.transformers.QuantizedCache("mxint8")
        >>> keys, values = cache.update(torch.randn(1, 3, 10, 64), torch.randn(1, 3, 10, 64), 0)  # as attention does
        >>> torch.equal(keys, octavo.quantize(keys, "mxint8"))
        True
        >>> cache.nbytes, cache.float_nbytes
        (3960, 15360)
    """

    @checks_arguments
    def __init__(
        self,
        format: Format | str = "mxint8",
        *,
        values: Format | str | None = None,
        config: PreTrainedConfig | None = None,
        residual: int = 0,
        scale: str = "floor",
        before_rope: nn.Module | None = None,
    ) -> None:
        """Check the formats, and lay out the layers where a config tells them."""
        formats = [_of_tokens(text) for text in (format, format if values is None else values)]
        if residual < 0:
            raise SettingError(f"QuantizedCache: residual is {residual}; accepted are numbers of tokens from 0")
        if scale not in ("floor", "ceil", "mse"):
            raise FormatError(f"QuantizedCache: scale is {scale!r}; accepted are 'floor', 'ceil' and 'mse'")
        super().__init__(config=config)
        self.formats = (formats[0], formats[1])
        self.before_rope = None if before_rope is None else KeysBeforeRope(before_rope)
        self._angles = None if before_rope is None else Angles()
        options: dict[str, Any] = {
            "formats": self.formats,
            "scale": scale,
            "residual": residual,
            "angles": self._angles,
        }
        if config is None:
            self.layer_class_to_replicate = partial(PackedLayer, **options)  # type: ignore[assignment] # is called, no more
        self.layers = [_packed(layer, options) for layer in self.layers]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens to a layer.

        Args:
            key_states: new keys, ``[batch, heads, tokens, width]``.
            value_states: new values, as many tokens.
            layer_idx: number of the layer.
            args: what transformers adds, which is not used.
            kwargs: as ``args``.

        Returns:
            Keys and values of all tokens that attention sees.

        Raises:
            NonFiniteError: for keys or values that are NaN or infinite.
            ModelError: with ``before_rope``, where the keys before the rotary embedding are not seen.
        """
        plain = None if self.before_rope is None else self.before_rope.take(layer_idx, key_states)
        keys, values = super().update(key_states, value_states, layer_idx, plain=plain)
        return keys, values

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the newest tokens of every layer.

        Args:
            tokens_to_remove: their number, negative, or 0.

        Raises:
            ShapeError: for a number above 0.
            ModelError: for a window that has dropped the tokens before; ``activate_past_recording`` keeps them.
        """
        super().crop(tokens_to_remove)
        if self._angles is not None:
            keys = [layer.states[0] for layer in self.layers if isinstance(layer, PackedLayer) and layer.states]
            rows = [states.rows for states in keys if isinstance(states, RotatedStates) and states.rows.numel()]
            self._angles.keep(max((int(each.max()) + 1 for each in rows), default=0))

    def reset(self) -> None:
        """Drop all tokens."""
        above: Any = super()
        above.reset()
        if self._angles is not None:
            self._angles.keep(0)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values in memory: codes, scales, the tokens that stay float, angles of positions."""
        layers = sum(layer.nbytes for layer in self.layers if isinstance(layer, PackedLayer))
        return layers + (0 if self._angles is None else self._angles.nbytes)

    @property
    def float_nbytes(self) -> int:
        """Bytes that the same keys and values take in the dtype in which they came."""
        return sum(layer.float_nbytes for layer in self.layers if isinstance(layer, PackedLayer))

    def __repr__(self) -> str:
        """Return formats, layers, tokens and bytes."""
        keys, values = (format.text for format in self.formats)
        both = keys if keys == values else f"{keys}, values={values}"
        return f"QuantizedCache({both}, layers={len(self.layers)}, nbytes={self.nbytes})"


def _of_tokens(text: Format | str) -> Format:
    """Return a format whose scales belong to a token or a part of it."""
    format = Format.parse(text)
    if format.granularity == "tensor" or format.core.has_levels:
        raise FormatError(
            f"QuantizedCache: '{format}' has a scale for a whole tensor, which tokens that come later would change; "
            f"formats with a scale for a row or a block fit, such as '{_near(format)}'"
        )
    return format


def _near(format: Format) -> str:
    """Return a format that fits in place of one that does not."""
    with suppress(FormatError):
        return Format(f"{format.text.partition(':')[0]}:channel").text
    return "mxfp4"


def _packed(layer: Any, options: dict[str, Any]) -> Any:
    """Return what stands for a layer of DynamicCache."""
    kind = type(layer)
    if kind is DynamicLayer:
        return PackedLayer(**options)
    if kind is DynamicSlidingWindowLayer:
        return PackedSlidingLayer(sliding_window=layer.sliding_window, **options)
    if kind is LinearAttentionLayer or kind is DummyLayer:
        return layer
    raise ModelError(
        f"QuantizedCache: the config has a layer whose cache is a {kind.__name__}; packed are keys and values of full "
        "attention and of sliding windows. Take the cache that transformers makes, without a cache= argument"
    )


class PackedLayer(DynamicLayer):
    """Keys and values of one layer. ``keys`` and ``values`` decode all tokens at each reading."""

    def __init__(
        self, formats: tuple[Format, Format], scale: str, residual: int, angles: Angles | None = None, **options: Any
    ) -> None:
        """Hold nothing; sizes, dtype and device are those of the first states."""
        self.formats, self.scale, self.residual, self.angles = formats, scale, residual, angles
        self.states: tuple[PackedStates, PackedStates] | None = None
        above: Any = super()
        above.__init__(**options)

    @property
    def keys(self) -> Tensor | None:
        """All keys as attention sees them."""
        return None if self.states is None else self.states[0].decoded()

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        self._drop(states)

    @property
    def values(self) -> Tensor | None:
        """All values as attention sees them."""
        return None if self.states is None else self.states[1].decoded()

    @values.setter
    def values(self, states: Tensor | None) -> None:
        self._drop(states)

    def _drop(self, states: Tensor | None) -> None:
        if states is not None:
            raise ShapeError("keys and values of a QuantizedCache are not assigned; update() adds tokens, crop() drops")
        self.states = None

    @property
    def nbytes(self) -> int:
        """Bytes of both in memory."""
        return sum(states.nbytes for states in self.states or ())

    @property
    def float_nbytes(self) -> int:
        """Bytes of both in the dtype in which they came."""
        return sum(states.float_nbytes for states in self.states or ())

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take sizes, dtype and device from the first states."""
        self.device = key_states.device
        how = self.formats[0], self.scale, self.residual
        keys = PackedStates(key_states, *how) if self.angles is None else RotatedStates(key_states, *how, self.angles)
        self.states = keys, PackedStates(value_states, self.formats[1], self.scale, self.residual)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, plain: PlainKeys | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens; return all of them as attention sees them. ``plain``: the keys before the rotary embedding."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.states is not None
        keys, values = self.states
        if plain is None:
            return keys.extended(key_states), values.extended(value_states)
        assert isinstance(keys, RotatedStates)
        return keys.rotated(plain), values.extended(value_states)

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return 0 if self.states is None else self.states[0].tokens

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """Whether tokens that are dropped leave no trace; with a residual others were rounded on their account."""
        return self.residual == 0

    def crop(self, tokens_to_remove: int) -> None:
        """Drop so many of the newest tokens, given as a negative number."""
        if tokens_to_remove > 0:
            raise ShapeError(f"crop({tokens_to_remove}); accepted is a number of tokens to drop, negative, or 0")
        self._keep(0, self._held + tokens_to_remove)

    @property
    def _held(self) -> int:
        return 0 if self.states is None else self.states[0].tokens

    def _keep(self, first: int, last: int) -> None:
        for states in self.states or ():
            states.keep(max(first, 0), max(last, 0))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put the rows of the batch in another order, as beam search asks."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        for states in self.states or ():
            states.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        for states in self.states or ():
            states.repeat(repeats)

    def offload(self) -> None:
        """Move to the CPU."""
        for states in self.states or ():
            states.move("cpu")

    def prefetch(self) -> None:
        """Move back to the device of the first states."""
        for states in self.states or ():
            states.move(self.device)


class PackedSlidingLayer(PackedLayer, DynamicSlidingWindowLayer):
    """Keys and values of one layer with a sliding window, of the tokens that the next one can see.

    With ``record_past`` (``activate_past_recording``) all tokens stay until ``crop`` is called.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take sizes, dtype and device from the first states."""
        super().lazy_initialization(key_states, value_states)
        self._sliding_window_tensor = self._sliding_window_tensor.to(self.device)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, plain: PlainKeys | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add tokens; return those that one of the new tokens can see."""
        new = key_states.shape[2]
        keys, values = super().update(key_states, value_states, plain=plain)
        self.cumulative_length += new
        if self.record_past:
            seen = self.sliding_window - 1 + new
            return keys[:, :, -seen:], values[:, :, -seen:]
        self._keep_window()
        return keys, values

    def _keep_window(self) -> None:
        self._keep(self._held - self.sliding_window + 1, self._held)

    def get_seq_length(self) -> int:
        """Return the number of tokens that have come, also those that no window sees any more."""
        return self.cumulative_length

    def crop(self, tokens_to_remove: int) -> None:
        """Drop so many of the newest tokens, given as a negative number, then those outside of the window."""
        if self.cumulative_length >= self.sliding_window and not self.record_past:
            raise ModelError(
                f"crop({tokens_to_remove}): the window of {self.sliding_window} tokens has dropped the ones before it; "
                "call activate_past_recording() before the tokens that may be taken back"
            )
        super().crop(tokens_to_remove)
        if self.is_initialized:
            self.cumulative_length = max(self.cumulative_length + tokens_to_remove, 0)
            self._keep_window()
