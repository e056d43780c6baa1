//! Sixteen float32 lanes: the operations that the kernels are written in, once for every instruction set.
//!
//! [`Lanes`] has them as functions, which are unsafe because they may run only where the processor has the instructions.
//! A value of a lane type proves that it has: [`Proven`] has the same operations as safe methods of such a value. All
//! levels give the same bits. Semantics are those of x86: `min` and `max` return the second operand if either is NaN,
//! conversions round to nearest even.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod proven;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use proven::Proven;
pub use scalar::Scalar;

use super::Job;
use crate::float::LANES;

/// Declares operations that touch registers alone.
macro_rules! registers {
    ($($(#[doc = $doc:literal])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $output:ty)?;)*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// The processor must have the features of this level.
        unsafe fn $name($($argument: $type),*) $(-> $output)?;
    )*};
}

/// Lanes of one instruction set. No address need be aligned.
///
/// # Safety
/// A value of the type must exist only where the processor has the instructions.
pub unsafe trait Lanes: Copy + Send + Sync + 'static {
    /// 16 float32.
    type F: Copy;
    /// 16 integers of 32 bits.
    type I: Copy;
    /// 16 booleans.
    type M: Copy;
    /// 16 float64.
    type D: Copy;
    /// Vectors of sixteen lanes that the registers hold.
    const VECTORS: usize;
    /// Whether [`Lanes::lookup`] is one instruction.
    const ONE_LOOKUP: bool;

    /// Does `job` inside a function compiled for this instruction set.
    fn run<J: Job<Self>>(self, job: J) -> J::Output;

    /// # Safety
    /// The processor must have the features of this level; 16 values must be readable at `p`.
    unsafe fn load(p: *const f32) -> Self::F;
    /// # Safety
    /// The processor must have the features of this level; 16 values must be writable at `p`.
    unsafe fn store(p: *mut f32, v: Self::F);

    /// Writes past the caches, for results that they would not hold; [`Lanes::fence`] must follow before another thread
    /// reads them.
    ///
    /// # Safety
    /// As for [`Lanes::store`]; `p` must be a multiple of 64.
    unsafe fn stream(p: *mut f32, v: Self::F);

    registers! {
        fn splat(v: f32) -> Self::F;
        fn splat_i(v: i32) -> Self::I;
        fn bits(v: Self::F) -> Self::I;
        fn from_bits(v: Self::I) -> Self::F;

        fn add(a: Self::F, b: Self::F) -> Self::F;
        fn sub(a: Self::F, b: Self::F) -> Self::F;
        fn mul(a: Self::F, b: Self::F) -> Self::F;
        fn div(a: Self::F, b: Self::F) -> Self::F;
        /// Square root, rounded to nearest.
        fn sqrt(v: Self::F) -> Self::F;
        fn min(a: Self::F, b: Self::F) -> Self::F;
        fn max(a: Self::F, b: Self::F) -> Self::F;
        /// `a * b + c` with one rounding.
        fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
        /// `c - a * b` with one rounding.
        fn fnmadd(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
        /// Nearest integer, ties to even.
        fn round(v: Self::F) -> Self::F;
        /// Nearest integer, ties to even, as an integer.
        fn to_i(v: Self::F) -> Self::I;
        fn to_f(v: Self::I) -> Self::F;

        fn and(a: Self::I, b: Self::I) -> Self::I;
        fn or(a: Self::I, b: Self::I) -> Self::I;
        fn xor(a: Self::I, b: Self::I) -> Self::I;
        fn add_i(a: Self::I, b: Self::I) -> Self::I;
        fn sub_i(a: Self::I, b: Self::I) -> Self::I;
        fn max_i(a: Self::I, b: Self::I) -> Self::I;
        /// Upper and lower halves of the products of unsigned lanes.
        fn mul_wide(a: Self::I, b: Self::I) -> (Self::I, Self::I);
        /// Logical shift left by a run-time count; 32 and more leave 0.
        fn shl(a: Self::I, count: u32) -> Self::I;
        /// Logical shift right by a run-time count; 32 and more leave 0.
        fn shr(a: Self::I, count: u32) -> Self::I;
        /// Arithmetic shift right.
        fn sar(a: Self::I, count: u32) -> Self::I;
        /// Largest lane of non-negative integers.
        fn reduce_max(a: Self::I) -> u32;

        fn reduce_min_f(a: Self::F) -> f32;
        fn reduce_max_f(a: Self::F) -> f32;
        /// Sum of the lanes as a tree: 8, 4, 2, 1.
        fn tree_sum(a: Self::F) -> f32;

        fn lt(a: Self::F, b: Self::F) -> Self::M;
        fn ge(a: Self::F, b: Self::F) -> Self::M;
        fn eq(a: Self::F, b: Self::F) -> Self::M;
        fn unordered(a: Self::F) -> Self::M;
        fn gt_i(a: Self::I, b: Self::I) -> Self::M;
        fn any(m: Self::M) -> bool;
        /// One bit a lane, lane 0 lowest.
        fn mask_bits(m: Self::M) -> u32;
        /// `m ? a : b`.
        fn select(m: Self::M, a: Self::F, b: Self::F) -> Self::F;
        fn select_i(m: Self::M, a: Self::I, b: Self::I) -> Self::I;

        /// `table[index & 15]` in every lane.
        fn lookup(table: Self::F, index: Self::I) -> Self::F;

        fn zero_d() -> Self::D;
        /// Adds float32 lanes to float64 sums.
        fn accumulate(sum: Self::D, v: Self::F) -> Self::D;
        /// Adds the exact squares of float32 lanes to float64 sums.
        fn accumulate_squares(sum: Self::D, v: Self::F) -> Self::D;
        /// `(a - b) / c` in float64, rounded to float32.
        fn range_over(a: Self::F, b: Self::F, c: f64) -> Self::F;
        fn to_array(sum: Self::D) -> [f64; LANES];
        fn splat_d(v: f64) -> Self::D;
        /// `a * b + c`, for products that float64 holds: the rounding is that of the sum alone.
        fn add_exact_d(c: Self::D, a: Self::D, b: Self::D) -> Self::D;
        /// `c - a * b` with two roundings.
        fn take_d(c: Self::D, a: Self::D, b: Self::D) -> Self::D;
    }

    /// # Safety
    /// The processor must have the features of this level; 16 values must be readable at `p`.
    unsafe fn load_d(p: *const f64) -> Self::D;
    /// # Safety
    /// The processor must have the features of this level; 16 values must be writable at `p`.
    unsafe fn store_d(p: *mut f64, v: Self::D);

    /// Low bytes of the lanes.
    ///
    /// # Safety
    /// As for [`Lanes::store`].
    unsafe fn store_u8(p: *mut u8, v: Self::I);
    /// Low halves of the lanes.
    ///
    /// # Safety
    /// As for [`Lanes::store`].
    unsafe fn store_u16(p: *mut u16, v: Self::I);
    /// [`Lanes::store_u8`] past the caches, as [`Lanes::stream`] does.
    ///
    /// # Safety
    /// As for [`Lanes::store`]; `p` must be a multiple of 16.
    unsafe fn stream_u8(p: *mut u8, v: Self::I);
    /// # Safety
    /// As for [`Lanes::load`].
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// # Safety
    /// As for [`Lanes::load`].
    unsafe fn load_u16(p: *const u16) -> Self::I;
    /// Widens 16 float16.
    ///
    /// # Safety
    /// As for [`Lanes::load`].
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Narrows to 16 float16, ties to even; overflow gives infinity.
    ///
    /// # Safety
    /// As for [`Lanes::store`].
    unsafe fn store_f16(p: *mut u16, v: Self::F);

    // --- derived ---

    /// Lane `j`: [`Lanes::reduce_max`] of vector `j`.
    ///
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn reduce_max_each(a: [Self::I; LANES]) -> Self::I {
        let mut lanes = [0u32; LANES];
        // SAFETY: as the caller promises; the array holds 16 lanes.
        unsafe {
            for (lane, a) in lanes.iter_mut().zip(a) {
                *lane = Self::reduce_max(a);
            }
            Self::bits(Self::load(lanes.as_ptr().cast()))
        }
    }
    /// Lane `j`: [`Lanes::tree_sum`] of vector `j`.
    ///
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn tree_sum_each(a: [Self::F; LANES]) -> Self::F {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: as the caller promises; the array holds 16 lanes.
        unsafe {
            for (lane, a) in lanes.iter_mut().zip(a) {
                *lane = Self::tree_sum(a);
            }
            Self::load(lanes.as_ptr())
        }
    }
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn abs(v: Self::F) -> Self::F {
        // SAFETY: as the caller promises.
        unsafe { Self::from_bits(Self::and(Self::bits(v), Self::splat_i(0x7fff_ffff))) }
    }
    /// Sign bit of `sign` on the magnitude `v`.
    ///
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn with_sign(v: Self::F, sign: Self::F) -> Self::F {
        // SAFETY: as the caller promises.
        unsafe { Self::from_bits(Self::or(Self::bits(v), Self::and(Self::bits(sign), Self::splat_i(i32::MIN)))) }
    }
    /// The number itself, but +0 for -0.
    ///
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn positive_zero(v: Self::F) -> Self::F {
        // SAFETY: as the caller promises. Rounding to nearest, the sum of zeros of both signs is +0.
        unsafe { Self::add(v, Self::splat(0.0)) }
    }
    /// Prefetches the cache line at `p`, which may be any address.
    #[inline(always)]
    fn prefetch(p: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults; SSE belongs to every x86-64.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch never faults and writes nothing.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = p;
    }
    /// Orders what was written by [`Lanes::stream`] before all later writes.
    #[inline(always)]
    fn fence() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE belongs to every x86-64.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
    /// The first `n` lanes from memory, zeros behind.
    ///
    /// # Safety
    /// The processor must have the features of this level; `n` values, at most 16, must be readable at `p`, which is
    /// aligned for them.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: as the caller promises; the array holds 16 lanes.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }
    /// The first `n` lanes to memory.
    ///
    /// # Safety
    /// The processor must have the features of this level; `n` values, at most 16, must be writable at `p`, which is
    /// aligned for them.
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: as the caller promises; the array holds 16 lanes.
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    /// The lanes as an array.
    ///
    /// # Safety
    /// The processor must have the features of this level.
    #[inline(always)]
    unsafe fn store_i(v: Self::I) -> [u32; LANES] {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: as the caller promises; the array holds 16 lanes. Bits pass through unchanged.
        unsafe { Self::store(lanes.as_mut_ptr(), Self::from_bits(v)) };
        lanes.map(f32::to_bits)
    }
}

#[cfg(test)]
mod tests;
