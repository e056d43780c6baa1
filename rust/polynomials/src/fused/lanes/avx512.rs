//! AVX-512.

use std::arch::x86_64::*;

use octavo_core::Level;

use super::{Floats, Job, LANES, Lanes, Sums};

/// AVX-512 F, BW, DQ, VL and CD, with FMA; exists only where the machine has them.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Avx512(());

impl Avx512 {
    /// The instructions, if the machine has them.
    pub(in crate::fused) fn new() -> Option<Self> {
        (Level::detect() >= Level::Avx512).then_some(Self(()))
    }
}

/// # Safety
/// The processor must have the features of [`Level::Avx512`], as an [`Avx512`] proves.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi2,popcnt")]
fn compiled<J: Job<Avx512>>(lanes: Avx512, job: J) -> J::Output {
    job.run(lanes)
}

/// Methods whose bodies are intrinsics.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $output:ty)? = $body:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) $(-> $output)? {
            // SAFETY: `self` exists only where the instructions do; references are readable, and aligned as lines are.
            unsafe { $body }
        })*
    };
}

impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    const BLOCK: (usize, usize) = (6, 4);

    methods! {
        load(from: &Floats) -> Self::F = _mm512_load_ps(from.0.as_ptr());
        store(v: Self::F, to: &mut Floats) = _mm512_store_ps(to.0.as_mut_ptr(), v);
        splat(v: f32) -> Self::F = _mm512_set1_ps(v);
        quad(v: &[f32; 4]) -> Self::F = _mm512_broadcast_f32x4(_mm_loadu_ps(v.as_ptr()));
        add(a: Self::F, b: Self::F) -> Self::F = _mm512_add_ps(a, b);
        sub(a: Self::F, b: Self::F) -> Self::F = _mm512_sub_ps(a, b);
        mul(a: Self::F, b: Self::F) -> Self::F = _mm512_mul_ps(a, b);
        div(a: Self::F, b: Self::F) -> Self::F = _mm512_div_ps(a, b);
        min(a: Self::F, b: Self::F) -> Self::F = _mm512_min_ps(a, b);
        max(a: Self::F, b: Self::F) -> Self::F = _mm512_max_ps(a, b);
        fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = _mm512_fmadd_ps(a, b, c);
        load_sums(from: &Sums) -> Self::I = _mm512_load_si512(from.0.as_ptr().cast());
        splat_sum(v: i32) -> Self::I = _mm512_set1_epi32(v);
        add_sums(a: Self::I, b: Self::I) -> Self::I = _mm512_add_epi32(a, b);
        to_floats(v: Self::I) -> Self::F = _mm512_cvtepi32_ps(v);
        bits(v: Self::F) -> Self::I = _mm512_castps_si512(v);
        bits_to_float(v: Self::I) -> Self::F = _mm512_castsi512_ps(v);
        to_exponent(v: Self::I) -> Self::I = _mm512_slli_epi32::<23>(v);
        to_high_bytes(v: Self::I) -> Self::I = _mm512_slli_epi32::<8>(v);
        first(count: usize, a: Self::F, b: Self::F) -> Self::F =
            _mm512_mask_blend_ps(((1u32 << count) - 1) as u16, b, a);
        sum(v: Self::F) -> f32 = {
            let halves = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let quarters = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
            let eighths = _mm_add_ps(quarters, _mm_movehl_ps(quarters, quarters));
            _mm_cvtss_f32(_mm_add_ss(eighths, _mm_movehdup_ps(eighths)))
        };
        add_groups(v: Self::F) -> Self::F = {
            let halves = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            _mm512_add_ps(halves, _mm512_shuffle_f32x4::<0b10_11_00_01>(halves, halves))
        };
        max_groups(v: Self::F) -> Self::F = {
            let halves = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v));
            _mm512_max_ps(halves, _mm512_shuffle_f32x4::<0b10_11_00_01>(halves, halves))
        };
        group_sums(v: [Self::F; 4]) -> Self::F = {
            let [a, b, c, d] = v;
            let ab = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(c, d), _mm512_shuffle_ps::<0xee>(c, d));
            _mm512_add_ps(_mm512_shuffle_ps::<0x88>(ab, cd), _mm512_shuffle_ps::<0xdd>(ab, cd))
        };
        to_bytes(v: Self::F, inverse: Self::F) -> [u8; LANES] = {
            let scaled = _mm512_max_ps(_mm512_mul_ps(v, inverse), _mm512_set1_ps(-127.0));
            let whole = _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(127.0)));
            let bytes = _mm_xor_si128(_mm512_cvtepi32_epi8(whole), _mm_set1_epi8(i8::MIN));
            std::mem::transmute::<__m128i, [u8; LANES]>(bytes)
        };
        to_words(v: Self::F, inverse: Self::F) -> [[u8; LANES]; 2] = {
            let scaled = _mm512_max_ps(_mm512_mul_ps(v, inverse), _mm512_set1_ps(-32767.0));
            let whole = _mm512_cvtps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(32767.0)));
            let words = _mm512_add_epi32(whole, _mm512_set1_epi32(32768));
            let bytes = [_mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(words)), _mm512_cvtepi32_epi8(words)];
            std::mem::transmute::<[__m128i; 2], [[u8; LANES]; 2]>(bytes)
        };
    }

    #[inline(always)]
    fn fetch<T>(self, line: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        // SAFETY: `self` exists only where the instructions do.
        unsafe { compiled(self, job) }
    }
}
