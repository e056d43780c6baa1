//! `y = x W^T + bias` in integers: inputs are quantized, codes multiplied exactly, accumulators scaled once.

use super::output::{Outputs, widened};
use super::problem::{Input, Problem};
use super::reference::{self, Added};
use super::signed_codes::{Codes, all_scales};
use super::table::{self, Run};
use super::{Matrix, check_sizes, int8_lanes, multiply_rounded};
use crate::bitpack::unpack_signed;
use crate::codec::{Layout, Options, Sizes, Values, ValuesMut, zeroed};
use crate::error::{Error, FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Element, Format, Granularity};
use crate::pool;
use crate::simd::Level;

/// Rows of weights in one unit of work.
pub(super) const PANEL: usize = 16;

/// The bias of a product.
#[derive(Clone, Copy, Debug)]
pub enum Bias<'a> {
    /// Nothing.
    None,
    /// Numbers, added to the scaled sums in float32.
    Float(Values<'a>),
    /// Integers in units of the product of both scales, added to the sums before they are scaled.
    Integer(&'a [i32]),
}

impl Bias<'_> {
    const fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Float(bias) => Some(bias.len()),
            Self::Integer(bias) => Some(bias.len()),
        }
    }
}

/// True for integers of 2 to 8 bits with a scale for each group.
const fn is_grouped(format: Format) -> bool {
    let small =
        matches!(format.element(), Element::Int { width: 2..=8, signed: true } | Element::MxInt { width: 2..=8 });
    small && matches!(format.granularity(), Granularity::Block(_))
}

/// Refuses formats that [`multiply_integer`] does not take. True where both have a scale for each group.
pub(super) fn check_formats(weight: Format, input: Format) -> Result<bool> {
    if is_grouped(weight) && is_grouped(input) {
        return Ok(true);
    }
    for (what, format) in [("weight", weight), ("input", input)] {
        let small = matches!(format.element(), Element::Int { width: 2..=8, signed: true });
        if !small || matches!(format.granularity(), Granularity::Block(_)) {
            return Err(FormatError::IntegerProduct { what, format }.into());
        }
    }
    Ok(false)
}

/// Multiplies `m` rows of inputs, quantized to `input`, with the transposed weights.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. `scales` are given input scales (float32), one or `m` of them
/// as `input` says; without them they are chosen from the inputs. With the exact sum `s` of code products and
/// `t = s_x * s_w`: `y = s * t + bias`, or `y = (s + bias) * t` for integer biases; each operation rounds to float32,
/// and the result to the dtype of `out`.
///
/// Integers with a scale for each group (`int8:g32`, `mxint8`) are multiplied with one another by [`multiply_rounded`], with
/// neither given scales nor integer biases.
///
/// # Errors
/// [`crate::Error::Format`] for formats other than `int2` to `int8` with `:tensor` or `:channel` scales, or both with groups, [`crate::Error::Shape`] where
/// a length does not fit, [`crate::Error::NonFinite`] for an input that is NaN or infinite, [`crate::Error::OutOfMemory`] where memory is
/// short.
pub fn multiply_integer(
    x: Values<'_>,
    m: usize,
    input: Format,
    scales: Option<&[f32]>,
    w: &Matrix<'_>,
    bias: Bias<'_>,
    mut out: ValuesMut<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    let (n, k) = (w.rows, w.columns);
    let grouped = check_formats(w.format, input)?;
    check_sizes(m, w, x.len(), out.len())?;
    if grouped {
        let bias = match (bias, scales) {
            (Bias::None, None) => None,
            (Bias::Float(bias), None) => Some(bias),
            _ => return Err(FormatError::GroupedProduct { weight: w.format, input }.into()),
        };
        check_finite(x, input)?;
        return multiply_rounded(x, m, input, &Options::default(), w, bias, out);
    }
    let sizes = Sizes::new(w.format, &Layout::new(&[n, k], -1, w.format)?)?;
    if w.packed.codes.len() != sizes.codes || w.packed.scales.len() != sizes.scales {
        return Err(ShapeError::WeightBytes {
            format: w.format,
            n,
            k,
            expected: (sizes.codes, sizes.scales),
            got: (w.packed.codes.len(), w.packed.scales.len()),
        }
        .into());
    }
    if let Some(len) = bias.len().filter(|&len| len != n) {
        return Err(ShapeError::Bias { got: len, rows: n }.into());
    }
    if m == 0 {
        return Ok(());
    }
    let problem = Problem::new(w.format, Input::Integer(input), m, n, k);
    let level = problem.processor.level();
    let x = Codes::quantize(x, m, k, input, scales, level)?;
    let floats = if let Bias::Float(bias) = bias { widened(bias, level)? } else { Vec::new() };
    let added = match bias {
        Bias::None => Biases::Nothing,
        Bias::Float(_) => Biases::Floats(&floats),
        Bias::Integer(bias) => Biases::Integers(bias),
    };
    let product = IntegerProduct {
        problem,
        w,
        row_bytes: sizes.row_bytes,
        x: &x,
        input_scales: all_scales(&x.scales, m)?,
        weight_scales: all_scales(w.packed.scales, n)?,
        added,
        out: Outputs::new(&mut out, n, level),
    };
    let run =
        table::choose(&problem, Run::integer).map_or(int8_lanes::run as fn(&IntegerProduct<'_>) -> _, |(_, run)| run);
    run(&product)
}

/// Refuses inputs that are NaN or infinite.
fn check_finite(x: Values<'_>, format: Format) -> Result<()> {
    // SAFETY: the positions lie inside x.
    let all = (0..x.len()).map(|i| (i, unsafe { x.src().get(i) }));
    match { all }.find(|(_, v)| !v.is_finite()) {
        Some((position, value)) => Err(Error::NonFinite { format: format.to_string(), position, value }),
        None => Ok(()),
    }
}

/// What is added to the outputs of every row of weights.
#[derive(Clone, Copy)]
pub(super) enum Biases<'a> {
    Nothing,
    Floats(&'a [f32]),
    Integers(&'a [i32]),
}

impl Biases<'_> {
    /// What is added for one row of weights.
    pub(super) fn of(&self, row: usize) -> Added {
        match self {
            Self::Nothing => Added::Nothing,
            Self::Floats(bias) => Added::Float(bias[row]),
            Self::Integers(bias) => Added::Integer(bias[row]),
        }
    }
}

/// A product of codes, as kernels take it.
pub(super) struct IntegerProduct<'a> {
    pub(super) problem: Problem,
    pub(super) w: &'a Matrix<'a>,
    pub(super) row_bytes: usize,
    pub(super) x: &'a Codes,
    pub(super) input_scales: Vec<f32>,
    pub(super) weight_scales: Vec<f32>,
    pub(super) added: Biases<'a>,
    pub(super) out: Outputs,
}

impl IntegerProduct<'_> {
    /// The SIMD level of the call.
    pub(super) const fn level(&self) -> Level {
        self.problem.processor.level()
    }

    /// Calls `multiply` with panels of rows of weights: their number from the first on, and their codes, with zeros up to
    /// [`PANEL`] rows behind them.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started, and those of `multiply`.
    pub(super) fn in_panels(&self, multiply: impl Fn(usize, usize, &[i8]) -> Result<()> + Sync) -> Result<()> {
        let (n, k) = (self.w.rows, self.w.columns);
        pool::try_for_each(n.div_ceil(PANEL), self.problem.work(), |panel| {
            let first = panel * PANEL;
            let count = PANEL.min(n - first);
            let mut codes = zeroed::<i8>(PANEL * k)?;
            for r in 0..count {
                self.unpack(first + r, &mut codes[r * k..][..k]);
            }
            multiply(first, count, &codes)
        })
    }

    /// Calls `multiply` with every four rows of weights, those beyond the last repeating it, the codes of all inputs, and a
    /// function that takes a row of inputs and its sums of products with the four.
    ///
    /// # Errors
    /// Those of [`Self::in_panels`].
    pub(super) fn in_fours(
        &self,
        multiply: impl Fn([&[i8]; 4], &[i8], &mut dyn FnMut(usize, [i32; 4])) + Sync,
    ) -> Result<()> {
        let k = self.w.columns;
        self.in_panels(|first, count, codes| {
            for four in (0..count).step_by(4) {
                let row_of = |r: usize| four + r.min(count - four - 1);
                let weights = std::array::from_fn(|r| &codes[row_of(r) * k..][..k]);
                multiply(weights, &self.x.codes, &mut |row, sums| {
                    let value = |r: usize| self.value(i64::from(sums[r]), row, first + row_of(r));
                    let values: [f32; 4] = std::array::from_fn(value);
                    // SAFETY: every panel writes its own columns.
                    unsafe { self.out.write(row, first + four, &values[..values.len().min(count - four)]) };
                });
            }
            Ok(())
        })
    }

    /// Writes the codes of a row of weights.
    pub(super) fn unpack(&self, row: usize, codes: &mut [i8]) {
        let packed = &self.w.packed.codes[row * self.row_bytes..][..self.row_bytes];
        unpack_signed(self.level(), packed, self.w.format.width(), codes);
    }

    /// The value of a sum of codes.
    pub(super) fn value(&self, sum: i64, row: usize, weight: usize) -> f32 {
        reference::value(sum, self.input_scales[row] * self.weight_scales[weight], self.added.of(weight))
    }
}
