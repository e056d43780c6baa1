//! Float32 products for many rows of inputs on AVX2: sixteen rows of weights with six of inputs in registers, both in the
//! order in which they are read.
//!
//! The order of summation is that of [`super::f32_fma`], and so are the bits: sixteen chains of fused multiply-adds, column
//! `k` in chain `k mod 16`, then a tree. Here a register holds one chain of eight outputs, so the tree adds registers.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::float::Biased;
use super::output::Inputs;
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::zeroed;
use crate::error::Result;

use crate::pool;
use crate::simd::transpose::transpose_eight;
use crate::simd::{Floats, LANES};

/// Rows of inputs from which on this is faster than rows of weights as they are decoded.
pub(super) const LEAST_ROWS: usize = 64;
/// Rows of inputs multiplied at once: twelve sums, two registers of weights and one of inputs.
const INPUTS: usize = 6;
/// Columns of a register.
const HALF: usize = LANES / 2;
/// Bytes of weights in one unit of work, about: they stay in the L2 cache.
const UNIT: usize = 128 << 10;
/// Units of work at least, where there are as many sixteens of rows.
const LEAST_UNITS: usize = 8;

/// Writes all products of `m` rows of inputs, filled with zeros to whole vectors, with `n` rows of weights.
///
/// # Errors
/// Where memory is short or threads cannot be started.
///
/// # Safety
/// The processor must have AVX2 and FMA; the matrix must have `n` rows, and a column at least.
pub(super) unsafe fn multiply(rows: &Rows<'_>, x: &Inputs<'_>, m: usize, n: usize, out: &Biased<'_>) -> Result<()> {
    let (stride, blocks) = (x.stride, n.div_ceil(LANES));
    let mut inputs = zeroed::<f32>(m * stride)?;
    pool::for_each_chunk(&mut inputs, INPUTS * stride, |group, to| {
        // SAFETY: as the caller promises.
        unsafe { arrange_inputs(&x.values()[group * INPUTS * stride..][..to.len()], stride, to) };
    })?;
    let together = (UNIT / (LANES * stride * size_of::<f32>())).min(blocks / LEAST_UNITS).max(1);
    pool::try_for_each(blocks.div_ceil(together), m.saturating_mul(n).saturating_mul(stride), |unit| {
        let first = unit * together;
        let mut weights = zeroed::<Floats>(together.min(blocks - first) * stride)?;
        let (mut decoded, mut unpacked) = (zeroed::<f32>(LANES * stride)?, Unpacked::default());
        for (block, lines) in weights.chunks_mut(stride).enumerate() {
            let first = (first + block) * LANES;
            let count = LANES.min(n - first);
            for (r, row) in decoded.chunks_mut(stride).enumerate() {
                if r < count {
                    rows.decode(first + r, 0..rows.k, row, &mut unpacked);
                } else {
                    row.fill(0.0);
                }
            }
            // SAFETY: as the caller promises.
            unsafe { arrange_weights(&decoded, lines) };
        }
        for (group, x) in inputs.chunks(INPUTS * stride).enumerate() {
            for (block, lines) in weights.chunks(stride).enumerate() {
                let column = (first + block) * LANES;
                let write = |row: usize, mut values: [f32; LANES]| {
                    let count = LANES.min(n - column);
                    // SAFETY: every unit writes its own columns.
                    unsafe { out.write(group * INPUTS + row, column, &mut values[..count]) };
                };
                // SAFETY: as the caller promises; there are as many rows.
                unsafe {
                    match x.len() / stride {
                        1 => tile::<1>(lines, x, write),
                        2 => tile::<2>(lines, x, write),
                        3 => tile::<3>(lines, x, write),
                        4 => tile::<4>(lines, x, write),
                        5 => tile::<5>(lines, x, write),
                        _ => tile::<INPUTS>(lines, x, write),
                    }
                }
            }
        }
        Ok(())
    })
}

/// Puts at most [`INPUTS`] rows of inputs in the order of [`tile`]: by chain, then sixteen columns, then row.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn arrange_inputs(x: &[f32], stride: usize, to: &mut [f32]) {
    let (count, sixteens) = (x.len() / stride, stride / LANES);
    assert!(x.len() == count * stride && to.len() == x.len());
    if count < INPUTS {
        for (at, to) in to.chunks_mut(count).enumerate() {
            let column = at % sixteens * LANES + at / sixteens;
            to.iter_mut().enumerate().for_each(|(r, to)| *to = x[r * stride + column]);
        }
        return;
    }
    for at in 0..sixteens {
        for left in [0, HALF] {
            // SAFETY: eight columns of six rows are inside the rows, and so are six numbers for each column.
            unsafe {
                let from = x.as_ptr().add(at * LANES + left);
                // Rows beyond the last are not looked at.
                let columns = transpose_eight(std::array::from_fn(|r| _mm256_loadu_ps(from.add(r.min(5) * stride))));
                for (column, values) in columns.into_iter().enumerate() {
                    let to = to.as_mut_ptr().add(((left + column) * sixteens + at) * INPUTS);
                    _mm_storeu_ps(to, _mm256_castps256_ps128(values));
                    _mm_storel_pd(to.add(4).cast(), _mm_castps_pd(_mm256_extractf128_ps::<1>(values)));
                }
            }
        }
    }
}

/// Puts sixteen rows of weights in the order of [`tile`]: by chain, then sixteen columns, a column of the rows a line.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn arrange_weights(rows: &[f32], lines: &mut [Floats]) {
    let (stride, sixteens) = (lines.len(), lines.len() / LANES);
    assert!(rows.len() == LANES * stride);
    for at in 0..sixteens {
        for (top, left) in [(0, 0), (0, HALF), (HALF, 0), (HALF, HALF)] {
            // SAFETY: eight columns of eight rows are inside the rows, and as many lines are there.
            unsafe {
                let from = rows.as_ptr().add(top * stride + at * LANES + left);
                let columns = transpose_eight(std::array::from_fn(|r| _mm256_loadu_ps(from.add(r * stride))));
                for (column, values) in columns.into_iter().enumerate() {
                    let line = &mut lines[(left + column) * sixteens + at];
                    _mm256_storeu_ps(line.0.as_mut_ptr().add(top), values);
                }
            }
        }
    }
}

/// Calls `write` with each of `N` rows of inputs and its products with sixteen rows of weights.
///
/// # Safety
/// The processor must have AVX2 and FMA. There must be `N` inputs for each line.
#[target_feature(enable = "avx2,fma")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn tile<const N: usize>(lines: &[Floats], x: &[f32], mut write: impl FnMut(usize, [f32; LANES])) {
    let sixteens = lines.len() / LANES;
    let mut chains = [const { MaybeUninit::<[[__m256; 2]; N]>::uninit() }; LANES];
    let (mut w, mut x) = (lines.as_ptr().cast::<f32>(), x.as_ptr());
    // SAFETY: as the caller promises; all chains are written before they are read.
    unsafe {
        for chain in 0..LANES {
            let mut all = [[_mm256_setzero_ps(); 2]; N];
            for _ in 0..sixteens {
                let weights = [_mm256_loadu_ps(w), _mm256_loadu_ps(w.add(HALF))];
                for n in 0..N {
                    let input = _mm256_broadcast_ss(&*x.add(n));
                    for half in 0..2 {
                        all[n][half] = _mm256_fmadd_ps(weights[half], input, all[n][half]);
                    }
                }
                (w, x) = (w.add(LANES), x.add(N));
            }
            chains[chain].write(all);
        }
        for n in 0..N {
            let mut values = [0.0; LANES];
            for half in 0..2 {
                let mut tree: [__m256; LANES] = std::array::from_fn(|chain| chains[chain].assume_init_ref()[n][half]);
                for count in [8, 4, 2, 1] {
                    for i in 0..count {
                        tree[i] = _mm256_add_ps(tree[i], tree[i + count]);
                    }
                }
                _mm256_storeu_ps(values.as_mut_ptr().add(half * HALF), tree[0]);
            }
            write(n, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::float::Panel;
    use crate::linear::output::Outputs;
    use crate::simd::Level;

    #[test]
    fn products_have_the_bits_of_rows_of_weights() {
        if Level::detect() < Level::Avx2 {
            return;
        }
        let format = Format::parse("int4:g32").unwrap();
        for (m, n, k) in [(16, 1, 1), (17, 16, 16), (18, 17, 67), (23, 300, 96), (31, 140, 1000)] {
            let weights: Vec<f32> = (0..n * k).map(noise).collect();
            let sample = Sample::new(&weights, k, format);
            let rows = sample.rows(Level::Avx2);
            let mut x: Vec<f32> = (0..m * k).map(|i| noise(i + 999)).collect();
            if let Some(last) = x.last_mut() {
                *last = f32::NAN;
            }
            let x = Inputs::new(Values::F32(&x), m, k, LANES, Level::Avx2).unwrap();
            let (mut found, mut wanted) = (vec![7.0f32; m * n], vec![1.0f32; m * n]);
            let mut values = ValuesMut::F32(&mut found);
            let out = Biased::new(Outputs::new(&mut values, n, Level::Avx2), &[]);
            // SAFETY: the level was detected.
            unsafe { multiply(&rows, &x, m, n, &out).unwrap() };
            for first in (0..n).step_by(16) {
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first, count: 16.min(n - first) };
                panel.run(m, |row, values| wanted[row * n + first..][..values.len()].copy_from_slice(values)).unwrap();
            }
            let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&wanted), "{m} x {n} x {k}");
        }
    }
}
