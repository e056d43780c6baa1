//! Sums of products of bytes that stand for weights, with AVX2: by float32 inputs, and by inputs that are bytes themselves.
//!
//! Rows of weights are whole blocks of [`BLOCK`] columns. A group is [`BLOCK`] columns, or half of them (`HALVES`), and has
//! a scale in float32. What lies `ahead` bytes behind weights is prefetched, a cache line at a time: rows that come next, whose
//! pages the processor does not foresee.

use std::arch::x86_64::*;

use crate::simd::LANES;

/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Columns of a register of float32.
const HALF: usize = LANES / 2;

/// Sums of products of `R` rows of weights and `M` rows of inputs, as sixteen chains of fused multiply-adds each, that of
/// column `k` being `k mod 16`. A weight is its number times the scale of its group, rounded to float32.
///
/// # Safety
/// The processor must have AVX2 and FMA. Rows must hold `vectors` times 16 weights and inputs, and a scale for each group.
#[target_feature(enable = "avx2,fma")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
pub(super) unsafe fn floats<const R: usize, const M: usize, const HALVES: bool>(
    weights: [*const i8; R],
    scales: [*const f32; R],
    inputs: [*const f32; M],
    vectors: usize,
    ahead: usize,
) -> [[[f32; LANES]; M]; R] {
    let mut all = [[[_mm256_setzero_ps(); 2]; M]; R];
    // SAFETY: as the caller promises.
    unsafe {
        for vector in 0..vectors {
            let (at, group) = (vector * LANES, if HALVES { vector } else { vector / 2 });
            if vector % (LINE / LANES) == 0 {
                weights.iter().for_each(|w| _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(at + ahead)));
            }
            for half in 0..2 {
                let at = at + half * HALF;
                let mut x = [_mm256_setzero_ps(); M];
                for m in 0..M {
                    x[m] = _mm256_loadu_ps(inputs[m].add(at));
                }
                for r in 0..R {
                    let numbers = _mm256_cvtepi8_epi32(_mm_loadl_epi64(weights[r].add(at).cast()));
                    let scale = _mm256_broadcast_ss(&*scales[r].add(group));
                    let w = _mm256_mul_ps(_mm256_cvtepi32_ps(numbers), scale);
                    for m in 0..M {
                        all[r][m][half] = _mm256_fmadd_ps(w, x[m], all[r][m][half]);
                    }
                }
            }
        }
    }
    lanes(&all)
}

/// The lanes of two registers each.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lanes<const R: usize, const M: usize>(all: &[[[__m256; 2]; M]; R]) -> [[[f32; LANES]; M]; R] {
    let mut sums = [[[0.0; LANES]; M]; R];
    for (sums, all) in sums.as_flattened_mut().iter_mut().zip(all.as_flattened()) {
        // SAFETY: two registers are sixteen lanes.
        unsafe {
            _mm256_storeu_ps(sums.as_mut_ptr(), all[0]);
            _mm256_storeu_ps(sums.as_mut_ptr().add(HALF), all[1]);
        }
    }
    sums
}

/// Products of `R` rows of weights and `M` rows of inputs that are bytes, with a scale a group as weights have.
///
/// Lane `l` of eight sums columns `4 l` to `4 l + 3` of each block exactly: `sum = fma(exact * scale of inputs, scale of
/// weights, sum)`. Lanes are added as a tree: 4, 2, 1.
///
/// # Safety
/// The processor must have AVX2 and FMA. Rows must hold so many blocks of weights and inputs, and a scale for each group.
/// No input is -128.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn bytes<const R: usize, const M: usize, const HALVES: bool>(
    weights: [*const i8; R],
    scales: [*const f32; R],
    inputs: [*const i8; M],
    input_scales: [*const f32; M],
    blocks: usize,
    ahead: usize,
) -> [[f32; M]; R] {
    let mut all = [[_mm256_setzero_ps(); M]; R];
    // SAFETY: as the caller promises.
    unsafe {
        let scale_of = |scales: *const f32, block: usize| match HALVES {
            false => _mm256_broadcast_ss(&*scales.add(block)),
            true => {
                let two = [_mm_broadcast_ss(&*scales.add(2 * block)), _mm_broadcast_ss(&*scales.add(2 * block + 1))];
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(two[0]), two[1])
            }
        };
        for block in 0..blocks {
            if block % (LINE / BLOCK) == 0 {
                weights.iter().for_each(|w| _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(block * BLOCK + ahead)));
            }
            let mut w = [_mm256_setzero_si256(); R];
            for r in 0..R {
                w[r] = _mm256_loadu_si256(weights[r].add(block * BLOCK).cast());
            }
            for m in 0..M {
                let x = _mm256_loadu_si256(inputs[m].add(block * BLOCK).cast());
                let input_scale = scale_of(input_scales[m], block);
                for r in 0..R {
                    // The sign of a weight goes to its input: pairs of products stay within 2 * 128 * 127.
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[r]), _mm256_sign_epi8(x, w[r]));
                    let fours = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                    let scaled = _mm256_mul_ps(fours, input_scale);
                    all[r][m] = _mm256_fmadd_ps(scaled, scale_of(scales[r], block), all[r][m]);
                }
            }
        }
    }
    all.map(|all| all.map(|lanes| tree_sum(lanes)))
}

/// Sum of the lanes as a tree: 4, 2, 1.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn tree_sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}
