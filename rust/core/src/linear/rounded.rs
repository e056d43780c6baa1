//! `y = round(x) W^T + bias`: inputs rounded to a format, which layers choose.
//!
//! Definition: inputs are widened to float32 and quantized, and [`super::multiply`] multiplies them. Where inputs have codes
//! that are small integers times the scale of a group, and the processor multiplies bytes, sums of a group are computed in
//! int32 and combined in float32: the same product, within the same bound. In tiles of bfloat16, which hold the codes, they are
//! as exact.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use super::{Matrix, check_sizes, float};
#[cfg(target_arch = "x86_64")]
use super::{
    bf16_limbs,
    float::{Biased, PANEL, Panel},
    int8_group_tiles, int8_groups_avx2,
    int8_limbs_vnni::{Dot, FixedInputs, MOST_ROWS, Plan},
    output::{Inputs, Outputs, widened},
    route::{self, Left},
};
use crate::codec::{self, DType, Layout, Nonfinite, Options, Sizes, Values, ValuesMut, zeroed};
#[cfg(target_arch = "x86_64")]
use crate::codec::{Packed, PackedMut, rows::Rows};
use crate::error::Result;
#[cfg(target_arch = "x86_64")]
use crate::error::ShapeError;
use crate::float_state::FloatState;
use crate::format::Format;
#[cfg(target_arch = "x86_64")]
use crate::format::Granularity;
use crate::pool;
#[cfg(target_arch = "x86_64")]
use crate::simd::LANES;
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
    multiply_as(x, m, input, options, w, bias, out, m)
}

/// As [`multiply_rounded`] of each row by itself: a row's result depends on that row, the weights and the SIMD level alone,
/// however many rows there are. Scales that are not given must belong to parts of a row.
///
/// # Errors
/// As for [`multiply_rounded`].
pub fn multiply_rounded_singly(
    x: &[f32],
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    multiply_as(Values::F32(x), m, input, options, w, bias.map(Values::F32), ValuesMut::F32(out), 1)
}

/// [`multiply_rounded`] by the kernel for so `many` rows.
#[expect(clippy::too_many_arguments, reason = "those of the function that it is, and the number of rows")]
fn multiply_as(
    x: Values<'_>,
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    out: ValuesMut<'_>,
    many: usize,
) -> Result<()> {
    let _state = FloatState::standard();
    let level = Level::current();
    check_sizes(m, w, x.len(), out.len())?;
    if options.given.is_some() {
        let options = Options { nonfinite: Nonfinite::Saturate, ..*options };
        codec::check_options(input, &Sizes::new(input, &Layout::new(&[m, w.columns], -1, input)?)?, &options)?;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some((weights, inputs)) = route::groups(w.format, input, many, w.rows, w.columns, level) {
        let encoded = Encoded { x, m, k: w.columns, input, options, level };
        return encoded.multiply(w, (&weights, &inputs), bias, out);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some((weights, inputs)) = route::groups_avx2(w.format, input, many, w.rows, w.columns, level) {
        let encoded = Encoded { x, m, k: w.columns, input, options, level };
        return encoded.multiply_avx2(w, (&weights, &inputs), bias, out);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(codes) = route::group_tiles(w.format, input, many, w.rows, w.columns, level) {
        let encoded = Encoded { x, m, k: w.columns, input, options, level };
        return encoded.multiply_in_groups(w, &codes, bias, out);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(codes) = route::codes(w.format, input, many, w.rows, w.columns, level) {
        let encoded = Encoded { x, m, k: w.columns, input, options, level };
        return encoded.multiply_in_tiles(w, &codes, bias, out);
    }
    #[cfg(target_arch = "x86_64")]
    let held = bf16_limbs::held_by(input);
    #[cfg(not(target_arch = "x86_64"))]
    let held = DType::F32;
    #[cfg(target_arch = "x86_64")]
    let mut out = out;
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = route::way(w.format, held, many, w.rows, w.columns, level)
        && way.has_pieces()
        && input.granularity() != Granularity::Tensor
        && !input.has_levels()
        && options.nonfinite != Nonfinite::Error
    {
        // Rows are rounded as pieces of the product need them; an error would name an element of all.
        let (n, k) = (w.rows, w.columns);
        let encoded = Encoded { x, m, k, input, options, level };
        let fill = |rows: Range<usize>, to: &mut [f32]| encoded.round(rows, to);
        let (rows, bias) = (Rows::new(w.packed, n, k, w.format, level)?, biases(bias, n, level)?);
        let out = Biased::new(Outputs::new(&mut out, n, level), &bias);
        let made = bf16_limbs::Given::made(&fill, k, held);
        if route::multiply_pieces(&way, &rows, (&made, m, held), w, &out)? {
            return Ok(());
        }
    }
    let x = rounded(x, m, w.columns, input, options, level)?;
    float::multiply_as(Values::F32(&x), held, m, w, bias, out, float::By::Rows(many))
}

/// `m` rows of `k` inputs in float32, rounded.
fn rounded(x: Values<'_>, m: usize, k: usize, input: Format, options: &Options<'_>, level: Level) -> Result<Vec<f32>> {
    let mut values = zeroed::<f32>(m * k)?;
    round(x, k, input, options, level, &mut values)?;
    Ok(values)
}

/// Writes rows of `k` inputs in float32, rounded.
fn round(x: Values<'_>, k: usize, input: Format, options: &Options<'_>, level: Level, to: &mut [f32]) -> Result<()> {
    let most = match x.src().dtype {
        DType::F32 => f32::MAX,
        DType::F16 => 65_504.0,
        DType::BF16 => f32::from_bits(0x7f7f_0000),
    };
    let m = to.len().checked_div(k).unwrap_or(0);
    pool::for_each_chunk(to, PIECE, |piece, values| {
        // SAFETY: a part of the `m * k` values, whose number the caller has checked.
        unsafe { x.src().widen(piece * PIECE, values, level) };
        if most < f32::MAX {
            // Infinities count as the largest number of their dtype.
            values.iter_mut().filter(|v| v.is_infinite()).for_each(|v| *v = most.copysign(*v));
        }
    })?;
    codec::quantize_in_place(ValuesMut::F32(to), Layout::new(&[m, k], -1, input)?, input, options)
}

/// Rows of inputs whose codes are multiplied.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Encoded<'a> {
    x: Values<'a>,
    m: usize,
    k: usize,
    input: Format,
    options: &'a Options<'a>,
    level: Level,
}

/// The parts of encoded inputs.
#[cfg(target_arch = "x86_64")]
struct Parts {
    codes: Vec<u8>,
    scales: Vec<u8>,
    levels: Vec<u8>,
}

#[cfg(target_arch = "x86_64")]
impl Parts {
    fn packed(&self) -> Packed<'_> {
        Packed { codes: &self.codes, scales: &self.scales, zeros: &[], levels: &self.levels }
    }
}

/// Some rows of inputs that are multiplied together.
#[cfg(target_arch = "x86_64")]
struct Part<'a> {
    m: usize,
    /// Of weights.
    rows: &'a Rows<'a>,
    encoded: &'a Rows<'a>,
    /// The inputs before they were encoded.
    wide: &'a Inputs<'a>,
    out: &'a Biased<'a>,
    plain: &'a Plain<'a>,
}

#[cfg(target_arch = "x86_64")]
impl Part<'_> {
    /// Whether a row of inputs has infinities or NaNs: codes do not hold them.
    fn overflows(&self, row: usize) -> bool {
        !is_finite(self.wide.row(row))
    }
}

#[cfg(target_arch = "x86_64")]
impl Encoded<'_> {
    /// Multiplies them with weights of a plan; the other is that of the inputs.
    fn multiply(
        &self,
        w: &Matrix<'_>,
        (weights, inputs): (&Plan, &Plan),
        bias: Option<Values<'_>>,
        out: ValuesMut<'_>,
    ) -> Result<()> {
        self.in_parts(w, bias, out, MOST_ROWS, |part| {
            // SAFETY: `route::groups` found the instructions, and a plan of one limb without zero points.
            let fixed = unsafe { FixedInputs::encoded(inputs, part.encoded, part.m, |row| part.overflows(row))? };
            // SAFETY: as above.
            let product = unsafe { Dot::new(weights, part.rows, &fixed)? };
            let work = part.m.saturating_mul(w.rows).saturating_mul(self.k);
            // SAFETY: as above.
            unsafe { product.multiply(w.rows, work, part.out, |row, first, count| part.plain.run(row, first, count)) }
        })
    }

    /// As [`Self::multiply`], with AVX2.
    fn multiply_avx2(
        &self,
        w: &Matrix<'_>,
        (weights, inputs): (&Plan, &Plan),
        bias: Option<Values<'_>>,
        out: ValuesMut<'_>,
    ) -> Result<()> {
        self.in_parts(w, bias, out, MOST_ROWS, |part| {
            // SAFETY: `route::groups_avx2` found the level, and a plan of one limb without zero points.
            let fixed = unsafe { FixedInputs::encoded(inputs, part.encoded, part.m, |row| part.overflows(row))? };
            let product = int8_groups_avx2::Product::new(weights, part.rows, &fixed, inputs.group)?;
            let work = part.m.saturating_mul(w.rows).saturating_mul(self.k);
            // SAFETY: as above.
            unsafe {
                product.multiply(&fixed, w.rows, work, part.out, |row, first, count| part.plain.run(row, first, count))
            }
        })
    }

    /// Multiplies them with weights in tiles of int8, rows of some at a time.
    fn multiply_in_groups(
        &self,
        w: &Matrix<'_>,
        codes: &route::CodeTiles,
        bias: Option<Values<'_>>,
        out: ValuesMut<'_>,
    ) -> Result<()> {
        self.in_parts(w, bias, out, float::rows_at_a_time(self.k), |part| {
            // SAFETY: `route::group_tiles` found the instructions, and inputs of one limb without zero points.
            unsafe {
                let fixed = FixedInputs::encoded(&codes.inputs, part.encoded, part.m, |row| part.overflows(row))?;
                let product = int8_group_tiles::Product::new(&codes.weights, part.rows, &fixed, codes.tiles)?;
                let left = |first, count| part.plain.run_left(product.left(), first, count);
                product.multiply(w.rows, part.out, left, |first, count| part.plain.run(None, first, count))
            }
        })
    }

    /// Multiplies them with weights in tiles, rows of some at a time.
    fn multiply_in_tiles(
        &self,
        w: &Matrix<'_>,
        codes: &route::Codes,
        bias: Option<Values<'_>>,
        out: ValuesMut<'_>,
    ) -> Result<()> {
        self.in_parts(w, bias, out, float::rows_at_a_time(self.k), |part| {
            let x = bf16_limbs::Weights::new(
                self.input,
                Some(&codes.inputs),
                part.encoded,
                part.m,
                codes.tiles,
                DType::BF16,
            );
            let weights = bf16_limbs::Weights::new(
                w.format,
                codes.weights.as_deref(),
                part.rows,
                w.rows,
                codes.tiles,
                DType::BF16,
            );
            // SAFETY: `route::codes` found the instructions.
            let product = unsafe { bf16_limbs::Product::encoded(weights, &x, |row| part.overflows(row))? };
            let left = |first, count| part.plain.run_left(product.left(), first, count);
            route::multiply_tiles(&product, codes.tiles, part.out, left, |first, count| {
                part.plain.run(None, first, count)
            })
        })
    }

    /// Encodes `each` rows at a time, and has each part multiplied.
    fn in_parts(
        &self,
        w: &Matrix<'_>,
        bias: Option<Values<'_>>,
        mut out: ValuesMut<'_>,
        each: usize,
        mut multiply: impl FnMut(&Part<'_>) -> Result<()>,
    ) -> Result<()> {
        let (n, k, level) = (w.rows, self.k, self.level);
        let rows = Rows::new(w.packed, n, k, w.format, level)?;
        let bias = biases(bias, n, level)?;
        let all = Outputs::new(&mut out, n, level);
        for first in (0..self.m).step_by(each) {
            let m = each.min(self.m - first);
            let options = Options { given: self.given(first, m), ..*self.options };
            let some = Encoded { x: self.x.range(first * k..(first + m) * k), m, options: &options, ..*self };
            let out = Biased::new(all.after(first), &bias);
            let parts = some.parts()?;
            let encoded = Rows::new(parts.packed(), m, k, self.input, level)?;
            let wide = Inputs::new(some.x, m, k, 1, level)?;
            let plain = Plain { of: &some, rows: &rows, out: &out, made: OnceLock::new(), left: OnceLock::new() };
            multiply(&Part { m, rows: &rows, encoded: &encoded, wide: &wide, out: &out, plain: &plain })?;
        }
        Ok(())
    }

    /// Writes some rows in float32, rounded, on this thread.
    fn round(&self, rows: Range<usize>, to: &mut [f32]) -> Result<()> {
        let options = Options { given: self.given(rows.start, rows.len()), ..*self.options };
        let x = self.x.range(rows.start * self.k..rows.end * self.k);
        pool::alone(|| round(x, self.k, self.input, &options, self.level, to))
    }

    /// The given scales of some rows, if there are some: those of all, or of parts of a row.
    fn given(&self, first: usize, m: usize) -> Option<Packed<'_>> {
        let mut given = self.options.given?;
        if self.input.granularity() != Granularity::Tensor {
            for all in [&mut given.scales, &mut given.zeros] {
                let each = all.len() / self.m.max(1);
                *all = &all[first * each..(first + m) * each];
            }
        }
        Some(given)
    }

    fn parts(&self) -> Result<Parts> {
        let layout = Layout::new(&[self.m, self.k], -1, self.input)?;
        let sizes = Sizes::new(self.input, &layout)?;
        let (codes, scales, levels) = (zeroed(sizes.codes)?, zeroed(sizes.scales)?, zeroed(sizes.levels)?);
        let mut parts = Parts { codes, scales, levels };
        let Parts { codes, scales, levels } = &mut parts;
        let options = Options { nonfinite: Nonfinite::Saturate, ..*self.options };
        codec::encode(self.x, layout, self.input, &options, PackedMut { codes, scales, zeros: &mut [], levels })?;
        Ok(parts)
    }
}

/// Biases of `n` rows of weights; none where there are none.
#[cfg(target_arch = "x86_64")]
fn biases(bias: Option<Values<'_>>, n: usize, level: Level) -> Result<Vec<f32>> {
    match bias {
        Some(bias) if bias.len() != n => Err(ShapeError::Bias { got: bias.len(), rows: n }.into()),
        Some(bias) => widened(bias, level),
        None => Ok(Vec::new()),
    }
}

#[cfg(target_arch = "x86_64")]
fn is_finite(row: &[f32]) -> bool {
    row.iter().fold(true, |all, v| all & v.is_finite())
}

/// Products in float32 of rounded inputs, which are made when the first is needed.
#[cfg(target_arch = "x86_64")]
struct Plain<'a> {
    of: &'a Encoded<'a>,
    rows: &'a Rows<'a>,
    out: &'a Biased<'a>,
    made: OnceLock<Inputs<'static>>,
    left: OnceLock<Left>,
}

#[cfg(target_arch = "x86_64")]
impl Plain<'_> {
    fn inputs(&self) -> Result<&Inputs<'static>> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let &Encoded { x, m, k, input, options, level } = self.of;
        let made = Inputs::owned(rounded(x, m, k, input, options, level)?, m, k, LANES, level)?;
        Ok(self.made.get_or_init(|| made))
    }

    /// Writes products of all rows of inputs, or of one, with some rows of weights, which belong to one unit of work.
    fn run(&self, row: Option<usize>, first: usize, count: usize) -> Result<()> {
        let x = self.inputs()?;
        let (values, m) = row.map_or((x.values(), self.of.m), |row| (x.row(row), 1));
        for start in (first..first + count).step_by(PANEL) {
            let count = PANEL.min(first + count - start);
            let panel = Panel { rows: self.rows, x: values, stride: x.stride, first: start, count };
            // SAFETY: the rows of weights belong to one unit of work.
            panel.run(m, |i, values| unsafe { self.out.write(row.unwrap_or(i), start, values) })?;
        }
        Ok(())
    }

    /// The same of some rows of inputs, the same ones at every call.
    fn run_left(&self, rows: impl Iterator<Item = usize> + Clone, first: usize, count: usize) -> Result<()> {
        if rows.clone().next().is_none() {
            return Ok(());
        }
        let left = match self.left.get() {
            Some(left) => left,
            None => {
                let left = Left::new(rows, self.inputs()?)?;
                self.left.get_or_init(|| left)
            }
        };
        left.multiply(self.rows, first, count, self.out)
    }
}
