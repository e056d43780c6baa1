"""Tables of tokens with another number of rows: packed and simulated embeddings, and heads with a row for each token.

Rows that stay keep every bit; rows that come are encoded in the format of the table. Where the whole table has one
scale, that scale stays, and new rows saturate.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.ops.codec import encode
from octavo.tensors.packed_tensor import PackedTensor

_PIECE = 1 << 22  # elements of a table that are decoded at once


def rows_of(layer: nn.Module) -> int:
    """Return the number of rows of a table or head."""
    weight = layer.packed_weight if isinstance(layer, PackedLayer) else layer.weight
    assert isinstance(weight, Tensor | PackedTensor)
    return len(weight)


@torch.no_grad()
def resize_rows(layer: PackedLayer | QuantLayer, rows: int, spread: float | None) -> None:
    """Give an embedding or a linear layer another number of rows, in place, and its bias with them.

    ``spread``: new rows are drawn with this standard deviation; None: they are the mean of the others, as is the bias.
    Raises ModelError for a simulated layer whose scales are fixed.
    """
    before = rows_of(layer)
    if isinstance(layer, PackedLayer):
        weight = layer.packed_weight.to_dense()
        wanted = weight[:rows] if rows <= before else _grown(weight, rows, spread)
        counted = layer.float_bias() if layer._buffers.get("bias") is not None else None
        layer._rows, layer._weight_shape = rows, (rows, *layer._weight_shape[1:])
        layer._hold(wanted)
        if counted is not None:  # an int32 bias, which counts in steps of the scales
            layer._buffers["bias"] = torch.zeros(rows, dtype=torch.int32, device=counted.device)
            layer.set_float_bias(_resized(counted, rows, None if spread is None else 0.0))
    else:
        quantizer = layer.weight_quantizer
        if quantizer is not None and quantizer.is_static:
            raise ModelError(
                f"{quantizer.what} has fixed scales, of {before} rows; call resize_token_embeddings on the float "
                "model, then octavo.quantize_model"
            )
        values = layer._own("weight")
        layer._parameters["weight"] = _resized(values, rows, spread)
    bias = layer._parameters.get("bias")
    if bias is not None and len(bias) == before:
        layer._parameters["bias"] = _resized(bias, rows, None if spread is None else 0.0)
    for name in ("num_embeddings", "out_features"):
        if name in vars(layer):
            setattr(layer, name, rows)


def _resized(values: Tensor, rows: int, spread: float | None) -> nn.Parameter:
    """Return a Parameter with other rows."""
    made = values.detach()[:rows]
    if rows > len(values):
        made = torch.cat([made, _new_rows(values.detach().double().mean(0), rows - len(values), spread).to(values)])
    return nn.Parameter(made.clone(), requires_grad=values.requires_grad)


def _new_rows(mean: Tensor, count: int, spread: float | None) -> Tensor:
    """Return rows that are the mean, or draws around 0."""
    if spread is None:
        return mean.expand(count, *mean.shape)
    return torch.randn(count, *mean.shape, dtype=mean.dtype, device=mean.device) * spread


def _grown(weight: PackedTensor, rows: int, spread: float | None) -> PackedTensor:
    """Return a packed matrix with more rows."""
    mean = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    step = max(1, _PIECE // max(1, weight.shape[1]))
    for start in range(0, len(weight), step):
        mean += weight[start : start + step].decode(torch.float32).double().sum(0)
    added = _encoded_like(weight, _new_rows(mean / max(1, len(weight)), rows - len(weight), spread).float())
    # What all rows share, such as one scale of the tensor, is there already.
    per_row = weight.format.granularity in ("channel", "block")
    scales = torch.cat([weight.scales, added.scales]) if per_row else weight.scales
    zeros = torch.cat([weight.zeros, added.zeros]) if per_row and weight.format.core.has_zeros else weight.zeros
    codes = torch.cat([weight.codes, added.codes])
    return PackedTensor(
        weight.format, codes, scales, zeros, weight.levels,
        shape=(rows, weight.shape[1]), dtype=weight.dtype, axis=weight.axis, scale=weight.scale,
    )  # fmt: skip


def _encoded_like(weight: PackedTensor, rows: Tensor) -> PackedTensor:
    """Encode rows with the scale or the level that all rows of a packed matrix share."""
    fmt = weight.format
    if fmt.granularity == "tensor":
        zeros = weight.zeros if fmt.core.has_zeros else None
        return encode(rows, fmt, axis=1, scale=weight.scale, scales=weight.scales, zeros=zeros)
    if not fmt.core.has_levels:
        return encode(rows, fmt, axis=1, scale=weight.scale)
    # nvfp4: scales in e4m3 are of blocks over 6 times the level (FORMATS.md section 3).
    width, block = weight.scales.shape[1], fmt.core.block
    assert block is not None  # it is a block format
    padded = nn.functional.pad(rows, (0, width * block - rows.shape[1]))
    peaks = padded.view(len(rows), width, -1).abs().amax(-1)
    scales = encode(peaks / 6.0 / weight.levels, "e4m3").codes.view(len(rows), width)
    return encode(rows, fmt, axis=1, scale=weight.scale, scales=scales, levels=weight.levels)
