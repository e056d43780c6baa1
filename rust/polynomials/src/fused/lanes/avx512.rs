//! AVX-512: sixteen lanes in one register.

use std::arch::x86_64::*;

use super::{Avx512, LANES, Lanes};

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
    const BLOCK: (usize, usize) = (6, 4);

    methods! {
        quad(v: &[f32; 4]) -> Self::F = _mm512_broadcast_f32x4(_mm_loadu_ps(v.as_ptr()));
        first(count: usize, a: Self::F, b: Self::F) -> Self::F =
            _mm512_mask_blend_ps(((1u32 << count) - 1) as u16, b, a);
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
}
