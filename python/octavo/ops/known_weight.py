"""Products of layers past torch's dispatcher: the operands of a layer are checked once, then recognized."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from octavo import _core
from octavo.ops._checks import given_parts
from octavo.ops._direct import is_plain
from octavo.ops._operands import INTEGER_BIASES, addresses, check_scales, checked_bias, weight_specs
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import FLOATS, Parts

Rounding: TypeAlias = tuple[str, str | None]
"""Format of inputs, and the rule that chooses their scales as in :func:`octavo.quantize`; None where integers are
multiplied, whose product chooses them."""


def known_weight(
    format: str, rows: int, columns: int, parts: Parts, bias: Tensor | None, rounding: Rounding | None,
    input_scales: tuple[Tensor | None, Tensor | None, Tensor | None], read: tuple[Tensor | None, ...],
) -> _core._KnownWeight | None:  # fmt: skip
    """Check the operands of a product; what is returned multiplies with them for as long as they are these.

    ``format``, ``rows``, ``columns``, ``parts``: the weight. ``bias``: ``[rows]``. ``rounding``: that of inputs.
    ``input_scales``: fixed scales, zeros and levels of inputs, or None each. ``read``: what the product reads.

    Returns None where a kernel cannot read them as they are. Raises ShapeError and DTypeError as the operators do.
    """
    if not is_plain(read) or (bias is not None and not bias.is_contiguous()):
        return None
    inputs, name = None, "packed_linear"
    if rounding is not None:
        input_text, rule = rounding
        input_format = core(input_text)
        if input_scales[0] is not None and input_format.granularity != "tensor":
            return None  # as many scales as this call has rows
        name = "integer_linear" if rule is None else "rounded_linear"
        if rule is None and input_scales[0] is not None:
            check_scales(input_scales[0], 1, input_text)
        scales, stored = given_parts(input_format, (1, columns), -1, *input_scales)
        if any(all(part is not tensor for tensor in input_scales) for part in stored):
            return None  # in another dtype
        inputs = input_format, rule, scales
    fmt, specs = weight_specs(format, rows, columns)
    at, added = addresses(parts, specs, format, rows, columns), None
    if bias is not None:
        bias, code = checked_bias(bias, rows, INTEGER_BIASES if name == "integer_linear" else FLOATS, name)
        added = bias.data_ptr(), code
    return _core._KnownWeight(fmt, rows, columns, at, added, inputs, rounding, read, tuple(FLOATS))
