//! Float32 products of weights that are minifloats of 8 bits (E4M3, E5M2 and their like), for a few rows of inputs.
//!
//! A code shifted into the bits of a float16 is its value times a power of two: E5M2 is the upper byte of one, and E4M3, whose
//! magnitude moves one bit down, times `2^-8`. The processor's conversion of float16 is exact for subnormal numbers, too, whatever
//! the floating-point state. Rows of weights with a code of NaN or infinity are left to the float32 kernel.
//!
//! Decoded weights and the order of summation are those of [`reference`], and so are the bits.

mod avx2;
mod avx512;

use std::ops::Range;

use super::code_tables;
use super::int8_limbs_vnni::{Scale, grouping};
use crate::codec::grid::{Grid, GroupScale, decode_element};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::float::exp2;
use crate::format::Format;
use crate::linear::fallback::Fallback;
use crate::linear::float::FloatProduct;
use crate::linear::output::{Biased, Inputs};
use crate::linear::problem::{Batch, Problem};
use crate::linear::{ran, reference};
use crate::pool;
use crate::simd::{LANES, Level, Line, Processor};

/// Rows of weights in one unit of work.
const UNIT: usize = 64;
/// Rows of weights whose sums are kept between spans of columns.
const SLAB: usize = 16;
/// Inputs of a span of columns: they stay in the L1 cache while rows of weights pass by.
const SPAN_INPUTS: usize = 4096;
/// Rows of weights from those that are multiplied to those that are prefetched.
const AHEAD: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers, at most.
const INPUTS: usize = 8;
/// Columns whose codes are loaded together: rows have scales for whole blocks.
const BLOCK: usize = 64;
/// Columns that share a scale here: a longer stored group is several of these.
const GROUP: usize = 32;
/// Largest exponent of a scale: beyond it weights could overflow.
const MAX_EXPONENT: i32 = 40;
/// Exponent bias of float32.
const BIAS: i32 = 127;

/// How codes of a format of 8 bits become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Minifloat {
    /// Five bits of exponent, else four.
    wide: bool,
    /// The power of two that a number has to be multiplied with.
    power: i32,
    /// Largest code of a finite negative number.
    last: u8,
    /// Columns that share a stored scale; all of a row where that is `usize::MAX`.
    group: usize,
    /// What is subtracted from the code of a scale; nothing where numbers have none.
    bias: Option<i32>,
}

impl Minifloat {
    /// The minifloat of a format; `None` for other formats.
    pub(super) fn new(format: Format) -> Option<Self> {
        let (group, scale) = grouping(format).filter(|_| format.width() == 8)?;
        let bias = match scale {
            Scale::Row if format.scale_type().is_none() => None,
            Scale::Exponent { shift } => Some(BIAS + shift),
            Scale::Row | Scale::Half | Scale::Code | Scale::Nested(_) => return None,
        };
        let Grid::Float(_) = Grid::of(format) else { return None };
        let values: [f32; 256] =
            std::array::from_fn(|code| decode_element(&Grid::of(format), 8, code as u32, &GroupScale::step(1.0)));
        let last = (0x80..=0xff).rev().find(|&code| values[usize::from(code)].is_finite())?;
        // The largest exponent of a float16 is that of infinity and NaN.
        [false, true].into_iter().filter(|wide| !wide || last < 0xfc).find_map(|wide| {
            let power = (values[1] / number(1, wide)).log2().round() as i32;
            let is_value = |code: u8| {
                let value = f64::from(number(code, wide)) * exp2(power);
                code | 0x80 > last || value.to_bits() == f64::from(values[usize::from(code)]).to_bits()
            };
            let scaled = bias.is_some() || (1 - BIAS..=MAX_EXPONENT).contains(&power);
            let fits = (-BIAS..=BIAS).contains(&power) && scaled && (0..=255).all(is_value);
            fits.then_some(Self { wide, power, last, group, bias })
        })
    }

    /// Columns that share a scale in the kernel.
    fn group(&self) -> usize {
        self.group.min(GROUP)
    }

    /// What inputs are multiplied with instead of weights, exactly: nothing where weights have scales, or inputs could vanish.
    fn input_factor(&self) -> Option<f32> {
        (self.bias.is_none() && self.power >= 0).then(|| exp2(self.power) as f32)
    }

    /// What is added to the code of a scale, to make it the exponent field of a float32.
    const fn raise(&self) -> i32 {
        match self.bias {
            Some(bias) => BIAS - bias + self.power,
            None => 0,
        }
    }
}

/// The number of a code: the float16 with its bits, which has the magnitude's seven bits one place lower if not `wide`.
fn number(code: u8, wide: bool) -> f32 {
    let (sign, magnitude) = (u32::from(code >> 7) << 31, u32::from(code & 0x7f));
    // The fields of exponent and mantissa of a float16, whose exponent counts from -15.
    let (exponent, mantissa) = match wide {
        true => (magnitude >> 2, magnitude << 8 & 0x3ff),
        false => (magnitude >> 3, magnitude << 7 & 0x3ff),
    };
    let magnitude = match exponent {
        0 => f64::from(mantissa) * exp2(-24),
        _ => f64::from(1024 + mantissa) * exp2(exponent as i32 - 25),
    };
    f32::from_bits(sign | (magnitude as f32).to_bits())
}

/// True for weights that are minifloats of 8 bits. Products with prepared weights have other sums on AMX.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    let is_prepared = problem.batch == Batch::Invariant && problem.processor == Processor::Amx;
    !is_prepared && code_tables::minifloat(problem.weight).is_some()
}

/// Multiplies with codes that are converted in registers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    let format = product.problem.weight;
    let minifloat = code_tables::require(code_tables::minifloat(format), format)?;
    // SAFETY: the table asks for the instructions.
    unsafe {
        match product.rows.level() {
            Level::Avx512 => run_on::<avx512::Sums>(product, &minifloat),
            _ => run_on::<avx2::Sums>(product, &minifloat),
        }
    }
}

/// [`run`] with some instructions.
///
/// # Errors
/// As there.
///
/// # Safety
/// The processor must have the instructions of the kernel.
unsafe fn run_on<K: Kernel>(product: &FloatProduct<'_>, minifloat: &Minifloat) -> Result<()> {
    ran::note(K::NAME);
    product.in_chunks(usize::MAX, |x, m, out| {
        let fallback = Fallback::new(&product.rows, x, m, out);
        // SAFETY: as the caller promises.
        unsafe {
            Product::new::<K>(minifloat, &product.rows, x, m)?.multiply::<K>(product.problem.columns, out, &fallback)
        }
    })
}

/// Inputs in the order in which kernels read them: of each so many rows a vector of every row, then the next ones. Rows beyond
/// the last, up to a power of two, are zeros. All are multiplied with a power of two; `None` where one overflows.
///
/// # Errors
/// Where memory is short.
fn arrange(x: &Inputs<'_>, m: usize, rows: usize, factor: f32) -> Result<Option<Vec<Line<f32, LANES>>>> {
    let vectors = x.stride / LANES;
    let parts = (0..m).step_by(rows).map(|first| (first, rows.min(m - first)));
    let mut all =
        zeroed::<Line<f32, LANES>>(parts.clone().map(|(_, count)| count.next_power_of_two() * vectors).sum())?;
    let mut overflow = false;
    for ((first, count), to) in parts.zip(all.chunks_mut((rows * vectors).max(1))) {
        for i in 0..count {
            let to = to.iter_mut().skip(i).step_by(count.next_power_of_two());
            for (to, from) in to.zip(x.row(first + i).as_chunks::<LANES>().0) {
                to.0 = from.map(|x| x * factor);
                overflow |= to.0.iter().zip(from).fold(false, |any, (to, x)| any | (to.is_infinite() & x.is_finite()));
            }
        }
    }
    Ok(Some(all).filter(|_| !overflow))
}

/// Rows of weights and of inputs that are multiplied with each other.
struct Operands<const R: usize> {
    codes: [*const u8; R],
    /// A scale for each group of whole blocks.
    scales: [*const f32; R],
    /// Vectors of inputs, those of `M` rows after each other.
    x: *const f32,
    /// Columns from a whole block on.
    columns: Range<usize>,
    /// Bytes from the codes of these rows to those that come next.
    ahead: usize,
}

/// Sums of products with up to [`INPUTS`] rows of inputs as sixteen chains each, that of column `k` being `k mod 16`.
type Chains = [[f32; LANES]; INPUTS];

/// Sums of products, by instruction set.
trait Kernel {
    /// Its name in the table.
    const NAME: &'static str;
    /// Rows of inputs multiplied with weights while those are in registers, 8 or 4. More take turns.
    const INPUTS: usize;

    /// Adds products to the chains of each row of weights, and returns the largest code with the bit of the sign. Codes are E5M2
    /// if `WIDE`, else E4M3. `SHARE` vectors have one scale: two, or one; 0 where weights have none.
    ///
    /// # Safety
    /// The processor must have the instructions; rows must have the columns, and scales and inputs for them.
    unsafe fn add<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize>(
        operands: &Operands<R>,
        chains: &mut [Chains; R],
    ) -> u8;
}

/// The product of packed weights with some rows of inputs.
struct Product<'a> {
    minifloat: &'a Minifloat,
    rows: &'a Rows<'a>,
    /// As [`arrange`] has them.
    x: Vec<Line<f32, LANES>>,
    /// Weights are multiplied with scales; else inputs are.
    is_scaled: bool,
    /// Columns of a row of inputs, filled up to whole vectors.
    stride: usize,
    m: usize,
}

impl<'a> Product<'a> {
    /// The product of rows of weights of a minifloat with `m` rows of inputs, filled with zeros to whole vectors.
    ///
    /// # Errors
    /// Where memory is short.
    fn new<K: Kernel>(minifloat: &'a Minifloat, rows: &'a Rows<'a>, x: &Inputs<'_>, m: usize) -> Result<Self> {
        let arrange = |factor| arrange(x, m, K::INPUTS, factor);
        let scaled = minifloat.input_factor().map(arrange).transpose()?.flatten();
        let (is_scaled, stride) = (scaled.is_none(), x.stride);
        let x = match scaled {
            Some(x) => x,
            None => arrange(1.0)?.unwrap_or_default(), // nothing overflows
        };
        Ok(Self { minifloat, rows, x, is_scaled, stride, m })
    }

    /// Writes all products with `n` rows of weights.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have the instructions of the kernel; the matrix must have `n` rows, and the format that the minifloat is
    /// of.
    unsafe fn multiply<K: Kernel>(&self, n: usize, out: &Biased<'_>, fallback: &Fallback<'_>) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        let groups = self.rows.k.next_multiple_of(BLOCK) / self.minifloat.group();
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
            let (mut scales, mut chains) = (zeroed::<f32>(SLAB * groups)?, zeroed::<Chains>(SLAB)?);
            scales.fill(exp2(self.minifloat.power) as f32);
            for first in (start..end).step_by(SLAB) {
                let count = SLAB.min(end - first);
                let rows = scales.chunks_mut(groups.max(1)).take(count).enumerate();
                let mut exact = { rows }.all(|(r, scales)| self.read_scales(first + r, scales));
                for row in (0..self.m).step_by(K::INPUTS) {
                    let m = K::INPUTS.min(self.m - row);
                    let slab = Slab { first, count, row, m, scales: &scales };
                    // SAFETY: as the caller promises; the rows are the matrix's and the inputs'; every unit writes its own columns.
                    unsafe {
                        exact = exact && self.add::<K>(&slab, &mut chains);
                        for i in 0..if exact { m } else { 0 } {
                            let mut values = [0.0; SLAB];
                            values.iter_mut().zip(&chains).for_each(|(to, chains)| *to = reference::product(chains[i]));
                            out.write(row + i, first, &mut values[..count]);
                        }
                    }
                }
                if !exact {
                    fallback.run(None, first, count)?;
                }
            }
            Ok(())
        })
    }

    /// Writes the scales of a row to all of its groups; false where one is so large or so small that weights may not be a number
    /// times it.
    fn read_scales(&self, row: usize, to: &mut [f32]) -> bool {
        let Minifloat { bias: Some(_), group, .. } = *self.minifloat else { return true };
        let (stored, groups) = self.rows.scales();
        let (stored, raise) = (&stored[row * groups..][..groups], self.minifloat.raise());
        let scale = |code: u8| f32::from_bits((i32::from(code) + raise).cast_unsigned() << 23);
        match group / self.minifloat.group() {
            // A loop of its own, which is vectorized.
            1 => to.iter_mut().zip(stored).for_each(|(to, &code)| *to = scale(code)),
            each => to.chunks_mut(each).zip(stored).for_each(|(to, &code)| to.fill(scale(code))),
        }
        let (least, most) = (stored.iter().fold(u8::MAX, |a, &b| a.min(b)), stored.iter().fold(0, |a, &b| a.max(b)));
        if i32::from(most) + raise - BIAS > MAX_EXPONENT {
            return false;
        }
        i32::from(least) + raise > 0 || self.clear(row, to)
    }

    /// Makes the scales 0 that are no normal numbers, of a row; false where they belong to codes that are not 0.
    fn clear(&self, row: usize, scales: &mut [f32]) -> bool {
        let ((stored, groups), (codes, row_bytes)) = (self.rows.scales(), self.rows.codes());
        let (stored, codes) = (&stored[row * groups..][..groups], &codes[row * row_bytes..][..row_bytes]);
        let (group, raise) = (self.minifloat.group, self.minifloat.raise());
        let scales = scales.chunks_mut(group / self.minifloat.group());
        let mut groups = stored.iter().zip(codes.chunks(group)).zip(scales);
        groups.all(|((&code, codes), scales)| {
            if i32::from(code) + raise > 0 {
                return true;
            }
            scales.fill(0.0);
            codes.iter().all(|&code| code == 0)
        })
    }

    /// Makes chains those of a slab; false where a code is not that of a finite number.
    ///
    /// # Safety
    /// As for [`Self::multiply`]; the rows must be the matrix's, and their scales read, and the inputs'.
    unsafe fn add<K: Kernel>(&self, slab: &Slab<'_>, chains: &mut [Chains]) -> bool {
        chains.iter_mut().for_each(|chains| chains[..slab.m].fill([0.0; LANES]));
        // SAFETY: as the caller promises.
        unsafe {
            match (slab.m, K::INPUTS) {
                (1, 8) => self.unrolled::<K, 4, 1>(slab, chains),
                (1, _) => self.unrolled::<K, 2, 1>(slab, chains),
                (2, 8) => self.unrolled::<K, 4, 2>(slab, chains),
                (2, _) => self.unrolled::<K, 2, 2>(slab, chains),
                (3 | 4, 8) => self.unrolled::<K, 4, 4>(slab, chains),
                (_, 8) => self.unrolled::<K, 2, 8>(slab, chains),
                _ => self.unrolled::<K, 1, 4>(slab, chains),
            }
        }
    }

    /// [`Self::add`] with `R` rows of weights at a time and at most `M` rows of inputs.
    ///
    /// # Safety
    /// As there.
    unsafe fn unrolled<K: Kernel, const R: usize, const M: usize>(
        &self,
        slab: &Slab<'_>,
        chains: &mut [Chains],
    ) -> bool {
        let &Slab { first, count, row, scales, .. } = slab;
        let ((codes, row_bytes), k) = (self.rows.codes(), self.rows.k);
        let groups = scales.len() / SLAB;
        let share = if self.is_scaled { self.minifloat.group() / LANES } else { 0 };
        let x = self.x[row * (self.stride / LANES)..].as_ptr().cast();
        let mut most = 0;
        for start in (0..k).step_by(SPAN_INPUTS / M) {
            let columns = start..k.min(start + SPAN_INPUTS / M);
            for (part, chains) in chains.as_chunks_mut::<R>().0.iter_mut().enumerate().take(count.div_ceil(R)) {
                // Rows beyond the last repeat it.
                let places: [usize; R] = std::array::from_fn(|r| (part * R + r).min(count - 1));
                let operands = Operands {
                    codes: places.map(|place| codes[(first + place) * row_bytes..][..row_bytes].as_ptr()),
                    scales: places.map(|place| scales[place * groups..][..groups].as_ptr()),
                    x,
                    columns: columns.clone(),
                    ahead: AHEAD * row_bytes,
                };
                // SAFETY: as the caller promises.
                let largest = unsafe {
                    match (self.minifloat.wide, share) {
                        (false, 0) => K::add::<R, M, false, 0>(&operands, chains),
                        (false, 1) => K::add::<R, M, false, 1>(&operands, chains),
                        (false, _) => K::add::<R, M, false, 2>(&operands, chains),
                        (true, 0) => K::add::<R, M, true, 0>(&operands, chains),
                        (true, 1) => K::add::<R, M, true, 1>(&operands, chains),
                        (true, _) => K::add::<R, M, true, 2>(&operands, chains),
                    }
                };
                most = most.max(largest);
            }
        }
        most <= self.minifloat.last
    }
}

/// Rows of weights, `count` from `first` on, with their scales, and rows of inputs, `m` from `row` on.
struct Slab<'a> {
    first: usize,
    count: usize,
    row: usize,
    m: usize,
    scales: &'a [f32],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::float_state::FloatState;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::f32_fma::Panel;
    use crate::linear::output::Outputs;

    const FORMATS: &str =
        "e4m3 e5m2 e4m3:finite e4m3b3 e4m3b11 mxfp8e4m3 mxfp8e5m2 mxfp8e4m3/16 mxfp8e5m2/128 bm8e4/16 bm8e4/64";

    /// Asserts that products of some rows of inputs have the bits of those of decoded weights, at every level.
    fn compare(sample: &Sample, (n, k): (usize, usize), x: &[f32], bias: &[f32], label: &str) {
        let (minifloat, m) = (Minifloat::new(sample.format).unwrap(), x.len() / k);
        for level in [Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::detect()) {
            let rows = sample.rows(level);
            let x = Inputs::new(Values::F32(x), m, k, LANES, level).unwrap();
            let mut wanted = vec![1.0f32; m * n];
            for first in (0..n).step_by(SLAB) {
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first, count: SLAB.min(n - first) };
                let mut values = ValuesMut::F32(&mut wanted);
                let out = Biased::new(Outputs::new(&mut values, n, level), bias);
                // SAFETY: rows and columns are there.
                panel.run(m, |row, values| unsafe { out.write(row, first, values) }).unwrap();
            }
            let mut result = vec![0.0f32; m * n];
            let mut values = ValuesMut::F32(&mut result);
            let out = Biased::new(Outputs::new(&mut values, n, level), bias);
            let fallback = Fallback::new(&rows, &x, m, &out);
            // SAFETY: the level was detected.
            unsafe {
                if level == Level::Avx512 {
                    let product = Product::new::<avx512::Sums>(&minifloat, &rows, &x, m).unwrap();
                    product.multiply::<avx512::Sums>(n, &out, &fallback).unwrap();
                } else {
                    let product = Product::new::<avx2::Sums>(&minifloat, &rows, &x, m).unwrap();
                    product.multiply::<avx2::Sums>(n, &out, &fallback).unwrap();
                }
            }
            let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&result), bits(&wanted), "{label}, {level:?}: {m} rows of {k}");
        }
    }

    #[test]
    fn numbers_of_codes_are_the_values_of_the_format() {
        for text in FORMATS.split_whitespace() {
            let format = Format::parse(text).unwrap();
            let minifloat = Minifloat::new(format).unwrap();
            for code in 0..=255u8 {
                let wanted = decode_element(&Grid::of(format), 8, code.into(), &GroupScale::step(1.0));
                assert_eq!(wanted.is_finite(), code | 0x80 <= minifloat.last, "{text}, code {code}");
                let value = f64::from(number(code, minifloat.wide)) * exp2(minifloat.power);
                let shift = if minifloat.wide { 8 } else { 7 };
                let half = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << shift;
                let half = half::f16::from_bits(half).to_f32();
                if wanted.is_finite() {
                    assert_eq!(value.to_bits(), f64::from(wanted).to_bits(), "{text}, code {code}");
                    assert_eq!(half.to_bits(), number(code, minifloat.wide).to_bits(), "{text}, code {code}");
                }
            }
        }
    }

    #[test]
    fn other_formats_have_no_minifloat() {
        let others = "e4m3b200 e5m2b-100 e5m2:finite e5m2b20 bm8e5/64 mxfp8e4m3/12 mxfp6e3m2 e3m4 e2m5 log8 int8 mxint8 bfp8/16 nf4";
        for text in others.split_whitespace() {
            assert_eq!(Minifloat::new(Format::parse(text).unwrap()), None, "{text}");
        }
    }

    #[test]
    fn products_have_the_bits_of_decoded_weights() {
        for text in FORMATS.split_whitespace() {
            let format = Format::parse(text).unwrap();
            for (n, k) in [(21, 64), (5, 67), (18, 200), (3, 16), (1, 1), (4, 1056)] {
                let weights: Vec<f32> = (0..n * k).map(|i| noise(i) * exp2((i % 41) as i32 - 30) as f32).collect();
                let sample = Sample::new(&weights, k, format);
                for m in 1..=17 {
                    let mut x: Vec<f32> = (0..m * k).map(|i| noise(i + 77)).collect();
                    x[k - 1] = 1e-42;
                    let bias: Vec<f32> = (0..n).map(noise).collect();
                    compare(&sample, (n, k), &x, if m % 2 == 0 { &bias } else { &[] }, text);
                }
            }
        }
    }

    /// A matrix with a row for each code, which stands in every column of some rows, among codes of finite numbers.
    fn all_codes(text: &str, k: usize) -> Sample {
        let mut sample = Sample::new(&vec![1.0; 256 * k], k, Format::parse(text).unwrap());
        for (code, row) in sample.codes.chunks_mut(k).enumerate() {
            let column =
                |column: usize| if (column + code).is_multiple_of(5) { code as u8 } else { 0x23 + column as u8 };
            row.iter_mut().enumerate().for_each(|(at, to)| *to = column(at));
        }
        sample
    }

    #[test]
    fn all_codes_are_read_in_every_column() {
        for (text, k) in FORMATS.split_whitespace().flat_map(|text| [(text, 80), (text, 45)]) {
            let sample = all_codes(text, k);
            let mut x: Vec<f32> = (0..3 * k).map(noise).collect();
            compare(&sample, (256, k), &x, &[], text);
            (x[3], x[k + 7], x[2 * k + 9]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY);
            compare(&sample, (256, k), &x, &[], text);
            x[5] = f32::MAX;
            compare(&sample, (256, k), &x, &[], text);
        }
    }

    #[test]
    fn conversions_do_not_depend_on_the_floating_point_state() {
        fn chains<K: Kernel, const WIDE: bool>() -> Chains {
            let codes: Vec<u8> = (0..=255u8).filter(|code| code & 0x7f < 0x7c).collect();
            let (x, scales) = ([1.0f32; 256], [1.0f32; 8]);
            let columns = 0..codes.len();
            let operands =
                Operands { codes: [codes.as_ptr()], scales: [scales.as_ptr()], x: x.as_ptr(), columns, ahead: 0 };
            let mut chains = [[[0.0; LANES]; INPUTS]];
            // SAFETY: the level was detected; there are as many inputs and scales.
            unsafe { K::add::<1, 1, WIDE, 2>(&operands, &mut chains) };
            chains[0]
        }
        fn compare<K: Kernel>() {
            let wanted = [chains::<K, false>(), chains::<K, true>()];
            assert!(wanted.iter().all(|chains| chains[0].iter().any(|sum| sum.fract() != 0.0)));
            assert_eq!(FloatState::flushing(|| [chains::<K, false>(), chains::<K, true>()]), wanted);
        }
        if Level::detect() >= Level::Avx2 {
            compare::<avx2::Sums>();
        }
        if Level::detect() >= Level::Avx512 {
            compare::<avx512::Sums>();
        }
    }

    #[test]
    fn scales_of_every_exponent_are_exact() {
        let k = 128;
        for text in ["mxfp8e4m3", "mxfp8e5m2", "mxfp8e4m3/16", "mxfp8e5m2/64", "bm8e4/32"] {
            let weights: Vec<f32> = (0..256 * k).map(noise).collect();
            let mut sample = Sample::new(&weights, k, Format::parse(text).unwrap());
            let groups = sample.scales.len() / 256;
            for (row, scales) in sample.scales.chunks_mut(groups).enumerate() {
                scales[row % groups] = row as u8;
            }
            // Blocks of zeros, whose scale has the lowest code.
            let group = k / groups;
            for row in [0, 17, 200] {
                sample.codes[row * k..][..group].fill(0);
                sample.scales[row * groups] = 0;
            }
            for m in [1, 2, 5] {
                let x: Vec<f32> = (0..m * k).map(|i| noise(i + 5)).collect();
                compare(&sample, (256, k), &x, &[], text);
            }
        }
    }
}
