"""The share of a model that is quantized, and the reason why each other parameter is not."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from octavo.display.notebook import InNotebooks
from octavo.display.progress import Stages
from octavo.errors import CoverageWarning, OctavoError
from octavo.nn import PackedLayer, Quantizer
from octavo.quant.unused_layers import bypassed
from octavo.recipe import Recipe
from octavo.recipe.model_decisions import decide_sites
from octavo.recipe.note import noted_recipe
from octavo.recipe.sites import join, model_sites
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from rich.table import Table

LEAST = 0.5
"""Share of the parameters below which quantize_model warns."""

LEFT = "no format in the recipe"
"""Where the recipe cannot be asked: of a model that it is not of any more, or that is packed."""
OFF = "its quantizer is switched off"


@dataclass(frozen=True)
class TensorCoverage:
    """One parameter: ``format`` None where it stays as it is, for the ``reason``. Bytes as floats and as stored packed.

    ``bypassed``: quantized, but the model's first forward pass did not use it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str | None
    nbytes_before: int
    nbytes: int
    reason: str | None = None
    bypassed: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Coverage(InNotebooks):
    """Every parameter of a model once, however often it is shared, in the order of its modules."""

    tensors: tuple[TensorCoverage, ...]

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantized(self) -> int:
        """Number of elements that have a format."""
        return sum(tensor.elements for tensor in self.tensors if tensor.format)

    @property
    def share(self) -> float:
        """Quantized elements over all, 0 to 1."""
        return self.quantized / max(self.parameters, 1)

    @property
    def byte_share(self) -> float:
        """Bytes, before quantizing, of what is quantized over those of all, 0 to 1."""
        return sum(tensor.nbytes_before for tensor in self.tensors if tensor.format) / max(self.nbytes_before, 1)

    @property
    def nbytes_before(self) -> int:
        """Bytes of all parameters as floats."""
        return sum(tensor.nbytes_before for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters, quantized ones packed."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bypassed(self) -> tuple[str, ...]:
        """Names of quantized parameters that the model's first forward pass did not use."""
        return tuple(tensor.name for tensor in self.tensors if tensor.bypassed)

    def kept(self) -> dict[str, int]:
        """Return the elements that stayed as they were, by reason.

        Returns:
            Numbers of elements by reason, most first.
        """
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            if tensor.format is None and tensor.reason is not None:
                counts[tensor.reason] = counts.get(tensor.reason, 0) + tensor.elements
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def to_table(self) -> Table:
        """Return one row for each format and each reason, and the total.

        Returns:
            A table of rich.
        """
        from octavo.display.console import table
        from octavo.display.numbers import size

        groups: dict[str, list[TensorCoverage]] = {}
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.format is None):
            groups.setdefault(tensor.format or f"float: {tensor.reason}", []).append(tensor)
        groups["total"] = list(self.tensors)
        rows = table("what", ">tensors", ">parameters", ">share", ">bytes before", ">bytes")
        for label, tensors in groups.items():
            count = sum(tensor.elements for tensor in tensors)
            rows.add_row(
                label, f"{len(tensors):,}", f"{count:,}", f"{100 * count / max(self.parameters, 1):.1f}%",
                size(sum(tensor.nbytes_before for tensor in tensors)), size(sum(tensor.nbytes for tensor in tensors)),
            )  # fmt: skip
        return rows

    def to_json(self) -> str:
        """Return everything as JSON.

        Returns:
            A text.
        """
        totals = {name: getattr(self, name) for name in ("parameters", "quantized", "share", "byte_share")}
        totals |= {"nbytes_before": self.nbytes_before, "nbytes": self.nbytes, "kept": self.kept()}
        return json.dumps(
            {**totals, "tensors": [asdict(tensor) for tensor in self.tensors]}, indent=2, ensure_ascii=False
        )

    def summary(self) -> str:
        """Return the shares, and the reasons of tensors that stayed as they were.

        Returns:
            One sentence.
        """
        reasons = [
            f"{100 * count / max(self.parameters, 1):.1f}% {reason}" for reason, count in self.kept().items() if count
        ]
        more = f" and {len(reasons) - 4} more" if len(reasons) > 4 else ""
        rest = f"; float: {', '.join(reasons[:4])}{more}" if reasons else ""
        unused = f"; bypassed: {', '.join(self.bypassed[:4])}" if self.bypassed else ""
        return (
            f"{100 * self.share:.1f}% of the parameters ({self.quantized:,} of {self.parameters:,}) and "
            f"{100 * self.byte_share:.1f}% of the bytes are quantized{rest}{unused}"
        )

    def __str__(self) -> str:
        """Return the table as plain text, and the summary."""
        from octavo.display.console import plain_text

        return f"{plain_text(self.to_table())}\n\n{self.summary()}"


@checks_arguments
def coverage(model: nn.Module) -> Coverage:
    """Return the share of a model's parameters that is quantized, simulated or packed, and the reasons for the rest.

    Args:
        model: any model.

    Returns:
        A report that prints as a table; ``share`` and ``tensors`` are for programs.

    Raises:
        DTypeError: for an object that is no module.
        ShapeError: for parameters that have no shape yet.

    Example:
        >>> model = octavo.quantize_model(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)), "int8")
        >>> print(octavo.quant.coverage(model).summary())
        95.5% of the parameters (4,096 of 4,288) and 95.5% of the bytes are quantized; float: 3.0% LayerNorm ...
    """
    unused = set(bypassed(model))
    reasons = _reasons(model)
    tensors: dict[int, TensorCoverage] = {}
    for key, tensor in _tensors(model, reasons, unused):
        if key not in tensors or (tensors[key].format is None and tensor.format):
            tensors[key] = tensor
    return Coverage(tuple(tensors.values()))


def tell_coverage(model: nn.Module, show: Stages) -> None:
    """Tell what share of a model's parameters is quantized; warn of less than half, but not of activations alone."""
    result = coverage(model)
    message = f"{type(model).__name__}: {result.summary()}"
    if 0 < result.share < LEAST:
        more = "octavo.quant.coverage(model) lists every parameter, Recipe.explain(model) every rule"
        warnings.warn(CoverageWarning(f"{message}. {more}"), stacklevel=5)
    elif result.quantized:
        show.tell(message)


def _tensors(model: nn.Module, reasons: dict[int, str], unused: set[str]) -> Iterator[tuple[int, TensorCoverage]]:
    for path, module in model.named_modules():
        if isinstance(module, Quantizer):
            continue
        if isinstance(module, PackedLayer):
            weight = module.packed_weight
            dense = math.prod(weight.shape) * module.dtype.itemsize
            yield id(module.weight_codes), TensorCoverage(
                join(path, "weight"), tuple(weight.shape), _name(module.dtype), str(module.format), dense,
                weight.nbytes, bypassed=path in unused,
            )  # fmt: skip
            if (bias := module._buffers.get("bias")) is not None:  # int32, in steps of the products
                yield id(bias), TensorCoverage(
                    join(path, "bias"), tuple(bias.shape), _name(module.dtype), _name(bias.dtype),
                    bias.numel() * module.dtype.itemsize, bias.nbytes, bypassed=path in unused,
                )  # fmt: skip
        for name, tensor in module._parameters.items():
            if tensor is None:
                continue
            quantizer = getattr(module, f"{name}_quantizer", None) if name in ("weight", "bias") else None
            fmt = None if quantizer is None or str(quantizer.spec.format) == "fp32" else quantizer.spec.format
            off = fmt is not None and quantizer is not None and not quantizer.enabled
            fmt = None if off else fmt
            reason = (
                None
                if fmt
                else OFF
                if off
                else LEFT
                if isinstance(module, PackedLayer)
                else reasons.get(id(tensor), LEFT)
            )
            # Rows of a kernel run over all that a sum does. A rounded bias is held as it is, or as as many int32.
            if name == "bias":
                nbytes = 4 * tensor.numel() if str(fmt) == "int32" else tensor.nbytes
            else:
                nbytes = tensor.nbytes if fmt is None else fmt.nbytes(_matrix(module, tensor))
            yield id(tensor), TensorCoverage(
                join(path, name), tuple(tensor.shape), _name(tensor.dtype), str(fmt) if fmt else None, tensor.nbytes,
                nbytes, reason, path in unused and fmt is not None,
            )  # fmt: skip


def _matrix(module: nn.Module, tensor: Tensor) -> tuple[int, ...]:
    matrix = getattr(module, "weight_matrix", None)
    return tuple(tensor.shape) if matrix is None else tuple(matrix().shape)


def _reasons(model: nn.Module) -> dict[int, str]:
    """Return why each parameter may be as it was: its own problem, or what the recipe of the model says of it."""
    sites = model_sites(model)
    reasons = {id(site.tensor): site.problem or LEFT for site in reversed(sites) if site.tensor is not None}
    text = noted_recipe(model)
    if text is None or any(isinstance(module, PackedLayer) for module in model.modules()):
        return reasons
    try:
        decisions = decide_sites(Recipe.parse(text).rules, sites)
    except OctavoError:  # layers were added or taken out since
        return reasons
    of_recipe = {id(d.site.tensor): d.reason or LEFT for d in reversed(decisions) if d.site.tensor is not None}
    return reasons | of_recipe


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
