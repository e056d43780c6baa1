//! `y = round(x) W^T + bias`: inputs rounded to a format, which layers choose.
//!
//! Definition: inputs are widened to float32 and quantized, and [`super::multiply`] multiplies them. Kernels of
//! [`Run::Codes`] multiply the codes of inputs instead: where these are small integers times the scale of a group, and the
//! processor multiplies bytes, sums of a group are computed in int32 and combined in float32; in tiles of bfloat16, which hold
//! the codes, they are as exact. It is the same product, within the same bound.

use super::float::{FloatInputs, FloatProduct};
use super::output::{Biased, Outputs, widened_bias};
use super::problem::{Batch, Input, Problem};
use super::table::{self, Run};
use super::{Matrix, check_sizes};
use crate::codec::rows::Rows;
use crate::codec::{self, DType, Layout, Nonfinite, Options, Sizes, Values, ValuesMut, zeroed};
use crate::error::Result;
use crate::float_state::FloatState;
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::Level;

/// Values that one thread widens at a time.
const PIECE: usize = 1 << 14;

/// Multiplies `m` rows of inputs, rounded to `input`, with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Inputs are rounded along their rows as [`codec::quantize`] does,
/// with its `options`, but to float32 whatever their dtype. Everything else is as for [`super::multiply`] of the rounded
/// inputs: its bound, and what a row's result depends on, but for scales of the format that belong to all rows.
///
/// # Errors
/// As for [`super::multiply`] and [`codec::quantize`].
pub fn multiply_rounded(
    x: Values<'_>,
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    out: ValuesMut<'_>,
) -> Result<()> {
    multiply_for(x, m, input, options, w, bias, out, Batch::Any)
}

/// As [`multiply_rounded`] of each row by itself: a row's result depends on that row, the weights and the SIMD level alone,
/// however many rows there are. Scales that are not given must belong to parts of a row.
///
/// # Errors
/// As for [`multiply_rounded`].
pub fn multiply_rounded_rows_independently(
    x: &[f32],
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let (x, bias, out) = (Values::F32(x), bias.map(Values::F32), ValuesMut::F32(out));
    multiply_for(x, m, input, options, w, bias, out, Batch::Independent)
}

/// [`multiply_rounded`] with results that depend on the number of rows, or not.
#[expect(clippy::too_many_arguments, reason = "those of the function that it is, and what results may depend on")]
fn multiply_for(
    x: Values<'_>,
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    mut out: ValuesMut<'_>,
    batch: Batch,
) -> Result<()> {
    let _state = FloatState::standard();
    let (n, k) = (w.rows, w.columns);
    check_sizes(m, w, x.len(), out.len())?;
    if options.given.is_some() {
        let options = Options { nonfinite: Nonfinite::Saturate, ..*options };
        codec::check_options(input, &Sizes::new(input, &Layout::new(&[m, k], -1, input)?)?, &options)?;
    }
    let problem = Problem { batch, ..Problem::new(w.format, Input::Rounded(input), m, n, k) };
    let level = problem.processor.level();
    let x = RoundedInputs { values: x, rows: m, depth: k, format: input, options, level };
    let codes = table::choose(&problem, Run::codes);
    // An error names an element of all inputs, and some scales belong to all rows; else rows are rounded as they are needed.
    let rounded = match codes {
        None if !x.rows_are_apart() || options.nonfinite == Nonfinite::Error => Some(x.round_all()?),
        _ => None,
    };
    let rows = Rows::new(w.packed, n, k, w.format, level)?;
    let bias = widened_bias(bias, n, level)?;
    let out = Biased::new(Outputs::new(&mut out, n, level), &bias);
    if let Some((_, run)) = codes {
        return run(&CodesProduct { problem, rows, x, out });
    }
    let inputs = match &rounded {
        Some(rounded) => FloatInputs::Values(Values::F32(rounded)),
        None => FloatInputs::Rounded(&x),
    };
    FloatProduct { problem, rows, inputs, out }.run()
}

/// A product whose inputs have codes, as kernels take it.
pub(super) struct CodesProduct<'a> {
    pub(super) problem: Problem,
    /// Rows of weights.
    pub(super) rows: Rows<'a>,
    pub(super) x: RoundedInputs<'a>,
    pub(super) out: Biased<'a>,
}

/// Rows of inputs that are rounded to a format.
#[derive(Clone, Copy)]
pub(super) struct RoundedInputs<'a> {
    /// The inputs before they are rounded.
    pub(super) values: Values<'a>,
    pub(super) rows: usize,
    /// Columns.
    pub(super) depth: usize,
    pub(super) format: Format,
    pub(super) options: &'a Options<'a>,
    pub(super) level: Level,
}

impl RoundedInputs<'_> {
    /// True where no scale of the format belongs to several rows.
    fn rows_are_apart(&self) -> bool {
        self.format.granularity() != Granularity::Tensor && !self.format.has_levels()
    }

    /// All rows in float32, rounded.
    ///
    /// # Errors
    /// As for [`codec::quantize`].
    pub(super) fn round_all(&self) -> Result<Vec<f32>> {
        let mut values = zeroed::<f32>(self.rows * self.depth)?;
        self.round(&mut values)?;
        Ok(values)
    }

    /// Writes all rows in float32, rounded.
    ///
    /// # Errors
    /// As for [`codec::quantize`].
    pub(super) fn round(&self, to: &mut [f32]) -> Result<()> {
        let max = match self.values.src().dtype {
            DType::F32 => f32::MAX,
            DType::F16 => 65_504.0,
            DType::BF16 => f32::from_bits(0x7f7f_0000),
        };
        pool::for_each_chunk(to, PIECE, |piece, values| {
            // SAFETY: a part of the values, whose number was checked.
            unsafe { self.values.src().widen(piece * PIECE, values, self.level) };
            if max < f32::MAX {
                // Infinities count as the largest number of their dtype.
                values.iter_mut().filter(|v| v.is_infinite()).for_each(|v| *v = max.copysign(*v));
            }
        })?;
        let layout = Layout::new(&[self.rows, self.depth], -1, self.format)?;
        codec::quantize_in_place(ValuesMut::F32(to), layout, self.format, self.options)
    }
}
