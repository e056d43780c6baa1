//! Float32 products for a few rows of inputs on AVX2: codes become float32 in registers, those of more than 4 bits by way of
//! bytes in the L1 cache.
//!
//! Decoded weights and the order of summation are those of [`reference`], and so are the bits.

use std::borrow::Cow;

use super::code_tables;
use super::int8_limbs_vnni::Plan;
use super::level_sums_avx2::{self, ANY, HALF, HALF_LESS_ZERO, Planes, levels};
use super::nibble_rows_avx2::{self, NibbleRows};
use super::numbers_avx2::{self, Numbers};
use super::sums_avx2::{BLOCK, floats};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::f32_fma::Panel;
use crate::linear::float::FloatProduct;
use crate::linear::output::{Biased, Inputs};
use crate::linear::problem::Problem;
use crate::linear::{ran, reference};
use crate::pool;
use crate::simd::LANES;

/// Rows of weights that are read at a time.
const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers. More take turns.
const INPUTS: usize = 4;
/// Rows of weights in one unit of work.
const UNIT: usize = 64;

/// True for weights of one byte, and of at most four bits.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    code_tables::plan(problem.weight).is_some_and(|plan| has_numbers(&plan))
}

const fn has_numbers(plan: &Plan) -> bool {
    plan.is_bytes() || plan.width <= 4
}

/// Multiplies with codes that become weights in registers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    ran::note("fma codes avx2");
    let format = product.problem.weight;
    let plan = code_tables::require(code_tables::plan(format), format)?;
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the instructions.
        unsafe { multiply(&plan, &product.rows, x, m, product.problem.columns, out) }
    })
}

/// Writes all products of `m` rows of inputs, filled with zeros to whole vectors, with `n` rows of weights of the plan.
///
/// # Errors
/// Where memory is short or threads cannot be started.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C; the matrix must have `n` rows. [`has_numbers`] must be true of the plan.
unsafe fn multiply(plan: &Plan, rows: &Rows<'_>, x: &Inputs<'_>, m: usize, n: usize, out: &Biased<'_>) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        if plan.width == 4 || !plan.is_bytes() {
            return Product { reader: Levels::new(plan, rows), rows, x, m }.multiply(n, out);
        }
        Product { reader: Numbers::new(plan, rows, BLOCK), rows, x, m }.multiply(n, out)
    }
}

/// Rows of weights, and sums of their products.
trait WeightReader: Sync {
    /// Some rows of weights.
    type Scratch;
    /// Columns in sixteen that follow each other, where that is not the order of inputs.
    const ORDER: Option<[usize; LANES]>;
    /// Rows of weights that are multiplied together with one row of inputs: 4 or 2.
    const ROWS: usize;

    /// Room for [`UNROLL_ROWS`] rows.
    ///
    /// # Errors
    /// Where memory is short.
    fn scratch(&self) -> Result<Self::Scratch>;

    /// Reads a row of weights to a place; false where a scale is so large or so small that weights may not be a number times it.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the matrix must have the row, and `to` the place.
    unsafe fn read(&self, row: usize, place: usize, to: &mut Self::Scratch) -> bool;

    /// Sums of products, as sixteen chains each, of the rows of weights at some places, which hold those from `first` on, with
    /// rows of inputs in the order, of so many vectors.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the rows must have been read.
    unsafe fn sums<const R: usize, const M: usize>(
        &self,
        first: usize,
        places: [usize; R],
        x: [*const f32; M],
        vectors: usize,
        from: &Self::Scratch,
    ) -> [[[f32; LANES]; M]; R];
}

impl WeightReader for Numbers<'_> {
    type Scratch = numbers_avx2::Scratch;
    const ORDER: Option<[usize; LANES]> = None;
    const ROWS: usize = 4;

    fn scratch(&self) -> Result<Self::Scratch> {
        self.scratch(UNROLL_ROWS)
    }

    unsafe fn read(&self, row: usize, place: usize, to: &mut Self::Scratch) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.read(row, place, to) }
    }

    unsafe fn sums<const R: usize, const M: usize>(
        &self,
        first: usize,
        places: [usize; R],
        x: [*const f32; M],
        vectors: usize,
        from: &Self::Scratch,
    ) -> [[[f32; LANES]; M]; R] {
        let weights = places.map(|place| self.row(first + place, place, from));
        let (numbers, scales) = (weights.map(|w| w.0), weights.map(|w| w.1));
        let ahead = self.ahead(UNROLL_ROWS, from);
        // SAFETY: as the caller promises. Weights are whole blocks, inputs whole vectors.
        unsafe {
            match self.group() == BLOCK {
                true => floats::<R, M, false>(numbers, scales, x, vectors, ahead),
                false => floats::<R, M, true>(numbers, scales, x, vectors, ahead),
            }
        }
    }
}

/// Weights of at most 4 bits.
struct Levels<'a> {
    weights: NibbleRows<'a>,
    planes: Planes,
    kind: u8,
}

impl<'a> Levels<'a> {
    fn new(plan: &'a Plan, rows: &'a Rows<'a>) -> Self {
        let planes = std::array::from_fn(|plane| plan.numbers.map(|number| number.to_le_bytes()[plane]));
        let half = plan.numbers.iter().all(|number| number.to_bits() << 16 == 0);
        let kind = if plan.zeros {
            HALF_LESS_ZERO
        } else if half {
            HALF
        } else {
            ANY
        };
        Self { weights: NibbleRows::new(plan, rows, level_sums_avx2::BLOCK, level_sums_avx2::BLOCK), planes, kind }
    }
}

impl WeightReader for Levels<'_> {
    type Scratch = nibble_rows_avx2::Scratch;
    const ORDER: Option<[usize; LANES]> = Some(level_sums_avx2::ORDER);
    const ROWS: usize = 2;

    fn scratch(&self) -> Result<Self::Scratch> {
        self.weights.scratch(UNROLL_ROWS)
    }

    unsafe fn read(&self, row: usize, place: usize, to: &mut Self::Scratch) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.weights.read(row, place, to) }
    }

    unsafe fn sums<const R: usize, const M: usize>(
        &self,
        first: usize,
        places: [usize; R],
        x: [*const f32; M],
        vectors: usize,
        from: &Self::Scratch,
    ) -> [[[f32; LANES]; M]; R] {
        let weights = places.map(|place| self.weights.row(first + place, place, from));
        let (planes, ahead) = (&self.planes, self.weights.ahead(UNROLL_ROWS, from));
        // SAFETY: as the caller promises. Weights are whole blocks, inputs whole vectors.
        unsafe {
            match (self.weights.group() == level_sums_avx2::BLOCK, self.kind) {
                (true, HALF) => levels::<R, M, false, HALF>(weights, planes, x, vectors, ahead),
                (true, HALF_LESS_ZERO) => levels::<R, M, false, HALF_LESS_ZERO>(weights, planes, x, vectors, ahead),
                (true, _) => levels::<R, M, false, ANY>(weights, planes, x, vectors, ahead),
                (false, HALF) => levels::<R, M, true, HALF>(weights, planes, x, vectors, ahead),
                (false, HALF_LESS_ZERO) => levels::<R, M, true, HALF_LESS_ZERO>(weights, planes, x, vectors, ahead),
                (false, _) => levels::<R, M, true, ANY>(weights, planes, x, vectors, ahead),
            }
        }
    }
}

/// The product of packed weights with some rows of inputs.
struct Product<'a, K> {
    reader: K,
    rows: &'a Rows<'a>,
    x: &'a Inputs<'a>,
    m: usize,
}

impl<K: WeightReader> Product<'_, K> {
    /// As the function of this name.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    unsafe fn multiply(&self, n: usize, out: &Biased<'_>) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        let mut x = Cow::Borrowed(self.x.values());
        if let Some(order) = K::ORDER {
            let mut ordered = zeroed::<f32>(x.len())?;
            for (to, from) in ordered.as_chunks_mut::<LANES>().0.iter_mut().zip(x.as_chunks::<LANES>().0) {
                *to = order.map(|column| from[column]);
            }
            x = Cow::Owned(ordered);
        }
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
            let mut scratch = self.reader.scratch()?;
            for first in (start..end).step_by(UNROLL_ROWS) {
                let count = UNROLL_ROWS.min(end - first);
                // SAFETY: as the caller promises; every unit writes its own columns.
                unsafe {
                    if (0..count).all(|r| self.reader.read(first + r, r, &mut scratch)) {
                        self.run(&x, first, count, &scratch, |row, values| out.write(row, first, values));
                    } else {
                        let panel = Panel { rows: self.rows, x: self.x.values(), stride: self.x.stride, first, count };
                        panel.run(self.m, |row, values| out.write(row, first, values))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Calls `write` with each row of inputs, which are `x` in the order, and its products with `count` rows of weights from
    /// `first` on.
    ///
    /// # Safety
    /// As for [`Self::multiply`]; the rows must be the matrix's, at most [`UNROLL_ROWS`], and read.
    unsafe fn run(
        &self,
        x: &[f32],
        first: usize,
        count: usize,
        scratch: &K::Scratch,
        mut write: impl FnMut(usize, &mut [f32]),
    ) {
        for row in (0..self.m).step_by(INPUTS) {
            let x = &x[row * self.x.stride..];
            let write = |m: usize, values: &mut [f32]| write(row + m, values);
            // SAFETY: as the caller promises; so many rows of inputs are left.
            unsafe {
                match self.m - row {
                    1 if K::ROWS == 4 => self.run_unrolled::<4, 1>(x, first, count, scratch, write),
                    1 => self.run_unrolled::<2, 1>(x, first, count, scratch, write),
                    2 => self.run_unrolled::<1, 2>(x, first, count, scratch, write),
                    3 => self.run_unrolled::<1, 3>(x, first, count, scratch, write),
                    _ => self.run_unrolled::<1, 4>(x, first, count, scratch, write),
                }
            }
        }
    }

    /// [`Self::run`] for the first `M` rows of inputs, `R` rows of weights at a time.
    ///
    /// # Safety
    /// As there; there must be as many rows of inputs.
    unsafe fn run_unrolled<const R: usize, const M: usize>(
        &self,
        x: &[f32],
        first: usize,
        count: usize,
        scratch: &K::Scratch,
        mut write: impl FnMut(usize, &mut [f32]),
    ) {
        let mut products = [[0.0; UNROLL_ROWS]; M];
        let x = std::array::from_fn(|m| x[m * self.x.stride..].as_ptr());
        for start in (0..count).step_by(R) {
            // Rows beyond the last repeat it.
            let places = std::array::from_fn(|r| (start + r).min(count - 1));
            // SAFETY: as the caller promises.
            let sums: [_; R] = unsafe { self.reader.sums(first, places, x, self.x.stride / LANES, scratch) };
            for (m, products) in products.iter_mut().enumerate() {
                let to = products[start..count].iter_mut();
                to.zip(&sums).for_each(|(to, sums): (_, &[_; M])| *to = reference::product(sums[m]));
            }
        }
        for (m, products) in products.iter_mut().enumerate() {
            write(m, &mut products[..count]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::{Format, catalogue};
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::Outputs;
    use crate::simd::Level;

    #[test]
    fn products_have_the_bits_of_decoded_weights() {
        if Level::detect() < Level::Avx2 {
            return;
        }
        let n = 7;
        let more = ["int4:g64", "uint4:g128", "int5:g32", "bfp6/16", "int2:tensor", "uint7:g16", "nf3/16"];
        for (text, k) in catalogue().iter().copied().chain(more).flat_map(|text| [(text, 200), (text, 67), (text, 96)])
        {
            let format = Format::parse(text).unwrap();
            let Some(plan) = Plan::new(format).filter(|plan| has_numbers(plan) && !plan.offsets) else { continue };
            let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
            weights[2 * k..][..40].fill(0.0);
            weights[5 * k] = 1e20; // a scale that is left to others
            let sample = Sample::new(&weights, k, format);
            let rows = sample.rows(Level::Avx2);
            for m in 1..=INPUTS + 3 {
                let mut x: Vec<f32> = (0..m * k).map(noise).collect();
                x[k - 1] = 1e-42;
                let x = Inputs::new(Values::F32(&x), m, k, LANES, Level::Avx2).unwrap();
                let (mut found, mut wanted) = (vec![0.0f32; m * n], vec![1.0f32; m * n]);
                let mut values = ValuesMut::F32(&mut found);
                let out = Biased::new(Outputs::new(&mut values, n, Level::Avx2), &[]);
                // SAFETY: the level was detected.
                unsafe { multiply(&plan, &rows, &x, m, n, &out).unwrap() };
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first: 0, count: n };
                panel.run(m, |row, values| wanted[row * n..][..n].copy_from_slice(values)).unwrap();
                let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&wanted), "{text}: {m} rows of {k}");
            }
        }
    }
}
