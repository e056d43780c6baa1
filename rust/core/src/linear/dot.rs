//! Sums of products of float32, in one order at every SIMD level: sixteen partial sums, the one of column `k` being
//! `k mod 16`, each a chain of fused multiply-adds; they are added as a tree: 8, 4, 2, 1.
//!
//! Chains of several rows run beside each other, which hides the latency of one and changes none.

use crate::level::Level;

/// Partial sums of one product.
pub(super) const LANES: usize = 16;
/// Rows of weights multiplied at once.
pub(super) const ROWS: usize = 4;

/// Partial sums of [`ROWS`] rows of weights and one row of inputs.
pub(super) type Sums = [[f32; LANES]; ROWS];

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
    match level {
        // SAFETY: the caller's level is one that this processor has, and the slices hold what is read, as asserted.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::accumulate_512(w, w_stride, x, x_stride, len, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::accumulate_256(w, w_stride, x, x_stride, len, sums) },
        _ => accumulate_reference(w, w_stride, x, x_stride, len, sums),
    }
}

fn accumulate_reference(w: &[f32], w_stride: usize, x: &[f32], x_stride: usize, len: usize, sums: &mut [Sums]) {
    for (m, sums) in sums.iter_mut().enumerate() {
        for (r, sums) in sums.iter_mut().enumerate() {
            let products = w[r * w_stride..][..len].iter().zip(&x[m * x_stride..][..len]);
            for (k, (&w, &x)) in products.enumerate() {
                sums[k % LANES] = w.mul_add(x, sums[k % LANES]);
            }
        }
    }
}

/// The sum of the lanes.
pub(super) fn tree(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, ROWS, Sums};

    /// Inputs multiplied at once: 16 sums and their factors fit the 32 registers.
    const INPUTS: usize = 4;

    /// [`super::accumulate`] with AVX-512.
    ///
    /// # Safety
    /// The processor must have AVX-512 F; the slices must be as long as the assertions of `accumulate` say.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn accumulate_512(
        w: &[f32],
        w_stride: usize,
        x: &[f32],
        x_stride: usize,
        len: usize,
        sums: &mut [Sums],
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let (fours, rest) = sums.as_chunks_mut::<INPUTS>();
            let x = x.as_ptr();
            let first_rest = fours.len() * INPUTS;
            for (i, sums) in fours.iter_mut().enumerate() {
                block_512(w.as_ptr(), w_stride, x.add(i * INPUTS * x_stride), x_stride, len, sums);
            }
            for (i, sums) in rest.iter_mut().enumerate() {
                let sums = std::array::from_mut(sums);
                block_512(w.as_ptr(), w_stride, x.add((first_rest + i) * x_stride), x_stride, len, sums);
            }
        }
    }

    /// Adds the products of a few rows of inputs.
    ///
    /// # Safety
    /// The processor must have AVX-512 F. `w` must hold [`ROWS`] rows of `len` values, `w_stride` apart, `x` one for
    /// each of `sums`, `x_stride` apart; `len` must be a multiple of [`LANES`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn block_512<const N: usize>(
        w: *const f32,
        w_stride: usize,
        x: *const f32,
        x_stride: usize,
        len: usize,
        sums: &mut [Sums; N],
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut all = [[_mm512_setzero_ps(); ROWS]; N];
            for (to, from) in all.iter_mut().flatten().zip(sums.iter().flatten()) {
                *to = _mm512_loadu_ps(from.as_ptr());
            }
            let mut k = 0;
            while k < len {
                let mut rows = [_mm512_setzero_ps(); ROWS];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_loadu_ps(w.add(r * w_stride + k));
                }
                for (n, all) in all.iter_mut().enumerate() {
                    let x = _mm512_loadu_ps(x.add(n * x_stride + k));
                    for (sum, w) in all.iter_mut().zip(rows) {
                        *sum = _mm512_fmadd_ps(w, x, *sum);
                    }
                }
                k += LANES;
            }
            for (from, to) in all.iter().flatten().zip(sums.iter_mut().flatten()) {
                _mm512_storeu_ps(to.as_mut_ptr(), *from);
            }
        }
    }

    /// [`super::accumulate`] with AVX2 and FMA.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA; the slices must be as long as the assertions of `accumulate` say.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn accumulate_256(
        w: &[f32],
        w_stride: usize,
        x: &[f32],
        x_stride: usize,
        len: usize,
        sums: &mut [Sums],
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            let w = w.as_ptr();
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = x.as_ptr().add(m * x_stride);
                let mut all = [[_mm256_setzero_ps(); 2]; ROWS];
                for (to, from) in all.iter_mut().zip(sums.iter()) {
                    *to = [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))];
                }
                let mut k = 0;
                while k < len {
                    let x = [_mm256_loadu_ps(x.add(k)), _mm256_loadu_ps(x.add(k + 8))];
                    for (r, all) in all.iter_mut().enumerate() {
                        let w = w.add(r * w_stride + k);
                        all[0] = _mm256_fmadd_ps(_mm256_loadu_ps(w), x[0], all[0]);
                        all[1] = _mm256_fmadd_ps(_mm256_loadu_ps(w.add(8)), x[1], all[1]);
                    }
                    k += LANES;
                }
                for (from, to) in all.iter().zip(sums.iter_mut()) {
                    _mm256_storeu_ps(to.as_mut_ptr(), from[0]);
                    _mm256_storeu_ps(to.as_mut_ptr().add(8), from[1]);
                }
            }
        }
    }
}
