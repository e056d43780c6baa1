//! GPTQ and fitted scales on addresses. `octavo.quant.algorithms` is the only caller.

use octavo_core::Format as CoreFormat;
use octavo_core::Result;
use octavo_core::solve::{Block, ScaleTable, fit_scales, gptq_block};
use pyo3::prelude::*;

use crate::err::enter;
use crate::format::Format;
use crate::raw::{slice, slice_mut};

/// Addresses of scales and int32 zero points, 0 for a part that the format does not have, and nvfp4's tensor scale.
type Table = (usize, usize, f32);

/// Safety: as for [`slice_mut`].
unsafe fn table<'a>(format: CoreFormat, (scales, zeros, tensor): Table, groups: usize) -> Result<ScaleTable<'a>> {
    let bytes = format.scale_type().map_or(0, |kind| kind.bytes() * format.scales_per_group());
    // SAFETY: forwarded.
    unsafe {
        Ok(ScaleTable {
            scales: slice_mut(scales, groups * bytes, "scales")?,
            zeros: slice_mut(zeros, if format.has_zeros() { groups } else { 0 }, "zeros")?,
            tensor,
        })
    }
}

/// Rounds the columns of a block of `rows` rows in order, feeding errors back; all addresses are of contiguous tensors.
#[pyfunction]
#[pyo3(name = "_gptq_block")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn gptq(
    py: Python<'_>,
    format: &Format,
    choice: &str,
    rows: usize,
    columns: usize,
    groups: usize,
    values: usize,
    errors: usize,
    feedback: usize,
    weights: usize,
    column_groups: usize,
    loss: usize,
    scales: Table,
) -> PyResult<()> {
    enter(py, || {
        // SAFETY: the caller passes tensors of these sizes and keeps them alive.
        unsafe {
            let block = Block {
                values: slice_mut(values, rows * columns, "values")?,
                errors: slice_mut(errors, rows * columns, "errors")?,
                feedback: slice(feedback, columns * columns, "feedback")?,
                weights: slice(weights, columns, "weights")?,
                groups: slice(column_groups, columns, "groups")?,
                loss: slice_mut(loss, rows, "loss")?,
            };
            gptq_block(format.0, choice.parse()?, groups, block, table(format.0, scales, rows * groups)?)
        }
    })
}

/// Improves scales for x of `rows` rows of `k` values; `weights` is 0 or the address of one for each column.
#[pyfunction]
#[pyo3(name = "_fit_scales")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn fit(
    py: Python<'_>,
    format: &Format,
    rows: usize,
    k: usize,
    groups: usize,
    x: usize,
    weights: usize,
    power: f32,
    iterations: usize,
    scales: Table,
) -> PyResult<()> {
    enter(py, || {
        // SAFETY: as in `gptq`.
        unsafe {
            let x = slice(x, rows * k, "x")?;
            let weights = slice(weights, if weights == 0 { 0 } else { k }, "weights")?;
            fit_scales(format.0, x, rows, weights, power, iterations, table(format.0, scales, groups)?)
        }
    })
}
