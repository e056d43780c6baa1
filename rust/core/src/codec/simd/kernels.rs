//! The element arithmetic of each kind of grid on sixteen lanes.
//!
//! A kernel is made for one group's scale, or declines (`None`) where float32 lanes could not give the bits of the
//! scalar reference: steps near the ends of the exponent range, elements of more than 16 bits. The scalar code then
//! does that group.

use std::sync::LazyLock;

use super::lanes::Lanes;
use crate::codec::grid::{FloatGrid, Grid, GroupScale, Integers, NF3, NF4, level_sum, reaches_mean, sorted_sums};
use crate::codec::scale::Chooser;
use crate::codec::work::Work;
use crate::format::{Minifloat, Specials};

/// How a batch of groups gets its scales; see `batch`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Factors {
    /// Powers of two: multiplier `2^-e` and step `2^e`, where `e = code - bias`, for codes in `first..=last`.
    Powers { bias: i32, first: i32, last: i32 },
    /// A real step, its inverse, and a zero point.
    Real,
    /// Group by group through `make`.
    Single,
}

/// One group's arithmetic. `quantize` keeps NaN and saturates infinities; `code` is for finite lanes only.
pub(super) trait Kernel<V: Lanes>: Copy {
    /// What all groups of a call share; `None` where the format has no such kernel.
    type Base: Copy;
    fn base(work: &Work) -> Option<Self::Base>;
    unsafe fn make(base: &Self::Base, scale: &GroupScale) -> Option<Self>;
    /// The kind of factors that `with` takes, for scale codes with `step = 2^(code - 127 - shift)`.
    #[inline(always)]
    fn factors(_base: &Self::Base, _shift: i32) -> Factors {
        Factors::Single
    }
    /// The kernel from a batch's factors; they are in range.
    #[inline(always)]
    unsafe fn with(base: &Self::Base, first: f32, second: f32, zero: i32) -> Option<Self> {
        let _ = (first, second);
        // SAFETY: forwarded.
        unsafe { Self::make(base, &GroupScale { step: f64::from(first), zero, levels: [0.0; 4] }) }
    }
    unsafe fn quantize(&self, x: V::F) -> V::F;
    unsafe fn code(&self, x: V::F) -> V::I;
    /// Value of codes, zero-extended.
    unsafe fn decode(&self, code: V::I) -> V::F;
}

/// Exponent of a step that is a power of two.
fn exponent_of(step: f64) -> i32 {
    ((step.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// `2^e` as a float32, `e` in -126..=127.
pub(super) fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// Sign bits moved to bit `width - 1`, for codes other than zero.
#[inline(always)]
unsafe fn sign_bit<V: Lanes>(x: V::F, magnitude: V::I, width: u32) -> V::I {
    // SAFETY: under the contract of `Lanes`.
    unsafe {
        let sign = V::shr(V::and(V::bits(x), V::splat_i(i32::MIN)), 32 - width);
        V::select_i(V::gt_i(magnitude, V::splat_i(0)), V::or(magnitude, sign), magnitude)
    }
}

/// Integers in steps of a power of two: fixed, mxint, bfp.
#[derive(Clone, Copy)]
pub(super) struct PowerSteps<V: Lanes> {
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
        if !(-126..=126).contains(&e) || e + width as i32 > 128 {
            return None;
        }
        // SAFETY: forwarded.
        unsafe { Self::with(&(lo, hi, width, layout), power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(&(_, _, width, _): &Self::Base, shift: i32) -> Factors {
        let bias = 127 + shift;
        Factors::Powers { bias, first: (bias - 126).max(0), last: (bias + 126.min(128 - width as i32)).min(254) }
    }
    #[inline(always)]
    unsafe fn with(&(lo, hi, width, layout): &Self::Base, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let y = V::min(self.hi, V::max(self.lo, V::mul(x, self.multiplier)));
            V::mul(V::round(y), self.step)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: under the contract of `Lanes`.
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
pub(super) struct RealSteps<V: Lanes> {
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
    #[inline(always)]
    pub(super) unsafe fn quotient(x: V::F, step: V::F, inverse: V::F, lo: V::F, hi: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
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
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: forwarded.
        unsafe { Self::quotient(x, self.step, self.inverse, self.lo, self.hi) }
    }
    /// Moves k by one where the remainder is beyond half a step, or half a step with k odd.
    #[inline(always)]
    unsafe fn corrected(k: V::F, twice: V::F, step: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: forwarded.
        unsafe { Self::with(&(lo, hi, width), step, 1.0 / step, scale.zero) }
    }
    #[inline(always)]
    fn factors(_: &Self::Base, _: i32) -> Factors {
        Factors::Real
    }
    #[inline(always)]
    unsafe fn with(&(lo, hi, width): &Self::Base, step: f32, inverse: f32, zero: i32) -> Option<Self> {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::select(V::unordered(x), x, V::mul(self.nearest(x), self.step)) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let k = V::add_i(V::to_i(self.nearest(x)), self.zero);
            if self.width == 8 || self.width == 16 { k } else { V::and(k, V::splat_i((1 << self.width) - 1)) }
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let k = if self.signed { V::sar(V::shl(code, 32 - self.width), 32 - self.width) } else { code };
            V::mul(V::to_f(V::sub_i(k, self.zero)), self.step)
        }
    }
}

/// What the floating-point kernels share: the grid moved by `shift` binades to the middle of the float32 range.
#[derive(Clone, Copy)]
pub(super) struct FloatBase {
    grid: FloatGrid,
    shift: i32,
    emax: i32,
}

impl FloatBase {
    fn new(grid: FloatGrid) -> Option<Self> {
        let emax = crate::float::floor_log2(grid.top);
        let shift = if grid.emin >= -100 && emax <= 100 { 0 } else { -62 - grid.emin };
        (emax + shift <= 100).then_some(Self { grid, shift, emax })
    }
    fn of(work: &Work) -> Option<Self> {
        match (work.grid, work.chooser) {
            (Grid::Float(grid), Chooser::Unit(_) | Chooser::Exponent { .. }) => Self::new(grid),
            _ => None,
        }
    }
    /// Exponent of the moved grid's unit, if both factors are normal and the largest value stays finite.
    #[inline(always)]
    fn exponent(&self, scale: &GroupScale) -> Option<i32> {
        let e = exponent_of(scale.step);
        ((-126..=126).contains(&(e - self.shift)) && self.emax + e <= 127).then_some(e - self.shift)
    }
    fn factors(&self, shift: i32) -> Factors {
        let bias = 127 + shift + self.shift;
        let last = (bias + 126).min(127 + shift + 127 - self.emax).min(254);
        Factors::Powers { bias, first: (bias - 126).max(0), last }
    }
}

/// Floating-point grids with mantissa bits: minifloat, bm, mxfp, fp16 and, with `EXPLICIT_ONE`, denorm.
#[derive(Clone, Copy)]
pub(super) struct Floats<V: Lanes, const EXPLICIT_ONE: bool> {
    multiplier: V::F,
    step: V::F,
    top: V::F,
    emin_bits: V::I,
    magic: V::I,
    grid: FloatGrid,
    emin: i32,
}

impl<V: Lanes, const EXPLICIT_ONE: bool> Floats<V, EXPLICIT_ONE> {
    /// The kernel of a minifloat at scale 1.
    #[inline(always)]
    pub(super) unsafe fn unscaled(float: Minifloat) -> Option<Self> {
        // SAFETY: under the contract of `Lanes`.
        unsafe { Self::make(&FloatBase::new(FloatGrid::mini(float))?, &GroupScale::step(1.0)) }
    }
    /// Exponent bits of the binade, and the number whose last place is the grid's step there.
    #[inline(always)]
    unsafe fn binade(&self, a: V::F) -> (V::I, V::F) {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let e = V::max_i(V::and(V::bits(a), V::splat_i(0x7f80_0000)), self.emin_bits);
            (e, V::from_bits(V::add_i(e, self.magic)))
        }
    }
}

impl<V: Lanes, const EXPLICIT_ONE: bool> Kernel<V> for Floats<V, EXPLICIT_ONE> {
    type Base = FloatBase;

    fn base(work: &Work) -> Option<FloatBase> {
        FloatBase::of(work).filter(|base| !base.grid.ties_by_field && base.grid.explicit_one == EXPLICIT_ONE)
    }
    #[inline(always)]
    unsafe fn make(base: &FloatBase, scale: &GroupScale) -> Option<Self> {
        let e = base.exponent(scale)?;
        // SAFETY: forwarded.
        unsafe { Self::with(base, power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(base: &FloatBase, shift: i32) -> Factors {
        base.factors(shift)
    }
    #[inline(always)]
    unsafe fn with(base: &FloatBase, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        let emin = base.grid.emin + base.shift;
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            Some(Self {
                multiplier: V::splat(multiplier),
                step: V::splat(step),
                top: V::splat((base.grid.top * crate::float::exp2(base.shift)) as f32),
                emin_bits: V::splat_i((emin + 127) << 23),
                magic: V::splat_i((23 - base.grid.mantissa as i32) << 23),
                grid: base.grid,
                emin,
            })
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let a = V::min(self.top, V::abs(V::mul(x, self.multiplier)));
            // Adding a number whose last place is the step rounds to the step, ties to even.
            let (_, c) = self.binade(a);
            let r = V::sub(V::add(a, c), c);
            V::with_sign(V::mul(r, self.step), x)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let m = self.grid.mantissa;
            let a = V::min(self.top, V::abs(V::mul(x, self.multiplier)));
            let (e, c) = self.binade(a);
            // The last bits of the sum count the steps, implicit one included; a carry moves to the next field by itself.
            let k = V::sub_i(V::bits(V::add(a, c)), V::bits(c));
            let field = V::shr(V::sub_i(e, self.emin_bits), 23 - m);
            let mut magnitude = V::add_i(field, k);
            if EXPLICIT_ONE {
                // From fields with an implicit one to `field - 1, 1.mantissa`; the lowest binades keep field 0.
                let implicit = V::shr(magnitude, m);
                let fraction = V::and(magnitude, V::splat_i((1 << m) - 1));
                let lower = V::sub_i(implicit, V::splat_i(1));
                let normal = V::or(V::shl(lower, m + 1), V::or(fraction, V::splat_i(1 << m)));
                magnitude = V::select_i(V::gt_i(implicit, V::splat_i(0)), normal, fraction);
            }
            sign_bit::<V>(x, magnitude, self.grid.width)
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let (m, width) = (self.grid.mantissa, self.grid.width);
            let magnitude = V::and(code, V::splat_i((1 << (width - 1)) - 1));
            let sign = V::from_bits(V::shl(code, 32 - width));
            if EXPLICIT_ONE {
                let k = V::to_f(V::and(magnitude, V::splat_i((2 << m) - 1)));
                let field = V::shr(magnitude, m + 1);
                let unit = V::from_bits(V::shl(V::add_i(field, V::splat_i(127 + self.emin - m as i32)), 23));
                return V::with_sign(V::mul(V::mul(k, unit), self.step), sign);
            }
            let shifted = V::shl(magnitude, 23 - m);
            let normal = V::from_bits(V::add_i(shifted, V::splat_i((126 + self.emin) << 23)));
            // Without implicit one: read with it in the lowest binade, then take it off.
            let lowest = V::from_bits(V::splat_i((127 + self.emin) << 23));
            let subnormal = V::sub(V::from_bits(V::or(shifted, V::bits(lowest))), lowest);
            let has_field = V::gt_i(magnitude, V::splat_i((1 << m) - 1));
            let mut value = V::mul(V::select(has_field, normal, subnormal), self.step);
            let nan = V::splat(f32::NAN);
            match self.grid.specials {
                Specials::Finite => {}
                Specials::NanOnly => {
                    value = V::select(V::gt_i(magnitude, V::splat_i((1 << (width - 1)) - 2)), nan, value);
                }
                Specials::Ieee => {
                    let infinity = ((1 << (width - 1 - m)) - 1) << m;
                    value = V::select(V::gt_i(magnitude, V::splat_i(infinity - 1)), V::splat(f32::INFINITY), value);
                    value = V::select(V::gt_i(magnitude, V::splat_i(infinity)), nan, value);
                }
            }
            V::with_sign(value, sign)
        }
    }
}

/// Zero and powers of two: log, blog, eEm0.
#[derive(Clone, Copy)]
pub(super) struct Powers<V: Lanes> {
    multiplier: V::F,
    step: V::F,
    top: V::F,
    low: V::F,
    /// Makes the last exponent bit of float32 the last bit of the code's field.
    flip: V::I,
    /// Field 0 of the code as a float32 exponent.
    field_zero: V::I,
    width: u32,
}

impl<V: Lanes> Powers<V> {
    /// Nearest power of two or zero, of the moved magnitude.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let a = V::min(self.top, V::abs(V::mul(x, self.multiplier)));
            let bits = V::bits(a);
            let odd = V::and(V::xor(V::shr(bits, 23), self.flip), V::splat_i(1));
            let up = V::add_i(bits, V::add_i(odd, V::splat_i(0x003f_ffff)));
            let rounded = V::min(self.top, V::from_bits(V::and(up, V::splat_i(0x7f80_0000))));
            let small = V::select(V::lt(V::mul(self.low, V::splat(0.5)), a), self.low, V::splat(0.0));
            V::select(V::lt(a, self.low), small, rounded)
        }
    }
}

impl<V: Lanes> Kernel<V> for Powers<V> {
    type Base = FloatBase;

    fn base(work: &Work) -> Option<FloatBase> {
        FloatBase::of(work).filter(|base| base.grid.ties_by_field)
    }
    #[inline(always)]
    unsafe fn make(base: &FloatBase, scale: &GroupScale) -> Option<Self> {
        let e = base.exponent(scale)?;
        // SAFETY: forwarded.
        unsafe { Self::with(base, power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(base: &FloatBase, shift: i32) -> Factors {
        base.factors(shift)
    }
    #[inline(always)]
    unsafe fn with(base: &FloatBase, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        let emin = base.grid.emin + base.shift;
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            Some(Self {
                multiplier: V::splat(multiplier),
                step: V::splat(step),
                top: V::splat(power(base.emax + base.shift)),
                low: V::splat(power(emin)),
                flip: V::splat_i(emin & 1),
                field_zero: V::splat_i(126 + emin),
                width: base.grid.width,
            })
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let q = V::with_sign(V::mul(self.nearest(x), self.step), x);
            V::select(V::unordered(x), x, q)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let field = V::sub_i(V::shr(V::bits(self.nearest(x)), 23), self.field_zero);
            sign_bit::<V>(x, V::max_i(field, V::splat_i(0)), self.width)
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let field = V::and(code, V::splat_i((1 << (self.width - 1)) - 1));
            let power = V::from_bits(V::shl(V::add_i(field, self.field_zero), 23));
            let value = V::select_i(V::gt_i(field, V::splat_i(0)), V::bits(V::mul(power, self.step)), V::splat_i(0));
            V::with_sign(V::from_bits(value), V::from_bits(V::shl(code, 32 - self.width)))
        }
    }
}

/// Formats with float32's own exponent: bf16, e8mM. Rounding is integer arithmetic on the bits.
#[derive(Clone, Copy)]
pub(super) struct Truncated {
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
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let drop = 23 - self.mantissa;
            let code = V::shl(<Self as Kernel<V>>::code(self, V::abs(x)), drop);
            // 2^128 is a code of the all-finite formats, but no float32.
            let value = V::min(V::splat(f32::MAX), V::from_bits(code));
            V::select(V::unordered(x), x, V::with_sign(value, x))
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: under the contract of `Lanes`.
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
pub(super) struct ScaledE2M1<V: Lanes> {
    step: V::F,
    inverse: V::F,
}

/// Exponent bits of 1, the lowest binade of E2M1 with an implicit one.
const ONE: i32 = 127 << 23;
/// From a binade to the number whose last place is E2M1's step there.
const E2M1_MAGIC: i32 = 22 << 23;

impl<V: Lanes> ScaledE2M1<V> {
    /// The E2M1 magnitude nearest to the exact quotient `|x| / step`.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
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
    #[inline(always)]
    unsafe fn settled(&self, a: V::F, r: V::F, error: V::F, half: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: forwarded.
        unsafe { Self::with(base, step, 1.0 / step, 0) }
    }
    #[inline(always)]
    unsafe fn with((): &(), step: f32, inverse: f32, _: i32) -> Option<Self> {
        // SAFETY: under the contract of `Lanes`.
        unsafe { Some(Self { step: V::splat(step), inverse: V::splat(inverse) }) }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::with_sign(V::mul(self.nearest(x), self.step), x) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
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
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::mul(V::lookup(V::load(VALUES.as_ptr()), code), self.step) }
    }
}

/// fp32: the number itself, infinities saturated.
#[derive(Clone, Copy)]
pub(super) struct Identity;

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
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::with_sign(V::min(V::splat(f32::MAX), V::abs(x)), x) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe { sign_bit::<V>(x, V::bits(V::min(V::splat(f32::MAX), V::abs(x))), 32) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::from_bits(code) }
    }
}

/// Up to 16 levels times a scale, by comparison with exact thresholds: nf4, nf3, binaryN.
#[derive(Clone, Copy)]
pub(super) struct Book<V: Lanes> {
    /// Smallest float32 that goes to level i + 1; infinity behind the last.
    thresholds: V::F,
    /// Values by level.
    values: V::F,
    /// Values by code.
    decoded: V::F,
    /// Codes by level, as bits.
    codes: V::F,
    /// Half the number of levels, where the search starts.
    half: i32,
}

/// What the groups of a book format share.
#[derive(Clone, Copy)]
pub(super) enum BookBase {
    /// Levels, and their thresholds for every float16 significand (`nf4`, `nf3`).
    Scaled { levels: [f32; 16], thresholds: &'static [[f32; 16]], half: i32 },
    /// Levels of `binaryN`, whose sums belong to each group's scale.
    Sums(u8),
}

impl<V: Lanes> Book<V> {
    /// Index of the level of each lane: a binary search.
    #[inline(always)]
    unsafe fn level(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let mut index = V::splat_i(0);
            for half in [8, 4, 2, 1] {
                if half <= self.half {
                    let probe = V::add_i(index, V::splat_i(half - 1));
                    let reached = V::ge(x, V::lookup(self.thresholds, probe));
                    index = V::select_i(reached, V::add_i(index, V::splat_i(half)), index);
                }
            }
            index
        }
    }
}

impl<V: Lanes> Kernel<V> for Book<V> {
    type Base = BookBase;

    fn base(work: &Work) -> Option<BookBase> {
        static NF3_THRESHOLDS: LazyLock<Vec<[f32; 16]>> = LazyLock::new(|| threshold_table(&NF3));
        static NF4_THRESHOLDS: LazyLock<Vec<[f32; 16]>> = LazyLock::new(|| threshold_table(&NF4));
        match work.grid {
            Grid::Book(book) => {
                let mut levels = [0.0; 16];
                levels[..book.len()].copy_from_slice(book);
                let thresholds = if book.len() == 8 { &NF3_THRESHOLDS } else { &NF4_THRESHOLDS };
                Some(BookBase::Scaled { levels, thresholds, half: book.len() as i32 / 2 })
            }
            Grid::Levels(count) if count > 1 => Some(BookBase::Sums(count)),
            _ => None,
        }
    }
    #[inline(always)]
    fn factors(base: &BookBase, _: i32) -> Factors {
        if matches!(base, BookBase::Sums(_)) { Factors::Single } else { Factors::Real }
    }
    #[inline(always)]
    unsafe fn make(base: &BookBase, scale: &GroupScale) -> Option<Self> {
        const INDEX: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            match base {
                // Sums that are no numbers, which only a foreign file can hold, are left to the scalar code.
                BookBase::Sums(count) => {
                    let finite = scale.levels.iter().take(usize::from(*count)).all(|level| level.is_finite());
                    finite.then(|| Self::of_sums(*count, &scale.levels))
                }
                BookBase::Scaled { levels, thresholds, half } => {
                    if !(1e-20..=1e30).contains(&scale.step) {
                        return None;
                    }
                    // Thresholds of the significand, times its power of two.
                    let row = &thresholds[(scale.step.to_bits() >> 42) as usize & 1023];
                    let values = V::mul(V::load(levels.as_ptr()), V::splat(scale.step as f32));
                    Some(Self {
                        thresholds: V::mul(V::load(row.as_ptr()), V::splat(power(exponent_of(scale.step)))),
                        values,
                        decoded: values,
                        codes: V::load(INDEX.as_ptr().cast()),
                        half: *half,
                    })
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::select(V::unordered(x), x, V::lookup(self.values, self.level(x))) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::bits(V::lookup(self.codes, self.level(x))) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::lookup(self.decoded, code) }
    }
}

impl<V: Lanes> Book<V> {
    /// The book of `binaryN`: sums in ascending order. Made once for a row or a tensor.
    #[inline(never)]
    unsafe fn of_sums(count: u8, levels: &[f32; 4]) -> Self {
        let n = 1usize << count;
        let (sums, sum_codes) = sorted_sums(count, levels);
        let (mut thresholds, mut codes, mut decoded) = ([f32::INFINITY; 16], [0.0f32; 16], [0.0f32; 16]);
        for i in 0..n {
            codes[i] = f32::from_bits(u32::from(sum_codes[i]));
            decoded[i] = level_sum(i as u32, count, levels);
            if i + 1 < n {
                thresholds[i] = smallest_reaching(sums[i], sums[i + 1]);
            }
        }
        // SAFETY: the arrays hold 16 lanes.
        unsafe {
            Self {
                thresholds: V::load(thresholds.as_ptr()),
                values: V::load(sums.as_ptr()),
                decoded: V::load(decoded.as_ptr()),
                codes: V::load(codes.as_ptr()),
                half: 1 << (count - 1),
            }
        }
    }
}

/// For every significand 1 + i/1024 of a float16 scale, the smallest float32 that goes to each next level of a book.
fn threshold_table(levels: &[f32]) -> Vec<[f32; 16]> {
    let row = |i: u32| {
        let scale = 1.0 + f64::from(i) / 1024.0;
        let mut row = [f32::INFINITY; 16];
        for (j, pair) in levels.windows(2).enumerate() {
            let exact = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0 * scale;
            // Level j + 1 is even where j is odd: then a tie goes up.
            let reached = |x: f32| f64::from(x) > exact || (f64::from(x) == exact && j % 2 == 1);
            let nearest = exact as f32;
            let candidates = [nearest.next_down(), nearest, nearest.next_up()];
            row[j] = candidates.into_iter().find(|&x| reached(x)).unwrap_or(nearest);
        }
        row
    };
    (0..1024).map(row).collect()
}

/// Smallest float32 that is not below the exact mean of two numbers.
fn smallest_reaching(lower: f32, upper: f32) -> f32 {
    let mut candidate = ((f64::from(lower) + f64::from(upper)) / 2.0) as f32;
    while reaches_mean(candidate.next_down(), lower, upper) && candidate > f32::MIN {
        candidate = candidate.next_down();
    }
    while !reaches_mean(candidate, lower, upper) {
        candidate = candidate.next_up();
    }
    candidate
}

/// The sign times one scale: binary.
#[derive(Clone, Copy)]
pub(super) struct Signs<V: Lanes> {
    plus: V::F,
    minus: V::F,
}

impl<V: Lanes> Kernel<V> for Signs<V> {
    type Base = ();

    fn base(work: &Work) -> Option<()> {
        matches!(work.grid, Grid::Levels(1)).then_some(())
    }
    #[inline(always)]
    unsafe fn make((): &(), scale: &GroupScale) -> Option<Self> {
        // At scale 0 both values are equal and every code is 0.
        // SAFETY: under the contract of `Lanes`.
        (scale.levels[0] > 0.0)
            .then(|| unsafe { Self { plus: V::splat(scale.levels[0]), minus: V::splat(-scale.levels[0]) } })
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe {
            let q = V::select(V::lt(x, V::splat(0.0)), self.minus, self.plus);
            V::select(V::unordered(x), x, q)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::select_i(V::lt(x, V::splat(0.0)), V::splat_i(1), V::splat_i(0)) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: under the contract of `Lanes`.
        unsafe { V::select(V::gt_i(code, V::splat_i(0)), self.minus, self.plus) }
    }
}
