//! Sums of products of minifloats with AVX2.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Chains, Kernel, Operands};
use crate::linear::x86::sums_avx2::LINE;
use crate::simd::{LANES, Line};

/// Columns of a register of float32.
const HALF: usize = LANES / 2;
/// Columns of a register of codes.
const PAIR: usize = 2 * LANES;

/// Sums with AVX2, FMA and F16C.
pub(super) struct Sums;

impl Kernel for Sums {
    const NAME: &'static str = "fma float8 avx2";
    const INPUTS: usize = 4;

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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize>(
    operands: &Operands<R>,
    chains: &mut [Chains; R],
) -> u8 {
    let (mut all, mut most) = ([[[_mm256_setzero_ps(); 2]; M]; R], _mm256_setzero_si256());
    let mut bytes = [0; PAIR];
    // SAFETY: as the caller promises: these are vectors of the rows, of which the last may be cut; chains are two registers, and
    // as many bytes as `PAIR` one.
    unsafe {
        for r in 0..R {
            for i in 0..M {
                let chains = chains[r][i].as_ptr();
                all[r][i] = [_mm256_loadu_ps(chains), _mm256_loadu_ps(chains.add(HALF))];
            }
        }
        let (mut start, end) = (operands.columns.start, operands.columns.end);
        while start + PAIR <= end {
            if start % LINE == 0 {
                for codes in operands.codes {
                    _mm_prefetch::<_MM_HINT_T0>(codes.wrapping_add(start + operands.ahead).cast());
                }
            }
            for r in 0..R {
                let codes = _mm256_loadu_si256(operands.codes[r].add(start).cast());
                most = _mm256_max_epu8(most, _mm256_or_si256(codes, _mm256_set1_epi8(-128)));
            }
            for at in [start, start + LANES] {
                let codes = operands.codes.map(|codes| _mm_loadu_si128(codes.add(at).cast()));
                vector::<R, M, WIDE, SHARE>(operands, at, codes, &mut all);
            }
            start += PAIR;
        }
        while start < end {
            let len = LANES.min(end - start);
            let codes = operands.codes.map(|codes| {
                let mut last = [0u8; LANES];
                std::ptr::copy_nonoverlapping(codes.add(start), last.as_mut_ptr(), len);
                _mm_loadu_si128(last.as_ptr().cast())
            });
            for codes in codes {
                let codes = _mm256_castsi128_si256(_mm_or_si128(codes, _mm_set1_epi8(-128)));
                most = _mm256_max_epu8(most, _mm256_zextsi128_si256(_mm256_castsi256_si128(codes)));
            }
            vector::<R, M, WIDE, SHARE>(operands, start, codes, &mut all);
            start += len;
        }
        for r in 0..R {
            for i in 0..M {
                let chains = chains[r][i].as_mut_ptr();
                _mm256_storeu_ps(chains, all[r][i][0]);
                _mm256_storeu_ps(chains.add(HALF), all[r][i][1]);
            }
        }
        _mm256_storeu_si256(bytes.as_mut_ptr().cast(), most);
    }
    bytes.into_iter().fold(0, u8::max)
}

/// Adds the products of the sixteen columns from `at` on.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn vector<const R: usize, const M: usize, const WIDE: bool, const SHARE: usize>(
    operands: &Operands<R>,
    at: usize,
    codes: [__m128i; R],
    all: &mut [[[__m256; 2]; M]; R],
) {
    // SAFETY: inputs are whole vectors; there is a scale for each group.
    unsafe {
        for r in 0..R {
            let halves = match WIDE {
                true => _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(codes[r])),
                // The bit below the sign is a copy of it.
                false => {
                    let halves = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes[r]));
                    _mm256_and_si256(halves, _mm256_set1_epi16(!0x4000))
                }
            };
            let mut stored = Line([0u16; LANES]);
            _mm256_store_si256(stored.0.as_mut_ptr().cast(), halves);
            for half in 0..2 {
                let mut weights = floats(stored.0.as_ptr().add(half * HALF));
                if SHARE > 0 {
                    let scale = _mm256_broadcast_ss(&*operands.scales[r].add(at / LANES / SHARE.max(1)));
                    weights = _mm256_mul_ps(weights, scale);
                }
                for i in 0..M {
                    let x = _mm256_loadu_ps(operands.x.add(at * M + i * LANES + half * HALF));
                    all[r][i][half] = _mm256_fmadd_ps(weights, x, all[r][i][half]);
                }
            }
        }
    }
}

/// Eight float16 as float32, converted as they are loaded: from a register that takes two operations more.
///
/// # Safety
/// The processor must have F16C; there must be so many.
#[inline]
#[target_feature(enable = "avx,f16c")]
unsafe fn floats(halves: *const u16) -> __m256 {
    let floats;
    // SAFETY: reads eight numbers, as the caller promises.
    unsafe {
        asm!(
            "vcvtph2ps {}, xmmword ptr [{}]",
            out(ymm_reg) floats,
            in(reg) halves,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    floats
}
