//! Float32 dot products, with the order of summation of [`reference`] at every SIMD level: sixteen partial sums, each a
//! chain of fused multiply-adds.
//!
//! Chains of several rows are interleaved, which hides latency and changes no result.

use super::reference;
use crate::simd::{Job, LANES, Lanes, Level, fast};

/// Rows of weights multiplied at once.
pub(super) const ROWS: usize = 4;
/// Inputs multiplied at once where there are registers for 16 sums and their factors.
const INPUTS: usize = 4;

/// Partial sums of [`ROWS`] rows of weights and one row of inputs.
pub(super) type Sums = [[f32; LANES]; ROWS];

/// `len` columns, a multiple of [`LANES`]: `w` holds [`ROWS`] rows, `w_stride` apart, and `x` one row for each of `sums`,
/// `x_stride` apart.
struct Accumulate<'a> {
    w: &'a [f32],
    w_stride: usize,
    x: &'a [f32],
    x_stride: usize,
    len: usize,
    sums: &'a mut [Sums],
}

/// Adds the products of `len` columns, a multiple of [`LANES`]: `w` holds [`ROWS`] rows, `w_stride` apart, and `x` one
/// row for each of `sums`, `x_stride` apart.
pub(super) fn accumulate(
    level: Level,
    w: &[f32],
    w_stride: usize,
    x: &[f32],
    x_stride: usize,
    len: usize,
    sums: &mut [Sums],
) {
    assert!(len.is_multiple_of(LANES) && w.len() >= (ROWS - 1) * w_stride + len);
    assert!(sums.is_empty() || x.len() >= (sums.len() - 1) * x_stride + len);
    if let Err(Accumulate { sums, .. }) = fast(level, Accumulate { w, w_stride, x, x_stride, len, sums }) {
        for (m, sums) in sums.iter_mut().enumerate() {
            for (r, sums) in sums.iter_mut().enumerate() {
                reference::add_products(&w[r * w_stride..][..len], &x[m * x_stride..][..len], sums);
            }
        }
    }
}

impl<L: Lanes> Job<L> for Accumulate<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: L) {
        let Self { w, w_stride, x, x_stride, len, sums } = self;
        let (w, x) = (w.as_ptr(), x.as_ptr());
        // SAFETY: the lanes prove the instructions, and the slices hold what is read, as `accumulate` asserts.
        unsafe {
            let together = if L::VECTORS >= 32 { sums.len() / INPUTS * INPUTS } else { 0 };
            let (many, rest) = sums.split_at_mut(together);
            for (i, sums) in many.as_chunks_mut::<INPUTS>().0.iter_mut().enumerate() {
                block::<L, INPUTS>(w, w_stride, x.add(i * INPUTS * x_stride), x_stride, len, sums);
            }
            for (i, sums) in rest.iter_mut().enumerate() {
                let sums = std::array::from_mut(sums);
                block::<L, 1>(w, w_stride, x.add((together + i) * x_stride), x_stride, len, sums);
            }
        }
    }
}

/// Adds the products of a few rows of inputs.
///
/// # Safety
/// The processor must have the instructions of `L`. `w` must hold [`ROWS`] rows of `len` values, `w_stride` apart, `x` one
/// for each of `sums`, `x_stride` apart; `len` must be a multiple of [`LANES`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn block<L: Lanes, const N: usize>(
    w: *const f32,
    w_stride: usize,
    x: *const f32,
    x_stride: usize,
    len: usize,
    sums: &mut [Sums; N],
) {
    // SAFETY: as the caller promises.
    unsafe {
        // Loops over constants: unrolled, they leave the sums in registers.
        let mut all = [[L::splat(0.0); ROWS]; N];
        for n in 0..N {
            for r in 0..ROWS {
                all[n][r] = L::load(sums[n][r].as_ptr());
            }
        }
        let mut k = 0;
        while k < len {
            // Inputs stay in registers, weights are loaded as they are used: AVX2 has no registers for more.
            let mut inputs = [L::splat(0.0); N];
            for n in 0..N {
                inputs[n] = L::load(x.add(n * x_stride + k));
            }
            for r in 0..ROWS {
                let w = L::load(w.add(r * w_stride + k));
                for n in 0..N {
                    all[n][r] = L::fma(w, inputs[n], all[n][r]);
                }
            }
            k += LANES;
        }
        for n in 0..N {
            for r in 0..ROWS {
                L::store(sums[n][r].as_mut_ptr(), all[n][r]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_gives_the_bits_of_the_reference() {
        let (len, w_stride, x_stride) = (96, 112, 128);
        let noise = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0;
        let w: Vec<f32> = (0..ROWS * w_stride).map(noise).collect();
        let x: Vec<f32> = (0..11 * x_stride).map(|i| noise(i + 12_345)).collect();
        for rows in 0..=11 {
            let start: Vec<Sums> = vec![[[0.5; LANES]; ROWS]; rows];
            let mut wanted = start.clone();
            accumulate(Level::Scalar, &w, w_stride, &x, x_stride, len, &mut wanted);
            for level in [Level::Avx2, Level::Avx512] {
                let mut got = start.clone();
                accumulate(level, &w, w_stride, &x, x_stride, len, &mut got);
                assert_eq!(got, wanted, "{rows} rows at {level:?}");
            }
        }
    }
}
