//! GPTQ and fitted scales on addresses. `octavo.quant.algorithms` is the only caller.

use octavo_core::Format as CoreFormat;
use octavo_core::solve::{Block, ScaleTable, fit_scales, gptq_block};
use octavo_core::{Error, Result};
use pyo3::prelude::*;

use crate::err::enter;
use crate::format::Format;
use crate::raw::{Memory, apart, slice, slice_mut};

/// Addresses of scales and int32 zero points, 0 for a part that the format does not have, and nvfp4's tensor scale.
type Table = (usize, usize, f32);

/// Bytes of the scales of `groups` groups, and how many zero points they have.
fn table_sizes(format: CoreFormat, groups: usize) -> Result<(usize, usize)> {
    let bytes = format.scale_type().map_or(0, |kind| kind.bytes() * format.scales_per_group());
    Ok((count(groups, bytes)?, if format.has_zeros() { groups } else { 0 }))
}

/// The memory of scales and zero points.
fn table_memory((scales, zeros, _): Table, (bytes, points): (usize, usize)) -> [Memory; 2] {
    [Memory::new("scales", scales, bytes), Memory::of::<i32>("zeros", zeros, points)]
}

/// Scales and zero points, to write.
///
/// # Safety
/// As for [`slice_mut`].
unsafe fn table<'a>((scales, zeros, tensor): Table, (bytes, points): (usize, usize)) -> Result<ScaleTable<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(ScaleTable {
            scales: slice_mut(scales, bytes, "scales")?,
            zeros: slice_mut(zeros, points, "zeros")?,
            tensor,
        })
    }
}

fn count(rows: usize, each: usize) -> Result<usize> {
    rows.checked_mul(each).ok_or_else(|| Error::shape(format!("{rows} times {each} values overflow the address space")))
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
        let (all, square) = (count(rows, columns)?, count(columns, columns)?);
        let sizes = table_sizes(format.0, count(rows, groups)?)?;
        let [to_scales, to_zeros] = table_memory(scales, sizes);
        let written = [
            Memory::of::<f32>("values", values, all),
            Memory::of::<f32>("errors", errors, all),
            Memory::of::<f64>("loss", loss, rows),
            to_scales,
            to_zeros,
        ];
        let read = [
            Memory::of::<f32>("feedback", feedback, square),
            Memory::of::<f32>("weights", weights, columns),
            Memory::of::<u32>("groups", column_groups, columns),
        ];
        apart(&written, &read)?;
        // SAFETY: `gptq.py` makes contiguous tensors of these sizes itself and keeps them alive; what is written is apart
        // from the rest.
        unsafe {
            let block = Block {
                values: slice_mut(values, all, "values")?,
                errors: slice_mut(errors, all, "errors")?,
                feedback: slice(feedback, square, "feedback")?,
                weights: slice(weights, columns, "weights")?,
                groups: slice(column_groups, columns, "groups")?,
                loss: slice_mut(loss, rows, "loss")?,
            };
            gptq_block(format.0, choice.parse()?, groups, block, table(scales, sizes)?)
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
        let (all, each) = (count(rows, k)?, if weights == 0 { 0 } else { k });
        let sizes = table_sizes(format.0, groups)?;
        let read = [Memory::of::<f32>("x", x, all), Memory::of::<f32>("weights", weights, each)];
        apart(&table_memory(scales, sizes), &read)?;
        // SAFETY: as in `gptq`, of `hqq.py`, too.
        unsafe {
            let (x, weights) = (slice(x, all, "x")?, slice(weights, each, "weights")?);
            fit_scales(format.0, x, rows, weights, power, iterations, table(scales, sizes)?)
        }
    })
}
