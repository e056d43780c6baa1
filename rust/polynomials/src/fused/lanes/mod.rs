//! The lanes of [`octavo_core::simd`], and the operations that the kernels here need beside: bytes to multiply, and lanes
//! in groups of four.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

pub(super) use octavo_core::simd::Lanes as Registers;
#[cfg(target_arch = "x86_64")]
pub(super) use octavo_core::simd::{Avx2, Avx512, Halves};
pub(super) use octavo_core::simd::{Bytes, Floats, Job, LANES, Line, Proven, Scalar, Sums};

/// Vectors of a whole number of lanes that `width` elements take.
pub(super) const fn lines(width: usize) -> usize {
    width.div_ceil(LANES)
}

/// One instruction set.
pub(super) trait Lanes: Proven {
    /// Rows and panels of 16 columns of a product's register block.
    const BLOCK: (usize, usize);

    /// Prefetches a cache line, which may lie anywhere, into the second cache.
    #[inline(always)]
    fn fetch<T>(self, _line: *const T) {}
    /// Four values, four times.
    fn quad(self, v: &[f32; 4]) -> Self::F;

    /// The first `count` lanes of `a`, the rest of `b`.
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Each lane gets the sum of the four lanes that share its place in a group of four.
    fn add_groups(self, v: Self::F) -> Self::F;
    /// As [`Lanes::add_groups`], the maximum.
    fn max_groups(self, v: Self::F) -> Self::F;
    /// Lane `4 g + i` is the sum of group `g` of four lanes of `v[i]`: halves, then pairs.
    fn group_sums(self, v: [Self::F; 4]) -> Self::F;
    /// `clamp(round(v * inverse), -127, 127) + 128`, ties to even.
    fn to_bytes(self, v: Self::F, inverse: Self::F) -> [u8; LANES];
    /// High and low bytes of `clamp(round(v * inverse), -32767, 32767) + 32768`, ties to even.
    fn to_words(self, v: Self::F, inverse: Self::F) -> [[u8; LANES]; 2];
}
