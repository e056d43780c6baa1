//! AVX2: sixteen lanes in two registers.

use std::arch::x86_64::*;

use super::{Avx2, LANES, Lanes};

/// One bit set in each lane below the place, read from `16 - count`.
static FIRST: [i32; 2 * LANES] = {
    let mut mask = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        mask[i] = -1;
        i += 1;
    }
    mask
};

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

impl Lanes for Avx2 {
    const BLOCK: (usize, usize) = (6, 1);

    methods! {
        quad(v: &[f32; 4]) -> Self::F = {
            let four = _mm_loadu_ps(v.as_ptr());
            [_mm256_set_m128(four, four), _mm256_set_m128(four, four)]
        };
        first(count: usize, a: Self::F, b: Self::F) -> Self::F = {
            let masks = &FIRST[LANES - count..][..LANES];
            let low = _mm256_loadu_si256(masks.as_ptr().cast());
            let high = _mm256_loadu_si256(masks[8..].as_ptr().cast());
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(b[1], a[1], _mm256_castsi256_ps(high)),
            ]
        };
        add_groups(v: Self::F) -> Self::F = {
            let halves = _mm256_add_ps(v[0], v[1]);
            let all = _mm256_add_ps(halves, _mm256_permute2f128_ps::<1>(halves, halves));
            [all, all]
        };
        max_groups(v: Self::F) -> Self::F = {
            let halves = _mm256_max_ps(v[0], v[1]);
            let all = _mm256_max_ps(halves, _mm256_permute2f128_ps::<1>(halves, halves));
            [all, all]
        };
        group_sums(v: [Self::F; 4]) -> Self::F = {
            let [a, b, c, d] = v;
            [group_sums([a[0], b[0], c[0], d[0]]), group_sums([a[1], b[1], c[1], d[1]])]
        };
        to_bytes(v: Self::F, inverse: Self::F) -> [u8; LANES] = {
            let shift = _mm256_set1_epi32(128);
            let whole = [whole(v[0], inverse[0], 127.0), whole(v[1], inverse[1], 127.0)];
            low_bytes(whole.map(|v| _mm256_add_epi32(v, shift)))
        };
        to_words(v: Self::F, inverse: Self::F) -> [[u8; LANES]; 2] = {
            let (shift, byte) = (_mm256_set1_epi32(32768), _mm256_set1_epi32(255));
            let whole = [whole(v[0], inverse[0], 32767.0), whole(v[1], inverse[1], 32767.0)];
            let words = whole.map(|v| _mm256_add_epi32(v, shift));
            let [high, low] = [words.map(|v| _mm256_srli_epi32::<8>(v)), words.map(|v| _mm256_and_si256(v, byte))];
            [low_bytes(high), low_bytes(low)]
        };
    }

    #[inline(always)]
    fn fetch<T>(self, line: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
}

/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
fn group_sums([a, b, c, d]: [__m256; 4]) -> __m256 {
    let ab = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
    let cd = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(c, d), _mm256_shuffle_ps::<0xee>(c, d));
    _mm256_add_ps(_mm256_shuffle_ps::<0x88>(ab, cd), _mm256_shuffle_ps::<0xdd>(ab, cd))
}

/// Whole numbers of a magnitude up to `largest`.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
fn whole(v: __m256, inverse: __m256, largest: f32) -> __m256i {
    let scaled = _mm256_max_ps(_mm256_mul_ps(v, inverse), _mm256_set1_ps(-largest));
    _mm256_cvtps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(largest)))
}

/// Sixteen numbers from 0 to 255 as bytes.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes([a, b]: [__m256i; 2]) -> [u8; LANES] {
    let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
    let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    // SAFETY: both are 16 bytes.
    unsafe { std::mem::transmute::<__m128i, [u8; LANES]>(bytes) }
}
