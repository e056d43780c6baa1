//! Outputs thirty-two columns at a time, from registers of AVX-512.

use std::arch::x86_64::*;

use crate::codec::DType;
use crate::linear::output::{Biased, Outputs};
use crate::simd::LANES;

impl Outputs {
    /// As [`Biased::lanes`], of outputs without a bias.
    pub(super) const fn lanes(&self, row: usize, column: usize, lanes: u32) -> OutputLanes {
        let (row, bytes) = (self.first + row, self.dst.dtype.bytes());
        let to = self.dst.raw().wrapping_add((row * self.columns + column) * bytes);
        OutputLanes { to, stride: self.columns * bytes, dtype: self.dst.dtype, lanes }
    }
}

impl Biased<'_> {
    /// 32 columns of the rows from `row` on: of the columns from `column` on those with a bit in `lanes`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F; the outputs must have the row and the columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn lanes(&self, row: usize, column: usize, lanes: u32) -> BiasedLanes {
        let bias = self.bias.get(column..).filter(|bias| !bias.is_empty());
        // SAFETY: a bias has a value for each column; masks keep inside it.
        let bias = bias.map(|bias| unsafe {
            let high = _mm512_maskz_loadu_ps((lanes >> LANES) as u16, bias.as_ptr().wrapping_add(LANES));
            [_mm512_maskz_loadu_ps(lanes as u16, bias.as_ptr()), high]
        });
        BiasedLanes { out: self.out.lanes(row, column, lanes), bias }
    }
}

/// Thirty-two columns of outputs.
pub(super) struct BiasedLanes {
    pub(super) out: OutputLanes,
    bias: Option<[__m512; 2]>,
}

impl BiasedLanes {
    /// As [`Biased::write`], to a row.
    ///
    /// # Safety
    /// As there; the processor must have AVX-512 F and BW, and outputs be of 16 bits where `HALF` says so.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(super) unsafe fn write<const HALF: bool, const FULL: bool>(&self, row: usize, mut values: [__m512; 2]) {
        if let Some([low, high]) = self.bias {
            values = [_mm512_add_ps(values[0], low), _mm512_add_ps(values[1], high)];
        }
        // SAFETY: as the caller promises.
        unsafe { self.out.write::<HALF, FULL>(row, values) };
    }
}

/// Thirty-two columns of outputs without a bias.
pub(super) struct OutputLanes {
    to: *mut u8,
    stride: usize,
    pub(super) dtype: DType,
    /// A bit for each that is there.
    lanes: u32,
}

impl OutputLanes {
    /// As [`Outputs::write`], to a row.
    ///
    /// # Safety
    /// As there; the processor must have AVX-512 F and BW; `HALF` tells outputs of 16 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(super) unsafe fn write<const HALF: bool, const FULL: bool>(&self, row: usize, [low, high]: [__m512; 2]) {
        let to = self.to.wrapping_add(row * self.stride);
        // SAFETY: as the caller promises.
        unsafe {
            if !HALF && FULL {
                _mm512_storeu_ps(to.cast(), low);
                return _mm512_storeu_ps(to.cast::<f32>().wrapping_add(LANES), high);
            }
            if !HALF {
                _mm512_mask_storeu_ps(to.cast(), self.lanes as u16, low);
                return _mm512_mask_storeu_ps(to.cast::<f32>().wrapping_add(LANES), (self.lanes >> LANES) as u16, high);
            }
            let both = match self.dtype {
                // The instruction takes subnormal numbers for zeros.
                DType::BF16
                    if _mm512_fpclass_ps_mask::<SUBNORMAL>(low) | _mm512_fpclass_ps_mask::<SUBNORMAL>(high) == 0 =>
                {
                    std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
                }
                DType::BF16 => joined(halves(low), halves(high)),
                _ => joined(float16(low), float16(high)),
            };
            if FULL {
                _mm512_storeu_si512(to.cast(), both);
            } else {
                _mm512_mask_storeu_epi16(to.cast(), self.lanes, both);
            }
        }
    }
}

/// Of `vfpclassps`: numbers below the smallest normal one.
const SUBNORMAL: i32 = 0x20;

/// Two halves as one.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
fn joined(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Rounded to float16.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
fn float16(values: __m512) -> __m256i {
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values)
}

/// Rounded to bfloat16.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(values: __m512) -> __m256i {
    let bits = _mm512_castps_si512(values);
    let upper = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    // A NaN must not round up into the sign; it becomes a quiet one.
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let rounded = _mm512_mask_or_epi32(_mm512_srli_epi32::<16>(rounded), nan, upper, _mm512_set1_epi32(0x40));
    _mm512_cvtepi32_epi16(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ValuesMut;
    use crate::simd::Level;

    #[test]
    fn lanes_have_the_bits_of_rows_for_all_kinds_of_values() {
        let found = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512dq");
        if Level::detect() < Level::Avx512 || !found {
            return;
        }
        // All upper halves: subnormal numbers, those beyond the range of a dtype, infinities and NaNs, halfway cases among them.
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let bits = (0..=0xffff_u32).flat_map(|upper| lower.map(|lower| upper << 16 | lower));
        let values: Vec<f32> = bits.map(f32::from_bits).collect();
        let (columns, bias) = (50, [0.5; 50]);
        for (block, values) in values.chunks(32).enumerate() {
            let bias = if block % 2 == 0 { &bias[..] } else { &[] };
            for (dtype, count) in
                [DType::F32, DType::F16, DType::BF16].iter().flat_map(|d| [(d, 32), (d, 1 + block % 32)])
            {
                let [mut wanted, mut got] = [vec![7.0f32; 2 * columns], vec![7.0f32; 2 * columns]];
                let write = |to: &mut Vec<f32>, lanes: bool| {
                    let count = count.min(values.len());
                    // SAFETY: a float32 has room for each value; the instructions were found; rows and columns are there.
                    unsafe {
                        let mut out = match dtype {
                            DType::F32 => ValuesMut::F32(to),
                            DType::F16 => ValuesMut::F16(halves_of(to)),
                            DType::BF16 => ValuesMut::BF16(halves_of(to)),
                        };
                        let out = Biased::new(Outputs::new(&mut out, columns, Level::Avx512), bias);
                        let mut padded = [0.0; 32];
                        padded[..count].copy_from_slice(&values[..count]);
                        if lanes {
                            write_as(&out, padded, count, *dtype != DType::F32);
                        } else {
                            out.write(1, 9, &mut padded[..count]);
                        }
                    }
                };
                write(&mut wanted, false);
                write(&mut got, true);
                let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&wanted), "{dtype:?}, {values:?}, {count}");
            }
        }
    }

    /// The memory of values as 16-bit floats.
    fn halves_of(values: &mut [f32]) -> &mut [u16] {
        // SAFETY: a value is two of them.
        unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), 2 * values.len()) }
    }

    /// Writes to columns of a row from 9 on.
    ///
    /// # Safety
    /// As for [`OutputLanes::write`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn write_as(out: &Biased<'_>, values: [f32; 32], count: usize, half: bool) {
        // SAFETY: as the caller promises.
        unsafe {
            let values = [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))];
            let lanes = out.lanes(0, 9, u32::MAX >> (32 - count));
            match (half, count) {
                (false, 32) => lanes.write::<false, true>(1, values),
                (false, _) => lanes.write::<false, false>(1, values),
                (true, 32) => lanes.write::<true, true>(1, values),
                (true, _) => lanes.write::<true, false>(1, values),
            }
        }
    }
}
