//! Kernels of floating-point formats with arithmetic of their own: float32's exponent, float32, and E2M1 under a real step.

use super::{Factors, Kernel, sign_bit};
use crate::codec::grid::{Grid, GroupScale};
use crate::codec::group_scales::Work;
use crate::codec::scale_search::Chooser;
use crate::format::Specials;
use crate::simd::Lanes;

/// Formats with float32's own exponent: bf16, e8mM. Rounding is integer arithmetic on the bits.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct Truncated {
    mantissa: u32,
    width: u32,
    top: f32,
    ieee: bool,
}

impl<V: Lanes> Kernel<V> for Truncated {
    type Base = Self;

    fn base(work: &Work) -> Option<Self> {
        match (work.grid, work.chooser) {
            (Grid::Float(grid), Chooser::Unit(_)) if grid.width - grid.mantissa == 9 && grid.emin == -126 => {
                Some(Self {
                    mantissa: grid.mantissa,
                    width: grid.width,
                    top: crate::float::to_f32_saturating(grid.top),
                    ieee: grid.specials == Specials::Ieee,
                })
                .filter(|kernel| kernel.width <= 19 && !grid.explicit_one)
            }
            _ => None,
        }
    }
    #[inline(always)]
    unsafe fn make(base: &Self, _: &GroupScale) -> Option<Self> {
        Some(*base)
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let drop = 23 - self.mantissa;
            let code = V::shl(<Self as Kernel<V>>::code(self, V::abs(x)), drop);
            // 2^128 is a code of the all-finite formats, but no float32.
            let value = V::min(V::splat(f32::MAX), V::from_bits(code));
            V::select(V::unordered(x), x, V::positive_zero(V::with_sign(value, x)))
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let drop = 23 - self.mantissa;
            let bits = V::bits(V::min(V::splat(self.top), V::abs(x)));
            let odd = V::and(V::shr(bits, drop), V::splat_i(1));
            let up = V::add_i(bits, V::add_i(odd, V::splat_i((1 << (drop - 1)) - 1)));
            sign_bit::<V>(x, V::shr(up, drop), self.width)
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let value = V::from_bits(V::shl(V::and(code, V::splat_i((1 << (self.width - 1)) - 1)), 23 - self.mantissa));
            let sign = V::from_bits(V::shl(code, 32 - self.width));
            if self.ieee {
                return V::with_sign(value, sign);
            }
            let beyond = V::gt_i(V::bits(value), V::splat_i(0x7f7f_ffff));
            V::with_sign(V::select(beyond, V::splat(f32::MAX), value), sign)
        }
    }
}

/// E2M1 under a real step: nvfp4.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct ScaledE2M1<V: Lanes> {
    step: V::F,
    inverse: V::F,
}

/// Exponent bits of 1, the lowest binade of E2M1 with an implicit one.
const ONE: i32 = 127 << 23;
/// From a binade to the number whose last place is E2M1's step there.
const E2M1_MAGIC: i32 = 22 << 23;

impl<V: Lanes> ScaledE2M1<V> {
    /// The E2M1 magnitude nearest to the exact quotient `|x| / step`.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let top = V::splat(6.0);
            let a = V::abs(x);
            let y = V::min(top, V::mul(a, self.inverse));
            let e = V::max_i(V::and(V::bits(y), V::splat_i(0x7f80_0000)), V::splat_i(ONE));
            let c = V::from_bits(V::add_i(e, V::splat_i(E2M1_MAGIC)));
            let r = V::sub(V::add(y, c), c);
            // y is within 2^-19 of the quotient, measured in half steps: only next to a middle can r be wrong.
            let half = V::from_bits(V::sub_i(e, V::splat_i(2 << 23)));
            let error = V::sub(y, r);
            let doubtful = V::ge(V::abs(error), V::mul(half, V::splat(1.0 - 1.0 / 262_144.0)));
            if V::any(doubtful) {
                return V::select(doubtful, self.settled(a, r, error, half), r);
            }
            r
        }
    }
    /// The side of the middle next to r on which `a` lies exactly; at the middle the even multiple of the step.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn settled(&self, a: V::F, r: V::F, error: V::F, half: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let middle = V::add(r, V::with_sign(half, error));
            let (lower, upper) = (V::sub(middle, half), V::add(middle, half));
            let side = V::fnmadd(middle, self.step, a); // the sign of a fused remainder is exact
            let zero = V::splat(0.0);
            // lower / (4 * half) is whole where lower is an even multiple of the step, 2 * half.
            let quarter = V::div(lower, V::mul(half, V::splat(4.0)));
            let tie = V::select(V::eq(quarter, V::round(quarter)), lower, upper);
            V::select(V::lt(zero, side), upper, V::select(V::eq(zero, side), tie, lower))
        }
    }
}

impl<V: Lanes> Kernel<V> for ScaledE2M1<V> {
    type Base = ();

    fn base(work: &Work) -> Option<()> {
        matches!(work.chooser, Chooser::NvFp4).then_some(())
    }
    #[inline(always)]
    fn factors((): &(), _: i32) -> Factors {
        Factors::Real
    }
    #[inline(always)]
    unsafe fn make(base: &(), scale: &GroupScale) -> Option<Self> {
        if !(1e-30..=1e30).contains(&scale.step) {
            return None;
        }
        let step = scale.step as f32;
        // SAFETY: as the caller promises.
        unsafe { Self::with(base, step, 1.0 / step, 0) }
    }
    #[inline(always)]
    unsafe fn with((): &(), step: f32, inverse: f32, _: i32) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe { Some(Self { step: V::splat(step), inverse: V::splat(inverse) }) }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::mul(V::positive_zero(V::with_sign(self.nearest(x), x)), self.step) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let r = self.nearest(x);
            let e = V::max_i(V::and(V::bits(r), V::splat_i(0x7f80_0000)), V::splat_i(ONE));
            let c = V::from_bits(V::add_i(e, V::splat_i(E2M1_MAGIC)));
            let k = V::sub_i(V::bits(V::add(r, c)), V::bits(c));
            sign_bit::<V>(x, V::add_i(V::shr(V::sub_i(e, V::splat_i(ONE)), 22), k), 4)
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        const VALUES: [f32; 16] =
            [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
        // SAFETY: as the caller promises.
        unsafe { V::mul(V::lookup(V::load(VALUES.as_ptr()), code), self.step) }
    }
}

/// fp32: the number itself, infinities saturated.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct Identity;

impl<V: Lanes> Kernel<V> for Identity {
    type Base = ();

    fn base(work: &Work) -> Option<()> {
        matches!(work.grid, Grid::Float(grid) if grid.width == 32).then_some(())
    }
    #[inline(always)]
    unsafe fn make((): &(), _: &GroupScale) -> Option<Self> {
        Some(Self)
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::positive_zero(V::with_sign(V::min(V::splat(f32::MAX), V::abs(x)), x)) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe { sign_bit::<V>(x, V::bits(V::min(V::splat(f32::MAX), V::abs(x))), 32) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::from_bits(code) }
    }
}
