//! Sixteen float32 lanes: the operations that the kernels are written in, once for every instruction set.
//!
//! A value of a [`Lanes`] type proves that its instructions are there, so its operations are safe. All levels give the
//! same bits: products are fused with their sums, and sums over lanes are one tree.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use scalar::Scalar;

/// Lanes of a vector.
pub(super) const LANES: usize = 16;
/// Vectors of a whole number of lanes that `width` elements take.
pub(super) const fn lines(width: usize) -> usize {
    width.div_ceil(LANES)
}

/// A cache line, the unit of all memory here: a load of an aligned line is never split.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

/// 16 float32.
pub(super) type Floats = Line<f32, LANES>;
/// 16 int32.
pub(super) type Sums = Line<i32, LANES>;
/// 32 bfloat16.
#[cfg(target_arch = "x86_64")]
pub(super) type Halves = Line<u16, 32>;
/// 64 bytes.
pub(super) type Bytes = Line<u8, 64>;

impl<T: Copy + Default, const N: usize> Default for Line<T, N> {
    fn default() -> Self {
        Self([T::default(); N])
    }
}

/// Work that is compiled for an instruction set as a whole.
pub(super) trait Job<L> {
    /// What it gives.
    type Output;
    /// Does it. Implementations are `#[inline(always)]`, as is everything that they call.
    fn run(self, lanes: L) -> Self::Output;
}

/// One instruction set. `min` and `max` are those of x86: the second operand where one is NaN.
pub(super) trait Lanes: Copy + Send + Sync + 'static {
    /// 16 float32.
    type F: Copy;
    /// 16 int32.
    type I: Copy;
    /// Rows and panels of 16 columns of a product's register block.
    const BLOCK: (usize, usize);

    /// Does `job` inside a function compiled for this instruction set.
    fn run<J: Job<Self>>(self, job: J) -> J::Output;

    /// Asks for a cache line, which may lie anywhere, to come into the second cache.
    #[inline(always)]
    fn fetch<T>(self, _line: *const T) {}
    fn load(self, from: &Floats) -> Self::F;
    fn store(self, v: Self::F, to: &mut Floats);
    fn splat(self, v: f32) -> Self::F;
    /// Four values, four times.
    fn quad(self, v: &[f32; 4]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    fn load_sums(self, from: &Sums) -> Self::I;
    fn splat_sum(self, v: i32) -> Self::I;
    /// Wraps.
    fn add_sums(self, a: Self::I, b: Self::I) -> Self::I;
    /// Nearest float32, ties to even.
    fn to_floats(self, v: Self::I) -> Self::F;
    fn bits(self, v: Self::F) -> Self::I;
    fn bits_to_float(self, v: Self::I) -> Self::F;
    /// Lanes shifted left by the 23 bits of a mantissa.
    fn to_exponent(self, v: Self::I) -> Self::I;
    /// Lanes shifted left by the 8 bits of a byte.
    fn to_high_bytes(self, v: Self::I) -> Self::I;

    /// The first `count` lanes of `a`, the rest of `b`.
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F;
    /// Sum of the lanes as a tree: halves, quarters, eighths, pairs.
    fn sum(self, v: Self::F) -> f32;
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
