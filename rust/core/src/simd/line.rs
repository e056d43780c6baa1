//! Memory in whole cache lines: a load of an aligned line is never split.

use crate::float::LANES;

/// 64 bytes that begin a cache line, or several of them: `N` values of `T`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line<T, const N: usize>(pub [T; N]);

/// 16 float32.
pub type Floats = Line<f32, LANES>;
/// 16 int32.
pub type Sums = Line<i32, LANES>;
/// 32 halves: float16 or bfloat16 as their bits.
pub type Halves = Line<u16, 32>;
/// 16 float64: two cache lines.
pub type Doubles = Line<f64, LANES>;
/// 64 bytes.
pub type Bytes = Line<u8, 64>;

impl<T: Copy + Default, const N: usize> Default for Line<T, N> {
    fn default() -> Self {
        Self([T::default(); N])
    }
}

impl<T: Copy, const N: usize> Line<T, N> {
    /// The same value everywhere.
    #[inline(always)]
    pub const fn splat(v: T) -> Self {
        Self([v; N])
    }
}

impl<T: Copy + Default, const N: usize> Line<T, N> {
    /// Up to `N` values, zeros behind.
    #[inline(always)]
    pub fn part(values: &[T]) -> Self {
        let mut line = Self::default();
        line.0[..values.len()].copy_from_slice(values);
        line
    }
}

const _: () = assert!(size_of::<Floats>() == 64 && size_of::<Bytes>() == 64 && size_of::<Halves>() == 64);
