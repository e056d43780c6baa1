//! Exact sums of products of int8 codes with AVX2: four rows of weights with up to three rows of inputs in registers.
//!
//! Codes are widened to int16, pairs of products added to int32: nothing saturates. `reference::sum_of_codes` has the same
//! sums.

use std::arch::x86_64::*;

use crate::error::Result;
use crate::linear::int8_lanes::MAX_DEPTH;
use crate::linear::integer::IntegerProduct;
use crate::linear::problem::Problem;
use crate::linear::ran;

/// Rows of weights multiplied at a time.
const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with them while they are in registers: all sixteen are in use.
const INPUTS: usize = 3;
/// Columns of a register.
const STEP: usize = 16;

/// True for sums that fit int32.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    (1..=MAX_DEPTH).contains(&problem.depth)
}

/// Multiplies with panels of rows of weights.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &IntegerProduct<'_>) -> Result<()> {
    ran::note("int8 avx2");
    // SAFETY: the table asks for the level; int32 holds the sums.
    product.in_fours(|weights, x, write| unsafe { multiply(weights, x, write) })
}

/// Calls `write` with each row of inputs and its sums of products with [`UNROLL_ROWS`] rows of weights. Sums must fit int32.
///
/// # Safety
/// The processor must have AVX2.
unsafe fn multiply(weights: [&[i8]; UNROLL_ROWS], x: &[i8], mut write: impl FnMut(usize, [i32; UNROLL_ROWS])) {
    let k = weights[0].len();
    for (block, rows) in x.chunks(INPUTS * k.max(1)).enumerate() {
        let row = |i: usize| &rows[i * k..][..k];
        let mut all = |sums: &[[i32; UNROLL_ROWS]]| {
            sums.iter().enumerate().for_each(|(i, sums)| write(block * INPUTS + i, *sums));
        };
        // SAFETY: as the caller promises.
        unsafe {
            match rows.len() / k.max(1) {
                1 => all(&sums(weights, [row(0)])),
                2 => all(&sums(weights, [row(0), row(1)])),
                _ => all(&sums(weights, [row(0), row(1), row(2)])),
            }
        }
    }
}

/// Sums of products by row of inputs, then row of weights.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn sums<const M: usize>(weights: [&[i8]; UNROLL_ROWS], x: [&[i8]; M]) -> [[i32; UNROLL_ROWS]; M] {
    let k = weights[0].len();
    let whole = k / STEP * STEP;
    assert!(weights.iter().chain(&x).all(|row| row.len() == k));
    let mut all = [[_mm256_setzero_si256(); UNROLL_ROWS]; M];
    // SAFETY: every vector lies inside its row.
    let widened = |row: &[i8], at: usize| unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(row.as_ptr().add(at).cast())) };
    for at in (0..whole).step_by(STEP) {
        let mut inputs = [_mm256_setzero_si256(); M];
        for i in 0..M {
            inputs[i] = widened(x[i], at);
        }
        for r in 0..UNROLL_ROWS {
            let weights = widened(weights[r], at);
            for i in 0..M {
                all[i][r] = _mm256_add_epi32(all[i][r], _mm256_madd_epi16(weights, inputs[i]));
            }
        }
    }
    let mut sums = [[0; UNROLL_ROWS]; M];
    for i in 0..M {
        let pairs = [_mm256_hadd_epi32(all[i][0], all[i][1]), _mm256_hadd_epi32(all[i][2], all[i][3])];
        let fours = _mm256_hadd_epi32(pairs[0], pairs[1]);
        let four = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
        // SAFETY: four sums are 16 bytes.
        unsafe { _mm_storeu_si128(sums[i].as_mut_ptr().cast(), four) };
        for (sum, weights) in sums[i].iter_mut().zip(weights) {
            let rest = weights[whole..].iter().zip(&x[i][whole..]);
            *sum += rest.map(|(&w, &x)| i32::from(w) * i32::from(x)).sum::<i32>();
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::encoded_sample::codes;
    use crate::linear::reference;

    #[test]
    fn sums_are_those_of_the_reference() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        for (rows, k) in [(1, 1), (2, 16), (3, 47), (4, 64), (8, 300)] {
            let (weights, x) = (codes(UNROLL_ROWS, k, 0), codes(rows, k, 4_321));
            let of = |r: usize| &weights[r * k..][..k];
            let mut rows_seen = 0;
            // SAFETY: the instructions were detected.
            unsafe {
                multiply(std::array::from_fn(of), &x, |row, sums| {
                    assert_eq!(row, rows_seen);
                    rows_seen += 1;
                    let wanted = |r: usize| reference::sum_of_codes(of(r), &x[row * k..][..k]);
                    assert_eq!(sums.map(i64::from), std::array::from_fn(wanted), "row {row} of {rows}, {k} columns");
                });
            }
            assert_eq!(rows_seen, rows);
        }
    }
}
