//! Float32 products for a few rows of inputs on AVX2: codes become bytes in the L1 cache, and float32 in registers.
//!
//! Decoded weights and the order of summation are those of [`super::reference`], and so are the bits.

use super::float::{Biased, Panel};
use super::int8_limbs_vnni::Plan;
use super::numbers_avx2::{Numbers, Scratch};
use super::output::Inputs;
use super::reference;
use super::sums_avx2::{BLOCK, floats};
use crate::codec::rows::Rows;
use crate::error::Result;
use crate::pool;
use crate::simd::LANES;

/// Rows of weights that are read at a time.
const TOGETHER: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers. More take turns.
const INPUTS: usize = 4;
/// Rows of inputs up to which this is faster than decoding rows of weights to memory first.
pub(super) const MOST_ROWS: usize = 8;
/// Rows of weights in one unit of work.
const UNIT: usize = 64;

/// The product of packed weights with some rows of inputs.
pub(super) struct Product<'a> {
    numbers: Numbers<'a>,
    rows: &'a Rows<'a>,
    x: &'a Inputs<'a>,
    m: usize,
}

impl<'a> Product<'a> {
    /// The product of rows whose format has the plan with `m` rows of as many inputs, filled with zeros to whole vectors.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &'a Inputs<'a>, m: usize) -> Self {
        Self { numbers: Numbers::new(plan, rows, BLOCK), rows, x, m }
    }

    /// Writes all products with `n` rows of weights.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the matrix must have `n` rows.
    pub(super) unsafe fn multiply(&self, n: usize, out: &Biased<'_>) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
            let mut scratch = self.numbers.scratch(TOGETHER)?;
            for first in (start..end).step_by(TOGETHER) {
                let count = TOGETHER.min(end - first);
                // SAFETY: as the caller promises; every unit writes its own columns.
                unsafe {
                    if (0..count).all(|r| self.numbers.read(first + r, r, &mut scratch)) {
                        self.run(first, count, &scratch, |row, values| out.write(row, first, values));
                    } else {
                        let panel = Panel { rows: self.rows, x: self.x.values(), stride: self.x.stride, first, count };
                        panel.run(self.m, |row, values| out.write(row, first, values))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Calls `write` with each row of inputs and its products with `count` rows of weights from `first` on.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA; the rows must be the matrix's, at most [`TOGETHER`], and read.
    unsafe fn run(&self, first: usize, count: usize, scratch: &Scratch, mut write: impl FnMut(usize, &mut [f32])) {
        for row in (0..self.m).step_by(INPUTS) {
            // SAFETY: as the caller promises; so many rows of inputs are left.
            unsafe {
                match (self.m - row, self.numbers.group == BLOCK) {
                    (1, true) => self.some::<4, 1, false>(first, count, row, scratch, &mut write),
                    (1, false) => self.some::<4, 1, true>(first, count, row, scratch, &mut write),
                    (2, true) => self.some::<2, 2, false>(first, count, row, scratch, &mut write),
                    (2, false) => self.some::<2, 2, true>(first, count, row, scratch, &mut write),
                    (3, true) => self.some::<2, 3, false>(first, count, row, scratch, &mut write),
                    (3, false) => self.some::<2, 3, true>(first, count, row, scratch, &mut write),
                    (_, true) => self.some::<1, 4, false>(first, count, row, scratch, &mut write),
                    (_, false) => self.some::<1, 4, true>(first, count, row, scratch, &mut write),
                }
            }
        }
    }

    /// [`Self::run`] for `M` rows of inputs from `row` on, `R` rows of weights at a time.
    ///
    /// # Safety
    /// As there; there must be as many rows of inputs.
    unsafe fn some<const R: usize, const M: usize, const HALVES: bool>(
        &self,
        first: usize,
        count: usize,
        row: usize,
        scratch: &Scratch,
        write: &mut impl FnMut(usize, &mut [f32]),
    ) {
        let mut products = [[0.0; TOGETHER]; M];
        for start in (0..count).step_by(R) {
            // Rows beyond the last repeat it.
            let place = |r: usize| (start + r).min(count - 1);
            let weights: [_; R] = std::array::from_fn(|r| self.numbers.row(first + place(r), place(r), scratch));
            let x = std::array::from_fn(|m| self.x.row(row + m).as_ptr());
            let (vectors, ahead) = (self.rows.k.div_ceil(LANES), self.numbers.ahead(TOGETHER, scratch));
            // SAFETY: as the caller promises. Weights are whole blocks, inputs whole vectors.
            let sums = unsafe { floats::<R, M, HALVES>(weights.map(|w| w.0), weights.map(|w| w.1), x, vectors, ahead) };
            for (m, products) in products.iter_mut().enumerate() {
                let to = products[start..count].iter_mut();
                to.zip(&sums).for_each(|(to, sums)| *to = reference::product(sums[m]));
            }
        }
        for (m, products) in products.iter_mut().enumerate() {
            write(row + m, &mut products[..count]);
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
        let more = ["int4:g64", "uint4:g128", "int5:g32", "bfp6/16", "int2:tensor", "uint7:g16"];
        for (text, k) in catalogue().iter().copied().chain(more).flat_map(|text| [(text, 200), (text, 67)]) {
            let format = Format::parse(text).unwrap();
            let Some(plan) = Plan::new(format).filter(Plan::is_bytes) else { continue };
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
                unsafe { Product::new(&plan, &rows, &x, m).multiply(n, &out).unwrap() };
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first: 0, count: n };
                panel.run(m, |row, values| wanted[row * n..][..n].copy_from_slice(values)).unwrap();
                let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&wanted), "{text}: {m} rows of {k}");
            }
        }
    }
}
