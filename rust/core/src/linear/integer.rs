//! `y = x W^T + bias` in integers: inputs are quantized, codes multiplied exactly, accumulators scaled once.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::output::{Outputs, widened};
use super::reference::{self, Added};
use super::signed_codes::{Codes, all_scales, sum_of_products};
use super::{Matrix, check_sizes, multiply_rounded};
#[cfg(target_arch = "x86_64")]
use super::{int8_avx2, int8_pairs_avx2, int8_rows, int8_tiles, route, signed_codes::EXACT};
use crate::codec::{Layout, Options, Sizes, Values, ValuesMut, set_len, zeroed};
use crate::error::{Error, FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Element, Format, Granularity};
use crate::pack::unpack_signed;
use crate::pool;
use crate::simd::Level;
#[cfg(target_arch = "x86_64")]
use crate::simd::tiles::{self, Session, Tiles};

/// Rows of weights in one unit of work.
const PANEL: usize = 16;
/// Rows of inputs arranged as tiles per pass: enough that weights are rarely unpacked again, few enough to bound memory.
#[cfg(target_arch = "x86_64")]
const MOST_ROWS: usize = 4096;
/// Rows of weights in one unit of work on tiles, at least and at most, and bytes of them: they stay in the L2 cache.
#[cfg(target_arch = "x86_64")]
const UNITS: [usize; 2] = [64, 256];
#[cfg(target_arch = "x86_64")]
const UNIT_BYTES: usize = 1 << 20;
/// Rows of inputs for each piece of the weights from which on AMX multiplies them as they lie, and how long the parts of that
/// take.
#[cfg(target_arch = "x86_64")]
const LEAST_ROWS: usize = 128;
#[cfg(target_arch = "x86_64")]
const ROW_TIMES: route::Times = route::Times { weight: 300, input: 150, product: 1 };

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
    let level = Level::current();
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
    let x = Codes::quantize(x, m, k, input, scales, level)?;
    let floats = if let Bias::Float(bias) = bias { widened(bias, level)? } else { Vec::new() };
    let added = match bias {
        Bias::None => Biases::Nothing,
        Bias::Float(_) => Biases::Floats(&floats),
        Bias::Integer(bias) => Biases::Integers(bias),
    };
    #[cfg(target_arch = "x86_64")]
    let tiles = int8_tiles::tiles(n, k, level);
    #[cfg(target_arch = "x86_64")]
    let in_pairs = tiles.is_none() && has_avx2_sums(level, k) && m >= int8_pairs_avx2::LEAST_ROWS;
    let product = Product {
        w,
        row_bytes: sizes.row_bytes,
        x: &x,
        input_scales: all_scales(&x.scales, m)?,
        weight_scales: all_scales(w.packed.scales, n)?,
        added,
        out: Outputs::new(&mut out, n, level),
        #[cfg(target_arch = "x86_64")]
        pairs: if in_pairs { Some(int8_pairs_avx2::Widened::new(&x.codes, k)?) } else { None },
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(tiles) = tiles {
        return product.in_tiles(tiles, m, level);
    }
    pool::try_for_each(n.div_ceil(PANEL), m.saturating_mul(n).saturating_mul(k), |panel| product.panel(panel, level))
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

/// True where AVX2 sums rows of `k` products exactly.
#[cfg(target_arch = "x86_64")]
fn has_avx2_sums(level: Level, k: usize) -> bool {
    level >= Level::Avx2 && (1..=EXACT).contains(&k)
}

/// What is added to the outputs of every row of weights.
#[derive(Clone, Copy)]
enum Biases<'a> {
    Nothing,
    Floats(&'a [f32]),
    Integers(&'a [i32]),
}

impl Biases<'_> {
    /// What is added for one row of weights.
    fn of(&self, row: usize) -> Added {
        match self {
            Self::Nothing => Added::Nothing,
            Self::Floats(bias) => Added::Float(bias[row]),
            Self::Integers(bias) => Added::Integer(bias[row]),
        }
    }
}

/// A product of codes, ready to be computed panel by panel.
struct Product<'a> {
    w: &'a Matrix<'a>,
    row_bytes: usize,
    x: &'a Codes,
    input_scales: Vec<f32>,
    weight_scales: Vec<f32>,
    added: Biases<'a>,
    out: Outputs,
    /// The inputs as [`int8_pairs_avx2`] reads them, where there are many rows.
    #[cfg(target_arch = "x86_64")]
    pairs: Option<int8_pairs_avx2::Widened>,
}

impl Product<'_> {
    /// Computes the outputs of [`PANEL`] rows of weights.
    fn panel(&self, panel: usize, level: Level) -> Result<()> {
        let (k, first) = (self.w.columns, panel * PANEL);
        let count = PANEL.min(self.w.rows - first);
        #[cfg(target_arch = "x86_64")]
        let space = if self.pairs.is_some() { PANEL } else { count };
        #[cfg(not(target_arch = "x86_64"))]
        let space = count;
        let mut codes = zeroed::<i8>(space * k)?;
        for r in 0..count {
            let packed = &self.w.packed.codes[(first + r) * self.row_bytes..][..self.row_bytes];
            unpack_signed(level, packed, self.w.format.width(), &mut codes[r * k..][..k]);
        }
        let value = |sum: i64, row: usize, weight: usize| {
            reference::value(sum, self.input_scales[row] * self.weight_scales[weight], self.added.of(weight))
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(pairs) = &self.pairs {
            let mut lines = zeroed(k.div_ceil(2))?;
            let finish = Columns::new(self, first, count);
            let write = |row: usize, sums: [i32; PANEL]| {
                let values = finish.values(self.input_scales[row], sums);
                // SAFETY: every panel writes its own columns.
                unsafe { self.out.write(row, first, &values[..count]) };
            };
            // SAFETY: the level is one of this processor; int32 holds the sums.
            unsafe {
                int8_pairs_avx2::arrange(&codes, k, &mut lines);
                pairs.multiply(&lines, write);
            }
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if has_avx2_sums(level, k) {
            for four in (0..count).step_by(int8_avx2::TOGETHER) {
                // Rows beyond the last repeat it.
                let row_of = |r: usize| r.min(count - four - 1);
                let weights = std::array::from_fn(|r| &codes[(four + row_of(r)) * k..][..k]);
                let write = |row: usize, sums: [i32; int8_avx2::TOGETHER]| {
                    let weight = |r: usize| first + four + row_of(r);
                    let values: [f32; int8_avx2::TOGETHER] =
                        std::array::from_fn(|r| value(i64::from(sums[r]), row, weight(r)));
                    // SAFETY: every panel writes its own columns.
                    unsafe { self.out.write(row, first + four, &values[..values.len().min(count - four)]) };
                };
                // SAFETY: the level is one of this processor.
                unsafe { int8_avx2::multiply(weights, &self.x.codes, write) };
            }
            return Ok(());
        }
        for row in 0..self.input_scales.len() {
            let mut values = [0.0; PANEL];
            for (r, result) in values.iter_mut().enumerate().take(count) {
                *result = value(sum_of_products(level, self.x.row(row), &codes[r * k..][..k]), row, first + r);
            }
            // SAFETY: every panel writes its own columns.
            unsafe { self.out.write(row, first, &values[..count]) };
        }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    fn in_tiles(&self, tiles: Tiles, m: usize, level: Level) -> Result<()> {
        let least = LEAST_ROWS.saturating_mul(route::least_pieces(self.w.rows.saturating_mul(self.w.columns)));
        if tiles == Tiles::Amx && m >= least && self.w.columns > 0 {
            return self.in_rows(m, level);
        }
        let each = MOST_ROWS;
        (0..m).step_by(each).try_for_each(|first| self.some_in_tiles(tiles, first, each.min(m - first), level))
    }

    /// All products by AMX, where there are many rows of inputs.
    #[cfg(target_arch = "x86_64")]
    fn in_rows(&self, m: usize, level: Level) -> Result<()> {
        let (n, k, width) = (self.w.rows, self.w.columns, self.w.format.width());
        let (each, some) = route::piece(n.saturating_mul(k), &ROW_TIMES, n, m);
        let (floats, integers);
        let added = match self.added {
            Biases::Nothing => Biases::Nothing,
            Biases::Floats(bias) => {
                floats = padded(bias)?;
                Biases::Floats(&floats)
            }
            Biases::Integers(bias) => {
                integers = padded(bias)?;
                Biases::Integers(&integers)
            }
        };
        let weight_scales = padded(&self.weight_scales)?;
        let parts = m.div_ceil(some);
        pool::try_for_each(n.div_ceil(each) * parts, m.saturating_mul(n).saturating_mul(k), |at| {
            let (weight, input) = (at / parts * each, at % parts * some);
            let piece = int8_rows::Piece {
                codes: &self.x.codes,
                k,
                inputs: input..m.min(input + some),
                weights: weight..n.min(weight + each),
                unpack: |row: usize, codes: &mut [i8]| {
                    unpack_signed(level, &self.w.packed.codes[row * self.row_bytes..][..self.row_bytes], width, codes);
                },
                finish: Scaled { input_scales: &self.input_scales, weight_scales: &weight_scales, added },
            };
            // SAFETY: `int8_tiles::tiles` found the instructions, and sums that fit; each piece has outputs of its own.
            unsafe { piece.run(&self.out) }
        })
    }

    /// The products of `m` rows of inputs from `first_row` on.
    #[cfg(target_arch = "x86_64")]
    fn some_in_tiles(&self, tiles: Tiles, first_row: usize, m: usize, level: Level) -> Result<()> {
        let (n, k) = (self.w.rows, self.w.columns);
        // SAFETY: `int8_tiles::tiles` found the instructions.
        let x = unsafe { int8_tiles::Tiled::new(&self.x.codes[first_row * k..][..m * k], m, k)? };
        let mut padded = zeroed::<f32>(m + tiles::ROWS)?;
        padded[..m].copy_from_slice(&self.input_scales[first_row..][..m]);
        let finish = Scaled { input_scales: &padded, weight_scales: &self.weight_scales, added: self.added };
        // An even number of lines would bring the rows of a tile to a few sets of the L1 cache.
        let stride = (x.steps | usize::from(tiles == Tiles::Vectors)) * tiles::LINE;
        let width = self.w.format.width();
        let out = self.out.after(first_row);
        // Threads wait for one another less where there are several units for each.
        let enough = (n / (3 * pool::num_threads())).min(UNIT_BYTES / stride.max(1));
        let each = enough.clamp(UNITS[0], UNITS[1]) / PANEL * PANEL;
        pool::try_for_each(n.div_ceil(each), m.saturating_mul(n).saturating_mul(k), |unit| {
            let (mut unpacked, mut values) = (Vec::new(), Vec::new());
            // SAFETY: `int8_tiles::tiles` found the instructions; every panel writes its own columns.
            unsafe {
                let session = Session::new(tiles);
                let (first, count) = (unit * each, each.min(n - unit * each));
                let packed = &self.w.packed.codes[first * self.row_bytes..][..count * self.row_bytes];
                let weights = if width == 8 && stride == k && count.is_multiple_of(PANEL) {
                    std::slice::from_raw_parts(packed.as_ptr().cast::<i8>(), packed.len())
                } else {
                    set_len(&mut unpacked, count.next_multiple_of(PANEL) * stride)?;
                    for (packed, codes) in packed.chunks(self.row_bytes).zip(unpacked.chunks_mut(stride)) {
                        unpack_signed(level, packed, width, &mut codes[..k]);
                    }
                    &unpacked
                };
                let write = |row: usize, values: &mut [f32]| out.write(row, first, values);
                int8_tiles::multiply(&session, (weights, stride), (first, count), &x, &finish, &mut values, write)
            }
        })
    }
}

/// Values and zeros behind them, for panels that are not whole.
#[cfg(target_arch = "x86_64")]
fn padded<T: Copy + Default>(values: &[T]) -> Result<Vec<T>> {
    let mut all = zeroed(values.len() + int8_rows::TOGETHER)?;
    all[..values.len()].copy_from_slice(values);
    Ok(all)
}

/// The arithmetic of [`Product::panel`] on one row of inputs and all rows of weights of a panel.
#[cfg(target_arch = "x86_64")]
struct Columns<'a> {
    scales: [f32; PANEL],
    floats: [f32; PANEL],
    added: Biases<'a>,
    first: usize,
    count: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Columns<'a> {
    /// Of `count` rows of weights from `first` on; rows behind them have scales of 0.
    fn new(product: &Product<'a>, first: usize, count: usize) -> Self {
        let each = |all: &[f32]| std::array::from_fn(|r| if r < count { all[first + r] } else { 0.0 });
        let floats = if let Biases::Floats(bias) = product.added { each(bias) } else { [0.0; PANEL] };
        Self { scales: each(&product.weight_scales), floats, added: product.added, first, count }
    }

    /// The values of sums; every operation rounds to float32, as [`reference::value`] does it.
    fn values(&self, input_scale: f32, sums: [i32; PANEL]) -> [f32; PANEL] {
        let scale = |r: usize| input_scale * self.scales[r];
        match self.added {
            Biases::Nothing => std::array::from_fn(|r| sums[r] as f32 * scale(r)),
            Biases::Floats(_) => std::array::from_fn(|r| sums[r] as f32 * scale(r) + self.floats[r]),
            Biases::Integers(_) => std::array::from_fn(|r| {
                let row = self.first + r.min(self.count - 1);
                reference::value(i64::from(sums[r]), scale(r), self.added.of(row))
            }),
        }
    }
}

/// The arithmetic of [`Product::panel`] on sixteen rows of inputs, or of weights, at once.
#[cfg(target_arch = "x86_64")]
struct Scaled<'a> {
    /// Filled up to whole registers, as are weights' and biases for rows of inputs.
    input_scales: &'a [f32],
    weight_scales: &'a [f32],
    added: Biases<'a>,
}

#[cfg(target_arch = "x86_64")]
impl int8_rows::Finish for Scaled<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn values(&self, row: usize, weight: usize, sums: __m512i) -> __m512 {
        let scales = &self.weight_scales[weight..weight + tiles::ROWS];
        // SAFETY: the slices hold sixteen values.
        unsafe {
            let scale = _mm512_mul_ps(_mm512_set1_ps(self.input_scales[row]), _mm512_loadu_ps(scales.as_ptr()));
            match self.added {
                Biases::Nothing => _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale),
                Biases::Floats(bias) => {
                    let bias = _mm512_loadu_ps(bias[weight..weight + tiles::ROWS].as_ptr());
                    _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale), bias)
                }
                Biases::Integers(bias) => {
                    let bias = _mm512_loadu_si512(bias[weight..weight + tiles::ROWS].as_ptr().cast());
                    let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(bias));
                    let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(bias));
                    _mm512_mul_ps(added(sums, low, high), scale)
                }
            }
        }
    }
}

/// Sums plus biases, which may need 33 bits, rounded once.
///
/// # Safety
/// The processor must have AVX-512 F and DQ.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn added(sums: __m512i, low_bias: __m512i, high_bias: __m512i) -> __m512 {
    let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums));
    let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(sums));
    let low = _mm512_cvtepi64_ps(_mm512_add_epi64(low, low_bias));
    let high = _mm512_cvtepi64_ps(_mm512_add_epi64(high, high_bias));
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
}

#[cfg(target_arch = "x86_64")]
impl int8_tiles::Finish for Scaled<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn values(&self, weight: usize, first: usize, sums: __m512i) -> __m512 {
        let input_scales = &self.input_scales[first..first + tiles::ROWS];
        // SAFETY: the slice holds sixteen scales.
        let scale = unsafe {
            _mm512_mul_ps(_mm512_loadu_ps(input_scales.as_ptr()), _mm512_set1_ps(self.weight_scales[weight]))
        };
        match self.added {
            Biases::Nothing => _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale),
            Biases::Floats(bias) => {
                _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale), _mm512_set1_ps(bias[weight]))
            }
            Biases::Integers(bias) => {
                let bias = _mm512_set1_epi64(i64::from(bias[weight]));
                _mm512_mul_ps(added(sums, bias, bias), scale)
            }
        }
    }
}
