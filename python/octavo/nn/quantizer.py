"""Quantizer: rounds one tensor of a layer to its format, and holds the scales where they are fixed or learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import octavo.ops.codec  # noqa: F401 registers torch.ops.octavo
from octavo.errors import CalibrationError, DTypeError, FormatError, OctavoError, ShapeError
from octavo.nn.stored_scales import format_bytes, format_text, packed_zeros, stored_scales
from octavo.recipe.spec import Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

PARTS = ("scales", "zeros", "levels")

# A learned scale acts by its magnitude and never as 0: a step that crossed zero would turn every code around.
_LEAST_SCALE = 2.0**-126


class Quantizer(nn.Module):
    """Rounds a tensor to ``spec.format``, with gradients.

    ``axis``: of the tensor, along which rows, groups and blocks run. ``what``: names the tensor in errors.
    ``scales``, ``zeros``, ``levels``: buffers in the form of :class:`octavo.PackedTensor`'s parts, kept in their own
    dtype whatever ``.to(dtype)`` does to the model; None while scales are chosen from each tensor (dynamic). Learned
    scales (``lsq``) are a float32 Parameter, fraction bits of ``fixedW`` included, and flat, since optimizers decay
    what has two dimensions. ``enabled``: switches it off.

    The state dict holds the parts that exist and ``format``, the text they belong to, as bytes. Loading takes all of
    them, and takes none where the state dict has none, as one of the float model does.
    Source: FORMATS.md sections 2 to 4.
    """

    scales: Tensor | None
    zeros: Tensor | None
    levels: Tensor | None
    integer_width: int  # bits of ``intW``, 0 for others
    granularity: str
    spans_tensor: bool  # one scale, or one level of it, for the whole tensor

    def __init__(self, spec: Spec, *, axis: int = -1, what: str = "tensor") -> None:
        """Begin without scales."""
        super().__init__()
        self.axis, self.what, self.enabled = axis, what, True
        for part in PARTS:
            self.register_buffer(part, None)
        self.adopt(spec)

    def adopt(self, spec: Spec) -> None:
        """Round to another format from now on; its scales begin as None.

        Args:
            spec: format and calibration.
        """
        self.spec = spec
        # Plain values, which torch.compile guards on at no cost.
        self._text, self._rule, fmt = spec.format.text, spec.scale, spec.format
        self.integer_width = fmt.width if fmt.family == "int" else 0
        self.granularity = fmt.granularity
        self.spans_tensor = fmt.granularity == "tensor" or fmt.core.has_levels
        self._calibrates = spec.calibration is not None and fmt.scale_type is not None
        for part in PARTS:
            setattr(self, part, None)
            self._parameters.pop(part, None)
            self.register_buffer(part, None)

    @property
    def format(self) -> Format:
        """The format values are rounded to."""
        return self.spec.format

    @property
    def is_static(self) -> bool:
        """Whether scales are fixed or learned, not chosen from each tensor."""
        return self.scales is not None

    @property
    def is_learned(self) -> bool:
        """Whether scales are a Parameter."""
        return isinstance(self.scales, nn.Parameter)

    @property
    def wants_scales(self) -> bool:
        """Whether the spec asks for calibrated scales and there are none yet."""
        return self.scales is None and self._calibrates

    def set_scales(self, scales: Tensor, zeros: Tensor | None = None, levels: Tensor | None = None) -> None:
        """Fix the scales. A learned quantizer keeps its Parameter if the shape is the same.

        Args:
            scales: as :func:`octavo.encode` stores them, in any float dtype where the storage type is a float, or
                fraction bits.
            zeros: integers shaped like the scales, or packed as in a PackedTensor.
            levels: float32 ``[1]`` (``nvfp4``).

        Raises:
            FormatError: for parts that the format does not have.
            ShapeError: for sizes that do not fit.
            DTypeError: for another dtype or kind of object.
        """
        core = self.format.core
        if core.scale_type is None:
            raise FormatError(f"{self.what}: '{self.format}' has no scales to set")
        for there, part, name in ((core.has_zeros, zeros, "zeros"), (core.has_levels, levels, "levels")):
            if there != (part is not None and part.numel() > 0):
                raise ShapeError(f"{self.what}: '{self.format}' {'needs' if there else 'has no'} {name}")
        held = self.scales
        if isinstance(held, nn.Parameter) and held.numel() == scales.numel():
            with torch.no_grad():
                held.copy_(scales.flatten())
            return
        self._parameters.pop("scales", None)
        kept = stored_scales(scales, core, self.what)
        self.register_buffer("scales", kept)
        self.zeros = packed_zeros(zeros, kept, core, self.what) if core.has_zeros and zeros is not None else None
        self.levels = levels.detach().float().clone() if core.has_levels and levels is not None else None

    def clear_scales(self) -> None:
        """Choose scales from each tensor again."""
        self.adopt(self.spec)

    def learn(self) -> None:
        """Turn fixed scales into a Parameter. Source: Esser et al. 2020, LSQ.

        Raises:
            FormatError: where the format cannot, or without scales.
        """
        if self.format.family not in ("int", "fixed") or self.granularity == "none" or self.format.core.has_zeros:
            raise FormatError(f"{self.what}: '{self.format}' cannot learn its scales; intW and fixedW can")
        if self.scales is None:
            raise FormatError(f"{self.what}: scales are learned from a start; set or calibrate them first")
        if not self.is_learned:
            start = self.scales.detach().float().flatten().clone()
            del self._buffers["scales"]
            self.scales = nn.Parameter(start)

    def relearn(self, spec: Spec, scales: Tensor) -> None:
        """Round to another format with other values in the same Parameter, which an optimizer may hold.

        Args:
            spec: format and calibration.
            scales: their values.

        Raises:
            FormatError: where the number of scales would change.
        """
        learned = self.scales
        assert learned is not None  # callers ask for learned ones only
        if spec.format.core.has_zeros or scales.numel() != learned.numel():
            points = " and zero points" if spec.format.core.has_zeros else ""
            raise FormatError(
                f"{self.what}: '{self.format}' has {learned.numel()} learned scales, '{spec.format}' would have "
                f"{scales.numel()}{points}; change to a format with as many"
            )
        with torch.no_grad():
            learned.copy_(scales.flatten())
        self.adopt(spec)
        del self._buffers["scales"]
        self.scales = learned

    def given(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the parts as ops take them.

        Returns:
            Scales, packed zeros and levels; None for those that are not fixed.
        """
        scales = self.scales
        if scales is not None and self.integer_width and isinstance(scales, nn.Parameter):
            scales = scales.abs().clamp(min=_LEAST_SCALE)
        return scales, self.zeros, self.levels

    def forward(self, x: Tensor) -> Tensor:
        """Round a tensor, with the gradients of :func:`octavo.quantize`.

        Args:
            x: float32, float16 or bfloat16, any shape with the axis; NaN stays NaN.

        Returns:
            ``encode(x).decode()``.

        Raises:
            CalibrationError: where scales were to be calibrated and were not.
            ShapeError: as :func:`octavo.quantize`.
            DTypeError: as :func:`octavo.quantize`.
        """
        if not self.enabled:
            return x
        return self.round(x, *self.given())

    def round(
        self, x: Tensor, scales: Tensor | None = None, zeros: Tensor | None = None, levels: Tensor | None = None
    ) -> Tensor:
        """Round a tensor with parts in the form of :meth:`given`; one op to torch.compile.

        Args:
            x: as for :meth:`forward`.
            scales: as for :func:`octavo.quantize`.
            zeros: packed.
            levels: as for :func:`octavo.quantize`.

        Returns:
            The rounded tensor.
        """
        self._check(x)
        parts = (x, self._text, self.axis, self._rule, scales, zeros, levels)
        wanted = torch.is_grad_enabled() and (x.requires_grad or (scales is not None and scales.requires_grad))
        if wanted or forward_ad._current_level >= 0:
            return torch.ops.octavo.quantize.default(*parts)
        return torch.ops.octavo.quantize_plain.default(*parts)

    def encode(self, x: Tensor) -> PackedTensor:
        """Return the codes of a tensor.

        Args:
            x: as for :meth:`forward`.

        Returns:
            The packed tensor.

        Raises:
            NonFiniteError: for NaN and infinity.
            CalibrationError: as :meth:`forward`.
        """
        parts = self._encode(x, self.axis)
        return PackedTensor(self.format, *parts, shape=tuple(x.shape), dtype=x.dtype, axis=self.axis, scale=self._rule)

    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the codes of ``intW`` (W <= 8), and the scales.

        Args:
            x: float32, the axis last.

        Returns:
            Whole numbers in float64, shaped like ``x``, and float32 scales as ``encode`` gives them, ``[1]`` or
            ``[..., 1]``.

        Raises:
            NonFiniteError: for NaN and infinity.
        """
        codes, scales, _, _ = self._encode(x, -1)
        if self.integer_width == 8:
            return codes.view(torch.int8).view(x.shape).double(), scales
        # A code is the only whole number near q / s: q is code * s but for a rounding of 2^-24.
        rounded = torch.ops.octavo.quantize_plain.default(x.detach(), self._text, -1, self._rule, scales)
        steps = torch.where(scales > 0, scales, 1.0).double()
        return (rounded.double() / steps).round(), scales

    def _encode(self, x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self._check(x)
        try:
            given = (part if part is None else part.detach() for part in self.given())  # codes have no gradients
            return torch.ops.octavo.encode.default(x.detach(), self._text, axis, self._rule, *given)
        except OctavoError as error:
            raise type(error)(f"{self.what}: {error}") from None

    def _check(self, x: Tensor) -> None:
        if self.wants_scales:
            raise CalibrationError(
                f"{self.what}: '{self.spec}' has no scales yet; give octavo.quantize_model calibration data, "
                "or load a state dict that has them"
            )
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise DTypeError(f"{self.what} is on {x.device}; the codecs run on the CPU and on CUDA devices")

    # --- what torch asks for ------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Quantizer:
        """Move as the model moves, but keep the dtypes: scales in half precision would be other scales."""
        before = {part: getattr(self, part).dtype for part in PARTS if getattr(self, part) is not None}
        values = {part: getattr(self, part).detach() for part in before}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # torch's has no types
        for part, dtype in before.items():
            now = getattr(self, part)
            if now.dtype == dtype:
                continue
            kept = values[part].to(now.device)
            if isinstance(now, nn.Parameter):
                now.data = kept
            else:
                setattr(self, part, kept)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.scales is not None:
            destination[prefix + "format"] = format_bytes(str(self.format))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        found = {part: state_dict.get(prefix + part) for part in PARTS}
        text = state_dict.get(prefix + "format")
        known = {prefix + name for name in (*PARTS, "format")}
        unexpected_keys.extend(key for key in state_dict if strict and key.startswith(prefix) and key not in known)
        scales = found["scales"]
        if scales is None:
            return
        try:
            if text is not None and (name := format_text(text)) != str(self.format):
                spec = Spec(Format(name), self.spec.calibration)
                held = self.scales
                if isinstance(held, nn.Parameter) and scales.numel() == held.numel():
                    self.relearn(spec, scales)
                    return
                self.adopt(spec)
            learned = self.is_learned or (
                self.spec.calibration is not None
                and self.spec.calibration.method == "lsq"
                and scales.is_floating_point()
            )
            self._take(scales, found["zeros"], found["levels"], learned=learned)
        except OctavoError as error:
            error_msgs.append(f"{prefix}scales: {error}")

    def _take(self, scales: Tensor, zeros: Tensor | None, levels: Tensor | None, *, learned: bool) -> None:
        held = self.scales
        placed = held is not None and not held.is_meta
        if placed and isinstance(held, nn.Parameter) and held.numel() == scales.numel():
            with torch.no_grad():
                held.copy_(scales.flatten())
            return
        device = scales.device if held is None or held.is_meta else held.device
        zeros, levels = (part if part is None else part.to(device) for part in (zeros, levels))
        self.set_scales(scales.to(device), zeros, levels)
        if learned:
            start = scales.detach().to(device, torch.float32).flatten().clone()
            self.learn()
            self.scales = nn.Parameter(start)  # set_scales rounds fraction bits

    def extra_repr(self) -> str:
        """Tell the spec and whether scales are chosen, fixed or learned.

        Returns:
            Words of ``repr``.
        """
        if self.format.granularity == "none":
            return str(self.spec)
        return f"{self.spec}, {'learned' if self.is_learned else 'static' if self.is_static else 'dynamic'}"
