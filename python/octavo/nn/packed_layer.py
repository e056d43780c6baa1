"""PackedLayer: what layers share whose weight is held as codes alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from octavo import settings
from octavo.errors import DTypeError, FormatError, KernelError, ModelError, ShapeError
from octavo.nn.direct_weight_access import inside_forward, late
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.own_forward import take_place
from octavo.nn.quant_layer import QuantLayer, recomputed
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import kind_of
from octavo.nn.stored_scales import format_bytes, format_text
from octavo.nn.sum_linear import computes_as
from octavo.nn.weight_buffers import BITMAP as BITMAP
from octavo.nn.weight_buffers import FORMAT as FORMAT
from octavo.nn.weight_buffers import PARTS as PARTS
from octavo.nn.weight_buffers import STARTS as STARTS
from octavo.nn.weight_buffers import WeightBuffers, lacking
from octavo.ops.codec import encode
from octavo.recipe.fit import misfit
from octavo.recipe.rule import Rule, read_spec
from octavo.recipe.spec import Calibration, Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.sparse_codes import expand

DECODE = "decode + torch"  # the kernel of layers that have none
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def is_strict() -> bool:
    """Whether a product without a kernel is an error here. Compiled code keeps the answer of its compilation."""
    return settings.is_strict()


# What torch.compiler.assume_constant_result does, which loads the compiler: not every release traces a ContextVar.
is_strict._dynamo_marked_constant = True  # type: ignore[attr-defined]


class PackedLayer(WeightBuffers):
    """A layer that holds its weight as codes and scales, and never a dense copy.

    Buffers ``weight_codes``, ``weight_scales``, ``weight_zeros``, ``weight_levels``: the parts of :attr:`weight`, which
    keep their dtypes whatever ``.to(dtype)`` does; only the logical dtype follows. Parts that the format does not have
    are empty, and no buffers. ``bias``: a frozen Parameter, an
    int32 buffer in steps of the accumulators, or None. ``input_quantizer``, ``output_quantizer``: a Quantizer or None.
    To code of a model that reads them in a forward pass, past the layer, ``weight`` and ``bias`` are decoded tensors.
    Of sparse codes, ``weight_codes`` are those that are not 0, and ``weight_bitmap`` tells where; on devices other than
    the CPU codes are dense.
    The state dict holds them and ``weight_format``, the text of the format as bytes; other codes are refused.
    """

    replaces: type[nn.Module]
    _geometry: tuple[str, ...] = ()  # attributes of a layer that are arguments of the constructor
    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None
    what = "the layer"  # its path in the model it was packed or loaded in, for errors
    _transposed = False  # whether the layer that it stands for has its weight as [K, N]

    def __init__(
        self,
        weight: PackedTensor,
        bias: Tensor | None = None,
        *,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Hold the parts of ``weight``, ``[N, K]`` encoded along K. Raises ModelError for another shape or axis."""
        super().__init__()
        kind = type(self).__name__
        if not isinstance(weight, PackedTensor) or weight.ndim != 2 or weight.axis != 1:
            raise ModelError(f"{kind} takes a PackedTensor [N, K] encoded along its last axis, got {weight!r}")
        if bias is not None and tuple(bias.shape) != weight.shape[:1]:
            raise ModelError(f"{kind}: bias has shape {tuple(bias.shape)}, expected {weight.shape[:1]}")
        self.format, self.scale, self.dtype = weight.format, weight.scale, weight.dtype
        self._text, self._rows, self._width = weight.format.text, *weight.shape
        self._has_two_parts = has_two_parts(weight.format)
        self._weight_shape: tuple[int, ...] = weight.shape
        self._hold(weight)
        if bias is None or bias.is_floating_point():
            frozen = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
            self.register_parameter("bias", frozen)
        else:
            self.register_buffer("bias", bias)
        self.input_quantizer, self.output_quantizer = input_quantizer, output_quantizer
        weight_spec = Spec(weight.format)
        self._integer = (
            _integer_width(weight_spec) > 0
            and weight.format.granularity in ("tensor", "channel")
            and input_quantizer is not None
            and _integer_width(input_quantizer.spec) > 0
            and self._factors(input_quantizer)
        )
        if not self._integer and bias is not None and not bias.is_floating_point():
            raise ModelError(f"{kind}: an int32 bias needs integer weight and input, got '{weight.format}'")

    @property
    def packed_weight(self) -> PackedTensor:
        """The weight as a PackedTensor over the layer's own buffers."""
        logical: dict[str, Any] = {
            "shape": (self._rows, self._width), "dtype": self.dtype, "axis": 1, "scale": self.scale
        }  # fmt: skip
        sparse = self.sparse_codes
        if sparse is None:
            return PackedTensor(self.format, *self.parts, **logical)
        others = (self._part(f"weight_{part}") for part in PARTS[1:])
        return PackedTensor.of_sparse(self.format, sparse, *others, **logical)

    @property
    def weight(self) -> PackedTensor | Tensor:
        """:attr:`packed_weight`; inside a forward pass the decoded weight, shaped as that of the float layer.

        Raises KernelError under :func:`octavo.strict` inside a forward pass, where the model decodes at each call.
        """
        if not inside_forward(self):
            return self.packed_weight
        if is_strict():
            rule = Rule(name=self.what, keep=True)
            raise KernelError(
                f"{self.what}: the model reads the weight past the layer, for which it is decoded at each call; keep "
                f"it with the rule '{rule}', or leave octavo.strict()"
            )
        shape = self._weight_shape[::-1] if self._transposed else self._weight_shape
        return late(self._read_weight, shape, self.dtype, self.weight_codes.device, f"{self.what}: weight")

    @weight.setter
    def weight(self, weight: PackedTensor) -> None:
        if not isinstance(weight, PackedTensor) or weight.shape != (self._rows, self._width) or weight.axis != 1:
            given = repr(weight) if isinstance(weight, PackedTensor) else f"a {type(weight).__name__}"
            raise ModelError(
                f"{self.what}: {given} does not replace {self.packed_weight!r}; octavo.encode makes one of its shape"
            )
        bias, steps = self._held_bias(), self._bias_steps()
        self.format, self.scale, self.dtype, self._text = weight.format, weight.scale, weight.dtype, weight.format.text
        self._has_two_parts = has_two_parts(weight.format)
        self._hold(weight)
        if bias is not None and steps is not None:  # which counts in steps of the scales
            own = self._bias_steps()
            assert own is not None
            self._buffers["bias"] = Int32Bias.integers(bias * steps.double(), own).to(torch.int32)

    @property
    def bias(self) -> Tensor | None:
        """The bias as it is held; inside a forward pass in the logical dtype where it is held as int32."""
        if "bias" not in self._parameters and "bias" not in self._buffers:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute 'bias'")
        bias = self._held_bias()
        if bias is None or bias.is_floating_point() or not inside_forward(self):
            return bias
        return self.float_bias()

    @bias.setter
    def bias(self, value: Tensor | None) -> None:
        self._buffers["bias"] = value  # a Parameter never comes here; replicas of a model have plain tensors for them

    def float_bias(self) -> Tensor | None:
        """Return the bias in the logical dtype where it is held as int32, else as it is.

        Returns:
            ``[N]``, or None.
        """
        bias, steps = self._held_bias(), self._bias_steps()
        return bias if bias is None or steps is None else (bias * steps.double()).to(self.dtype)

    def set_float_bias(self, bias: Tensor) -> None:
        """Overwrite the bias, rounded to steps of the accumulators where it is held as int32.

        Args:
            bias: ``[N]``, float.
        """
        own, steps = self._held_bias(), self._bias_steps()
        assert own is not None  # the layer has one
        if steps is not None:
            self._buffers["bias"] = Int32Bias.integers(bias, steps).to(torch.int32)
        else:
            own.data = bias.detach().to(own)

    def _bias_steps(self) -> Tensor | None:
        """The steps of the accumulators ``[N]``, which an int32 bias counts in; None where there is no such bias."""
        bias = self._held_bias()
        if bias is None or bias.is_floating_point():
            return None
        scales, _, _ = cast("Quantizer", self.input_quantizer).given()
        assert scales is not None  # an int32 bias is in steps of them
        return scales * self.weight_scales.flatten().expand(len(bias))

    def _held_bias(self) -> Tensor | None:
        return self._parameters["bias"] if "bias" in self._parameters else self._buffers["bias"]

    def float_weight(self) -> Tensor:
        """Return the weight as the float layer has it: decoded, of its shape.

        Returns:
            A tensor of the logical dtype.
        """
        return self._read_weight()

    def _read_weight(self) -> Tensor:
        weight = self._decoded(self.dtype)
        return weight.t() if self._transposed else weight

    def _decoded(self, dtype: torch.dtype) -> Tensor:
        shape = (self._rows, self._width)
        return torch.ops.octavo.decode.default(*self.parts, self._text, shape, -1, dtype).view(self._weight_shape)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Codes, scales, zeros and levels of the weight; dense codes of sparse ones are made now."""
        others = self._part("weight_scales"), self._part("weight_zeros"), self._part("weight_levels")
        if BITMAP not in self._buffers:
            return cast("Tensor", self._buffers["weight_codes"]), *others
        sparse, matrix = self.sparse_codes, (self._rows, self._width)
        assert sparse is not None  # it has a bitmap
        codes = torch.ops.octavo.dense_codes.default(*sparse, self._text, *matrix, 0, self._rows)
        return codes, *others

    @property
    def is_integer(self) -> bool:
        """Whether codes are multiplied, in integers: weight and input are ``intW`` whose scales factor out."""
        return self._integer and self.input_quantizer is not None and self.input_quantizer.enabled

    def _factors(self, x: Quantizer) -> bool:
        """Whether the input's scales can be taken out of the sums of products."""
        return x.granularity == "tensor"

    def _check(self, x: Tensor) -> None:
        """Refuse what is no tensor, has no kernels or has a forward-mode tangent; inputs without data pass."""
        codes = self._buffers["weight_codes"]
        plain = isinstance(x, Tensor) and x.is_cpu and codes is not None and codes.is_cpu
        if plain and forward_ad._current_level < 0:
            return
        kind = type(self).__name__
        if not isinstance(x, Tensor):
            raise DTypeError(f"{kind}: its input is a {type(x).__name__}; accepted are tensors")
        for tensor, what in ((x, "input"), (self.weight_codes, "weight")):
            if tensor.device.type not in ("cpu", "cuda", "meta"):
                raise DTypeError(
                    f"{kind}: its {what} is on {tensor.device}; kernels run on the CPU and on CUDA devices, move the "
                    'model with .to("cpu") or .to("cuda")'
                )
        if x.device != self.weight_codes.device and not (x.is_meta or self.weight_codes.is_meta):
            raise DTypeError(
                f"{kind}: its input is on {x.device}, its weight on {self.weight_codes.device}; move one with .to()"
            )
        if self.weight_codes.is_meta and not x.is_meta:
            raise DTypeError(
                f"{kind}: its weight is on meta, without values, and the input on {x.device}; load_model gives it "
                "values"
            )
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(f"{kind}: forward-mode derivatives are not defined; use reverse mode")

    @classmethod
    def from_layer(cls, layer: nn.Module, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return a packed layer of the same shape, mode and hooks.

        Args:
            layer: a quantized layer, packed as it rounds, or a float one to be packed in ``format``.
            format: a Format, its text or a Spec.
            what: names the layer in errors.

        Returns:
            The packed layer.

        Raises:
            ModelError: for other layers.
            NonFiniteError: for weights that are not finite.
            FormatError: as :func:`octavo.encode`.
        """
        what = what or type(layer).__name__
        if not cls.accepts(layer):
            raise ModelError(f"{what} is a {type(layer).__name__}; {cls.__name__} replaces {cls.replaces.__name__}")
        if reason := recomputed(layer):
            raise ModelError(f"{what}: {reason}")
        if isinstance(layer, QuantLayer) != (format is None):
            given = "a quantized layer has its own format" if format is not None else "a float layer needs a format"
            raise ModelError(f"{what}: {given}; {'leave out' if format is not None else 'give'} format=")
        if not isinstance(layer, QuantLayer):
            if not computes_as(layer, cls.replaces):
                raise ModelError(
                    f"{what} is a {type(layer).__name__} with a forward of its own, which packing would drop"
                )
            spec = read_spec(format)
            if spec is None:
                raise FormatError(f"{what}: 'keep' is no format to pack in")
            if problem := misfit("weight", spec):
                raise FormatError(f"{what}: {problem}")
            if spec.calibration is not None:
                raise ModelError(f"{what}: '{format}' asks for calibration; octavo.quantize_model does it")
            weight = encode(cls._matrix_of(layer).detach(), spec.format, scale=spec.scale)
            return cls._like(layer, what, weight, getattr(layer, "bias", None), None, None)
        return cls._pack_quantized(layer, what)

    @classmethod
    def _matrix_of(cls, layer: nn.Module) -> Tensor:
        """The weight ``[N, K]`` of a float layer."""
        return cast("Tensor", layer.weight).flatten(1)

    @classmethod
    @torch.no_grad()
    def _pack_quantized(cls, layer: QuantLayer, what: str) -> Self:
        quantizer = layer.weight_quantizer
        if quantizer is None or not quantizer.enabled:
            state = "is not quantized" if quantizer is None else "has its quantizer switched off"
            raise ModelError(f"{what}: its weight {state}, so there is nothing to pack; give it a format")
        weight = layer.encoded_weight()
        bias, rounding = getattr(layer, "bias", None), layer.bias_quantizer
        if bias is not None and isinstance(rounding, Int32Bias):
            if rounding.enabled and layer.is_integer:
                bias = rounding.integers(bias, layer._steps()).to(torch.int32)
        elif bias is not None and rounding is not None:
            bias = rounding(bias)
        return cls._like(layer, what, weight, bias, _frozen(layer.input_quantizer), _frozen(layer.output_quantizer))

    @classmethod
    def _like(
        cls,
        layer: nn.Module,
        what: str,
        weight: PackedTensor,
        bias: Tensor | None,
        x: Quantizer | None,
        y: Quantizer | None,
    ) -> Self:
        """Return the packed layer with the geometry, mode and hooks of ``layer``."""
        bias = None if bias is None else bias.detach().clone()
        parts = {"bias": bias, "input_quantizer": x, "output_quantizer": y}
        given: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
        packed = cls(weight, **cls.geometry(layer), **given)
        packed.stand_for(layer, what)
        for name in _HOOKS:
            packed.__dict__[name] = copy.copy(getattr(layer, name))
        return packed.train(layer.training)

    def stand_for(self, layer: nn.Module, what: str) -> None:
        """Remember the path for errors, and how code that knew the layer reads the weight.

        Args:
            layer: the layer that this one replaces.
            what: its path.
        """
        self.what = what
        self._transposed = has_transposed_weight(layer)
        if not self._transposed:
            self._weight_shape = _weight_shape(layer)
        if isinstance(layer, self.replaces):
            take_place(self, layer, self.replaces)
        if vars(layer).get("bypassed"):  # as the first forward pass found
            self.bypassed = True

    @classmethod
    def accepts(cls, layer: nn.Module) -> bool:
        """Tell whether this class is the packed form of a layer.

        Args:
            layer: the layer.

        Returns:
            True or False.
        """
        return isinstance(layer, cls.replaces)

    @classmethod
    def matrix_shape(cls, layer: nn.Module) -> tuple[int, int] | None:
        """Return the shape of the weight of a layer that this class stands in for.

        Args:
            layer: the layer.

        Returns:
            ``(N, K)``; None for another layer.
        """
        if isinstance(layer, cls):
            return layer._rows, layer._width
        kind = kind_of(layer)
        if kind is None or kind.packed is None or not issubclass(cls, kind.packed):
            return None
        first, *rest = cast("Tensor", layer.weight).shape
        return (math.prod(rest), first) if kind.weight_axis == 0 else (first, math.prod(rest))

    @classmethod
    def description(cls, layer: nn.Module) -> dict[str, object]:
        """Return what a file says, beside class and formats, of a packed layer or of one that this class packs.

        Args:
            layer: the layer.

        Returns:
            Plain values by name.
        """
        geometry, shape = cls.geometry(layer), _weight_shape(layer)
        told: dict[str, object] = {"geometry": geometry} if geometry else {}
        return told if len(shape) <= 2 or "kernel_size" in geometry else {**told, "shape": shape}

    def cost(self, batch: int) -> tuple[str, int]:
        """Return the kernel that multiplies ``batch`` rows, and the bytes of the weight that it moves.

        Args:
            batch: number of rows.

        Returns:
            The name, and bytes.
        """
        return self.decode_cost(batch)

    def decode_cost(self, batch: int) -> tuple[str, int]:
        """Return the cost of a product that decodes the weight first.

        Args:
            batch: number of rows.

        Returns:
            The name, and bytes.
        """
        weight = self.packed_weight
        return DECODE, weight.nbytes + 2 * weight.numel() * self.dtype.itemsize

    @classmethod
    def geometry(cls, layer: nn.Module) -> dict[str, Any]:
        """Return arguments of the constructor that the weight does not tell.

        Args:
            layer: the layer.

        Returns:
            Values by name.
        """
        return {name: getattr(layer, name) for name in cls._geometry}

    @classmethod
    def axis(cls, layer: nn.Module) -> int:
        """Return the axis of the input and output along which blocks run.

        Args:
            layer: the layer.

        Returns:
            The axis.
        """
        return -1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as the model moves; codes and scales keep their dtypes, the logical dtype follows."""
        held = {id(tensor) for name, tensor in self._buffers.items() if name.startswith("weight_")}

        def kept(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            return tensor.to(made.device) if id(tensor) in held and made.dtype != tensor.dtype else made

        super()._apply(kept, recurse)  # type: ignore[no-untyped-call] # torch's has no types
        for name in lacking(self.format.core):
            empty = getattr(self, name)
            self._take_empty(name, fn(empty).to(empty.dtype))
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        sparse, device = self.sparse_codes, self.weight_codes.device
        if sparse is not None and device.type not in ("cpu", "meta"):
            codes = expand(sparse.map(Tensor.cpu), self.format.core, self._rows, self._width)
            self._take_buffers({"weight_codes": codes.to(device)}, None)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + FORMAT] = format_bytes(self._text)  # the buffer may be on the meta device

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Refuse codes of another format: their shapes may be the same."""
        key = prefix + FORMAT
        found = state_dict.get(key)
        if found is not None and (text := format_text(found)) != self._text:
            error_msgs.append(f"{prefix}weight: codes of '{text}', but the layer holds '{self._text}'")
            return
        self._make_room(state_dict.get(f"{prefix}weight_codes"), state_dict.get(f"{prefix}{BITMAP}"))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if self.is_sparse and not self.weight_codes.is_meta:
            try:
                self._count_starts()
            except ShapeError as error:
                error_msgs.append(f"{prefix}weight: {error}")
        # State dicts of 0.1 have the parts that a format lacks, empty.
        empty = [prefix + name for name in lacking(self.format.core)]
        for name in (name for name in empty if name in state_dict and not state_dict[name].numel()):
            if name in unexpected_keys:
                unexpected_keys.remove(name)

    def extra_repr(self) -> str:
        """Tell shape, format and bytes.

        Returns:
            Words of ``repr``.
        """
        sparse = ", sparse=True" if self.is_sparse else ""
        return f"{self._width}, {self._rows}, '{self.format}', bias={self._held_bias() is not None}{sparse}"


def has_two_parts(format: Format) -> bool:
    """Whether weights of a format are codes and scales, and nothing reads zeros and levels."""
    return not (format.core.has_zeros or format.core.has_levels)


def has_transposed_weight(layer: nn.Module) -> bool:
    """Whether a float or simulated layer, or the one that a packed layer stands for, has its weight as ``[K, N]``."""
    kind = kind_of(layer)
    return bool(getattr(layer, "_transposed", False)) if kind is None else kind.weight_axis == 0


def _weight_shape(layer: nn.Module) -> tuple[int, ...]:
    """Shape of the weight of a float or simulated layer, or of the one that a packed layer stands for."""
    if isinstance(layer, PackedLayer):
        return layer._weight_shape
    weight = layer.weight
    assert isinstance(weight, Tensor)  # a layer without one is no kind of layer
    return tuple(weight.shape)


def _integer_width(spec: Spec) -> int:
    """Bits of ``intW`` of 2 to 8 bits, the codes that integer kernels multiply; else 0."""
    return spec.format.width if spec.format.family == "int" and 2 <= spec.format.width <= 8 else 0


def _frozen(quantizer: Quantizer | None) -> Quantizer | None:
    """A copy whose scales, where it has some, are fixed: nothing of it is trained."""
    if quantizer is None or not quantizer.is_learned:
        return copy.deepcopy(quantizer)
    # Not lsq any more: a file that is loaded would learn again.
    made = Quantizer(Spec(quantizer.format, Calibration("mse")), axis=quantizer.axis, what=quantizer.what)
    scales, zeros, levels = quantizer.given()
    assert scales is not None  # they are learned
    made.set_scales(scales, zeros, levels)
    made.enabled = quantizer.enabled
    return made
