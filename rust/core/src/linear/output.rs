//! The ends of a product: inputs widened to float32, outputs rounded to their dtype.

use std::borrow::Cow;

use crate::codec::{DType, Dst, Values, ValuesMut};
use crate::error::{Result, ShapeError};
use crate::huge_pages;
use crate::pool;
use crate::simd::Level;

/// Bytes of outputs that hold a huge page wherever they lie.
const LARGE: usize = 4 << 20;
/// Rows that one thread widens at a time.
const ROWS: usize = 16;

/// Rows of float32, filled with zeros up to a multiple of a step.
pub(super) struct Inputs<'a> {
    values: Cow<'a, [f32]>,
    /// Values from one row to the next.
    pub(super) stride: usize,
    /// What they were, or a smaller dtype that holds them all.
    pub(super) dtype: DType,
}

impl<'a> Inputs<'a> {
    /// `m` rows of `k` values; float32 of whole steps is borrowed, everything else copied.
    pub(super) fn new(x: Values<'a>, m: usize, k: usize, step: usize, level: Level) -> Result<Self> {
        let (stride, dtype) = (k.next_multiple_of(step), x.src().dtype);
        if let Values::F32(x) = x
            && stride == k
        {
            return Ok(Self { values: Cow::Borrowed(x), stride, dtype: DType::F32 });
        }
        let mut values = crate::codec::zeroed::<f32>(m * stride)?;
        pool::for_each_chunk(&mut values, (ROWS * stride).max(1), |part, values| {
            for (i, to) in values.chunks_mut(stride).enumerate() {
                // SAFETY: one of the `m` rows of `k` values, whose number the caller has checked.
                unsafe { x.src().widen((part * ROWS + i) * k, &mut to[..k], level) };
            }
        })?;
        Ok(Self { values: Cow::Owned(values), stride, dtype })
    }

    /// The same of float32 values that are given away: nothing is copied where rows are whole steps.
    pub(super) fn owned(values: Vec<f32>, m: usize, k: usize, step: usize, level: Level) -> Result<Inputs<'static>> {
        let (stride, dtype) = (k.next_multiple_of(step), DType::F32);
        let values = match stride == k {
            true => values,
            false => Inputs::new(Values::F32(&values), m, k, step, level)?.values.into_owned(),
        };
        Ok(Inputs { values: Cow::Owned(values), stride, dtype })
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.stride]
    }
}

/// Biases of `n` rows of weights as float32; none where there are none.
///
/// # Errors
/// [`crate::Error::Shape`] where there are more or fewer.
pub(super) fn widened_bias(bias: Option<Values<'_>>, n: usize, level: Level) -> Result<Vec<f32>> {
    match bias {
        Some(bias) if bias.len() != n => Err(ShapeError::Bias { got: bias.len(), rows: n }.into()),
        Some(bias) => widened(bias, level),
        None => Ok(Vec::new()),
    }
}

/// A vector of biases as float32.
pub(super) fn widened(bias: Values<'_>, level: Level) -> Result<Vec<f32>> {
    let mut wide = crate::codec::zeroed::<f32>(bias.len())?;
    // SAFETY: the whole of the buffer.
    unsafe { bias.src().widen(0, &mut wide, level) };
    Ok(wide)
}

/// A matrix of outputs that threads write panels of columns of.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    pub(super) dst: Dst,
    pub(super) columns: usize,
    /// The row that is called 0.
    pub(super) first: usize,
    level: Level,
}

impl Outputs {
    pub(super) fn new(out: &mut ValuesMut<'_>, columns: usize, level: Level) -> Self {
        let bytes = out.len() * out.dst().dtype.bytes();
        if bytes >= LARGE {
            // Fresh memory faults once in 2 MiB then, instead of in 4 KiB.
            huge_pages::advise(out.dst().raw().addr(), bytes);
        }
        Self { dst: out.dst(), columns, first: 0, level }
    }

    /// The same matrix without its first rows.
    pub(super) const fn after(self, first: usize) -> Self {
        Self { first: self.first + first, ..self }
    }

    /// Writes values to `row`, from `column` on, rounded once. Beyond the dtype's range lies infinity.
    ///
    /// # Safety
    /// The matrix that these outputs were made of must be alive and have the row; the values must lie inside it, and nobody
    /// else may use them meanwhile.
    pub(super) unsafe fn write(&self, row: usize, column: usize, values: &[f32]) {
        let at = (self.first + row) * self.columns + column;
        // SAFETY: as the caller promises.
        unsafe { self.dst.narrow(at, values, self.level) };
        // `narrow` saturates, as codecs do.
        let most = match self.dst.dtype {
            DType::F32 => return,
            DType::F16 => 65_520.0,
            DType::BF16 => f32::from_bits(0x7f7f_8000),
        };
        // All of them: a loop that may end early is not vectorized.
        if values.iter().fold(false, |any, v| any | (v.abs() >= most)) {
            for (i, &v) in values.iter().enumerate().filter(|(_, v)| v.abs() >= most) {
                let infinity = if self.dst.dtype == DType::F16 { 0x7c00 } else { 0x7f80 };
                let bits = infinity | (v.to_bits() >> 16 & 0x8000) as u16;
                // SAFETY: as the caller promises.
                unsafe { self.dst.raw().cast::<u16>().add(at + i).write_unaligned(bits) };
            }
        }
    }
}

/// Outputs to which a bias is added, if there is one.
#[derive(Clone, Copy)]
pub(super) struct Biased<'a> {
    pub(super) out: Outputs,
    pub(super) bias: &'a [f32],
}

impl<'a> Biased<'a> {
    /// Outputs with `bias` for each column, which may be empty.
    pub(super) const fn new(out: Outputs, bias: &'a [f32]) -> Self {
        Self { out, bias }
    }

    /// The same without their first rows.
    pub(super) const fn after(self, first: usize) -> Self {
        Self { out: self.out.after(first), ..self }
    }

    /// As [`Outputs::write`], biases added to the values first.
    ///
    /// # Safety
    /// As for [`Outputs::write`].
    pub(super) unsafe fn write(&self, row: usize, column: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias.get(column..column + values.len()) {
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        // SAFETY: as the caller promises.
        unsafe { self.out.write(row, column, values) };
    }
}
