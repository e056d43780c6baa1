//! AVX2 with FMA and F16C: two registers of 8 lanes.

use std::arch::x86_64::*;

use super::Lanes;
use crate::simd::{Job, Level};

/// Sixteen lanes in two 256-bit registers.
/// A value exists only where the processor has the features of [`Level::Avx2`].
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The instructions, if the processor has them.
    #[inline]
    pub fn new() -> Option<Self> {
        Level::Avx2.is_here().then_some(Self(()))
    }
}

/// # Safety
/// The processor must have the features of [`Level::Avx2`], as a value of [`Avx2`] proves.
#[inline(never)] // a job that runs others stays apart from them
#[target_feature(enable = "avx2,fma,f16c,bmi2,popcnt")]
fn compiled<J: Job<Avx2>>(lanes: Avx2, job: J) -> J::Output {
    job.run(lanes)
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

type F = [__m256; 2];
type I = [__m256i; 2];

/// One intrinsic on both halves.
macro_rules! halves {
    ($f:expr, $($a:expr),*) => { [$f($($a[0]),*), $f($($a[1]),*)] };
}

/// Operations that are one intrinsic on both halves.
macro_rules! by_halves {
    ($(fn $name:ident($($a:ident: $register:ty),*) -> $output:ty = $f:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $register),*) -> $output {
            unsafe { halves!($f, $($a),*) }
        }
    )*};
}

/// Low bytes of the lanes.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn low_bytes(v: I) -> __m128i {
    // SAFETY: as the caller promises.
    unsafe {
        let mask = _mm256_set1_epi32(0xff);
        // Packing works inside 128-bit lanes, so the quarters come out in the order 0, 2, 1, 3.
        let words = _mm256_packus_epi32(_mm256_and_si256(v[0], mask), _mm256_and_si256(v[1], mask));
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
    }
}

#[expect(clippy::undocumented_unsafe_blocks, reason = "every block is intrinsics under the contract of the trait")]
// SAFETY: `new` makes the only values.
unsafe impl Lanes for Avx2 {
    type F = F;
    type I = I;
    type M = F;
    type D = [__m256d; 4];
    const VECTORS: usize = 8;
    const ONE_LOOKUP: bool = false;

    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        unsafe { compiled(self, job) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: F) {
        unsafe {
            _mm256_stream_ps(p, v[0]);
            _mm256_stream_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        unsafe { [_mm256_set1_ps(v); 2] }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        unsafe { [_mm256_set1_epi32(v); 2] }
    }
    by_halves! {
        fn bits(v: F) -> I = _mm256_castps_si256;
        fn from_bits(v: I) -> F = _mm256_castsi256_ps;
        fn add(a: F, b: F) -> F = _mm256_add_ps;
        fn sub(a: F, b: F) -> F = _mm256_sub_ps;
        fn mul(a: F, b: F) -> F = _mm256_mul_ps;
        fn div(a: F, b: F) -> F = _mm256_div_ps;
        fn sqrt(v: F) -> F = _mm256_sqrt_ps;
        fn min(a: F, b: F) -> F = _mm256_min_ps;
        fn max(a: F, b: F) -> F = _mm256_max_ps;
        fn fma(a: F, b: F, c: F) -> F = _mm256_fmadd_ps;
        fn fnmadd(a: F, b: F, c: F) -> F = _mm256_fnmadd_ps;
        fn round(v: F) -> F = _mm256_round_ps::<NEAREST>;
        fn to_i(v: F) -> I = _mm256_cvtps_epi32;
        fn to_f(v: I) -> F = _mm256_cvtepi32_ps;
        fn and(a: I, b: I) -> I = _mm256_and_si256;
        fn or(a: I, b: I) -> I = _mm256_or_si256;
        fn xor(a: I, b: I) -> I = _mm256_xor_si256;
        fn add_i(a: I, b: I) -> I = _mm256_add_epi32;
        fn sub_i(a: I, b: I) -> I = _mm256_sub_epi32;
        fn max_i(a: I, b: I) -> I = _mm256_max_epi32;
        fn lt(a: F, b: F) -> F = _mm256_cmp_ps::<_CMP_LT_OQ>;
        fn ge(a: F, b: F) -> F = _mm256_cmp_ps::<_CMP_GE_OQ>;
        fn eq(a: F, b: F) -> F = _mm256_cmp_ps::<_CMP_EQ_OQ>;
    }
    #[inline(always)]
    unsafe fn mul_wide(a: I, b: I) -> (I, I) {
        unsafe {
            let each = |a: __m256i, b: __m256i| {
                let even = _mm256_mul_epu32(a, b);
                let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
                let high = _mm256_blend_epi32::<0xaa>(_mm256_srli_epi64::<32>(even), odd);
                (high, _mm256_blend_epi32::<0xaa>(even, _mm256_slli_epi64::<32>(odd)))
            };
            let [low, high] = [each(a[0], b[0]), each(a[1], b[1])];
            ([low.0, high.0], [low.1, high.1])
        }
    }
    #[inline(always)]
    unsafe fn shl(a: I, count: u32) -> I {
        unsafe {
            let count = _mm_cvtsi32_si128(count as i32);
            [_mm256_sll_epi32(a[0], count), _mm256_sll_epi32(a[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn shr(a: I, count: u32) -> I {
        unsafe {
            let count = _mm_cvtsi32_si128(count as i32);
            [_mm256_srl_epi32(a[0], count), _mm256_srl_epi32(a[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn sar(a: I, count: u32) -> I {
        unsafe {
            let count = _mm_cvtsi32_si128(count as i32);
            [_mm256_sra_epi32(a[0], count), _mm256_sra_epi32(a[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: I) -> u32 {
        unsafe {
            let m = _mm256_max_epi32(a[0], a[1]);
            let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
            _mm_cvtsi128_si32(m) as u32
        }
    }
    #[inline(always)]
    unsafe fn reduce_min_f(a: F) -> f32 {
        unsafe {
            let m = _mm256_min_ps(a[0], a[1]);
            let m = _mm_min_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
            let m = _mm_min_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps::<1>(m, m)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max_f(a: F) -> f32 {
        unsafe {
            let m = _mm256_max_ps(a[0], a[1]);
            let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps::<1>(m, m)))
        }
    }
    #[inline(always)]
    unsafe fn tree_sum(a: F) -> f32 {
        unsafe {
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
    }
    #[inline(always)]
    unsafe fn unordered(a: F) -> F {
        unsafe { halves!(_mm256_cmp_ps::<_CMP_UNORD_Q>, a, a) }
    }
    #[inline(always)]
    unsafe fn gt_i(a: I, b: I) -> F {
        unsafe { Self::from_bits(halves!(_mm256_cmpgt_epi32, a, b)) }
    }
    #[inline(always)]
    unsafe fn any(m: F) -> bool {
        unsafe { _mm256_movemask_ps(m[0]) | _mm256_movemask_ps(m[1]) != 0 }
    }
    #[inline(always)]
    unsafe fn mask_bits(m: F) -> u32 {
        unsafe { (_mm256_movemask_ps(m[0]) | _mm256_movemask_ps(m[1]) << 8) as u32 }
    }
    #[inline(always)]
    unsafe fn select(m: F, a: F, b: F) -> F {
        unsafe { halves!(_mm256_blendv_ps, b, a, m) }
    }
    #[inline(always)]
    unsafe fn select_i(m: F, a: I, b: I) -> I {
        unsafe { Self::bits(Self::select(m, Self::from_bits(a), Self::from_bits(b))) }
    }
    #[inline(always)]
    unsafe fn lookup(table: F, index: I) -> F {
        unsafe {
            // Bit 3 of the index chooses the half; moved to the sign it is what blendv looks at.
            let look = |index: __m256i| {
                let high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                let (a, b) = (_mm256_permutevar8x32_ps(table[0], index), _mm256_permutevar8x32_ps(table[1], index));
                _mm256_blendv_ps(a, b, high)
            };
            [look(index[0]), look(index[1])]
        }
    }
    #[inline(always)]
    unsafe fn store_u8(p: *mut u8, v: I) {
        unsafe { _mm_storeu_si128(p.cast(), low_bytes(v)) }
    }
    #[inline(always)]
    unsafe fn stream_u8(p: *mut u8, v: I) {
        unsafe { _mm_stream_si128(p.cast(), low_bytes(v)) }
    }
    #[inline(always)]
    unsafe fn store_u16(p: *mut u16, v: I) {
        unsafe {
            let mask = _mm256_set1_epi32(0xffff);
            let words = _mm256_packus_epi32(_mm256_and_si256(v[0], mask), _mm256_and_si256(v[1], mask));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(words));
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
        }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> I {
        unsafe {
            let low = _mm_loadu_si128(p.cast());
            let high = _mm_loadu_si128(p.add(8).cast());
            [_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))] }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn zero_d() -> [__m256d; 4] {
        unsafe { [_mm256_setzero_pd(); 4] }
    }
    #[inline(always)]
    unsafe fn accumulate(sum: [__m256d; 4], v: F) -> [__m256d; 4] {
        unsafe {
            let low = |v: __m256| _mm256_cvtps_pd(_mm256_castps256_ps128(v));
            let high = |v: __m256| _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v));
            [
                _mm256_add_pd(sum[0], low(v[0])),
                _mm256_add_pd(sum[1], high(v[0])),
                _mm256_add_pd(sum[2], low(v[1])),
                _mm256_add_pd(sum[3], high(v[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn accumulate_squares(sum: [__m256d; 4], v: F) -> [__m256d; 4] {
        unsafe {
            let low = |v: __m256| _mm256_cvtps_pd(_mm256_castps256_ps128(v));
            let high = |v: __m256| _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(v));
            let wide = [low(v[0]), high(v[0]), low(v[1]), high(v[1])];
            // The square of a float32 is exact, so a fused addition rounds no differently.
            [
                _mm256_fmadd_pd(wide[0], wide[0], sum[0]),
                _mm256_fmadd_pd(wide[1], wide[1], sum[1]),
                _mm256_fmadd_pd(wide[2], wide[2], sum[2]),
                _mm256_fmadd_pd(wide[3], wide[3], sum[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn range_over(a: F, b: F, c: f64) -> F {
        unsafe {
            let c = _mm256_set1_pd(c);
            let quarter =
                |a, b| _mm256_cvtpd_ps(_mm256_div_pd(_mm256_sub_pd(_mm256_cvtps_pd(a), _mm256_cvtps_pd(b)), c));
            let half = |a, b| {
                let low = quarter(_mm256_castps256_ps128(a), _mm256_castps256_ps128(b));
                let high = quarter(_mm256_extractf128_ps::<1>(a), _mm256_extractf128_ps::<1>(b));
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
            };
            [half(a[0], b[0]), half(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn to_array(sum: [__m256d; 4]) -> [f64; 16] {
        let mut lanes = [0.0; 16];
        for (i, quarter) in sum.into_iter().enumerate() {
            unsafe { _mm256_storeu_pd(lanes.as_mut_ptr().add(4 * i), quarter) };
        }
        lanes
    }
    #[inline(always)]
    unsafe fn splat_d(v: f64) -> [__m256d; 4] {
        unsafe { [_mm256_set1_pd(v); 4] }
    }
    #[inline(always)]
    unsafe fn add_exact_d(c: [__m256d; 4], a: [__m256d; 4], b: [__m256d; 4]) -> [__m256d; 4] {
        std::array::from_fn(|i| unsafe { _mm256_fmadd_pd(a[i], b[i], c[i]) })
    }
    #[inline(always)]
    unsafe fn take_d(c: [__m256d; 4], a: [__m256d; 4], b: [__m256d; 4]) -> [__m256d; 4] {
        std::array::from_fn(|i| unsafe { _mm256_sub_pd(c[i], _mm256_mul_pd(a[i], b[i])) })
    }
    #[inline(always)]
    unsafe fn load_d(p: *const f64) -> [__m256d; 4] {
        std::array::from_fn(|i| unsafe { _mm256_loadu_pd(p.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn store_d(p: *mut f64, v: [__m256d; 4]) {
        for (i, quarter) in v.into_iter().enumerate() {
            unsafe { _mm256_storeu_pd(p.add(4 * i), quarter) };
        }
    }
}
