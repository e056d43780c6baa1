"""FormatSchedule: formats that change while a model is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from octavo.errors import FormatError, ModelError
from octavo.nn.masks import require_zero
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.quant.activation_scales import range_of, scales_of
from octavo.quant.apply_recipe import calibrate_weight
from octavo.quant.weight_scales import weight_scales
from octavo.recipe.rule import read_spec
from octavo.recipe.spec import Spec
from octavo.storage.arguments import checks_arguments

ROLES = ("weight", "input", "output")


class FormatSchedule:
    """Formats by training step.

    From each step on, the quantizers of ``roles`` in every quantized layer round to that format; a role that a layer
    keeps in float stays so. Before the first of the steps nothing changes. A fixed scale of an activation goes on to
    cover the range it covered, and learned scales stay the Parameter they were.

    ``octavo.train.train(..., callbacks=[schedule])`` calls it before every update. In a loop of your own, call
    ``schedule.step(model)`` before every update. It looks at the step and at the model alone: a run that goes on from a
    checkpoint equals one that never stopped.

    Args:
        formats: format by step, from 0; texts such as ``int4:g32`` or ``int4:g32@mse``. Calibrations choose from the
            weight as it is at that step.
        roles: ``weight``, ``input``, ``output`` and ``bias``.

    Raises:
        FormatError: for an unknown format, and where learned scales would have to change their number.
        ModelError: when it is called, for a model without such quantizers.

    Example:
        >>> schedule = octavo.quant.FormatSchedule({0: "int8", 500: "int6", 1000: "int4:g32"})
        >>> [str(schedule.at(step)) for step in (0, 499, 500, 2000)]
        ['int8', 'int8', 'int6', 'int4:g32']
    """

    @checks_arguments
    def __init__(self, formats: Mapping[int, str | Spec], *, roles: Sequence[str] = ("weight",)) -> None:
        """Read the formats."""
        if not formats:
            raise FormatError("a schedule needs a format, such as {0: 'int8', 500: 'int4'}")
        unknown = [role for role in roles if role not in ROLES]
        if unknown or isinstance(roles, str):
            raise FormatError(f"roles are {roles!r}; accepted are sequences of {', '.join(ROLES)}")
        self.roles, self.steps_made = tuple(roles), 0
        self._specs: dict[int, Spec] = {}
        for step, value in sorted(formats.items()):
            if not isinstance(step, int) or step < 0:
                raise FormatError(f"a schedule's steps are whole numbers from 0, got {step!r}")
            spec = read_spec(value)
            if spec is None or (spec.calibration and spec.calibration.method in ("gptq", "hqq")):
                raise FormatError(f"step {step}: {value!r}; accepted are formats and formats with minmax, mse or kl")
            self._specs[step] = spec

    @checks_arguments
    def at(self, step: int) -> Spec | None:
        """Return the format of a step.

        Args:
            step: number of the update, from 0.

        Returns:
            The format; None before the first.
        """
        reached = [start for start in self._specs if start <= step]
        return self._specs[reached[-1]] if reached else None

    @checks_arguments
    def step(self, model: nn.Module) -> None:
        """Give a model the formats of the next step, beginning with step 0.

        Args:
            model: quantized; it is changed in place.

        Raises:
            ModelError: for a model without quantizers of these roles.
            FormatError: where learned scales would have to change their number.
        """
        self(model, self.steps_made)

    def __call__(self, model: nn.Module, step: int) -> None:
        """Give ``model`` the formats of ``step``; nothing changes where it has them."""
        self.steps_made = step + 1
        spec = self.at(step)
        if spec is None:
            return
        quantizers = list(self._quantizers(model))
        if not quantizers:
            raise ModelError(
                f"the model has no quantized layer with a format for {' or '.join(self.roles) or 'no role'}, which "
                "FormatSchedule would change; pass what octavo.quantize_model returned"
            )
        for layer, role, quantizer in quantizers:
            if quantizer.format != spec.format:
                if role in layer.pruned_roles():
                    require_zero(spec.format, quantizer.what)
                _change(layer, role, quantizer, spec)

    def _quantizers(self, model: nn.Module) -> Iterator[tuple[QuantLayer, str, Quantizer]]:
        for layer in model.modules():
            if isinstance(layer, QuantLayer):
                for role in self.roles:
                    quantizer = getattr(layer, f"{role}_quantizer")
                    if quantizer is not None:
                        yield layer, role, quantizer


def _change(layer: QuantLayer, role: str, quantizer: Quantizer, spec: Spec) -> None:
    if quantizer.is_learned:
        _change_learned(layer, role, quantizer, spec)
    elif role == "weight":
        quantizer.adopt(spec)
        if spec.calibration is not None:
            calibrate_weight(layer)
    elif quantizer.scales is not None and spec.format.granularity == "tensor":
        covered = range_of(quantizer.format, quantizer.scales, quantizer.zeros)
        quantizer.adopt(Spec(spec.format, quantizer.spec.calibration))
        quantizer.set_scales(*scales_of(spec.format, covered))
    else:
        quantizer.adopt(Spec(spec.format, scale=spec.scale))


def _change_learned(layer: QuantLayer, role: str, quantizer: Quantizer, spec: Spec) -> None:
    """Change the format under the same Parameter, which an optimizer holds."""
    new = Spec(spec.format, quantizer.spec.calibration)
    if role == "weight":
        scales, _, _ = weight_scales(new, layer.weight_matrix().detach(), quantizer.what)
    else:
        scale, zeros, _ = quantizer.given()
        assert scale is not None  # it is learned
        scales, _ = scales_of(spec.format, range_of(quantizer.format, scale.detach(), zeros))
    quantizer.relearn(new, scales)
