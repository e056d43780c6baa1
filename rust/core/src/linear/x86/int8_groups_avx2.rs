//! Products of codes for a few rows of inputs on AVX2: sums of a few columns exact in int32, scaled with both scales of their
//! group in float32 ([`super::sums_avx2::bytes`], and [`super::nibble_sums_avx2`] for 4-bit weights).

use super::code_tables::{plan, require};
use super::int8_limbs_vnni::{FixedInputs, Plan};
use super::nibbles_avx2::Nibbles;
use super::numbers_avx2::{Numbers, Scratch};
use super::sums_avx2::{BLOCK, bytes};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::fallback::Fallback;
use crate::linear::output::Biased;
use crate::linear::problem::{Input, Problem};
use crate::linear::ran;
use crate::linear::rounded::CodesProduct;
use crate::pool;

/// Rows of weights that are read at a time.
pub(super) const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers.
const INPUTS: usize = 4;
/// Rows of inputs that are multiplied in one go, at most.
const MAX_CHUNK_ROWS: usize = 16;
/// Rows of weights in one unit of work.
const UNIT: usize = 64;

/// True for weights of one byte, and inputs whose codes are bytes.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    let Input::Rounded(input) = problem.input else { return false };
    plan(input).is_some_and(|plan| plan.has_codes()) && plan(problem.weight).is_some_and(|plan| plan.is_bytes())
}

/// Multiplies codes.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &CodesProduct<'_>) -> Result<()> {
    ran::note("int8 groups avx2");
    let Problem { weight, columns: n, depth: k, .. } = product.problem;
    let input = product.x.format;
    let (plan, inputs) = (require(plan(weight), weight)?, require(plan(input), input)?);
    product.in_chunks(MAX_CHUNK_ROWS, |chunk| {
        let work = chunk.m.saturating_mul(n).saturating_mul(k);
        // SAFETY: the table asks for the level; `takes` found inputs of one limb without zero points.
        unsafe {
            let fixed = FixedInputs::encoded(&inputs, chunk.codes, chunk.m, |row| chunk.overflows(row))?;
            let groups = Product::new(&plan, &product.rows, &fixed, inputs.group)?;
            groups.multiply(&fixed, n, work, chunk.out, chunk.fallback)
        }
    })
}

/// Rows of weights, and of inputs that are multiplied with them.
pub(super) trait WeightReader: Sync {
    /// Some rows of weights, at most [`UNROLL_ROWS`].
    type Scratch;

    /// Room for them.
    ///
    /// # Errors
    /// Where memory is short.
    fn scratch(&self) -> Result<Self::Scratch>;

    /// Reads a row of weights to a place; false where a scale is so large or so small that weights may not be a number times it.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the matrix must have the row, and `to` the place.
    unsafe fn read(&self, row: usize, place: usize, to: &mut Self::Scratch) -> bool;

    /// The products of the first `count` places, which hold the rows of weights from `first` on, with rows of inputs.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the rows must have been read, and `count` be at least 1. No input of the
    /// rows is -128.
    unsafe fn products<const M: usize>(
        &self,
        first: usize,
        count: usize,
        rows: [usize; M],
        from: &Self::Scratch,
    ) -> [[f32; M]; UNROLL_ROWS];
}

/// The product of packed weights with the codes of rows of inputs.
enum Product<'a> {
    Bytes(Bytes<'a>),
    Nibbles(Nibbles<'a>),
}

impl<'a> Product<'a> {
    /// Weights are those of the plan; inputs have one limb, and `input_group` columns share a scale.
    ///
    /// # Errors
    /// Where memory is short.
    fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &'a FixedInputs, input_group: usize) -> Result<Self> {
        if Nibbles::takes(plan) {
            return Nibbles::new(plan, rows, x, input_group).map(Self::Nibbles);
        }
        Bytes::new(plan, rows, x, input_group).map(Self::Bytes)
    }

    /// Writes all products of `x`, from which this was made, with `n` rows of weights, whose work counts as `work` bytes.
    /// The fallback computes those that are left.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX2, FMA and F16C; the matrix must have `n` rows.
    unsafe fn multiply(
        &self,
        x: &FixedInputs,
        n: usize,
        work: usize,
        out: &Biased<'_>,
        fallback: &Fallback<'_>,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Bytes(kernel) => multiply(kernel, x, n, work, out, fallback),
                Self::Nibbles(kernel) => multiply(kernel, x, n, work, out, fallback),
            }
        }
    }
}

/// [`Product::multiply`] by a kernel.
///
/// # Safety
/// As there.
unsafe fn multiply<K: WeightReader>(
    kernel: &K,
    x: &FixedInputs,
    n: usize,
    work: usize,
    out: &Biased<'_>,
    fallback: &Fallback<'_>,
) -> Result<()> {
    // Of -128, which fixed point has, there is no number of the other sign.
    let takes = |row: usize| x.limbs(row) == 1 && !x.plane(row, 0).contains(&i8::MIN);
    let (rows, fallback_rows): (Vec<_>, Vec<_>) = (0..x.rows).partition(|&row| takes(row));
    pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
        let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
        let mut scratch = kernel.scratch()?;
        for first in (start..end).step_by(UNROLL_ROWS) {
            let count = UNROLL_ROWS.min(end - first);
            // SAFETY: as the caller promises.
            if !unsafe { (0..count).all(|r| kernel.read(first + r, r, &mut scratch)) } {
                fallback.run(None, first, count)?;
                continue;
            }
            for inputs in rows.chunks(INPUTS) {
                // SAFETY: as the caller promises; every unit writes its own columns.
                unsafe {
                    match *inputs {
                        [a] => write(kernel, first, count, [a], &scratch, out),
                        [a, b] => write(kernel, first, count, [a, b], &scratch, out),
                        [a, b, c] => write(kernel, first, count, [a, b, c], &scratch, out),
                        [a, b, c, d] => write(kernel, first, count, [a, b, c, d], &scratch, out),
                        _ => {}
                    }
                }
            }
            fallback_rows.iter().try_for_each(|&row| fallback.run(Some(row), first, count))?;
        }
        Ok(())
    })
}

/// Writes products of some rows of inputs with `count` rows of weights from `first` on.
///
/// # Safety
/// As for [`WeightReader::products`]; nobody else may use their columns of the outputs.
unsafe fn write<K: WeightReader, const M: usize>(
    kernel: &K,
    first: usize,
    count: usize,
    rows: [usize; M],
    scratch: &K::Scratch,
    out: &Biased<'_>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let products = kernel.products(first, count, rows, scratch);
        for (m, row) in rows.into_iter().enumerate() {
            let mut values = products.map(|products| products[m]);
            out.write(row, first, &mut values[..count]);
        }
    }
}

/// Weights that become bytes, whatever their width.
pub(super) struct Bytes<'a> {
    numbers: Numbers<'a>,
    x: &'a FixedInputs,
    /// By row of inputs, then group.
    input_scales: Vec<f32>,
}

impl<'a> Bytes<'a> {
    fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &'a FixedInputs, input_group: usize) -> Result<Self> {
        let numbers = Numbers::new(plan, rows, input_group);
        let (groups, group) = (numbers.groups(), numbers.group());
        let mut input_scales = zeroed(x.rows * groups)?;
        for (row, scales) in input_scales.chunks_mut(groups.max(1)).enumerate() {
            scales.iter_mut().enumerate().for_each(|(at, scale)| *scale = x.unit(row, at * group));
        }
        Ok(Self { numbers, x, input_scales })
    }

    /// Products of `R` rows of weights from place `start` on; those beyond the last repeat it.
    ///
    /// # Safety
    /// As for [`WeightReader::products`].
    unsafe fn products_of<const R: usize, const M: usize>(
        &self,
        first: usize,
        (start, count): (usize, usize),
        rows: [usize; M],
        from: &Scratch,
    ) -> [[f32; M]; R] {
        let place = |r: usize| (start + r).min(count - 1);
        let weights: [_; R] = std::array::from_fn(|r| self.numbers.row(first + place(r), place(r), from));
        let (numbers, scales) = (weights.map(|w| w.0), weights.map(|w| w.1));
        let x = rows.map(|row| self.x.plane(row, 0).as_ptr());
        let input_scales = rows.map(|row| self.input_scales[row * self.numbers.groups()..].as_ptr());
        let (blocks, ahead) = (self.numbers.blocks(), self.numbers.ahead(UNROLL_ROWS, from));
        // SAFETY: as the caller promises. Weights and inputs are whole blocks; `multiply` left out rows with -128.
        unsafe {
            match self.numbers.group() == BLOCK {
                true => bytes::<R, M, false>(numbers, scales, x, input_scales, blocks, ahead),
                false => bytes::<R, M, true>(numbers, scales, x, input_scales, blocks, ahead),
            }
        }
    }
}

impl WeightReader for Bytes<'_> {
    type Scratch = Scratch;

    fn scratch(&self) -> Result<Scratch> {
        self.numbers.scratch(UNROLL_ROWS)
    }

    unsafe fn read(&self, row: usize, place: usize, to: &mut Scratch) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.numbers.read(row, place, to) }
    }

    unsafe fn products<const M: usize>(
        &self,
        first: usize,
        count: usize,
        rows: [usize; M],
        from: &Scratch,
    ) -> [[f32; M]; UNROLL_ROWS] {
        // SAFETY: as the caller promises.
        unsafe {
            if M == 1 {
                return self.products_of::<UNROLL_ROWS, M>(first, (0, count), rows, from);
            }
            let mut all = [[0.0; M]; UNROLL_ROWS];
            for (start, all) in all.iter_mut().enumerate().take(count) {
                [*all] = self.products_of::<1, M>(first, (start, count), rows, from);
            }
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::{Inputs, Outputs};
    use crate::simd::{LANES, Level};

    #[test]
    fn some_columns_are_summed_exactly_and_scaled_in_order() {
        if Level::detect() < Level::Avx2 {
            return;
        }
        let (m, n, k) = (5, 70, 300);
        let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
        weights[5 * k..][..64].fill(0.0);
        let inputs: Vec<f32> = (0..m * k).map(|i| noise(i + 77_777) * 3.0).collect();
        let formats = [
            "int8:g32",
            "mxint8",
            "int4:g32",
            "uint4:g32",
            "mxfp4",
            "nvfp4",
            "mxint6",
            "int8:channel",
            "uint4:g16",
            "int4:channel",
            "uint4:g64",
            "bfp4/32",
        ];
        for (text, input) in formats.iter().flat_map(|text| [(text, "int8:g32"), (text, "mxint8"), (text, "nvfp4")]) {
            let formats = [text, input].map(|text| Format::parse(text).unwrap());
            let [plan, input_plan] = formats.map(|format| Plan::new(format).unwrap());
            let (w, x) = (Sample::new(&weights, k, formats[0]), Sample::new(&inputs, k, formats[1]));
            let rows = w.rows(Level::Avx2);
            let mut found = vec![0.0f32; m * n];
            let mut values = ValuesMut::F32(&mut found);
            let out = Biased::new(Outputs::new(&mut values, n, Level::Avx2), &[]);
            let wide = Inputs::new(Values::F32(&inputs), m, k, LANES, Level::Avx2).unwrap();
            let fallback = Fallback::new(&rows, &wide, m, &out);
            // SAFETY: the level was detected; the last row is left out.
            let fixed =
                unsafe { FixedInputs::encoded(&input_plan, &x.rows(Level::Avx2), m, |row| row == m - 1) }.unwrap();
            let product = Product::new(&plan, &rows, &fixed, input_plan.group).unwrap();
            // SAFETY: as above.
            unsafe { product.multiply(&fixed, n, m * n * k, &out, &fallback).unwrap() };
            // 4-bit codes take eight columns together.
            let together = if matches!(product, Product::Nibbles(_)) { 8 } else { 4 };
            let reader = Numbers::new(&plan, &rows, input_plan.group);
            let mut scratch = reader.scratch(1).unwrap();
            for weight in [0, 5, 69] {
                // SAFETY: as above; pointers hold as many numbers and scales.
                let (numbers, scales) = unsafe {
                    assert!(reader.read(weight, 0, &mut scratch));
                    let (numbers, scales) = reader.row(weight, 0, &scratch);
                    let numbers = std::slice::from_raw_parts(numbers, reader.blocks() * BLOCK);
                    (numbers, std::slice::from_raw_parts(scales, reader.groups()))
                };
                for row in 0..m - 1 {
                    let mut lanes = [0.0f32; 8];
                    for (at, chunk) in numbers.chunks(together).enumerate() {
                        let first = together * at;
                        let x = &fixed.plane(row, 0)[first..];
                        let sum: i32 = chunk.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
                        let (lane, scale) = (&mut lanes[at % 8], scales[first / reader.group()]);
                        *lane = (sum as f32 * fixed.unit(row, first)).mul_add(scale, *lane);
                    }
                    let two = |i: usize| lanes[i] + lanes[i + 4];
                    let wanted = (two(0) + two(2)) + (two(1) + two(3));
                    assert_eq!(
                        found[row * n + weight].to_bits(),
                        wanted.to_bits(),
                        "{text} x {input}: {row}, {weight}"
                    );
                }
            }
        }
    }
}
