//! The inner loop: VNNI dot products of some rows of weights with some rows of inputs, in registers.

use std::arch::x86_64::*;
use std::ops::Range;

use super::MAX_LIMBS;
use super::arrange::Input;
use super::plan::MAX_WEIGHT_LIMBS;
use super::product::{Dot, Scratch, UNROLL_INPUTS, UNROLL_ROWS};
use crate::simd::amx::LINE;

/// How codes become bytes.
pub(super) const NIBBLES: u8 = 0;
pub(super) const NARROW: u8 = 1;
pub(super) const WIDE: u8 = 2;
pub(super) const BYTES: u8 = 3;

/// What a group has beside its scale.
pub(super) const NO_ZEROS: u8 = 0;
pub(super) const POINTS: u8 = 1;
pub(super) const OFFSETS: u8 = 2;

/// Prefetch distance in bytes of packed codes, bounded by the L2 cache. Prefetching into L1, which waits for fewer lines at a
/// time, takes 1.3 times as long on Zen 4.
const MAX_AHEAD: usize = 32 * 1024;

/// Prefetch distance at least, where rows are short: the memory answers later than they are done.
const MIN_AHEAD: usize = 8 * 1024;

/// Prefetch distance in bytes, at least, of scales that are read where they are stored.
const MIN_SCALES_AHEAD: usize = 2048;

/// Where the rows are stored that are multiplied together.
pub(super) struct Stored {
    pub(super) codes: [*const u8; UNROLL_ROWS],
    /// Scales, in halves.
    pub(super) scales: [*const u16; UNROLL_ROWS],
}

/// Products of a row of inputs by row of weights.
pub(super) type Sum = [f32; UNROLL_ROWS];
/// Products by row of inputs; those of rows of inputs that are not there are 0.
pub(super) type Sums = [Sum; UNROLL_INPUTS];

impl Dot<'_> {
    /// Calls `write` with sums of products of [`UNROLL_ROWS`] rows of weights at a time, those of `all`, and the first of them.
    /// Codes are unpacked one `WAY` to `EACH` limbs; `INPUTS` rows of inputs have `LIMBS`. What is computed of a row of
    /// inputs does not depend on how many there are.
    ///
    /// `WHOLE`: the sum of a lane over all limbs is an int32, see [`Dot::whole`]. Limbs then follow each other in one
    /// accumulator, which is shifted between them: the same bits, since the sums of two limbs are exact in float32, too.
    ///
    /// `HALVES`: scales, and offsets, are read where they are stored, see [`Dot::halves`]; else scratch memory has them.
    /// Where one of them is not finite, so is no product.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the matrix must have the rows. But for `HALVES` they must be
    /// at most [`UNROLL_ROWS`], and scratch memory must hold scales and zero points for all their groups.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    pub(super) unsafe fn sum<
        const LIMBS: usize,
        const INPUTS: usize,
        const WAY: u8,
        const EACH: usize,
        const ZEROS: u8,
        const WHOLE: bool,
        const HALVES: bool,
    >(
        &self,
        all: Range<usize>,
        x: [&Input; INPUTS],
        scratch: &Scratch,
        mut write: impl FnMut(usize, Sums),
    ) {
        let groups = self.groups();
        let (_, row_bytes) = self.rows.codes();
        let lines = if WAY == NIBBLES { 2 } else { 1 };
        let bytes = if WAY == NIBBLES { LINE } else { 8 * self.plan.width as usize };
        let per_block = self.block / self.group;
        // Prefetch the same columns of the next rows, or later ones where rows are short.
        let ahead = (UNROLL_ROWS * row_bytes).clamp(MIN_AHEAD, MAX_AHEAD);
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let spread = _mm512_srli_epi32::<4>(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(per_block as i32)));
        // Of stored halves: an offset lies behind each scale.
        let parts = if ZEROS == OFFSETS { 2 } else { 1 };
        let (stored, per_load) = (parts * self.stored_groups(), parts * per_block);
        let spread_scales = if ZEROS == OFFSETS { _mm512_add_epi32(spread, spread) } else { spread };
        let spread_offsets = _mm512_add_epi32(spread_scales, _mm512_set1_epi32(1));
        // The scales of all rows follow each other: fetch as many of the next rows, or of later ones where rows are short.
        let scales_ahead = (UNROLL_ROWS * stored * size_of::<u16>()).max(MIN_SCALES_AHEAD);
        assert!(HALVES || all.len() <= UNROLL_ROWS);
        assert!(HALVES || scratch.scales.len() >= UNROLL_ROWS * groups + 8);
        assert!(HALVES || ZEROS == NO_ZEROS || scratch.zeros.len() >= UNROLL_ROWS * groups + 8);
        assert!(x.iter().all(|x| x.count == LIMBS));
        // SAFETY: masks keep inside the rows; inputs cover whole chunks; eight groups may be read beyond the last.
        unsafe {
            let gather = _mm512_load_si512(self.plan.gather.0.as_ptr().cast());
            let shifts = _mm512_load_si512(self.plan.shifts.0.as_ptr().cast());
            let mut tables = [[_mm512_setzero_si512(); 4]; EACH];
            for (quarters, table) in tables.iter_mut().zip(&self.plan.unsigned) {
                for (quarter, bytes) in quarters.iter_mut().zip(table.0.as_chunks::<LINE>().0) {
                    *quarter = _mm512_load_si512(bytes.as_ptr().cast());
                }
            }
            let groups_at = |all: &[f32], r: usize, block: usize| {
                let eight = _mm256_loadu_ps(all.as_ptr().add(r * groups + block * per_block));
                _mm512_permutexvar_ps(spread, _mm512_castps256_ps512(eight))
            };
            for first in all.clone().step_by(UNROLL_ROWS) {
                let rows = self.stored(first, all.end);
                let mut totals = [[_mm512_setzero_ps(); INPUTS]; UNROLL_ROWS];
                for block in 0..self.rows.k.div_ceil(self.block) {
                    let left = (row_bytes - block * bytes).min(bytes);
                    let mask = u64::MAX >> (64 - left);
                    let halves = if HALVES { u8::MAX >> (8 - (stored - block * per_load).min(8)) } else { 0 };
                    if HALVES {
                        let line = rows.scales[0].wrapping_add(UNROLL_ROWS * block * per_load);
                        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_byte_add(scales_ahead).cast());
                    }
                    for r in 0..UNROLL_ROWS {
                        let at = rows.codes[r].wrapping_add(block * bytes);
                        _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(ahead).cast());
                        let packed = _mm512_maskz_loadu_epi8(mask, at.cast());
                        let codes = match WAY {
                            NIBBLES => [packed, _mm512_srli_epi16::<4>(packed)],
                            BYTES => [_mm512_xor_si512(packed, _mm512_set1_epi8(-128)); 2],
                            WIDE if self.plan.width == 8 => [packed; 2],
                            _ => [_mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, packed)); 2],
                        };
                        let mut weights = [[_mm512_setzero_si512(); EACH]; 2];
                        for line in 0..lines {
                            for each in 0..EACH {
                                let [a, b, c, d] = tables[each];
                                let codes = codes[line];
                                weights[line][each] = match WAY {
                                    BYTES => codes,
                                    WIDE => {
                                        let below = _mm512_permutex2var_epi8(a, codes, b);
                                        let above = _mm512_permutex2var_epi8(c, codes, d);
                                        _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), below, above)
                                    }
                                    // Tables repeat with the width: higher bits of an index do not matter.
                                    _ => _mm512_permutexvar_epi8(codes, a),
                                };
                            }
                        }
                        let (scale, zero) = if HALVES {
                            let at = rows.scales[r].wrapping_add(block * per_load);
                            let eight = _mm256_cvtph_ps(_mm_maskz_loadu_epi16(halves, at.cast()));
                            let eight = _mm512_castps256_ps512(eight);
                            let scale = _mm512_permutexvar_ps(spread_scales, eight);
                            (scale, if ZEROS == OFFSETS { _mm512_permutexvar_ps(spread_offsets, eight) } else { scale })
                        } else {
                            let scale = groups_at(&scratch.scales, r, block);
                            (scale, if ZEROS != NO_ZEROS { groups_at(&scratch.zeros, r, block) } else { scale })
                        };
                        for i in 0..INPUTS {
                            let limbs = x[i].limbs.as_ptr().add(block * LIMBS * lines);
                            let starts = x[i].starts.as_ptr().add(block * (LIMBS + EACH - 1));
                            let inputs = |limb: usize, line: usize| {
                                _mm512_load_si512((*limbs.add(limb * lines + line)).0.as_ptr().cast())
                            };
                            let start = |limb: usize| _mm512_load_si512((*starts.add(limb)).0.as_ptr().cast());
                            let sum = if WHOLE {
                                let (mut all, mut begin) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                                for limb in (0..LIMBS).rev() {
                                    (all, begin) = (_mm512_slli_epi32::<8>(all), _mm512_slli_epi32::<8>(begin));
                                    begin = _mm512_add_epi32(begin, start(limb));
                                    for line in 0..lines {
                                        all = _mm512_dpbusd_epi32(all, weights[line][0], inputs(limb, line));
                                    }
                                }
                                _mm512_cvtepi32_ps(_mm512_add_epi32(all, begin))
                            } else {
                                // A second limb counts 256 times as much, as the next limb of the inputs does.
                                let mut sums = [_mm512_setzero_si512(); MAX_LIMBS + MAX_WEIGHT_LIMBS - 1];
                                for limb in 0..LIMBS + EACH - 1 {
                                    sums[limb] = start(limb);
                                }
                                for line in 0..lines {
                                    for limb in 0..LIMBS {
                                        let inputs = inputs(limb, line);
                                        for each in 0..EACH {
                                            sums[limb + each] =
                                                _mm512_dpbusd_epi32(sums[limb + each], weights[line][each], inputs);
                                        }
                                    }
                                }
                                let byte = _mm512_set1_ps(256.0);
                                let mut sum = _mm512_setzero_ps();
                                for limb in (0..LIMBS + EACH - 1).rev() {
                                    let mut of_limb = _mm512_cvtepi32_ps(sums[limb]);
                                    if ZEROS == POINTS && limb < LIMBS {
                                        // Exact: equal digits of code and zero point cancel.
                                        let inputs =
                                            _mm512_load_ps(x[i].sums.as_ptr().add(block * LIMBS + limb).cast());
                                        of_limb = _mm512_fnmadd_ps(zero, inputs, of_limb);
                                    }
                                    let is_first = limb == LIMBS + EACH - 2;
                                    sum = if is_first { of_limb } else { _mm512_fmadd_ps(sum, byte, of_limb) };
                                }
                                sum
                            };
                            let unit = match LIMBS {
                                1 => _mm512_load_ps(x[i].unit_lines.as_ptr().add(block).cast()),
                                _ => _mm512_set1_ps(*x[i].units.as_ptr().add(block)),
                            };
                            totals[r][i] = _mm512_fmadd_ps(_mm512_mul_ps(sum, unit), scale, totals[r][i]);
                            if ZEROS == OFFSETS {
                                let inputs = _mm512_load_ps(x[i].totals.as_ptr().add(block).cast());
                                totals[r][i] = _mm512_fmadd_ps(inputs, zero, totals[r][i]);
                            }
                        }
                    }
                }
                let mut products = Sums::default();
                for i in 0..INPUTS {
                    let sums = tree_sums(totals.map(|of_row| of_row[i]));
                    _mm_storeu_ps(products[i].as_mut_ptr(), sums);
                }
                write(first, products);
            }
        }
    }
}

/// The sums of each of four vectors, in the order of [`crate::float::tree_sum`].
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn tree_sums(all: [__m512; UNROLL_ROWS]) -> __m128 {
    let [a, b, c, d] = all.map(|lanes| {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
        let eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), high);
        _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
    });
    let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    _mm_add_ps(_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::tree_sum;

    #[test]
    fn sums_of_four_vectors_have_the_bits_of_the_tree() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let lanes: [[f32; 16]; UNROLL_ROWS] =
            std::array::from_fn(|r| std::array::from_fn(|i| ((r * 977 + i * 7919) as f32 * 0.37).sin() * 1e3));
        let mut products = [0.0; UNROLL_ROWS];
        // SAFETY: the instructions were detected; arrays of sixteen and of four values are whole vectors.
        unsafe { _mm_storeu_ps(products.as_mut_ptr(), tree_sums(lanes.map(|of| _mm512_loadu_ps(of.as_ptr())))) };
        assert_eq!(products.map(f32::to_bits), lanes.map(|of| tree_sum(of).to_bits()));
    }
}
