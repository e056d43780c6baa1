//! Calls for the gradients of quantizing.

use octavo_core::codec::lowered::Chooser;
use octavo_core::error::FormatError;
use octavo_core::{DType, Error, Format, Layout, Nonfinite, ScaleRule, Sizes};

use super::calls::{Encoding, addresses, check_options, flag};
use super::scales::{Scales, call};
use super::scratch::{Scratch, chunks_of_group};
use super::shape::{Shape, THREADS, UNIT, check_last};
use super::{Buffer, Parts, programs};
use crate::{Argument, Call, Result, blocks};

/// Gradient of quantizing: `grad` where x lies inside the representable range, else 0, into `out`. `given` as for
/// [`super::quantize`].
///
/// # Errors
/// As for [`super::encode`].
#[expect(clippy::too_many_arguments, reason = "one flat call, as for the others")]
pub fn gradient(
    format: Format,
    dtype: DType,
    layout: &Layout,
    grad: Buffer,
    x: Buffer,
    out: Buffer,
    given: &Parts,
    scratch: Buffer,
    how: &Encoding,
) -> Result<Vec<Call>> {
    check_last(format, layout)?;
    check_options(format, how)?;
    let sizes = Sizes::new(format, layout)?;
    for (buffer, what) in [(grad, "grad"), (x, "x"), (out, "x gradient")] {
        buffer.check(format, what, layout.len() * dtype.bytes(), dtype.bytes())?;
    }
    let scratch = Scratch::of(format, layout, &sizes, scratch)?;
    let parts = if how.given { given } else { &scratch.parts };
    parts.check(format, &sizes, false)?;
    if layout.is_empty() {
        return Ok(Vec::new());
    }
    let from_absmax =
        matches!(Chooser::of(format), Chooser::Symmetric { .. } | Chooser::Asymmetric { .. } | Chooser::Affine { .. });
    let free = !how.given && (from_absmax || how.rule == ScaleRule::Ceil);
    let policy = Nonfinite::Saturate;
    let scales = Scales { format, dtype, layout, sizes: &sizes, x, parts, scratch: &scratch, rule: how.rule, policy };
    let mut calls = if free || how.given { Vec::new() } else { scales.all(false)? };
    let shape = Shape::new(format, layout, &sizes, false);
    let wide = [grad, x, out].iter().all(|b| b.is_aligned(16, shape.rows, shape.k * dtype.bytes()));
    let mut arguments = addresses(&[
        grad.address,
        x.address,
        parts.scales.address,
        parts.zeros.address,
        parts.levels.address,
        out.address,
    ]);
    let [rows, k, _, groups_per_row, zeros_row] = shape.arguments();
    arguments.extend([rows, k, groups_per_row, zeros_row, flag(wide), flag(free)]);
    let grid = blocks(shape.units(UNIT), THREADS.into())?;
    calls.push(call(&programs::gradient(format, dtype), "gradient", grid, THREADS, arguments));
    Ok(calls)
}

/// Gradient of given scales (LSQ), float32, one for each scale of `intW` or calibrated `fixedW`. Sums have an order of their
/// own, so that the last bit may differ from the processor's.
///
/// # Errors
/// As for [`gradient`]; `octavo_core::Error::Format` where the scales of the format do not learn, or none are given.
#[expect(clippy::too_many_arguments, reason = "one flat call, as for the others")]
pub fn scale_gradient(
    format: Format,
    dtype: DType,
    layout: &Layout,
    grad: Buffer,
    x: Buffer,
    out: Buffer,
    given: &Parts,
    scratch: Buffer,
    how: &Encoding,
) -> Result<Vec<Call>> {
    check_last(format, layout)?;
    if !programs::learns(format) || !how.given {
        return Err(Error::from(FormatError::NotLearnable { format }).into());
    }
    let sizes = Sizes::new(format, layout)?;
    given.check(format, &sizes, false)?;
    for (buffer, what) in [(grad, "grad"), (x, "x")] {
        buffer.check(format, what, layout.len() * dtype.bytes(), dtype.bytes())?;
    }
    out.check(format, "scale gradient", sizes.groups * 4, 4)?;
    let scratch = Scratch::of(format, layout, &sizes, scratch)?;
    if layout.is_empty() {
        return Ok(Vec::new());
    }
    let shape = Shape::new(format, layout, &sizes, false);
    let (groups, chunks) = (sizes.groups, chunks_of_group(format, layout));
    let sizes = [groups, shape.k, shape.groups_per_row, chunks].map(|v| Argument::I64(v as i64));
    let mut summed = addresses(&[grad.address, x.address, given.scales.address, scratch.terms]);
    summed.extend(sizes);
    let mut joined = addresses(&[scratch.terms, given.scales.address, out.address]);
    joined.extend(sizes);
    let program = programs::gradient(format, dtype);
    let warps = groups as u64 * chunks as u64;
    Ok(vec![
        call(&program, "scale_sums", blocks(warps, u64::from(THREADS) / 32)?, THREADS, summed),
        call(&program, "scale_join", blocks(groups as u64, THREADS.into())?, THREADS, joined),
    ])
}
