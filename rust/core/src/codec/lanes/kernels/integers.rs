//! Kernels of integers times a step.

use super::{Factors, Kernel, exponent_of, power, sign_bit};
use crate::codec::grid::{Grid, GroupScale, Integers};
use crate::codec::group_scales::Work;
use crate::codec::scale_search::Chooser;
use crate::simd::Lanes;

/// Integers in steps of a power of two: fixed, mxint, bfp.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct PowerSteps<V: Lanes> {
    multiplier: V::F,
    step: V::F,
    lo: V::F,
    hi: V::F,
    width: u32,
    layout: Integers,
    signed: bool,
}

impl<V: Lanes> Kernel<V> for PowerSteps<V> {
    type Base = (i64, i64, u32, Integers);

    fn base(work: &Work) -> Option<Self::Base> {
        match (work.grid, work.chooser) {
            (
                Grid::Integer { lo, hi, layout },
                Chooser::Unit(_) | Chooser::Fraction { .. } | Chooser::Exponent { .. },
            ) => Some((lo, hi, work.width, layout)),
            _ => None,
        }
    }
    #[inline(always)]
    unsafe fn make(&(lo, hi, width, layout): &Self::Base, scale: &GroupScale) -> Option<Self> {
        let e = exponent_of(scale.step);
        // Both factors normal numbers, and the largest product finite.
        if !(-126..=126).contains(&e) || e + width as i32 > 127 {
            return None;
        }
        // SAFETY: as the caller promises.
        unsafe { Self::with(&(lo, hi, width, layout), power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(&(_, _, width, _): &Self::Base, shift: i32) -> Factors {
        let bias = 127 + shift;
        Factors::Powers { bias, first: (bias - 126).max(0), last: (bias + 126.min(127 - width as i32)).min(254) }
    }
    #[inline(always)]
    unsafe fn with(&(lo, hi, width, layout): &Self::Base, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe {
            Some(Self {
                multiplier: V::splat(multiplier),
                step: V::splat(step),
                lo: V::splat(lo as f32),
                hi: V::splat(hi as f32),
                width,
                layout,
                signed: lo < 0,
            })
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let y = V::min(self.hi, V::max(self.lo, V::mul(x, self.multiplier)));
            V::mul(V::positive_zero(V::round(y)), self.step)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let y = V::min(self.hi, V::max(self.lo, V::mul(x, self.multiplier)));
            if self.layout == Integers::SignMagnitude {
                return sign_bit::<V>(x, V::to_i(V::abs(y)), self.width);
            }
            let k = V::to_i(y);
            if self.width == 8 || self.width == 16 { k } else { V::and(k, V::splat_i((1 << self.width) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            if self.layout == Integers::SignMagnitude {
                let magnitude = V::to_f(V::and(code, V::splat_i((1 << (self.width - 1)) - 1)));
                let sign = V::from_bits(V::shl(code, 32 - self.width));
                return V::with_sign(V::mul(magnitude, self.step), sign);
            }
            let k = if self.signed { V::sar(V::shl(code, 32 - self.width), 32 - self.width) } else { code };
            V::mul(V::to_f(k), self.step)
        }
    }
}

/// Integers in steps of a real number: int, uint, ternary.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct RealSteps<V: Lanes> {
    step: V::F,
    inverse: V::F,
    lo: V::F,
    hi: V::F,
    zero: V::I,
    width: u32,
    signed: bool,
}

impl<V: Lanes> RealSteps<V> {
    /// The integer nearest to the exact quotient `x / step`, ties to even, clipped to `lo..=hi`.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    pub(in crate::codec::lanes) unsafe fn quotient(x: V::F, step: V::F, inverse: V::F, lo: V::F, hi: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let one = V::splat(1.0);
            let y = V::min(V::add(hi, one), V::max(V::sub(lo, one), V::mul(x, inverse)));
            let k = V::round(y);
            // k is right or one off. The remainder x - k * step is a float32, so one fused operation has it exactly.
            let d = V::fnmadd(k, step, x);
            let twice = V::add(d, d);
            let mut k = k;
            if V::any(V::ge(V::abs(twice), step)) {
                k = Self::corrected(k, twice, step);
            }
            V::min(hi, V::max(lo, k))
        }
    }
    /// [`Self::quotient`] under this step.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { Self::quotient(x, self.step, self.inverse, self.lo, self.hi) }
    }
    /// Moves k by one where the remainder is beyond half a step, or half a step with k odd.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn corrected(k: V::F, twice: V::F, step: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let one = V::splat(1.0);
            let zero = V::splat(0.0);
            let half = V::mul(k, V::splat(0.5));
            let odd = V::select(V::eq(half, V::round(half)), zero, one);
            let size = V::abs(twice);
            let beyond = V::select(V::lt(step, size), one, V::select(V::eq(step, size), odd, zero));
            V::add(k, V::with_sign(beyond, twice))
        }
    }
}

impl<V: Lanes> Kernel<V> for RealSteps<V> {
    type Base = (i64, i64, u32);

    fn base(work: &Work) -> Option<Self::Base> {
        match (work.grid, work.chooser) {
            (
                Grid::Integer { lo, hi, .. },
                Chooser::Symmetric { .. } | Chooser::Asymmetric { .. } | Chooser::Ternary,
            ) => Some((lo, hi, work.width)),
            _ => None,
        }
    }
    #[inline(always)]
    unsafe fn make(&(lo, hi, width): &Self::Base, scale: &GroupScale) -> Option<Self> {
        // Far from the ends, so that neither the inverse nor a product leaves the normal range.
        if !(1e-30..=1e30).contains(&scale.step) {
            return None;
        }
        let step = scale.step as f32;
        // SAFETY: as the caller promises.
        unsafe { Self::with(&(lo, hi, width), step, 1.0 / step, scale.zero) }
    }
    #[inline(always)]
    fn factors(_: &Self::Base, _: i32) -> Factors {
        Factors::Real
    }
    #[inline(always)]
    unsafe fn with(&(lo, hi, width): &Self::Base, step: f32, inverse: f32, zero: i32) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe {
            Some(Self {
                step: V::splat(step),
                inverse: V::splat(inverse),
                lo: V::splat(lo as f32 - zero as f32),
                hi: V::splat(hi as f32 - zero as f32),
                zero: V::splat_i(zero),
                width,
                signed: lo < 0,
            })
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::select(V::unordered(x), x, V::mul(V::positive_zero(self.nearest(x)), self.step)) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let k = V::add_i(V::to_i(self.nearest(x)), self.zero);
            if self.width == 8 || self.width == 16 { k } else { V::and(k, V::splat_i((1 << self.width) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let k = if self.signed { V::sar(V::shl(code, 32 - self.width), 32 - self.width) } else { code };
            V::mul(V::to_f(V::sub_i(k, self.zero)), self.step)
        }
    }
}

/// Integers in steps with a sign, plus an offset: `intW:gN,full` and `uintW:gN,offset`.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct AffineSteps<V: Lanes> {
    step: V::F,
    offset: V::F,
    /// The magnitude of the step, and its inverse.
    size: V::F,
    inverse: V::F,
    /// The offset, taken away and with the sign of the step.
    moved: V::F,
    /// The sign bit of the step.
    turned: V::I,
    lo: V::F,
    hi: V::F,
    width: u32,
    signed: bool,
}

impl<V: Lanes> AffineSteps<V> {
    /// The integer whose exact `k * step + offset` is nearest, as `grid::nearest_affine` finds it. Every threshold is half of a
    /// float16 times an odd integer of ten bits, a float32.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let (zero, one, half) = (V::splat(0.0), V::splat(1.0), V::splat(0.5));
            let x = V::from_bits(V::xor(V::bits(x), self.turned));
            // Two-sum: `far + error` is the exact distance to the offset.
            let far = V::add(x, self.moved);
            let part = V::sub(far, x);
            let error = V::add(V::sub(x, V::sub(far, part)), V::sub(self.moved, part));
            let wanted = V::mul(far, self.inverse);
            let k = V::round(V::min(V::add(self.hi, one), V::max(V::sub(self.lo, one), wanted)));
            let halved = V::mul(k, half);
            let odd = V::select(V::eq(halved, V::round(halved)), zero, one);
            let beyond = |k: V::F, tie: V::F| {
                let threshold = V::mul(k, self.size);
                let at = V::select(V::lt(zero, error), one, V::select(V::eq(error, zero), tie, zero));
                V::select(V::lt(threshold, far), one, V::select(V::eq(threshold, far), at, zero))
            };
            let up = beyond(V::add(k, half), odd);
            let stays = beyond(V::sub(k, half), V::sub(one, odd));
            V::min(self.hi, V::max(self.lo, V::add(k, V::sub(V::add(up, stays), one))))
        }
    }
}

impl<V: Lanes> Kernel<V> for AffineSteps<V> {
    type Base = (i32, i32, u32);

    fn base(work: &Work) -> Option<Self::Base> {
        match work.grid {
            Grid::Affine { lo, hi } => Some((lo, hi, work.width)),
            _ => None,
        }
    }
    #[inline(always)]
    unsafe fn make(&(lo, hi, width): &Self::Base, scale: &GroupScale) -> Option<Self> {
        // Float16 numbers, whose inverses are normal.
        let (step, offset) = (scale.step as f32, scale.offset as f32);
        if step == 0.0 || !step.is_finite() || !offset.is_finite() {
            return None;
        }
        let sign = step.to_bits() & 1 << 31;
        // SAFETY: as the caller promises.
        unsafe {
            Some(Self {
                step: V::splat(step),
                offset: V::splat(offset),
                size: V::splat(step.abs()),
                inverse: V::splat(1.0 / step.abs()),
                moved: V::splat(f32::from_bits((-offset).to_bits() ^ sign)),
                turned: V::splat_i(sign.cast_signed()),
                lo: V::splat(lo as f32),
                hi: V::splat(hi as f32),
                width,
                signed: lo < 0,
            })
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises. The product is exact: the sum is rounded once, and +0 where both are zero.
        unsafe { V::select(V::unordered(x), x, V::fma(self.nearest(x), self.step, self.offset)) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let k = V::to_i(self.nearest(x));
            if self.width == 8 { k } else { V::and(k, V::splat_i((1 << self.width) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let k = if self.signed { V::sar(V::shl(code, 32 - self.width), 32 - self.width) } else { code };
            V::fma(V::to_f(k), self.step, self.offset)
        }
    }
}
