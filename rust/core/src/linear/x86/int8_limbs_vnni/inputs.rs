//! Inputs in fixed point: each value as three or four int8 limbs, with a power of two for 256 columns; or as the one limb
//! of its code in a format, with the scale of its group.

use std::arch::x86_64::*;

use super::plan::{Plan, Scale};
use super::scales::{Scales, is_moderate};
use super::{CHUNK, MAX_LIMBS};
use crate::bitpack::{bytes_mut, unpack};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::pool;
use crate::simd::Level;
use crate::simd::amx::LINE;

/// Binary exponents that the largest number of a chunk may have; others would overflow or vanish in the scaling.
const EXPONENTS: std::ops::RangeInclusive<i32> = -60..=60;
/// Ratio of the largest magnitude of a chunk to the mean, above which three limbs lose more than float32 sums do.
const OUTLIER: f32 = 16.0;
/// Rows that one thread arranges at a time.
const ROWS: usize = 16;
/// Units but 0 that codes may have, for the same reason.
const UNITS: std::ops::RangeInclusive<f32> = power(-82)..=power(60);

/// Largest number of so many limbs that are bytes with a sign.
pub(super) const fn largest(limbs: usize) -> i32 {
    if limbs == 3 { 127 * 0x0001_0101 } else { 127 * 0x0101_0101 }
}

/// A power of two.
const fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// Rows of inputs as planes of int8 and a unit for each group of columns.
pub(in crate::linear) struct FixedInputs {
    planes: Vec<i8>,
    units: Vec<f32>,
    /// Limbs of each row: one of codes, three, four where there are outliers, or none where the row has no fixed-point form.
    limbs: Vec<usize>,
    /// Planes that a row has room for.
    room: usize,
    /// Columns that share a unit: a power of two.
    group: usize,
    /// Columns, filled with zeros up to whole chunks.
    pub(in crate::linear) columns: usize,
    pub(in crate::linear) rows: usize,
}

impl FixedInputs {
    /// Limbs of `rows` rows, `stride` values apart, the columns from `k` to a multiple of 16 being zero. A row has none
    /// where a value is not finite, or a chunk lies beyond [`EXPONENTS`].
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    pub(in crate::linear) unsafe fn new(x: &[f32], rows: usize, stride: usize, k: usize) -> Result<Self> {
        let columns = k.next_multiple_of(CHUNK);
        let chunks = columns / CHUNK;
        let (planes, units) = (zeroed(rows * MAX_LIMBS * columns)?, zeroed(rows * chunks)?);
        let mut fixed = Self { planes, units, limbs: vec![3; rows], room: MAX_LIMBS, group: CHUNK, columns, rows };
        // One row: its planes and its units; as many limbs as it has.
        let arrange = |row: usize, planes: &mut [i8], units: &mut [f32]| {
            let even = |x: &[f32]| {
                // SAFETY: as the caller promises.
                let (most, sum) = unsafe { magnitudes(x) };
                most * x.len() as f32 <= OUTLIER * sum
            };
            let values = &x[row * stride..][..k.next_multiple_of(16)];
            let limbs = if values.chunks(CHUNK).all(even) { 3 } else { 4 };
            for (at, (x, to)) in values.chunks(CHUNK).zip(units).enumerate() {
                // SAFETY: as the caller promises; each of the planes has a place for each value.
                match unsafe { convert(x, limbs, planes[at * CHUNK..].as_mut_ptr(), columns) } {
                    Some(unit) => *to = unit,
                    None => return 0,
                }
            }
            limbs
        };
        fixed.fill(rows * k, arrange)?;
        Ok(fixed)
    }

    /// Has `arrange` fill the planes and the units of each row, and return its limbs; all that counts as so much `work`.
    fn fill(&mut self, work: usize, arrange: impl Fn(usize, &mut [i8], &mut [f32]) -> usize + Sync) -> Result<()> {
        let (planes, units) = (self.room * self.columns, self.columns / self.group);
        let parts = self.planes.chunks_mut((ROWS * planes).max(1)).zip(self.units.chunks_mut((ROWS * units).max(1)));
        let parts = parts.zip(self.limbs.chunks_mut(ROWS));
        pool::consume(parts.enumerate().collect(), work, |(part, ((of_planes, of_units), limbs))| {
            let all = of_planes.chunks_mut(planes).zip(of_units.chunks_mut(units)).zip(limbs).enumerate();
            all.for_each(|(i, ((planes, units), limbs))| *limbs = arrange(part * ROWS + i, planes, units));
        })
    }

    /// The codes of encoded rows, `plan` being that of their format; none of rows that `skip` tells, of which a scale is
    /// out of range, or whose smallest numbers could vanish.
    ///
    /// # Safety
    /// The level of the rows must be AVX2 or above; the plan must have one limb and no zero points.
    pub(in crate::linear) unsafe fn encoded(
        plan: &Plan,
        encoded: &Rows<'_>,
        rows: usize,
        skip: impl Fn(usize) -> bool + Sync,
    ) -> Result<Self> {
        let (k, group) = (encoded.k, plan.group.min(LINE));
        let columns = k.next_multiple_of(CHUNK);
        let (planes, units) = (zeroed(rows * columns)?, zeroed(rows * (columns / group))?);
        let mut fixed = Self { planes, units, limbs: vec![1; rows], room: 1, group, columns, rows };
        let scales = Scales::new(plan.scale, encoded);
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let (packed, row_bytes) = encoded.codes();
        // One row: its plane and its units; true where they have the values of the row.
        let arrange = |row: usize, plane: &mut [i8], units: &mut [f32]| {
            let codes = bytes_mut(&mut plane[..k]);
            unpack(encoded.level(), &packed[row * row_bytes..][..row_bytes], plan.width, codes);
            if !plan.bytes {
                codes.iter_mut().for_each(|code| *code = plan.tables[0][usize::from(*code)]);
            }
            let mut fits = !skip(row);
            if plan.scale == Scale::Row {
                let step = encoded.row_step(row) as f32;
                fits &= is_moderate(step);
                units.fill(step * raised);
            } else {
                let each = plan.group / group;
                // SAFETY: the level is one of this processor; the row has as many scales, and there are units for all columns.
                fits &= unsafe {
                    match encoded.level() {
                        Level::Avx512 => scales.read_each(row, each, units, &mut _mm512_setzero_ps()),
                        _ => scales.read_each_avx2(row, each, units),
                    }
                };
                units.iter_mut().for_each(|unit| *unit *= raised);
            }
            for (unit, plane) in units.iter_mut().zip(plane.chunks(group)) {
                // Scales of zeros do not matter, and may be out of range.
                *unit = if plane.iter().all(|&code| code == 0) { 0.0 } else { *unit };
                fits &= *unit == 0.0 || UNITS.contains(&unit.abs());
            }
            fits
        };
        fixed.fill(rows * k, |row, plane, units| usize::from(arrange(row, plane, units)))?;
        Ok(fixed)
    }

    /// Limbs of a row; 0 where it has no fixed-point form.
    pub(in crate::linear) fn limbs(&self, row: usize) -> usize {
        self.limbs[row]
    }

    /// Columns that share a unit, at most 256: a power of two.
    pub(in crate::linear) const fn group(&self) -> usize {
        self.group
    }

    /// A plane of limbs of a row, the lowest first: zeros where it has fewer than another one.
    pub(in crate::linear) fn plane(&self, row: usize, limb: usize) -> &[i8] {
        &self.planes[(row * self.room + limb) * self.columns..][..self.columns]
    }

    /// Value of 1 in the lowest limb, in a column.
    pub(in crate::linear) fn unit(&self, row: usize, column: usize) -> f32 {
        self.units[(row * self.columns + column) >> self.group.trailing_zeros()]
    }
}

/// Largest magnitude and sum of the magnitudes of values, a multiple of 16 of them.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn magnitudes(x: &[f32]) -> (f32, f32) {
    let (mut most, mut sum) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    for v in x.as_chunks::<16>().0 {
        // SAFETY: every vector is read whole.
        let v = _mm512_abs_ps(unsafe { _mm512_loadu_ps(v.as_ptr()) });
        (most, sum) = (_mm512_max_ps(most, v), _mm512_add_ps(sum, v));
    }
    (_mm512_reduce_max_ps(most), _mm512_reduce_add_ps(sum))
}

/// Writes limbs of values, a multiple of 16 of them, to as many planes; returns what the lowest counts.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VL; each of the planes, `stride` apart, must have room for the values, which
/// nobody else may use meanwhile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn convert(x: &[f32], limbs: usize, planes: *mut i8, stride: usize) -> Option<f32> {
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
        let bits = 8 * limbs as i32 - 2;
        // Close below a power of two, limbs with a sign fall short of it.
        let most = (f32::from_bits(most) * power(bits - exponent)).round_ties_even() as i32;
        let exponent = exponent + i32::from(most > largest(limbs));
        let factor = _mm512_set1_ps(power(bits - exponent));
        for (i, v) in vectors.iter().enumerate() {
            let mut rest = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v.as_ptr()), factor));
            for limb in 0..limbs {
                _mm_storeu_si128(planes.add(limb * stride + i * 16).cast(), _mm512_cvtepi32_epi8(rest));
                let low = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(rest));
                rest = _mm512_srai_epi32::<8>(_mm512_sub_epi32(rest, low));
            }
        }
        Some(power(exponent - bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbs_are_the_rounded_inputs() {
        if Level::detect() < Level::Avx512 {
            return;
        }
        let mut x: Vec<f32> = (0..512).map(|i| ((i * 7919 % 1000) as f32 - 500.0) * 1e-3).collect();
        // Neither fits the limbs of its own binade; the second is an outlier.
        for (largest, limbs) in [(1.999_999_9, 3), (1_023.999_94, 4)] {
            x[300] = largest;
            // SAFETY: the level was detected.
            let fixed = unsafe { FixedInputs::new(&x, 1, 512, 512) }.unwrap();
            assert_eq!(fixed.limbs(0), limbs);
            for (i, &v) in x.iter().enumerate() {
                let sum = (0..limbs).rev().fold(0.0, |sum, d| sum * 256.0 + f64::from(fixed.plane(0, d)[i]));
                let unit = f64::from(fixed.unit(0, i));
                assert!((sum * unit - f64::from(v)).abs() <= unit / 2.0, "{i}: {v}");
            }
        }
        for wrong in [f32::NAN, f32::INFINITY, 1e30, 1e-30] {
            x[256..].fill(wrong);
            // SAFETY: as above.
            assert_eq!(unsafe { FixedInputs::new(&x, 1, 512, 512) }.unwrap().limbs(0), 0);
        }
    }
}
