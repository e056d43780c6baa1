//! [`Kept`]: 16 elements of a key or a value in the key/value cache.

use std::fmt::Debug;

use super::lanes::{Floats, Lanes};

/// A line of 16 elements in memory.
pub(super) trait Kept<L: Lanes>: Copy + Default + Debug + Send + 'static {
    /// Packs 16 elements.
    fn new(l: L, v: L::F) -> Self;
    /// The elements.
    fn load(&self, l: L) -> L::F;
    /// Sets one of the four quarters to one of another line's.
    fn set_quarter(&mut self, quarter: usize, from: &Self, of: usize);
}

impl<L: Lanes> Kept<L> for Floats {
    #[inline(always)]
    fn new(l: L, v: L::F) -> Self {
        let mut line = Self::default();
        l.store(v, &mut line);
        line
    }
    #[inline(always)]
    fn load(&self, l: L) -> L::F {
        l.load(self)
    }
    #[inline(always)]
    fn set_quarter(&mut self, quarter: usize, from: &Self, of: usize) {
        self.0.as_chunks_mut::<4>().0[quarter] = from.0.as_chunks::<4>().0[of];
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use small::Small;

#[cfg(target_arch = "x86_64")]
mod small {
    use std::arch::x86_64::*;

    use super::Kept;
    use crate::fused::lanes::{Avx512, Proven};

    /// 16 float16: 11 bits of each element, more than factors of bfloat16 have, and half of what float32 takes to read.
    /// Elements beyond the largest float16 are cut.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C, align(32))]
    pub(in crate::fused) struct Small([u16; 16]);

    /// The largest float16.
    const LARGEST: f32 = 65_504.0;

    impl Kept<Avx512> for Small {
        #[inline(always)]
        fn new(l: Avx512, v: __m512) -> Self {
            let v = l.min(l.max(v, l.splat(-LARGEST)), l.splat(LARGEST));
            // SAFETY: `l` exists only where the instruction does; both types are 32 bytes.
            Self(unsafe { std::mem::transmute::<__m256i, [u16; 16]>(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) })
        }
        #[inline(always)]
        fn load(&self, _l: Avx512) -> __m512 {
            // SAFETY: as above; the line is aligned.
            unsafe { _mm512_cvtph_ps(_mm256_load_si256(self.0.as_ptr().cast())) }
        }
        #[inline(always)]
        fn set_quarter(&mut self, quarter: usize, from: &Self, of: usize) {
            self.0.as_chunks_mut::<4>().0[quarter] = from.0.as_chunks::<4>().0[of];
        }
    }
}
