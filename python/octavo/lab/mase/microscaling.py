"""MASE's microscaling formats: `mxint`, `mxfp` and the tile-wise `mxint_hardware`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.lab.mase._common import blocks_along, check_integer, check_tensor, straight_through
from octavo.lab.mase.minifloat_codes import compose_minifloat_component, extract_minifloat_component

QUANTILES = (1.0, 0.995, 0.99, 0.97, 0.95, 0.93, 0.90, 0.80, 0.70, 0.60, 0.50)
"""Quantiles of a block's magnitudes that `quantile_search` tries in place of the maximum."""


def mxint_quantizer(
    x: Tensor,
    block_size: int,
    element_bits: int,
    block_dim: int = -1,
    scale_bits: int = 8,
    quantile_search: bool = False,
) -> Tensor:
    """Round to integers of `element_bits` under a power-of-two scale `2^ceil(log2 absmax)` per block.

    `x`: at least one dimension, float dtype; the arithmetic stays in that dtype. Returns a tensor like `x`.
    Blocks run along `block_dim` after the other dimensions are flattened, so they may straddle rows; the number of
    elements must be a multiple of `block_size`. The scale leaves 2^(element_bits-1) steps below 1, so a positive
    maximum that is a power of two saturates. Blocks with an infinity, a NaN or a maximum above 2^127 become NaN.
    `quantile_search` takes, for every block, the one of `QUANTILES` with the least squared error.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `mxint_quantizer`; FORMATS.md, section 6.
    """
    name = "mxint_quantizer"
    blocks_along(name, x, block_dim, block_size)
    check_integer(name, "element_bits", element_bits, 2, 24)
    check_integer(name, "scale_bits", scale_bits, 2, 8)

    def quantize(x: Tensor) -> Tensor:
        blocks, unblock = blocks_along(name, x, block_dim, block_size)
        if not quantile_search:
            return unblock(_round_mxint(blocks, blocks.abs().amax(dim=1, keepdim=True), element_bits, scale_bits))
        quantiles = torch.tensor(QUANTILES, device=x.device)
        largest = blocks.abs().float().quantile(quantiles, dim=1, keepdim=True).to(x.dtype)  # (quantiles, blocks, 1)
        tried = _round_mxint(blocks, largest, element_bits, scale_bits)
        # MASE measures the error against blocks in memory order, whatever `block_dim` says.
        error = torch.linalg.vector_norm(tried - x.reshape(-1, block_size), dim=-1)
        return unblock(tried[error.argmin(dim=0), torch.arange(len(blocks), device=x.device)])

    return straight_through(x, quantize)


def mxint8_dequantize(codes: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Decode MXINT8 by mase-cuda's rule, bit for bit: a bfloat16 is put together of sign, scale and six bits.

    `codes`: int8 `[..., N]`; `scales`: uint8 `[..., N / group_size]`, exponents with a bias of 127. Returns bfloat16
    `[..., N]`. The six low bits of the magnitude become the fraction. Where bit `0x40` is set it is the leading one
    that bfloat16 implies, and the number is right as it stands. Elsewhere the implied one is too much, and the same
    number with fraction 0, the bias, is taken off. Code -128 has magnitude bits 0 and decodes to 0; at scale code 0
    nothing is implied, so that codes with bit `0x40` lose it.

    Raises DTypeError, ShapeError. Source: mase-cuda `dequantize1d`; FORMATS.md, section 7.
    """
    for name, tensor, dtype in (("codes", codes, torch.int8), ("scales", scales, torch.uint8)):
        if tensor.dtype != dtype:
            raise DTypeError(f"mxint8_dequantize: {name} has dtype {tensor.dtype}; accepted is {dtype}")
    wanted = (*codes.shape[:-1], codes.shape[-1] // group_size if group_size > 0 else 0)
    if group_size < 1 or codes.shape[-1] % group_size or tuple(scales.shape) != wanted:
        raise ShapeError(
            f"mxint8_dequantize: scales have shape {tuple(scales.shape)}, codes {tuple(codes.shape)}, groups "
            f"{group_size}; accepted are codes [..., N] and scales [..., N / group_size]"
        )
    code = codes.to(torch.int32)
    magnitude = code.abs()
    exponent = scales.to(torch.int32).repeat_interleave(group_size, -1) << 7
    base = exponent - (code < 0).to(torch.int32) * 0x8000  # in two's complement: the sign bit of a 16-bit number
    value = (base | (magnitude & 0x3F) << 1).to(torch.int16).view(torch.bfloat16)
    bias = base.to(torch.int16).view(torch.bfloat16)
    return torch.where(magnitude & 0x40 != 0, value, value - bias)


def mxfp_quantizer(
    x: Tensor,
    block_size: int,
    element_exp_bits: int,
    element_frac_bits: int,
    block_dim: int = -1,
    scale_exp_bits: int = 8,
) -> Tensor:
    """Round to minifloats under a power-of-two scale per block, with MASE's faulty element encoder.

    `x`: at least one dimension, float dtype, computed in float32. Returns a tensor like `x`. Blocks as in
    `mxint_quantizer`. The faults, described at `extract_minifloat_component`, cost 4 to 11 dB.
    Blocks with infinities or NaN are undefined in MASE and unspecified here.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `mxfp_quantizer`; FORMATS.md, section 6.
    """
    name = "mxfp_quantizer"
    blocks_along(name, x, block_dim, block_size)

    def quantize(x: Tensor) -> Tensor:
        _, unblock = blocks_along(name, x, block_dim, block_size)
        scales, elements = extract_mxfp_components(
            x, block_size, element_exp_bits, element_frac_bits, block_dim, scale_exp_bits
        )
        values = compose_minifloat_component(elements, element_exp_bits, element_frac_bits)
        scale_bias = 2 ** (scale_exp_bits - 1) - 1
        return unblock(values * 2.0 ** (scales.to(torch.float32) - scale_bias)).to(x.dtype)

    return straight_through(x, quantize)


def extract_mxfp_components(
    x: Tensor,
    block_size: int,
    element_exp_bits: int,
    element_frac_bits: int,
    block_dim: int = -1,
    scale_exp_bits: int = 8,
) -> tuple[Tensor, Tensor]:
    """Scale codes (blocks, 1), uint8, and element codes (blocks, block_size), uint16, of `mxfp_quantizer`.

    Arguments and errors as there. The scale is `2^(floor(log2 absmax) - emax)` with emax = 2^(element_exp_bits-1),
    the highest exponent when every code is finite; its code is clipped to 0 .. 2^scale_exp_bits-1.
    Source: MASE `extract_mxfp_components`.
    """
    name = "extract_mxfp_components"
    check_integer(name, "element_exp_bits", element_exp_bits, 1, 8)
    check_integer(name, "scale_exp_bits", scale_exp_bits, 2, 8)
    blocks, _ = blocks_along(name, x, block_dim, block_size)
    blocks = blocks.detach().to(torch.float32)
    scale_bias = 2 ** (scale_exp_bits - 1) - 1
    top_exponent = 2 ** (element_exp_bits - 1)

    exponent = torch.floor(torch.log2(blocks.abs().amax(dim=1, keepdim=True))) - top_exponent
    scales = (exponent + scale_bias).clamp(0, 2**scale_exp_bits - 1).nan_to_num()
    # Subnormal inputs are flushed, even where the scale would bring them into range.
    smallest_normal = torch.finfo(torch.float32).smallest_normal
    scaled = torch.where(blocks.abs() < smallest_normal, 0.0, blocks / 2.0 ** (scales - scale_bias))
    return scales.to(torch.uint8), extract_minifloat_component(scaled, element_exp_bits, element_frac_bits)


def mxint_hardware(tensor: Tensor, q_config: Mapping[str, int], parallelism: Sequence[int]) -> Tensor:
    """Round tiles of the last two dimensions to integers with a shared exponent, as MASE's hardware does.

    `tensor`: at least one dimension, float dtype; a vector counts as one row. Returns a tensor like it, without
    gradient. `q_config` holds `width` and `exponent_width`; `parallelism` is the tile, (rows, columns) or (columns),
    and must divide the tensor. The exponent is `ceil(log2 absmax) - 2^(exponent_width-1)`, clipped to the signed range
    of `exponent_width` bits, and integers are rounded down, so small negative values become -1 step.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `mxint_hardware`.
    """
    name = "mxint_hardware"
    check_tensor(name, "tensor", tensor, least_dims=1, filled=True)
    if set(q_config) != {"width", "exponent_width"}:
        raise FormatError(f"{name}: q_config has keys {sorted(q_config)}; accepted are exponent_width and width")
    half = 2 ** (check_integer(name, "width", q_config["width"], 2, 24) - 1)
    bias = 2 ** (check_integer(name, "exponent_width", q_config["exponent_width"], 1, 8) - 1)
    tile = [1, *parallelism] if len(parallelism) == 1 else list(parallelism)
    rows, columns = (1, *tensor.shape)[-2:]
    if len(tile) != 2 or not all(isinstance(n, int) and n > 0 for n in tile) or rows % tile[0] or columns % tile[1]:
        raise ShapeError(f"{name}: parallelism {tuple(parallelism)} does not divide shape {tuple(tensor.shape)}")

    x = tensor.detach()
    tiles = x.reshape(-1, rows // tile[0], tile[0], columns // tile[1], tile[1])
    exponent = torch.ceil(torch.log2(tiles.abs().amax(dim=(2, 4), keepdim=True))) - bias
    power = 2.0 ** exponent.clamp(-bias, bias - 1)
    return (torch.floor(tiles / power).clamp(-half, half - 1) * power).reshape(x.shape)


def _round_mxint(blocks: Tensor, largest: Tensor, element_bits: int, scale_bits: int) -> Tensor:
    half = 2 ** (element_bits - 1)
    exponent = torch.ceil(torch.log2(largest.clamp(min=torch.finfo(largest.dtype).tiny)))
    elements = torch.round(blocks / 2.0**exponent * half).clamp(-half, half - 1)
    # Clipped only now: elements of a block whose scale code overflows are not rescaled to the clipped scale.
    scale_bias = 2 ** (scale_bits - 1) - 1
    scale = (exponent + scale_bias).clamp(0, 2**scale_bits - 1)
    return elements / half * 2.0 ** (scale - scale_bias)
