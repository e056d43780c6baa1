//! Products of weights of 4 bits that stand for the numbers of a code book, for a few rows of inputs, with AVX-512.
//!
//! A lane holds eight codes that follow each other. They are looked up as float32 where they lie: shifted by 4 bits each time, a
//! register of codes is eight registers of indices. Inputs are in the order that comes of this. Lane `i` sums its eight products of a
//! block of 128 columns as a chain, which is multiplied with the scale of its columns and added to the lane's sum: the rounding of
//! weights is left out, and the bound of FORMATS.md section 6 holds. Sums of lanes are added as a tree.

use std::arch::x86_64::*;
use std::ops::RangeInclusive;

use super::code_tables;
use super::int8_limbs_vnni::{Scale, Scales, grouping};
use crate::codec::grid::Grid;
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::format::Format;
use crate::linear::fallback::Fallback;
use crate::linear::float::FloatProduct;
use crate::linear::output::{Biased, Inputs};
use crate::linear::problem::Problem;
use crate::linear::{ran, reference};
use crate::pool;
use crate::simd::{LANES, Line};

/// Codes in a lane.
const EACH: usize = 8;
/// Columns of a block: a register of codes.
const BLOCK: usize = LANES * EACH;
/// Bytes of a block of codes.
const BYTES: usize = BLOCK / 2;
/// Rows of weights multiplied at a time.
const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers. More take turns.
const INPUTS: usize = 2;
/// Rows of weights in one unit of work.
const UNIT: usize = 64;
/// Scales that are read at a time: a block has at most as many.
const SCALES: usize = 8;
/// Prefetch distance in bytes of codes at least, where rows are short.
const LEAST_AHEAD: usize = 8 * 1024;
/// Columns whose largest input has one of [`MAGNITUDES`], or is 0.
const CHUNK: usize = 256;
/// From 2^-60 to 2^60: sums of products that are not scaled yet neither overflow nor vanish.
const MAGNITUDES: RangeInclusive<f32> = f32::from_bits((127 - 60) << 23)..=f32::from_bits((127 + 60) << 23);

/// The numbers of a format of 4 bits by code.
#[derive(Debug)]
pub(super) struct Book {
    numbers: Line<f32, LANES>,
    /// Columns that share a scale.
    group: usize,
    scale: Scale,
}

impl Book {
    /// The book of a format; `None` for formats of another kind.
    pub(super) fn new(format: Format) -> Option<Self> {
        let Grid::Book(numbers) = Grid::of(format) else { return None };
        // Blocks are whole groups, or groups whole blocks.
        let whole = |group: usize| BLOCK.is_multiple_of(group) || group.is_multiple_of(BLOCK);
        let (group, scale) = grouping(format).filter(|(group, _)| whole(*group))?;
        Some(Self { numbers: Line(numbers.try_into().ok()?), group, scale })
    }
}

/// True for weights of a code book.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    code_tables::book(problem.weight).is_some()
}

/// Multiplies with codes that are looked up in registers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    ran::note("fma lookup avx512");
    let Problem { weight: format, columns: n, .. } = product.problem;
    let book = code_tables::require(code_tables::book(format), format)?;
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the instructions.
        unsafe { multiply(&book, &product.rows, x, m, n, out) }
    })
}

/// Writes all products of `m` rows of inputs with `n` rows of weights of a book. The float32 kernel takes over rows of inputs with
/// extreme values.
///
/// # Errors
/// Where memory is short or threads cannot be started.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VL; the matrix must have `n` rows, and the format that the book is of.
unsafe fn multiply(book: &Book, rows: &Rows<'_>, x: &Inputs<'_>, m: usize, n: usize, out: &Biased<'_>) -> Result<()> {
    let (k, fallback) = (rows.k, Fallback::new(rows, x, m, out));
    let product = Product {
        book,
        rows,
        x: arrange(x, m, k)?,
        scales: Scales::new(book.scale, rows),
        spread: Line(std::array::from_fn(|i| (i * EACH / book.group) as i32)),
    };
    let moderate: Vec<bool> = (0..m).map(|row| x.row(row).chunks(CHUNK).all(is_moderate)).collect();
    let groups = k.div_ceil(book.group) + SCALES;
    pool::try_for_each(n.div_ceil(UNIT), m.saturating_mul(n).saturating_mul(k), |unit| {
        let mut scales = zeroed::<f32>(UNROLL_ROWS * groups)?;
        let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
        for first in (start..end).step_by(UNROLL_ROWS) {
            let count = UNROLL_ROWS.min(end - first);
            // SAFETY: as the caller promises; every unit writes its own columns.
            unsafe {
                if !product.read_scales(first, count, &mut scales) {
                    fallback.run(None, first, count)?;
                    continue;
                }
                let mut row = 0;
                while row < m {
                    let products = match m - row {
                        1 => product.sums::<1>(first, count, row, &scales).map(|[sums]| [sums; INPUTS]),
                        _ => product.sums::<INPUTS>(first, count, row, &scales),
                    };
                    for i in 0..INPUTS.min(m - row) {
                        let mut values = products.map(|sums| reference::product(sums[i].0));
                        if moderate[row + i] {
                            out.write(row + i, first, &mut values[..count]);
                        }
                    }
                    row += INPUTS;
                }
                fallback.run_rows((0..m).filter(|row| !moderate[*row]), first, count)?;
            }
        }
        Ok(())
    })
}

/// True for inputs that are all 0, or finite and of a moderate largest magnitude.
fn is_moderate(x: &[f32]) -> bool {
    // A NaN must not vanish in a maximum: its bits are the largest.
    let most = x.iter().fold(0, |most, x| most.max(x.to_bits() & u32::MAX >> 1));
    most == 0 || MAGNITUDES.contains(&f32::from_bits(most))
}

/// Inputs by pair of rows, block, code of a lane and row, a line of lanes; those of columns that are not there are 0.
///
/// # Errors
/// Where memory is short.
fn arrange(x: &Inputs<'_>, m: usize, k: usize) -> Result<Vec<Line<f32, LANES>>> {
    let lines = k.div_ceil(BLOCK) * EACH;
    let mut all = zeroed::<Line<f32, LANES>>(m * lines)?;
    for (pair, to) in all.chunks_mut((INPUTS * lines).max(1)).enumerate() {
        let rows = to.len() / lines;
        for row in 0..rows {
            let blocks = to.chunks_mut(rows * EACH).zip(x.row(pair * INPUTS + row).chunks(BLOCK));
            for (to, from) in blocks {
                for (i, &value) in from.iter().enumerate() {
                    to[i % EACH * rows + row].0[i / EACH] = value;
                }
            }
        }
    }
    Ok(all)
}

/// The product of packed weights with some rows of inputs.
struct Product<'a> {
    book: &'a Book,
    rows: &'a Rows<'a>,
    /// As [`arrange`] has them.
    x: Vec<Line<f32, LANES>>,
    scales: Scales<'a>,
    /// Of each lane, the group of its columns, counted from the first of a block.
    spread: Line<i32, LANES>,
}

impl Product<'_> {
    /// Reads the scales of `count` rows of weights from `first` on, the last of which stands in for those beyond; false where one is
    /// out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL; the rows must be the matrix's, `count` at least 1.
    unsafe fn read_scales(&self, first: usize, count: usize, to: &mut [f32]) -> bool {
        let each = to.len() / UNROLL_ROWS;
        to.chunks_mut(each.max(1)).enumerate().all(|(r, to)| {
            let to = &mut to[..each - SCALES];
            // SAFETY: as the caller promises; there is room for all groups.
            unsafe { self.scales.read_each(first + r.min(count - 1), 1, to, &mut _mm512_setzero_ps()) }
        })
    }

    /// Sums of the products of `count` rows of weights from `first` on, whose scales are read, with `M` rows of inputs from
    /// `row` on.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL; the rows must be the matrix's, `count` at least 1, and the inputs'.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    unsafe fn sums<const M: usize>(
        &self,
        first: usize,
        count: usize,
        row: usize,
        scales: &[f32],
    ) -> [[Line<f32, LANES>; M]; UNROLL_ROWS] {
        let (codes, row_bytes) = self.rows.codes();
        let rows: [_; UNROLL_ROWS] =
            std::array::from_fn(|r| &codes[(first + r.min(count - 1)) * row_bytes..][..row_bytes]);
        let lines = self.rows.k.div_ceil(BLOCK) * EACH;
        let x = &self.x[row * lines..][..M * lines];
        let (each, ahead) = (scales.len() / UNROLL_ROWS, (UNROLL_ROWS * row_bytes).max(LEAST_AHEAD));
        let mut totals = [[_mm512_setzero_ps(); M]; UNROLL_ROWS];
        // SAFETY: masks keep inside the codes; there are inputs for whole blocks, and as many scales beyond the last as are read.
        unsafe {
            let numbers = _mm512_load_ps(self.book.numbers.0.as_ptr());
            let spread = _mm512_load_si512(self.spread.0.as_ptr().cast());
            for block in 0..lines / EACH {
                let inside = u64::MAX >> (BYTES - (row_bytes - block * BYTES).min(BYTES));
                let mut indices = [_mm512_setzero_si512(); UNROLL_ROWS];
                for r in 0..UNROLL_ROWS {
                    let at = rows[r].as_ptr().add(block * BYTES);
                    _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(ahead).cast());
                    indices[r] = _mm512_maskz_loadu_epi8(inside, at.cast());
                }
                let mut sums = [[_mm512_setzero_ps(); M]; UNROLL_ROWS];
                for code in 0..EACH {
                    // Bits above the lowest four do not matter.
                    let weights = indices.map(|indices| _mm512_permutexvar_ps(indices, numbers));
                    indices = indices.map(|indices| _mm512_srli_epi32::<4>(indices));
                    for i in 0..M {
                        let x = _mm512_load_ps(x.as_ptr().add((block * EACH + code) * M + i).cast());
                        for r in 0..UNROLL_ROWS {
                            sums[r][i] = match code {
                                0 => _mm512_mul_ps(weights[r], x),
                                _ => _mm512_fmadd_ps(weights[r], x, sums[r][i]),
                            };
                        }
                    }
                }
                let group = block * BLOCK / self.book.group;
                for r in 0..UNROLL_ROWS {
                    let scales = _mm256_loadu_ps(scales.as_ptr().add(r * each + group));
                    let scales = _mm512_permutexvar_ps(spread, _mm512_castps256_ps512(scales));
                    for i in 0..M {
                        totals[r][i] = _mm512_fmadd_ps(sums[r][i], scales, totals[r][i]);
                    }
                }
            }
            let mut sums = [[Line([0.0; LANES]); M]; UNROLL_ROWS];
            for r in 0..UNROLL_ROWS {
                for i in 0..M {
                    _mm512_store_ps(sums[r][i].0.as_mut_ptr(), totals[r][i]);
                }
            }
            sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::catalogue;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::Outputs;
    use crate::simd::Level;

    /// The product of a row of codes and a row of inputs, in the order of the kernel.
    fn product(book: &Book, codes: &[u8], scales: &[f32], x: &[f32]) -> f32 {
        let mut sums = [0.0f32; LANES];
        for (block, x) in x.chunks(BLOCK).enumerate() {
            for (lane, (x, total)) in x.chunks(EACH).zip(&mut sums).enumerate() {
                let column = block * BLOCK + lane * EACH;
                let number = |i: usize| book.numbers.0[usize::from(codes[(column + i) / 2] >> (4 * (i % 2)) & 15)];
                let sum = x.iter().enumerate().skip(1).fold(number(0) * x[0], |sum, (i, x)| number(i).mul_add(*x, sum));
                *total = sum.mul_add(scales[column / book.group], *total);
            }
        }
        reference::product(sums)
    }

    #[test]
    fn products_have_the_bits_of_plain_sums_and_stay_in_the_bound() {
        if Level::detect() < Level::Avx512 {
            return;
        }
        let mut books = 0;
        for text in catalogue().iter().copied().chain(["nf4/16", "nf4/32", "nf4/128", "nf4/256"]) {
            let format = Format::parse(text).unwrap();
            let Some(book) = Book::new(format) else { continue };
            books += 1;
            for (n, k) in [(7, 200), (5, 67), (66, 1), (9, 1024)] {
                let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
                weights[..k.min(64)].fill(0.0);
                let sample = Sample::new(&weights, k, format);
                let rows = sample.rows(Level::Avx512);
                let (codes, row_bytes) = rows.codes();
                let groups = k.div_ceil(book.group);
                let scales: Vec<f32> =
                    sample.scales.as_chunks::<2>().0.iter().map(|v| half::f16::from_le_bytes(*v).to_f32()).collect();
                for m in 1..=5 {
                    let mut values: Vec<f32> = (0..m * k).map(|i| noise(i + 9)).collect();
                    if m > 2 {
                        (values[k - 1], values[2 * k]) = (1e-42, f32::INFINITY);
                    }
                    let x = Inputs::new(Values::F32(&values), m, k, LANES, Level::Avx512).unwrap();
                    let mut result = vec![0.0f32; m * n];
                    let mut to = ValuesMut::F32(&mut result);
                    let out = Biased::new(Outputs::new(&mut to, n, Level::Avx512), &[]);
                    // SAFETY: the level was detected.
                    unsafe { multiply(&book, &rows, &x, m, n, &out).unwrap() };
                    let mut decoded = vec![0.0f32; k];
                    for row in 0..n {
                        rows.decode(row, 0..k, &mut decoded, &mut Default::default());
                        for (i, x) in values.chunks(k).enumerate() {
                            let value = result[i * n + row];
                            if !x.chunks(CHUNK).all(is_moderate) {
                                assert!(
                                    x.iter().all(|x| x.is_finite()) || !value.is_finite(),
                                    "{text}: {n} x {k}, row {i}"
                                );
                                continue;
                            }
                            let (codes, scales) = (&codes[row * row_bytes..], &scales[row * groups..]);
                            let wanted = product(&book, codes, scales, x);
                            assert_eq!(value.to_bits(), wanted.to_bits(), "{text}: {n} x {k}, row {i} of {m}");
                            let terms = || x.iter().zip(&decoded).map(|(x, w)| f64::from(*x) * f64::from(*w));
                            let bound = terms().map(f64::abs).sum::<f64>() * f64::from(2.0f32.powi(-20));
                            assert!((terms().sum::<f64>() - f64::from(value)).abs() <= bound, "{text}: {n} x {k}");
                        }
                    }
                }
            }
        }
        assert!(books >= 5, "{books}");
        assert!(Book::new(Format::parse("nf4/192").unwrap()).is_none());
    }

    #[test]
    fn inputs_that_would_overflow_or_vanish_are_not_moderate() {
        for x in [f32::NAN, -f32::NAN, f32::INFINITY, -1e30, 1e-30, -1e-40] {
            assert!(!is_moderate(&[0.0, x, 0.0]), "{x}");
        }
        assert!(is_moderate(&[0.0, -0.0]) && is_moderate(&[1e-40, -1e10, 0.0]) && is_moderate(&[-1e-15]));
    }
}
