//! Sums of integer products to values, sixteen at a time.

use std::arch::x86_64::*;

use super::{int8_rows, int8_tiles};
use crate::linear::integer::Biases;
#[cfg(doc)]
use crate::linear::integer::IntegerProduct;
use crate::simd::tiles;

/// The arithmetic of [`IntegerProduct::value`] on sixteen rows of inputs, or of weights, at once.
pub(super) struct Scaled<'a> {
    /// Filled up to whole registers, as are weights' and biases for rows of inputs.
    pub(super) input_scales: &'a [f32],
    pub(super) weight_scales: &'a [f32],
    pub(super) added: Biases<'a>,
}

impl int8_rows::Finish for Scaled<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn values(&self, row: usize, weight: usize, sums: __m512i) -> __m512 {
        let scales = &self.weight_scales[weight..weight + tiles::ROWS];
        // SAFETY: the slices hold sixteen values.
        unsafe {
            let scale = _mm512_mul_ps(_mm512_set1_ps(self.input_scales[row]), _mm512_loadu_ps(scales.as_ptr()));
            match self.added {
                Biases::Nothing => _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale),
                Biases::Floats(bias) => {
                    let bias = _mm512_loadu_ps(bias[weight..weight + tiles::ROWS].as_ptr());
                    _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale), bias)
                }
                Biases::Integers(bias) => {
                    let bias = _mm512_loadu_si512(bias[weight..weight + tiles::ROWS].as_ptr().cast());
                    let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(bias));
                    let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(bias));
                    _mm512_mul_ps(added(sums, low, high), scale)
                }
            }
        }
    }
}

/// Sums plus biases, which may need 33 bits, rounded once.
///
/// # Safety
/// The processor must have AVX-512 F and DQ.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn added(sums: __m512i, low_bias: __m512i, high_bias: __m512i) -> __m512 {
    let low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(sums));
    let high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(sums));
    let low = _mm512_cvtepi64_ps(_mm512_add_epi64(low, low_bias));
    let high = _mm512_cvtepi64_ps(_mm512_add_epi64(high, high_bias));
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
}

impl int8_tiles::Finish for Scaled<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn values(&self, weight: usize, first: usize, sums: __m512i) -> __m512 {
        let input_scales = &self.input_scales[first..first + tiles::ROWS];
        // SAFETY: the slice holds sixteen scales.
        let scale = unsafe {
            _mm512_mul_ps(_mm512_loadu_ps(input_scales.as_ptr()), _mm512_set1_ps(self.weight_scales[weight]))
        };
        match self.added {
            Biases::Nothing => _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale),
            Biases::Floats(bias) => {
                _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale), _mm512_set1_ps(bias[weight]))
            }
            Biases::Integers(bias) => {
                let bias = _mm512_set1_epi64(i64::from(bias[weight]));
                _mm512_mul_ps(added(sums, bias, bias), scale)
            }
        }
    }
}
