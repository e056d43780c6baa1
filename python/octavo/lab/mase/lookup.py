"""Layers that are look-up tables: LUTNet's truth tables and LogicNets' neurons."""

import torch
from torch import Tensor

from octavo.errors import FormatError, ShapeError
from octavo.lab.mase._common import check_integer, check_tensor
from octavo.lab.mase.integer import integer_bounds, integer_quantizer


def generate_truth_table(k: int) -> Tensor:
    """Inputs of a k-input table, shape (k, 2^k), int8 values -1 and +1; column j holds the bits of j, highest first.

    Raises FormatError unless k is 1..16. Source: MASE `generate_truth_table(k, 1)`.
    """
    check_integer("generate_truth_table", "k", k, 1, 16)
    shifts = torch.arange(k - 1, -1, -1).unsqueeze(1)
    return ((torch.arange(2**k) >> shifts & 1) * 2 - 1).to(torch.int8)


def linear_lut(x: Tensor, weight: Tensor, bias: Tensor | None, means: Tensor, input_mask: Tensor, k: int) -> Tensor:
    """A layer of k-input tables over residual signs: the entries' signs, times the level's mean, summed per output.

    `x`: (batch, inputs); `input_mask`: k input indices per table, flat, tables of one output next to each other;
    `weight`: (levels * tables, 2^k), levels outermost, of which only signs count; `bias`: (outputs) or None; `means`:
    one value per level. Returns (batch, outputs). Level l reads the signs of `x` less the levels before it; a zero
    counts as -1. MASE's scale gamma, recorded as 1, is left out, and so are its binarization levels other than 1.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `LinearLUT`, expanded, binarization_level 1.
    """
    name = "linear_lut"
    for label, tensor, dims in (("x", x, 2), ("weight", weight, 2), ("means", means, 1)):
        check_tensor(name, label, tensor, least_dims=dims, filled=True)
    check_integer(name, "k", k, 1, 16)
    levels, inputs = len(means), x.shape[-1]
    tables = input_mask.numel() // k
    if input_mask.numel() % k or tables % inputs or weight.shape != (levels * tables, 2**k):
        raise ShapeError(
            f"{name}: weight of shape {tuple(weight.shape)} and {input_mask.numel()} mask entries do not make tables "
            f"of {k} inputs for {levels} levels over {inputs} inputs"
        )
    entries = torch.sign(weight).reshape(levels, tables, 2**k)
    place = 2 ** torch.arange(k - 1, -1, -1, device=x.device)
    residual, total = x, torch.zeros(len(x), tables, dtype=x.dtype, device=x.device)
    for level, mean in enumerate(means):
        signs = torch.sign(residual)
        residual = residual - signs * mean
        column = ((signs > 0)[:, input_mask.reshape(tables, k)] * place).sum(dim=-1)  # (batch, tables)
        total += entries[level][torch.arange(tables, device=x.device), column] * mean
    outputs = total.reshape(len(x), -1, inputs).sum(dim=-1)
    return outputs if bias is None else outputs + bias


def logicnets_table(
    weight: Tensor,
    bias: Tensor | float,
    data_in_width: int,
    data_in_frac_width: int,
    data_out_width: int,
    data_out_frac_width: int,
) -> tuple[Tensor, Tensor]:
    """Every input of one sparse neuron and its output, as integers (fixed point without the point).

    `weight`: (inputs), the neuron's non-zero weights; `bias`: a scalar. Returns the inputs, shape
    (2^(data_in_width * inputs), inputs), the first input varying fastest from its lowest code, and the outputs, one per
    row, both float32. Widths and rounding as in `integer_quantizer`. At most 2^20 rows.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `LinearLogicNets`; Umuroglu et al., LogicNets.
    """
    name = "logicnets_table"
    check_tensor(name, "weight", weight, least_dims=1)
    check_integer(name, "data_in_width", data_in_width, 1, 20)
    check_integer(name, "data_in_frac_width", data_in_frac_width, -126, 126)
    inputs = weight.numel()
    if data_in_width * inputs > 20:
        raise FormatError(f"{name}: {inputs} inputs of {data_in_width} bits make 2^{data_in_width * inputs} rows")
    low, _ = integer_bounds(data_in_width, True)
    rows = torch.arange(2 ** (data_in_width * inputs), device=weight.device).unsqueeze(1)
    shifts = data_in_width * torch.arange(inputs, device=weight.device)
    codes = ((rows >> shifts & (2**data_in_width - 1)) + low).to(torch.float32)
    sums = codes / 2.0**data_in_frac_width @ weight.detach().to(torch.float32) + bias
    return codes, integer_quantizer(sums, data_out_width, data_out_frac_width) * 2.0**data_out_frac_width


def linear_logicnets(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    data_in_width: int,
    data_in_frac_width: int,
    data_out_width: int,
    data_out_frac_width: int,
) -> Tensor:
    """A linear layer whose neurons are looked up in `logicnets_table`, over their non-zero weights.

    `x`: (batch, inputs); `weight`: (outputs, inputs); `bias`: (outputs). Returns (batch, outputs) in float32, without
    gradient; equal to the layer computed in fixed point. Arguments and errors as there. Source: MASE `LinearLogicNets`.
    """
    name = "linear_logicnets"
    for label, tensor, dims in (("x", x, 2), ("weight", weight, 2), ("bias", bias, 1)):
        check_tensor(name, label, tensor, least_dims=dims)
    if x.shape[-1] != weight.shape[1] or bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"{name}: x {tuple(x.shape)}, weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit"
        )
    values = integer_quantizer(x.detach(), data_in_width, data_in_frac_width)
    low, _ = integer_bounds(data_in_width, True)
    codes = (values * 2.0**data_in_frac_width - low).long()
    outputs = []
    for row, offset in zip(weight.detach(), bias.detach(), strict=True):
        used = row.nonzero().squeeze(1)
        _, table = logicnets_table(
            row[used], offset, data_in_width, data_in_frac_width, data_out_width, data_out_frac_width
        )
        place = 2 ** (data_in_width * torch.arange(len(used), device=x.device))
        outputs.append(table[(codes[:, used] * place).sum(dim=-1)] / 2.0**data_out_frac_width)
    return torch.stack(outputs, dim=-1)
