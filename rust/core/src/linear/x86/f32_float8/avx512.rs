//! Sums of products of minifloats with AVX-512.

use std::arch::x86_64::*;

use super::{BLOCK, Chains, Kernel, Operands};
use crate::simd::LANES;

/// Codes that are converted at a time.
const HALVES: usize = 2 * LANES;

/// Sums with AVX-512 F, BW and VL.
pub(super) struct Sums;

impl Kernel for Sums {
    const NAME: &'static str = "fma float8 avx512";
    const INPUTS: usize = 8;

    unsafe fn add<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize>(
        operands: &Operands<R>,
        chains: &mut [Chains; R],
    ) -> u8 {
        // SAFETY: as the caller promises.
        unsafe { add::<R, M, WIDE, SHARE>(operands, chains) }
    }
}

/// As [`Kernel::add`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize>(
    operands: &Operands<R>,
    chains: &mut [Chains; R],
) -> u8 {
    let (mut all, mut most) = ([[_mm512_setzero_ps(); M]; R], _mm512_setzero_si512());
    let mut bytes = [0; BLOCK];
    // SAFETY: as the caller promises: these are blocks of the rows, of which the last may be cut; chains, and a block of bytes, are
    // registers.
    unsafe {
        for r in 0..R {
            for i in 0..M {
                all[r][i] = _mm512_loadu_ps(chains[r][i].as_ptr());
            }
        }
        let (mut start, end) = (operands.columns.start, operands.columns.end);
        while start + BLOCK <= end {
            block::<R, M, WIDE, SHARE, true>(operands, start, BLOCK, &mut all, &mut most);
            start += BLOCK;
        }
        if start < end {
            block::<R, M, WIDE, SHARE, false>(operands, start, end - start, &mut all, &mut most);
        }
        for r in 0..R {
            for i in 0..M {
                _mm512_storeu_ps(chains[r][i].as_mut_ptr(), all[r][i]);
            }
        }
        _mm512_storeu_si512(bytes.as_mut_ptr().cast(), most);
    }
    bytes.into_iter().fold(0, u8::max)
}

/// Adds the products of the columns of a block from `start` on, `len` of them: [`BLOCK`] if `WHOLE`.
///
/// # Safety
/// As there; rows must have the columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn block<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize, const WHOLE: bool>(
    operands: &Operands<R>,
    start: usize,
    len: usize,
    all: &mut [[__m512; M]; R],
    most: &mut __m512i,
) {
    let inside = if WHOLE { u64::MAX } else { u64::MAX >> (BLOCK - len) };
    // SAFETY: masks keep inside the codes; inputs are whole vectors; there is a scale for each group.
    unsafe {
        for r in 0..R {
            let codes = operands.codes[r].add(start);
            _mm_prefetch::<_MM_HINT_T1>(codes.wrapping_add(operands.ahead).cast());
            let codes = match WHOLE {
                true => _mm512_loadu_si512(codes.cast()),
                false => _mm512_maskz_loadu_epi8(inside, codes.cast()),
            };
            *most = _mm512_max_epu8(*most, _mm512_or_si512(codes, _mm512_set1_epi8(-128)));
        }
        for part in 0..BLOCK / HALVES {
            let at = start + part * HALVES;
            if !WHOLE && part * HALVES >= len {
                break;
            }
            let mut weights = [[_mm512_setzero_ps(); 2]; R];
            for r in 0..R {
                let codes = operands.codes[r].add(at);
                let codes = match WHOLE {
                    true => _mm256_loadu_si256(codes.cast()),
                    false => _mm256_maskz_loadu_epi8((inside >> (part * HALVES)) as u32, codes.cast()),
                };
                let halves = match WIDE {
                    true => _mm512_slli_epi16::<8>(_mm512_cvtepu8_epi16(codes)),
                    // The bit below the sign is a copy of it.
                    false => {
                        let halves = _mm512_slli_epi16::<7>(_mm512_cvtepi8_epi16(codes));
                        _mm512_and_si512(halves, _mm512_set1_epi16(!0x4000))
                    }
                };
                let halves = [_mm512_castsi512_si256(halves), _mm512_extracti64x4_epi64::<1>(halves)];
                for half in 0..2 {
                    weights[r][half] = _mm512_cvtph_ps(halves[half]);
                    if SHARE > 0 {
                        let group = (at / LANES + half) / SHARE.max(1);
                        let scale = _mm512_set1_ps(*operands.scales[r].add(group));
                        weights[r][half] = _mm512_mul_ps(weights[r][half], scale);
                    }
                }
            }
            for half in 0..2 {
                if !WHOLE && part * HALVES + half * LANES >= len {
                    break;
                }
                for i in 0..M {
                    let x = _mm512_loadu_ps(operands.x.add((at + half * LANES) * M + i * LANES));
                    for r in 0..R {
                        all[r][i] = _mm512_fmadd_ps(weights[r][half], x, all[r][i]);
                    }
                }
            }
        }
    }
}
