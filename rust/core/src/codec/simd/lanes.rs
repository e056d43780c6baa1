//! Sixteen float32 lanes: the operations that the kernels are written in, once for every instruction set.
//!
//! All functions are unsafe because they may run only where the level was detected; the kernels are reached through
//! `#[target_feature]` wrappers alone. Semantics are those of x86: `min` and `max` return the second operand if either is
//! NaN, conversions round to nearest even.

/// Lanes of one instruction set.
pub(super) trait Lanes: Copy {
    /// 16 float32.
    type F: Copy;
    /// 16 integers of 32 bits.
    type I: Copy;
    /// 16 booleans.
    type M: Copy;
    /// 16 float64.
    type D: Copy;

    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn bits(v: Self::F) -> Self::I;
    unsafe fn from_bits(v: Self::I) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `c - a * b` with one rounding.
    unsafe fn fnmadd(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    unsafe fn round(v: Self::F) -> Self::F;
    /// Nearest integer, ties to even, as an integer.
    unsafe fn to_i(v: Self::F) -> Self::I;
    unsafe fn to_f(v: Self::I) -> Self::F;

    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn max_i(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shifts by a run-time count.
    unsafe fn shl(a: Self::I, count: u32) -> Self::I;
    unsafe fn shr(a: Self::I, count: u32) -> Self::I;
    /// Arithmetic shift right.
    unsafe fn sar(a: Self::I, count: u32) -> Self::I;
    /// Largest lane of non-negative integers.
    unsafe fn reduce_max(a: Self::I) -> u32;

    unsafe fn reduce_min_f(a: Self::F) -> f32;
    unsafe fn reduce_max_f(a: Self::F) -> f32;
    /// Sum of the lanes as a tree: 8, 4, 2, 1.
    unsafe fn tree_sum(a: Self::F) -> f32;

    unsafe fn lt(a: Self::F, b: Self::F) -> Self::M;
    unsafe fn ge(a: Self::F, b: Self::F) -> Self::M;
    unsafe fn eq(a: Self::F, b: Self::F) -> Self::M;
    unsafe fn unordered(a: Self::F) -> Self::M;
    unsafe fn gt_i(a: Self::I, b: Self::I) -> Self::M;
    unsafe fn any(m: Self::M) -> bool;
    /// One bit a lane, lane 0 lowest.
    unsafe fn mask_bits(m: Self::M) -> u32;
    /// `m ? a : b`.
    unsafe fn select(m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    unsafe fn select_i(m: Self::M, a: Self::I, b: Self::I) -> Self::I;

    /// `table[index & 15]` in every lane.
    unsafe fn lookup(table: Self::F, index: Self::I) -> Self::F;

    /// Low bytes of the lanes.
    unsafe fn store_u8(p: *mut u8, v: Self::I);
    /// Low halves of the lanes.
    unsafe fn store_u16(p: *mut u16, v: Self::I);
    unsafe fn load_u8(p: *const u8) -> Self::I;
    unsafe fn load_u16(p: *const u16) -> Self::I;
    /// Widens 16 float16.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Narrows to 16 float16, ties to even; overflow gives infinity.
    unsafe fn store_f16(p: *mut u16, v: Self::F);

    unsafe fn zero_d() -> Self::D;
    /// Adds float32 lanes to float64 sums.
    unsafe fn accumulate(sum: Self::D, v: Self::F) -> Self::D;
    /// Adds the exact squares of float32 lanes to float64 sums.
    unsafe fn accumulate_squares(sum: Self::D, v: Self::F) -> Self::D;
    /// `(a - b) / c` in float64, rounded to float32.
    unsafe fn range_over(a: Self::F, b: Self::F, c: f64) -> Self::F;
    unsafe fn to_array(sum: Self::D) -> [f64; 16];

    // --- derived ---

    #[inline(always)]
    unsafe fn abs(v: Self::F) -> Self::F {
        // SAFETY: as for every function here.
        unsafe { Self::from_bits(Self::and(Self::bits(v), Self::splat_i(0x7fff_ffff))) }
    }
    /// Sign bit of `sign` on the magnitude `v`.
    #[inline(always)]
    unsafe fn with_sign(v: Self::F, sign: Self::F) -> Self::F {
        // SAFETY: as for every function here.
        unsafe { Self::from_bits(Self::or(Self::bits(v), Self::and(Self::bits(sign), Self::splat_i(i32::MIN)))) }
    }
    /// Asks for the cache line at `p`, which may lie anywhere.
    #[inline(always)]
    unsafe fn prefetch(p: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
    }
    /// The first `n` lanes from memory, zeros behind.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self::F {
        let mut lanes = [0.0f32; 16];
        // SAFETY: n <= 16 values are readable at p.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }
    /// The first `n` lanes to memory.
    #[inline(always)]
    unsafe fn store_part(p: *mut f32, v: Self::F, n: usize) {
        let mut lanes = [0.0f32; 16];
        // SAFETY: n <= 16 values are writable at p.
        unsafe {
            Self::store(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn store_i(v: Self::I) -> [u32; 16] {
        let mut lanes = [0.0f32; 16];
        // SAFETY: the array holds 16 lanes; bits pass through unchanged.
        unsafe { Self::store(lanes.as_mut_ptr(), Self::from_bits(v)) };
        lanes.map(f32::to_bits)
    }
}
