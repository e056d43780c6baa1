//! [`Kept`]: 16 elements of a key or a value in the key/value cache.

use std::fmt::Debug;

use super::lanes::{Floats, LANES, Lanes, Registers};

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

/// 16 float16: 11 bits of each element, more than factors of bfloat16 or int8 have, and half of what float32 takes to
/// read. Elements beyond the largest float16 are cut.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub(super) struct Small([u16; LANES]);

/// The largest float16.
const LARGEST: f32 = 65_504.0;

impl<L: Lanes> Kept<L> for Small {
    #[inline(always)]
    fn new(l: L, v: L::F) -> Self {
        let mut line = Self::default();
        let v = l.min(l.max(v, l.splat(-LARGEST)), l.splat(LARGEST));
        // SAFETY: `l` exists only where the instructions do; the line holds 16 elements.
        unsafe { <L as Registers>::store_f16(line.0.as_mut_ptr(), v) };
        line
    }
    #[inline(always)]
    fn load(&self, _l: L) -> L::F {
        // SAFETY: as above.
        unsafe { <L as Registers>::load_f16(self.0.as_ptr()) }
    }
    #[inline(always)]
    fn set_quarter(&mut self, quarter: usize, from: &Self, of: usize) {
        self.0.as_chunks_mut::<4>().0[quarter] = from.0.as_chunks::<4>().0[of];
    }
}
