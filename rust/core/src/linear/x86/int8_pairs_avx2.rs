//! Exact sums of products of int8 codes for many rows of inputs on AVX2: sixteen rows of weights with six of inputs in
//! registers.
//!
//! Codes are int16, in pairs of columns; a product of pairs is an instruction, and so is adding it where the processor has
//! VNNI for registers of 256 bits. A register holds the sums of eight outputs. Nothing saturates.
//! `reference::sum_of_codes` has the same sums.

use std::arch::x86_64::*;

use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::int8_lanes::MAX_DEPTH;
use crate::linear::integer::{Biases, IntegerProduct, PANEL};
use crate::linear::problem::Problem;
use crate::linear::{ran, reference};
use crate::pool;
use crate::simd::LANES;
use crate::simd::transpose::transpose_eight;

/// Rows of inputs multiplied at once: twelve sums, two registers of weights and one of inputs.
const INPUTS: usize = 6;
/// Columns that are widened at once.
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
    ran::note("int8 pairs avx2");
    let k = product.w.columns;
    let pairs = Widened::new(&product.x.codes, k)?;
    product.in_panels(|first, count, codes| {
        let mut lines = zeroed(k.div_ceil(2))?;
        let finish = Columns::new(product, first, count);
        let write = |row: usize, sums: [i32; PANEL]| {
            let values = finish.values(product.input_scales[row], sums);
            // SAFETY: every panel writes its own columns.
            unsafe { product.out.write(row, first, &values[..count]) };
        };
        // SAFETY: the table asks for the level; int32 holds the sums.
        unsafe {
            arrange(codes, k, &mut lines);
            pairs.multiply(&lines, write);
        }
        Ok(())
    })
}

/// The arithmetic of [`IntegerProduct::value`] on one row of inputs and all rows of weights of a panel.
struct Columns<'a> {
    scales: [f32; PANEL],
    floats: [f32; PANEL],
    added: Biases<'a>,
    first: usize,
    count: usize,
}

impl<'a> Columns<'a> {
    /// Of `count` rows of weights from `first` on; rows behind them have scales of 0.
    fn new(product: &IntegerProduct<'a>, first: usize, count: usize) -> Self {
        let of_panel = |all: &[f32]| std::array::from_fn(|r| if r < count { all[first + r] } else { 0.0 });
        let floats = if let Biases::Floats(bias) = product.added { of_panel(bias) } else { [0.0; PANEL] };
        Self { scales: of_panel(&product.weight_scales), floats, added: product.added, first, count }
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

/// Two columns of sixteen rows of weights.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Pairs([[i16; 2]; LANES]);

/// Rows of codes as pairs of int16; the last pair of an odd number is filled with 0.
struct Widened {
    pairs: Vec<[i16; 2]>,
    /// Pairs of a row.
    row_pairs: usize,
}

impl Widened {
    /// Takes rows of `k` codes, one at least.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    fn new(codes: &[i8], k: usize) -> Result<Self> {
        let row_pairs = k.div_ceil(2);
        let mut pairs = zeroed::<[i16; 2]>(codes.len() / k * row_pairs)?;
        pool::for_each_chunk(&mut pairs, row_pairs, |row, to| {
            for (&code, to) in codes[row * k..][..k].iter().zip(to.as_flattened_mut()) {
                *to = code.into();
            }
        })?;
        Ok(Self { pairs, row_pairs })
    }

    /// Calls `write` with each row and its sums of products with the sixteen rows of weights of `lines`.
    ///
    /// # Safety
    /// The processor must have AVX2. Sums must fit int32.
    unsafe fn multiply(&self, lines: &[Pairs], mut write: impl FnMut(usize, [i32; LANES])) {
        assert!(lines.len() == self.row_pairs);
        let has_vnni = is_x86_feature_detected!("avxvnni");
        for (block, rows) in self.pairs.chunks(INPUTS * self.row_pairs).enumerate() {
            let mut all = |sums: &[[i32; LANES]]| {
                sums.iter().enumerate().for_each(|(i, sums)| write(block * INPUTS + i, *sums));
            };
            macro_rules! sums {
                ($rows:literal) => {
                    // SAFETY: the instructions were detected, or the caller promises them; there are as many rows.
                    unsafe {
                        match has_vnni {
                            true => all(&sums_vnni::<$rows>(lines, rows)),
                            false => all(&sums::<$rows>(lines, rows)),
                        }
                    }
                };
            }
            match rows.len() / self.row_pairs {
                1 => sums!(1),
                2 => sums!(2),
                3 => sums!(3),
                4 => sums!(4),
                5 => sums!(5),
                _ => sums!(6),
            }
        }
    }
}

/// Defines a function that sums products of pairs, by row of inputs, with `$add(sums, weights, inputs)`.
macro_rules! sums {
    ($name:ident, $features:literal, $add:expr) => {
        /// # Safety
        /// The processor must have the instructions. `x` must have `M` times the pairs of a row of weights.
        #[target_feature(enable = $features)]
        unsafe fn $name<const M: usize>(lines: &[Pairs], x: &[[i16; 2]]) -> [[i32; LANES]; M] {
            let mut all = [[_mm256_setzero_si256(); 2]; M];
            // SAFETY: every line and every pair is inside, as the caller promises.
            unsafe {
                let rows: [*const i32; M] = std::array::from_fn(|i| x.as_ptr().add(i * lines.len()).cast());
                for (at, line) in lines.iter().enumerate() {
                    let halves = std::ptr::from_ref(line).cast::<__m256i>();
                    let weights = [_mm256_load_si256(halves), _mm256_load_si256(halves.add(1))];
                    for i in 0..M {
                        let pair = _mm256_set1_epi32(rows[i].add(at).read_unaligned());
                        for half in 0..2 {
                            all[i][half] = $add(all[i][half], weights[half], pair);
                        }
                    }
                }
                let mut sums = [[0; LANES]; M];
                for i in 0..M {
                    for half in 0..2 {
                        _mm256_storeu_si256(sums[i].as_mut_ptr().cast::<__m256i>().add(half), all[i][half]);
                    }
                }
                sums
            }
        }
    };
}

sums!(sums, "avx2", |sums, weights, pair| _mm256_add_epi32(sums, _mm256_madd_epi16(weights, pair)));
sums!(sums_vnni, "avx2,avxvnni", |sums, weights, pair| _mm256_dpwssd_avx_epi32(sums, weights, pair));

/// Puts sixteen rows of `k` codes in the order in which they are read.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn arrange(codes: &[i8], k: usize, lines: &mut [Pairs]) {
    assert!(codes.len() == LANES * k && lines.len() == k.div_ceil(2));
    let whole = k / STEP * STEP;
    for at in (0..whole).step_by(STEP) {
        for top in [0, LANES / 2] {
            // SAFETY: sixteen columns of eight rows are inside the rows, and eight lines are there.
            unsafe {
                let from = codes.as_ptr().add(top * k + at);
                let rows = std::array::from_fn(|r| {
                    _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.add(r * k).cast())))
                });
                for (line, pairs) in lines[at / 2..].iter_mut().zip(transpose_eight(rows)) {
                    _mm256_store_ps(line.0.as_mut_ptr().add(top).cast(), pairs);
                }
            }
        }
    }
    for (at, line) in lines.iter_mut().enumerate().skip(whole / 2) {
        for (r, pair) in line.0.iter_mut().enumerate() {
            *pair = std::array::from_fn(|i| if 2 * at + i < k { codes[r * k + 2 * at + i].into() } else { 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::encoded_sample::codes;

    #[test]
    fn sums_are_those_of_the_reference() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        for (rows, k) in [(1, 1), (2, 16), (3, 47), (4, 64), (5, 33), (6, 31), (7, 2), (14, 300)] {
            let (weights, x) = (codes(LANES, k, 0), codes(rows, k, 4_321));
            let mut lines = vec![Pairs([[77; 2]; LANES]); k.div_ceil(2)];
            let widened = Widened::new(&x, k).unwrap();
            let mut rows_seen = 0;
            // SAFETY: the instructions were detected.
            unsafe {
                arrange(&weights, k, &mut lines);
                widened.multiply(&lines, |row, sums| {
                    assert_eq!(row, rows_seen);
                    rows_seen += 1;
                    let wanted = |r: usize| reference::sum_of_codes(&weights[r * k..][..k], &x[row * k..][..k]);
                    assert_eq!(sums.map(i64::from), std::array::from_fn(wanted), "row {row} of {rows}, {k} columns");
                });
            }
            assert_eq!(rows_seen, rows);
        }
    }
}
