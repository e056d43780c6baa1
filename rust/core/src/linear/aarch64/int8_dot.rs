//! Exact sums of products of int8 codes with SDOT: four rows of weights with up to four rows of inputs in registers.
//!
//! Four products of codes are added to each int32: nothing saturates. `reference::sum_of_codes` has the same sums.

use std::arch::aarch64::*;

use crate::error::Result;
use crate::linear::int8_lanes::MAX_DEPTH;
use crate::linear::integer::IntegerProduct;
use crate::linear::problem::Problem;
use crate::linear::ran;

/// Rows of weights multiplied at a time.
const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with them while they are in registers: 16 sums, 4 weights and 4 inputs of 32 registers.
const INPUTS: usize = 4;
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
    ran::note("int8 dot neon");
    // SAFETY: the table asks for the instructions; int32 holds the sums.
    product.in_fours(|weights, x, write| unsafe { multiply(weights, x, write) })
}

/// Calls `write` with each row of inputs and its sums of products with [`UNROLL_ROWS`] rows of weights. Sums must fit int32.
///
/// # Safety
/// The processor must have SDOT.
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
                3 => all(&sums(weights, [row(0), row(1), row(2)])),
                _ => all(&sums(weights, [row(0), row(1), row(2), row(3)])),
            }
        }
    }
}

/// Adds to each int32 of `sums` the products of four codes.
///
/// # Safety
/// The processor must have SDOT.
#[target_feature(enable = "dotprod")]
fn dot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: touches registers alone; the feature has the instruction.
    unsafe {
        std::arch::asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Sums of products by row of inputs, then row of weights.
///
/// # Safety
/// The processor must have SDOT.
#[target_feature(enable = "neon,dotprod")]
unsafe fn sums<const M: usize>(weights: [&[i8]; UNROLL_ROWS], x: [&[i8]; M]) -> [[i32; UNROLL_ROWS]; M] {
    let k = weights[0].len();
    let whole = k / STEP * STEP;
    assert!(weights.iter().chain(&x).all(|row| row.len() == k));
    let mut all = [[vdupq_n_s32(0); UNROLL_ROWS]; M];
    for at in (0..whole).step_by(STEP) {
        // SAFETY: every vector lies inside its row.
        let load = |row: &[i8]| unsafe { vld1q_s8(row.as_ptr().add(at)) };
        let inputs = x.map(load);
        for (r, weights) in weights.into_iter().enumerate() {
            let weights = load(weights);
            for i in 0..M {
                all[i][r] = dot(all[i][r], weights, inputs[i]);
            }
        }
    }
    let mut sums = all.map(|sums| sums.map(|sums| vaddvq_s32(sums)));
    for (sums, x) in sums.iter_mut().zip(x) {
        for (sum, weights) in sums.iter_mut().zip(weights) {
            let rest = weights[whole..].iter().zip(&x[whole..]);
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
        if !std::arch::is_aarch64_feature_detected!("dotprod") {
            return;
        }
        for (rows, k) in [(1, 1), (2, 16), (3, 47), (4, 64), (9, 300)] {
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
