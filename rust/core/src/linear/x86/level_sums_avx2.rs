//! Sums of products of float32 inputs by 4-bit codes that stand for up to sixteen float32 numbers, with AVX2.
//!
//! Packed nibbles split into those of even and of odd columns; shuffles give the bytes of their numbers, and the bytes are put
//! together in registers. Inputs are in the order that comes of this, [`ORDER`].

use std::arch::x86_64::*;

use super::nibble_rows_avx2::Row;
use super::sums_avx2::{LINE, lanes};
use crate::simd::LANES;

/// Columns of a block.
pub(super) const BLOCK: usize = 32;
/// Columns in two registers of inputs, of sixteen that follow each other.
pub(super) const ORDER: [usize; LANES] = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];
/// What codes stand for: numbers that are bfloat16, those less a zero point, or any numbers.
pub(super) const HALF: u8 = 0;
pub(super) const HALF_LESS_ZERO: u8 = 1;
pub(super) const ANY: u8 = 2;

/// Bytes of float32 numbers by code, the lowest of each first.
pub(super) type Planes = [[u8; 16]; 4];

/// Sums of products of `R` rows of weights and `M` rows of inputs, as sixteen chains of fused multiply-adds each, that of
/// column `k` being `k mod 16`. A weight is its number, less the zero point, times the scale of its group, rounded to float32.
/// A group is [`BLOCK`] columns, or half of them (`HALVES`). Codes `ahead` bytes behind are prefetched.
///
/// # Safety
/// The processor must have AVX2 and FMA. Rows must hold `vectors` times 16 inputs, as many codes in whole blocks, and a scale
/// and zero point for each group.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn levels<const R: usize, const M: usize, const HALVES: bool, const KIND: u8>(
    weights: [Row; R],
    planes: &Planes,
    inputs: [*const f32; M],
    vectors: usize,
    ahead: usize,
) -> [[[f32; LANES]; M]; R] {
    let mut all = [[[_mm256_setzero_ps(); 2]; M]; R];
    let (low, none) = (_mm256_set1_epi8(15), _mm256_setzero_si256());
    // SAFETY: as the caller promises.
    unsafe {
        let planes = planes.map(|plane| _mm256_broadcastsi128_si256(_mm_loadu_si128(plane.as_ptr().cast())));
        for block in 0..vectors.div_ceil(2) {
            if block % (2 * LINE / BLOCK) == 0 {
                weights
                    .iter()
                    .for_each(|w| _mm_prefetch::<_MM_HINT_T0>(w.codes.wrapping_add(block * 16 + ahead).cast()));
            }
            for r in 0..R {
                let codes = _mm_loadu_si128(weights[r].codes.add(block * 16).cast());
                let odd = _mm_srli_epi16::<4>(codes);
                let codes = _mm256_and_si256(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(codes), odd), low);
                let plane = |i: usize| _mm256_shuffle_epi8(planes[i], codes);
                let upper = [_mm256_unpacklo_epi8(plane(2), plane(3)), _mm256_unpackhi_epi8(plane(2), plane(3))];
                let lower = match KIND {
                    ANY => [_mm256_unpacklo_epi8(plane(0), plane(1)), _mm256_unpackhi_epi8(plane(0), plane(1))],
                    _ => [none; 2],
                };
                for part in 0..2 {
                    if 2 * block + part == vectors {
                        break;
                    }
                    let group = if HALVES { 2 * block + part } else { block };
                    let scale = _mm256_broadcast_ss(&*weights[r].scales.add(group));
                    let (lower, upper) = (lower[part], upper[part]);
                    let numbers = [_mm256_unpacklo_epi16(lower, upper), _mm256_unpackhi_epi16(lower, upper)];
                    for half in 0..2 {
                        let mut number = _mm256_castsi256_ps(numbers[half]);
                        if KIND == HALF_LESS_ZERO {
                            number = _mm256_sub_ps(number, _mm256_broadcast_ss(&*weights[r].zeros.add(group)));
                        }
                        let w = _mm256_mul_ps(number, scale);
                        for m in 0..M {
                            let x = _mm256_loadu_ps(inputs[m].add(block * BLOCK + part * LANES + half * LANES / 2));
                            all[r][m][half] = _mm256_fmadd_ps(w, x, all[r][m][half]);
                        }
                    }
                }
            }
        }
    }
    let mut sums = lanes(&all);
    for sums in sums.as_flattened_mut() {
        let lanes = *sums;
        ORDER.iter().zip(lanes).for_each(|(&column, lane)| sums[column] = lane);
    }
    sums
}
