//! Rounding that keeps one bit a value for the gradient: whether it lies inside the range of its group.

use super::scale::CHUNK;
use super::segment_driver::{Seen, Shared};
use super::views::{Layout, Values, ValuesMut};
use super::{Options, check_len, lanes, quantize_into};
use crate::dtype::DType;
use crate::error::{Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::Level;

/// Bytes of the marks of a tensor, one bit a value in the order of memory; 0 where values cannot be marked: rows that run
/// along an inner axis, and rows or groups that do not end on a whole byte.
pub fn marks_len(layout: &Layout, format: Format) -> usize {
    let group = match format.granularity() {
        Granularity::Block(block) => block as usize,
        _ => 8,
    };
    let whole = layout.inner == 1 && layout.k.is_multiple_of(8) && group.is_multiple_of(8);
    if whole { layout.len() / 8 } else { 0 }
}

/// [`super::quantize`], which also marks the values whose gradient [`super::quantize_backward`] passes: bit `i % 8` of byte
/// `i / 8` for value i. [`pass_marked`] is that gradient.
///
/// # Errors
/// As for [`super::quantize`]; [`crate::Error::Shape`] where `marks` has not [`marks_len`] bytes, or that is 0.
pub fn quantize_marking(
    x: Values<'_>,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: ValuesMut<'_>,
    marks: &mut [u8],
) -> Result<()> {
    check_len(format, "marks (bytes)", marks.len(), marks_len(&layout, format))?;
    check_len(format, "marks (values)", 8 * marks.len(), layout.len())?;
    quantize_into(x, layout, format, options, out, Seen::Inside(Shared(marks.as_mut_ptr())))
}

/// Gradients of marked values; +0 for others. `out` has the dtype of `grad`.
///
/// # Errors
/// [`crate::Error::Shape`] where lengths or dtypes differ, or the number of values is no multiple of 8.
pub fn pass_marked(grad: Values<'_>, marks: &[u8], format: Format, out: ValuesMut<'_>) -> Result<()> {
    let _state = FloatState::standard();
    let mut out = out;
    check_len(format, "grad (elements)", grad.len(), 8 * marks.len())?;
    check_len(format, "x gradient (elements)", out.len(), grad.len())?;
    let (src, dst, count) = (grad.src(), out.dst(), grad.len());
    if src.dtype != dst.dtype {
        return Err(ShapeError::Dtypes { out: dst.dtype, x: src.dtype }.into());
    }
    let level = Level::current();
    pool::for_each(count.div_ceil(CHUNK), count * src.dtype.bytes(), |chunk| {
        let start = chunk * CHUNK;
        let marks = &marks[start / 8..(start + CHUNK).min(count) / 8];
        // SAFETY: chunks are disjoint and lie inside both buffers, whose lengths were compared.
        unsafe {
            match src.dtype {
                DType::F32 => {
                    let (grad, out) = (src.f32_at(start), dst.f32_at(start));
                    lanes::pass_marked(level, grad, marks.as_ptr(), out, 8 * marks.len());
                }
                DType::F16 | DType::BF16 => {
                    let grad = src.raw().cast::<u16>().add(start);
                    let out = dst.raw().cast::<u16>().add(start);
                    for i in 0..8 * marks.len() {
                        let passed = (u16::from(marks[i / 8]) >> (i % 8) & 1).wrapping_neg();
                        out.add(i).write(grad.add(i).read() & passed);
                    }
                }
            }
        }
    })
}
