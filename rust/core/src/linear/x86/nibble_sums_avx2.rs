//! Sums of products of 4-bit codes by inputs that are bytes, with AVX2.
//!
//! Packed nibbles split into those of even and of odd columns by a mask, and so are inputs; nothing is put in order. Numbers
//! are stored as unsigned bytes, offset by their minimum; the offset, or the zero point of the group, times the sum of inputs
//! comes off again in float32, which holds these integers.

use std::arch::x86_64::*;

use super::nibble_rows_avx2::Row;
use super::sums_avx2::{LINE, tree_sum};
use crate::simd::Line;

/// Columns of a block.
pub(super) const BLOCK: usize = 64;
/// Lanes of sums, each of eight columns.
pub(super) const LANES: usize = 8;
/// Columns of a lane.
pub(super) const EACH: usize = BLOCK / LANES;
/// Largest number less the smallest one: four products with inputs up to 127 fit into 16 bits.
pub(super) const MAX_NUMBER: i32 = 63;

/// A block of a row of inputs.
#[derive(Clone, Copy, Default)]
pub(super) struct Inputs {
    /// Even columns, then odd ones.
    pub(super) columns: [Line<i8, { BLOCK / 2 }>; 2],
    /// By lane: sums of the inputs, and scales.
    pub(super) sums: Line<f32, LANES>,
    pub(super) scales: Line<f32, LANES>,
}

/// Products of a row of weights and `M` rows of inputs.
///
/// Lane `l` sums columns `8 l` to `8 l + 7` of each block exactly: `sum = fma((exact - zero * sum of inputs) * scale of
/// inputs, scale of weights, sum)`. Lanes are added as a tree: 4, 2, 1. A group is 32 columns, or with `HALVES` 16. Without
/// `ZEROS`, `offset` is taken off all numbers. Codes `ahead` bytes behind are prefetched.
///
/// # Safety
/// The processor must have AVX2 and FMA. Rows must hold so many blocks. No number of the table is above [`MAX_NUMBER`], and no input
/// is -128.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn products<const M: usize, const HALVES: bool, const ZEROS: bool>(
    w: Row,
    table: &[u8; 16],
    offset: f32,
    inputs: [*const Inputs; M],
    blocks: usize,
    ahead: usize,
) -> [f32; M] {
    let mut all = [_mm256_setzero_ps(); M];
    let (low, one, offset) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1), _mm256_set1_ps(offset));
    // SAFETY: as the caller promises.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        let lanes = |groups: *const f32, block: usize| match HALVES {
            false => {
                let two = [_mm_broadcast_ss(&*groups.add(2 * block)), _mm_broadcast_ss(&*groups.add(2 * block + 1))];
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(two[0]), two[1])
            }
            true => {
                let four = _mm256_castps128_ps256(_mm_loadu_ps(groups.add(4 * block)));
                _mm256_permutevar8x32_ps(four, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))
            }
        };
        for block in 0..blocks {
            if block % (2 * LINE / BLOCK) == 0 {
                _mm_prefetch::<_MM_HINT_T0>(w.codes.wrapping_add(block * BLOCK / 2 + ahead).cast());
            }
            let codes = _mm256_loadu_si256(w.codes.add(block * BLOCK / 2).cast());
            let even = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
            let odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low));
            let scale = lanes(w.scales, block);
            let zero = if ZEROS { lanes(w.zeros, block) } else { offset };
            for m in 0..M {
                let x = &*inputs[m].add(block);
                let [x_even, x_odd] = [0, 1].map(|i| _mm256_load_si256(x.columns[i].0.as_ptr().cast()));
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, x_even), _mm256_maddubs_epi16(odd, x_odd));
                let sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, one));
                let exact = _mm256_fnmadd_ps(zero, _mm256_load_ps(x.sums.0.as_ptr()), sums);
                let scaled = _mm256_mul_ps(exact, _mm256_load_ps(x.scales.0.as_ptr()));
                all[m] = _mm256_fmadd_ps(scaled, scale, all[m]);
            }
        }
    }
    all.map(|lanes| tree_sum(lanes))
}
