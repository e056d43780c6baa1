//! GPTQ and fitted scales on addresses. `octavo.quant.algorithms` is the only caller.

use octavo_core::Format as CoreFormat;
use octavo_core::solve::{
    Block, ScaleTable, add_outer_products, factor, feed_back, fit_scales, gptq_block, losses, take_squares,
};
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

/// Adds the outer products of `rows` rows of float32 to the upper triangle of float64 sums `[k, k]`.
#[pyfunction]
#[pyo3(name = "_add_outer_products")]
pub(crate) fn outer_products(py: Python<'_>, rows: usize, k: usize, x: usize, sums: usize) -> PyResult<()> {
    enter(py, || {
        let (all, square) = (count(rows, k)?, count(k, k)?);
        apart(&[Memory::of::<f64>("sums", sums, square)], &[Memory::of::<f32>("x", x, all)])?;
        // SAFETY: as in `gptq`, of `calibration.py`.
        unsafe { add_outer_products(slice(x, all, "x")?, k, slice_mut(sums, square, "sums")?) }
    })
}

/// Factors a float64 matrix `[k, k]` in place, its upper triangle; false where it is not positive definite.
#[pyfunction]
#[pyo3(name = "_factor")]
pub(crate) fn factored(py: Python<'_>, k: usize, h: usize) -> PyResult<bool> {
    enter(py, || {
        let square = count(k, k)?;
        // SAFETY: as in `gptq`.
        unsafe { factor(slice_mut(h, square, "h")?, k) }
    })
}

/// Adds to `columns` columns of values `[rows, columns]`, which begin at column `start` of k, what the errors of earlier
/// columns feed back.
#[pyfunction]
#[pyo3(name = "_feed_back")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn fed_back(
    py: Python<'_>,
    rows: usize,
    k: usize,
    start: usize,
    columns: usize,
    values: usize,
    errors: usize,
    feedback: usize,
) -> PyResult<()> {
    enter(py, || {
        let (own, all, square) = (count(rows, columns)?, count(rows, k)?, count(k, k)?);
        let read = [Memory::of::<f32>("errors", errors, all), Memory::of::<f32>("feedback", feedback, square)];
        apart(&[Memory::of::<f32>("values", values, own)], &read)?;
        // SAFETY: as in `gptq`.
        unsafe {
            let (errors, feedback) = (slice(errors, all, "errors")?, slice(feedback, square, "feedback")?);
            feed_back(slice_mut(values, own, "values")?, errors, feedback, k, start)
        }
    })
}

/// Writes what each row of errors costs to `loss`, float64.
#[pyfunction]
#[pyo3(name = "_losses")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn lost(
    py: Python<'_>,
    rows: usize,
    k: usize,
    errors: usize,
    feedback: usize,
    costs: usize,
    damping: f64,
    loss: usize,
) -> PyResult<()> {
    enter(py, || {
        let (all, square) = (count(rows, k)?, count(k, k)?);
        let read = [
            Memory::of::<f32>("errors", errors, all),
            Memory::of::<f32>("feedback", feedback, square),
            Memory::of::<f32>("costs", costs, k),
        ];
        apart(&[Memory::of::<f64>("loss", loss, rows)], &read)?;
        // SAFETY: as in `gptq`.
        unsafe {
            let (errors, feedback) = (slice(errors, all, "errors")?, slice(feedback, square, "feedback")?);
            losses(errors, feedback, slice(costs, k, "costs")?, damping, slice_mut(loss, rows, "loss")?)
        }
    })
}

/// Takes `factor` times the sum of squares of each row from `loss`, float64.
#[pyfunction]
#[pyo3(name = "_take_squares")]
pub(crate) fn squares_taken(
    py: Python<'_>,
    rows: usize,
    k: usize,
    errors: usize,
    factor: f64,
    loss: usize,
) -> PyResult<()> {
    enter(py, || {
        let all = count(rows, k)?;
        apart(&[Memory::of::<f64>("loss", loss, rows)], &[Memory::of::<f32>("errors", errors, all)])?;
        // SAFETY: as in `gptq`.
        unsafe { take_squares(slice(errors, all, "errors")?, k, factor, slice_mut(loss, rows, "loss")?) }
    })
}
