//! Inputs as digits.

use std::arch::x86_64::*;

use super::{CHUNK, DIGITS};
use crate::codec::zeroed;
use crate::error::Result;

/// Binary exponents that fixed-point inputs may have; others would overflow or vanish in the scaling.
const EXPONENTS: std::ops::RangeInclusive<i32> = -60..=60;
/// Largest number of three digits that are bytes with a sign.
const MOST: i32 = 127 * 65_536 + 127 * 256 + 127;

/// Rows of inputs as three planes of int8 and a power of two for each chunk of columns.
pub(in crate::linear) struct FixedInputs {
    planes: Vec<i8>,
    units: Vec<f32>,
    /// Columns, filled with zeros up to whole chunks.
    pub(super) columns: usize,
    pub(super) rows: usize,
}

impl FixedInputs {
    /// Digits of `rows` rows, `stride` values apart, the columns from `k` to a multiple of 16 being zero; `None` where
    /// a value is not finite, or a chunk lies beyond [`EXPONENTS`].
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    pub(in crate::linear) unsafe fn new(x: &[f32], rows: usize, stride: usize, k: usize) -> Result<Option<Self>> {
        let columns = k.next_multiple_of(CHUNK);
        let chunks = columns / CHUNK;
        let mut fixed = Self { planes: zeroed(rows * DIGITS * columns)?, units: zeroed(rows * chunks)?, columns, rows };
        for row in 0..rows {
            for chunk in 0..chunks {
                let start = chunk * CHUNK;
                let len = (k.next_multiple_of(16) - start).min(CHUNK);
                let x = &x[row * stride + start..][..len];
                let plane = (row * DIGITS) * columns + start;
                // SAFETY: as the caller promises; each of the planes has `len` places from `start` on.
                let unit = unsafe { convert(x, fixed.planes.as_mut_ptr().add(plane), columns) };
                match unit {
                    Some(unit) => fixed.units[row * chunks + chunk] = unit,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(fixed))
    }

    /// A plane of digits of a row, the lowest first.
    pub(super) fn plane(&self, row: usize, digit: usize) -> &[i8] {
        &self.planes[(row * DIGITS + digit) * self.columns..][..self.columns]
    }

    /// What the lowest digit counts, in a chunk.
    pub(super) fn unit(&self, row: usize, chunk: usize) -> f32 {
        self.units[row * (self.columns / CHUNK) + chunk]
    }
}

/// Writes digits of values, a multiple of 16 of them, to three planes; returns what the lowest counts.
///
/// # Safety
/// `planes` must have room for as many digits, thrice, `stride` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn convert(x: &[f32], planes: *mut i8, stride: usize) -> Option<f32> {
    let vectors = x.as_chunks::<16>().0;
    // SAFETY: every vector is read and written whole.
    unsafe {
        let mut most = _mm512_setzero_si512();
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        for v in vectors {
            most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(v.as_ptr().cast()), magnitude));
        }
        let most = _mm512_reduce_max_epu32(most);
        if most == 0 {
            return Some(0.0); // the planes are zero already
        }
        let exponent = (most >> 23) as i32 - 127;
        if !EXPONENTS.contains(&exponent) {
            return None;
        }
        let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
        // Close below a power of two, three digits fall short of it.
        let largest = (f32::from_bits(most) * power(22 - exponent)).round_ties_even() as i32;
        let exponent = exponent + i32::from(largest > MOST);
        let factor = _mm512_set1_ps(power(22 - exponent));
        for (i, v) in vectors.iter().enumerate() {
            let mut rest = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v.as_ptr()), factor));
            for digit in 0..DIGITS {
                _mm_storeu_si128(planes.add(digit * stride + i * 16).cast(), _mm512_cvtepi32_epi8(rest));
                let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(rest));
                rest = _mm512_srai_epi32::<8>(_mm512_sub_epi32(rest, low));
            }
        }
        Some(power(exponent - 22))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    #[test]
    fn digits_are_the_rounded_inputs() {
        if Level::detect() < Level::Avx512 {
            return;
        }
        let mut x: Vec<f32> = (0..512).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 1e-3).collect();
        x[300] = 1.999_999_9; // does not fit three digits of its own binade
        // SAFETY: the level was detected.
        let fixed = unsafe { FixedInputs::new(&x, 1, 512, 512) }.unwrap().unwrap();
        for (i, &v) in x.iter().enumerate() {
            let sum = (0..DIGITS).rev().fold(0.0, |sum, d| sum * 256.0 + f64::from(fixed.plane(0, d)[i]));
            let unit = f64::from(fixed.unit(0, i / CHUNK));
            assert!((sum * unit - f64::from(v)).abs() <= unit / 2.0, "{i}: {v}");
        }
        for wrong in [f32::NAN, f32::INFINITY, 1e30, 1e-30] {
            x[256..].fill(wrong);
            // SAFETY: as above.
            assert!(unsafe { FixedInputs::new(&x, 1, 512, 512) }.unwrap().is_none());
        }
    }
}
