"""The base of quantized layers: taking over a float layer, their quantizers, and the integer path."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from octavo.errors import DTypeError, FormatError
from octavo.nn.direct_weight_access import guarded, inside_forward, late
from octavo.nn.format_layer import FormatLayer
from octavo.nn.int32_bias import Int32Bias, Valued, is_int32
from octavo.nn.joined_linear import JoinedLinear
from octavo.nn.masks import Masks, require_zero
from octavo.nn.own_forward import OwnForward, class_of_both, keeps_forward, own_class, roles_of
from octavo.nn.quantizer import Quantizer
from octavo.recipe.spec import ROLES, LayerPlan, Spec
from octavo.tensors.packed_tensor import PackedTensor

_CODES = "_octavo_codes"  # attribute of a layer whose weight was encoded before it is packed

M = TypeVar("M", bound=nn.Module)

# What torch's hooks that compute a tensor register beside it, and what ends them.
_REMOVES = {
    "_mask": "torch.nn.utils.prune.remove(layer, '{name}')",
    "_g": "torch.nn.utils.remove_weight_norm(layer)",
    "_u": "torch.nn.utils.remove_spectral_norm(layer)",
}


def recomputed(layer: nn.Module) -> str | None:
    """Return why a layer's weight or bias is not its own, and what makes it so; None where they are Parameters.

    Hooks of torch compute such a tensor before every call, which would undo what is done to it.
    """
    for name in ("weight", "bias"):
        if not isinstance(vars(layer).get(name), Tensor):
            continue
        held = {**layer._parameters, **layer._buffers}
        for suffix, fix in _REMOVES.items():
            if f"{name}{suffix}" in held:
                return f"a hook computes its {name} before every call; {fix.format(name=name)} makes it a Parameter"
        return f"its {name} is a tensor and no Parameter; assign torch.nn.Parameter({name})"
    return None


NO_PLAIN_WEIGHT = (
    "its weight is computed by a parametrisation or not there yet; torch.nn.utils.parametrize.remove_parametrizations "
    "makes it plain"
)


def has_plain_weight(layer: nn.Module) -> bool:
    """Whether a layer's weight is a Parameter with values."""
    weight = layer._parameters.get("weight")
    return isinstance(weight, Tensor) and not isinstance(weight, nn.parameter.UninitializedParameter)


class QuantLayer(FormatLayer):
    """A layer whose weight, input, output and bias are rounded where its plan says so.

    ``weight_quantizer``, ``input_quantizer``, ``output_quantizer``, ``bias_quantizer``: a Quantizer, or None where the
    tensor stays as it is. A bias in int32 has an :class:`~octavo.nn.int32_bias.Int32Bias` instead.

    ``weight``, ``bias``: the Parameters; to code of a model that reads them in a forward pass, past the layer, the
    rounded tensors, through which gradients pass as they do in the layer.
    """

    replaces: type[nn.Module]
    quant_roles: tuple[str, ...] = ROLES
    weight_quantizer: Quantizer | None
    input_quantizer: Quantizer | None
    output_quantizer: Quantizer | None
    bias_quantizer: Quantizer | Int32Bias | None

    @classmethod
    def from_layer(cls, module: nn.Module, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer with the Parameters, buffers, hooks and mode of a module and the quantizers of a plan.

        Args:
            module: of the class that this one replaces, or quantized already; its quantizers are left behind.
            plan: formats by role.
            what: names the layer in errors.

        Returns:
            The simulated layer.

        Raises:
            DTypeError: for other modules.
            FormatError: for a format that the layer cannot hold.
        """
        what = what or type(module).__name__
        module = module.single() if isinstance(module, JoinedLinear) else module
        if not cls._replaces(module):
            raise DTypeError(f"{what} is a {type(module).__name__}; accepted is {cls._accepted()}")
        if reason := recomputed(module):
            raise DTypeError(f"{what}: {reason}")
        if not has_plain_weight(module):
            raise DTypeError(f"{what}: {NO_PLAIN_WEIGHT}")
        layer = copied_as(class_of_both(own_class(module, cls.replaces), cls), module)
        layer._add_quantizers(plan, what)
        return layer

    @classmethod
    def _accepted(cls) -> str:
        return f"a plain {cls.replaces.__name__}"

    @classmethod
    def _replaces(cls, module: nn.Module) -> bool:
        """Whether the layer computes what ``module`` does, but for rounding."""
        if not isinstance(module, cls.replaces):
            return False
        if isinstance(module, FormatLayer):
            return isinstance(module, OwnForward) or type(module).forward is cls.forward
        return own_class(module, cls.replaces) is None or keeps_forward(module)

    def _add_quantizers(self, plan: LayerPlan, what: str) -> None:
        """Make the quantizers of ``plan``. Raises FormatError for roles the layer does not have."""
        roles = roles_of(self.own if isinstance(self, OwnForward) else None, self.quant_roles)
        for role in ROLES:
            spec = getattr(plan, role)
            if spec is not None and role not in roles:
                raise FormatError(f"{what}: a {self.replaces.__name__} has no {role} to hold '{spec}'")
            if role == "bias" and self._parameters.get("bias") is None:
                spec = None  # a rule for many layers names the bias of those that have one
            made = None if spec is None else self._quantizer(role, spec, f"{what}: {role}")
            if isinstance(made, Quantizer) and role in self.pruned_roles():
                require_zero(made.format, f"{what}: {role}")
            self.register_module(f"{role}_quantizer", made)
        bias = self.bias_quantizer
        if isinstance(bias, Int32Bias):
            if not self.is_integer:
                raise FormatError(
                    f"{what}: bias int32 counts in steps of the products; weight and input must be intW of 2 to 8 "
                    f"bits, per tensor or channel, got {plan.weight} and {plan.input}"
                )
            assert plan.input is not None  # an integer layer has one
            if plan.input.calibration is None:
                raise FormatError(
                    f"{what}: bias int32 needs an input scale that is fixed; calibrate the input, as "
                    f"'{plan.input.format}@minmax' does"
                )

    def pruned_roles(self) -> list[str]:
        """Return the roles of the parameters that have masks.

        Returns:
            Names of roles.
        """
        own = self._modules.get("masks")
        return own.names() if isinstance(own, Masks) else []

    def _quantizer(self, role: str, spec: Spec, what: str) -> nn.Module:
        if is_int32(spec):
            if role != "bias":
                raise FormatError(f"{what}: 'int32' is for a bias only")
            return Int32Bias(spec, what=what)
        return Quantizer(spec, axis=self._axis(role), what=what)

    def _axis(self, role: str) -> int:
        return -1

    @property
    def weight(self) -> Tensor:
        """The Parameter; inside a forward pass the weight as the layer multiplies it."""
        return cast("Tensor", self._read("weight", self._weight))

    @weight.setter
    def weight(self, value: Tensor) -> None:
        vars(self)["weight"] = value  # a Parameter never comes here: torch keeps those in a registry

    @weight.deleter
    def weight(self) -> None:
        self._forget("weight")

    @property
    def bias(self) -> Tensor | None:
        """The Parameter or None; inside a forward pass the bias as the layer adds it."""
        return self._read("bias", self._bias)

    @bias.setter
    def bias(self, value: Tensor | None) -> None:
        vars(self)["bias"] = value

    @bias.deleter
    def bias(self) -> None:
        self._forget("bias")

    def _forget(self, name: str) -> None:
        if name not in vars(self):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        del vars(self)[name]

    def _read(self, name: str, rounded: Callable[[], Tensor | None]) -> Tensor | None:
        """The value of ``layer.weight`` for other code; the layer itself reads :meth:`_own`."""
        registries = (self._parameters, vars(self), self._buffers)
        registry = next((registry for registry in registries if name in registry), None)
        if registry is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        held = registry[name]
        if held is None or not inside_forward(self):
            return held
        quantizer = cast("Quantizer | Int32Bias | None", self._modules.get(f"{name}_quantizer"))
        if quantizer is None or not quantizer.enabled:
            return held
        make = cast("Callable[[], Tensor]", rounded)  # what is held is not None
        if torch.is_grad_enabled():
            return guarded(make(), quantizer.what)
        return late(make, held.shape, held.dtype, held.device, quantizer.what)

    @overload
    def _own(self, name: Literal["weight"]) -> Tensor: ...
    @overload
    def _own(self, name: Literal["bias"]) -> Tensor | None: ...
    def _own(self, name: str) -> Tensor | None:
        """The weight or bias before rounding, wherever torch has put it."""
        held = self._parameters
        if name in held:
            return held[name]
        held = vars(self)
        return held[name] if name in held else getattr(self, name)  # of a parametrised layer, the class computes it

    def _own_bias(self) -> Tensor | None:
        """The bias before rounding; None for a layer that has none, or whose class has none."""
        return self._own("bias") if "bias" in self.quant_roles else None

    @property
    def plan(self) -> LayerPlan:
        """The specs of the quantizers."""
        return LayerPlan(
            **{role: None if (made := getattr(self, f"{role}_quantizer")) is None else made.spec for role in ROLES}
        )

    @property
    def is_integer(self) -> bool:
        """Whether evaluation multiplies codes: weight and input are ``intW`` of 2 to 8 bits whose scales factor out."""
        weight, x = self.weight_quantizer, self.input_quantizer
        if weight is None or x is None or not (weight.enabled and x.enabled):
            return False
        small = 2 <= weight.integer_width <= 8 and 2 <= x.integer_width <= 8
        return small and weight.granularity in ("tensor", "channel") and self._factors(x)

    def _integer_quantizers(self) -> tuple[Quantizer, Quantizer]:
        """The quantizers of weight and input of a layer that ``is_integer``."""
        weight, x = self.weight_quantizer, self.input_quantizer
        assert weight is not None and x is not None
        return weight, x

    def _factors(self, x: Quantizer) -> bool:
        """Whether the input's scales can be taken out of the sums of products."""
        return x.granularity == "tensor"

    def weight_matrix(self) -> Tensor:
        """Return the weight as it is rounded.

        Returns:
            ``[N, K]``, K being the contraction.
        """
        return self._own("weight").flatten(1)

    def set_weight_matrix(self, matrix: Tensor) -> None:
        """Overwrite the weight.

        Args:
            matrix: ``[N, K]``.
        """
        with torch.no_grad():
            held = self._own("weight")
            held.copy_(self._weight_of(matrix.to(held.dtype)))

    def put_weight_matrix(self, matrix: Tensor, memory: Callable[[Tensor], Tensor] = torch.empty_like) -> None:
        """Give the Parameter other values in memory of its own; what it held stays as it is.

        Args:
            matrix: ``[N, K]``.
            memory: function that returns a tensor of the shape, strides and dtype of another.
        """
        weight = self._own("weight")
        weight.data = memory(weight.detach()).copy_(self._weight_of(matrix.to(weight.dtype)))

    @property
    def has_codes(self) -> bool:
        """Whether the layer holds codes that were made of its weight before."""
        return _CODES in vars(self)

    def encoded_weight(self) -> PackedTensor:
        """Return the codes of a weight that has a format: those that it holds, or else those of its values.

        Returns:
            ``[N, K]``, encoded along K.

        Raises:
            NonFiniteError: for weights that are not finite.
            FormatError: as :func:`octavo.encode`.
        """
        codes = vars(self).get(_CODES)
        if isinstance(codes, PackedTensor):
            return codes
        assert self.weight_quantizer is not None  # the weight has a format
        return self.weight_quantizer.encode(self.weight_matrix().detach())

    def hold_codes(self, codes: PackedTensor) -> None:
        """Keep codes that were made of the weight, whose values are then needed no more.

        Args:
            codes: of :meth:`encoded_weight`.
        """
        vars(self)[_CODES] = codes

    @property
    def has_input_rows(self) -> bool:
        """Whether one matrix multiplies the layer's input, so that :meth:`input_rows` has vectors to give."""
        return False

    def input_rows(self, x: Tensor) -> Tensor:
        """Return the vectors that the weight matrix multiplies.

        Args:
            x: an input of the layer.

        Returns:
            ``[n, K]``.

        Raises:
            FormatError: where there are none.
        """
        raise FormatError(f"a {type(self).__name__} has no one matrix that multiplies its input; take @mse or @hqq")

    def _weight_of(self, matrix: Tensor) -> Tensor:
        """A weight from its matrix ``[N, K]``."""
        return matrix.view(self._own("weight").shape)

    def _weight(self) -> Tensor:
        """The weight as the layer multiplies it."""
        quantizer = self.weight_quantizer
        return self._own("weight") if quantizer is None else self._weight_of(quantizer(self.weight_matrix()))

    def _bias(self) -> Tensor | None:
        quantizer, bias = self.bias_quantizer, self._own_bias()
        if bias is None or quantizer is None:
            return bias
        if isinstance(quantizer, Int32Bias):
            return quantizer.simulate(bias, self._steps()) if self.is_integer else bias
        return quantizer(bias)

    def _steps(self) -> Tensor:
        """``s_x * s_w[n]`` of a static input, float32 ``[N]``."""
        weight, x = self._integer_quantizers()
        _, weight_scales = weight.integers(self.weight_matrix().detach().float())
        scales, _, _ = x.given()
        bias = self._own("bias")
        assert scales is not None and bias is not None  # as was checked when the bias got its format
        return scales.detach() * weight_scales.flatten().expand(len(bias))

    def forward(self, input: Tensor) -> Tensor:
        """Return the float layer's output, of rounded operands; in evaluation from the codes where ``is_integer``.

        Args:
            input: as for the float layer.

        Returns:
            As of the float layer.

        Raises:
            CalibrationError: where scales were to be calibrated and were not.
        """
        codes = self.is_integer and not self.training
        y = self._integer_forward(input) if codes else self._float_forward(input)
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def _float_forward(self, x: Tensor) -> Tensor:
        if self.input_quantizer is not None:
            x = self.input_quantizer(x)
        return self._multiply(x, self._weight(), self._bias())

    def _integer_forward(self, x: Tensor) -> Tensor:
        """Evaluate ``fl32(acc) * (s_x * s_w[n]) + bias``, acc being the exact integer sum of products of codes."""
        weight, given = self._integer_quantizers()
        x_codes, x_scales = given.integers(x.detach().float())
        weight_codes, weight_scales = weight.integers(self.weight_matrix().detach().float())
        # Whole numbers below 2^53: float64 sums are exact in any order.
        sums = self._multiply(x_codes, self._weight_of(weight_codes), None)
        steps = x_scales * self._along_channels(weight_scales.flatten())
        bias, quantizer = self._own_bias(), self.bias_quantizer
        if bias is not None and isinstance(quantizer, Int32Bias) and quantizer.enabled:
            whole = quantizer.integers(bias, x_scales * weight_scales.flatten().expand(len(bias)))
            y = (sums + self._along_channels(whole)).float() * steps
        else:
            y = sums.float() * steps
            if bias is not None:
                held = bias if quantizer is None or not quantizer.enabled else quantizer(bias)
                y = y + self._along_channels(held.detach().float())
        y = y.to(x.dtype)
        if torch.is_grad_enabled() and (x.requires_grad or self._own("weight").requires_grad):
            return Valued.apply(self._float_forward(x), y)
        return y

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _along_channels(self, values: Tensor) -> Tensor:
        """Shape ``[N]`` or ``[1]`` so that it goes along the output's channels."""
        return values


def copied_as(cls: type[M], module: nn.Module) -> M:
    """Return a module of another class with the parameters, submodules, hooks and attributes of ``module``.

    The registries are shallow copies: the same Parameters and hooks, in a module of its own.
    """
    made = cls.__new__(cls)
    for name, held in vars(module).items():
        made.__dict__[name] = copy.copy(held) if isinstance(held, dict | OrderedDict | set) else held
    return made
