//! AVX-512: one register of 16 lanes.

use std::arch::x86_64::*;

use super::Lanes;
use crate::simd::{Job, Level};

/// Sixteen lanes in one 512-bit register.
/// A value exists only where the processor has the features of [`Level::Avx512`].
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The instructions, if the processor has them.
    #[inline]
    pub fn new() -> Option<Self> {
        Level::Avx512.is_here().then_some(Self(()))
    }
}

/// # Safety
/// The processor must have the features of [`Level::Avx512`], as a value of [`Avx512`] proves.
#[inline(never)] // a job that runs others stays apart from them
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi2,popcnt")]
fn compiled<J: Job<Avx512>>(lanes: Avx512, job: J) -> J::Output {
    job.run(lanes)
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The larger integers of bits, or the sums of floats.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
unsafe fn join<const MAX: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        match MAX {
            true => _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b))),
            false => _mm512_add_ps(a, b),
        }
    }
}

/// Lane `j`: the lanes of row `j` joined as a tree, halves first. Each step makes one vector of the partial results of two.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
unsafe fn join_each<const MAX: bool>(mut rows: [__m512; 16]) -> __m512 {
    // SAFETY: as the caller promises.
    unsafe {
        for j in 0..8 {
            let (a, b) = (rows[j], rows[j + 8]);
            let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
            rows[j] = join::<MAX>(low, high);
        }
        for j in 0..4 {
            let (a, b) = (rows[j], rows[j + 4]);
            let (low, high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            rows[j] = join::<MAX>(low, high);
        }
        for j in 0..2 {
            let (a, b) = (_mm512_castps_pd(rows[j]), _mm512_castps_pd(rows[j + 2]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            rows[j] = join::<MAX>(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        }
        let (a, b) = (rows[0], rows[1]);
        let all = join::<MAX>(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
        // The steps leave the results of rows 0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15, a list that is its own inverse.
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), all)
    }
}

#[expect(clippy::undocumented_unsafe_blocks, reason = "every block is intrinsics under the contract of the trait")]
// SAFETY: `new` makes the only values.
unsafe impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    type D = [__m512d; 2];
    const VECTORS: usize = 32;
    const ONE_LOOKUP: bool = true;

    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        unsafe { compiled(self, job) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> __m512 {
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn bits(v: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(v) }
    }
    #[inline(always)]
    unsafe fn from_bits(v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sqrt(v: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(v) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnmadd(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<NEAREST>(v) }
    }
    #[inline(always)]
    unsafe fn to_i(v: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(v) }
    }
    #[inline(always)]
    unsafe fn to_f(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn max_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_max_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_wide(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        unsafe {
            let even = _mm512_mul_epu32(a, b);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b));
            let high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64::<32>(even), odd);
            (high, _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64::<32>(odd)))
        }
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, count: u32) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, count: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }
    #[inline(always)]
    unsafe fn sar(a: __m512i, count: u32) -> __m512i {
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: __m512i) -> u32 {
        unsafe { _mm512_reduce_max_epi32(a) as u32 }
    }
    #[inline(always)]
    unsafe fn reduce_min_f(a: __m512) -> f32 {
        unsafe { _mm512_reduce_min_ps(a) }
    }
    #[inline(always)]
    unsafe fn reduce_max_f(a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn tree_sum(a: __m512) -> f32 {
        unsafe {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
    }
    #[inline(always)]
    unsafe fn lt(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn ge(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn eq(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn unordered(a: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a) }
    }
    #[inline(always)]
    unsafe fn gt_i(a: __m512i, b: __m512i) -> __mmask16 {
        unsafe { _mm512_cmpgt_epi32_mask(a, b) }
    }
    #[inline(always)]
    unsafe fn any(m: __mmask16) -> bool {
        m != 0
    }
    #[inline(always)]
    unsafe fn mask_bits(m: __mmask16) -> u32 {
        u32::from(m)
    }
    #[inline(always)]
    unsafe fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    unsafe fn select_i(m: __mmask16, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mask_blend_epi32(m, b, a) }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m512, index: __m512i) -> __m512 {
        unsafe { _mm512_permutexvar_ps(index, table) }
    }
    #[inline(always)]
    unsafe fn store_u8(p: *mut u8, v: __m512i) {
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn store_u16(p: *mut u16, v: __m512i) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(v)) }
    }
    #[inline(always)]
    unsafe fn stream_u8(p: *mut u8, v: __m512i) {
        unsafe { _mm_stream_si128(p.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn reduce_max_each(a: [__m512i; 16]) -> __m512i {
        // Registers of integers are those of floats.
        unsafe { _mm512_castps_si512(join_each::<true>(std::mem::transmute::<[__m512i; 16], [__m512; 16]>(a))) }
    }
    #[inline(always)]
    unsafe fn tree_sum_each(a: [__m512; 16]) -> __m512 {
        unsafe { join_each::<false>(a) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> __m512i {
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(v)) }
    }
    #[inline(always)]
    unsafe fn zero_d() -> [__m512d; 2] {
        unsafe { [_mm512_setzero_pd(); 2] }
    }
    #[inline(always)]
    unsafe fn accumulate(sum: [__m512d; 2], v: __m512) -> [__m512d; 2] {
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            [_mm512_add_pd(sum[0], _mm512_cvtps_pd(low)), _mm512_add_pd(sum[1], _mm512_cvtps_pd(high))]
        }
    }
    #[inline(always)]
    unsafe fn accumulate_squares(sum: [__m512d; 2], v: __m512) -> [__m512d; 2] {
        unsafe {
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(v));
            // The square of a float32 is exact, so a fused addition rounds no differently.
            [_mm512_fmadd_pd(low, low, sum[0]), _mm512_fmadd_pd(high, high, sum[1])]
        }
    }
    #[inline(always)]
    unsafe fn range_over(a: __m512, b: __m512, c: f64) -> __m512 {
        unsafe {
            let c = _mm512_set1_pd(c);
            let half = |a, b| _mm512_cvtpd_ps(_mm512_div_pd(_mm512_sub_pd(_mm512_cvtps_pd(a), _mm512_cvtps_pd(b)), c));
            let low = half(_mm512_castps512_ps256(a), _mm512_castps512_ps256(b));
            let high = half(_mm512_extractf32x8_ps::<1>(a), _mm512_extractf32x8_ps::<1>(b));
            _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
        }
    }
    #[inline(always)]
    unsafe fn to_array(sum: [__m512d; 2]) -> [f64; 16] {
        let mut lanes = [0.0; 16];
        unsafe {
            _mm512_storeu_pd(lanes.as_mut_ptr(), sum[0]);
            _mm512_storeu_pd(lanes.as_mut_ptr().add(8), sum[1]);
        }
        lanes
    }
    #[inline(always)]
    unsafe fn splat_d(v: f64) -> [__m512d; 2] {
        unsafe { [_mm512_set1_pd(v); 2] }
    }
    #[inline(always)]
    unsafe fn add_exact_d(c: [__m512d; 2], a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        unsafe { [_mm512_fmadd_pd(a[0], b[0], c[0]), _mm512_fmadd_pd(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn take_d(c: [__m512d; 2], a: [__m512d; 2], b: [__m512d; 2]) -> [__m512d; 2] {
        unsafe { [_mm512_sub_pd(c[0], _mm512_mul_pd(a[0], b[0])), _mm512_sub_pd(c[1], _mm512_mul_pd(a[1], b[1]))] }
    }
    #[inline(always)]
    unsafe fn load_d(p: *const f64) -> [__m512d; 2] {
        unsafe { [_mm512_loadu_pd(p), _mm512_loadu_pd(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store_d(p: *mut f64, v: [__m512d; 2]) {
        unsafe {
            _mm512_storeu_pd(p, v[0]);
            _mm512_storeu_pd(p.add(8), v[1]);
        }
    }
}
