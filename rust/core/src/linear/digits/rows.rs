//! Rows of weights as bfloat16 numbers: codes by table to bytes, bytes times scales, cut to parts.

use std::arch::x86_64::*;
use std::ops::Range;

use super::plan::{Plan, Scale};
use super::scales::Scales;
use crate::codec::rows::Rows;
use crate::linear::tiles::{LINE, Line, ROWS};

/// Columns of a line of bfloat16.
const STEP: usize = 32;
/// Bytes of a tile.
const TILE: usize = ROWS * LINE;
/// Columns that [`Digits::put`] takes, at most.
const MOST_COLUMNS: usize = 128;

/// Weights whose codes are numbers of one digit.
pub(in crate::linear) struct Digits<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// What the numbers written count, beside the factor of a row or tensor.
    unit: f32,
    gather: Line<u8, LINE>,
    shifts: Line<u8, LINE>,
}

impl<'a> Digits<'a> {
    /// The weights of a matrix, if the plan of their format allows.
    pub(in crate::linear) fn new(plan: &'a Plan, rows: &'a Rows<'a>) -> Option<Self> {
        if plan.digits > 1 || plan.zeros {
            return None;
        }
        let scales = Scales::new(plan, &rows.unscaled());
        let unit = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let width = plan.width as usize;
        let gather = Line(std::array::from_fn(|i| (i / 8 * width + i % 8) as u8 & 63));
        let shifts = Line(std::array::from_fn(|i| (i % 8 * width) as u8));
        Some(Self { plan, rows, scales, unit, gather, shifts })
    }

    /// What the numbers written of a row count.
    pub(in crate::linear) fn factor(&self, row: usize) -> f32 {
        match self.plan.scale {
            Scale::Row => self.rows.row_step(row) as f32 * self.unit,
            _ => self.rows.row_factor(row) * self.unit,
        }
    }

    /// Writes columns of a row, beginning at a multiple of [`MOST_COLUMNS`] and at most as many, as lines of `parts` of
    /// bfloat16, a tile apart; false where a scale is out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI, and `to` be a row of the first of enough tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn put(
        &self,
        row: usize,
        columns: Range<usize>,
        parts: usize,
        mut to: *mut u8,
    ) -> bool {
        let mut scales = [1.0f32; MOST_COLUMNS / 16];
        let group = self.plan.group;
        let first = columns.start / group;
        if self.plan.scale != Scale::Row {
            let last = (columns.end - 1) / group;
            // SAFETY: as the caller promises; the row has these scales.
            if !unsafe { self.scales.read(row, first, &mut scales[..=last - first]) } {
                return false;
            }
        }
        let (codes, row_bytes) = self.rows.codes();
        let bytes = 8 * self.plan.width as usize;
        let start = columns.start / 64 * bytes;
        // SAFETY: masks keep inside the row; there is a line for each part of 32 columns.
        unsafe {
            let packed = codes.as_ptr().add(row * row_bytes);
            // The next columns of this row are wanted after these of all other rows: too far apart for the hardware.
            let next = packed.wrapping_add(start + 2 * bytes);
            _mm_prefetch::<_MM_HINT_T0>(next.cast());
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(2 * bytes - 1).cast());
            let gather = _mm512_load_si512(self.gather.0.as_ptr().cast());
            let shifts = _mm512_load_si512(self.shifts.0.as_ptr().cast());
            let quarter = |i: usize| _mm512_loadu_si512(self.plan.tables[0].as_ptr().add(64 * i).cast());
            for (i, column) in columns.clone().step_by(64).enumerate() {
                let at = start + i * bytes;
                let mask = u64::MAX >> (64 - (row_bytes - at).min(bytes));
                let mut numbers = _mm512_maskz_loadu_epi8(mask, packed.add(at).cast());
                if self.plan.width < 8 {
                    numbers = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, numbers));
                }
                if self.plan.width <= 6 {
                    // Tables repeat with the width: higher bits of an index do not matter.
                    numbers = _mm512_permutexvar_epi8(numbers, quarter(0));
                } else if !self.plan.bytes {
                    let below = _mm512_permutex2var_epi8(quarter(0), numbers, quarter(1));
                    let above = _mm512_permutex2var_epi8(quarter(2), numbers, quarter(3));
                    numbers = _mm512_mask_blend_epi8(_mm512_movepi8_mask(numbers), below, above);
                }
                let halves = [_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64::<1>(numbers)];
                for (half, bytes) in halves.into_iter().enumerate() {
                    let column = column + STEP * half;
                    if column >= columns.end {
                        break;
                    }
                    let scale = match group {
                        16 => {
                            let at = column / 16 - first;
                            _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(scales[at]), _mm512_set1_ps(scales[at + 1]))
                        }
                        _ => _mm512_set1_ps(scales[column / group - first]),
                    };
                    // Pairs of columns in a lane: the even one below, the odd one above.
                    let pairs = _mm512_cvtepi8_epi16(bytes);
                    let even = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs)));
                    let odd = _mm512_cvtepi32_ps(_mm512_srai_epi32::<16>(pairs));
                    let mut even = _mm512_mul_ps(even, scale);
                    let mut odd = _mm512_mul_ps(odd, scale);
                    for part in 0..parts {
                        if part > 0 {
                            even = _mm512_sub_ps(even, upper(even));
                            odd = _mm512_sub_ps(odd, upper(odd));
                        }
                        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
                        let both = _mm512_or_si512(low, _mm512_castps_si512(upper(odd)));
                        _mm512_store_si512(to.cast(), both);
                        to = to.add(TILE);
                    }
                }
            }
        }
        true
    }
}

/// Values cut to what a bfloat16 holds.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::linear) fn upper(v: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0xffff_0000_u32.cast_signed())))
}
