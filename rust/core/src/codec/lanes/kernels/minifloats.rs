//! Kernels of floating-point elements whose scale is a power of two.

use super::{Factors, Kernel, exponent_of, power, sign_bit};
use crate::codec::grid::{FloatGrid, Grid, GroupScale};
use crate::codec::group_scales::Work;
use crate::codec::scale_search::Chooser;
use crate::format::{Minifloat, Specials};
use crate::simd::Lanes;

/// What the floating-point kernels share: the grid moved by `shift` binades to the middle of the float32 range.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct FloatBase {
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
    /// That of a minifloat.
    pub(in crate::codec::lanes) fn mini(float: Minifloat) -> Option<Self> {
        Self::new(FloatGrid::mini(float))
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
pub(in crate::codec::lanes) struct Floats<V: Lanes, const EXPLICIT_ONE: bool> {
    multiplier: V::F,
    step: V::F,
    top: V::F,
    emin_bits: V::I,
    magic: V::I,
    grid: FloatGrid,
    emin: i32,
}

impl<V: Lanes, const EXPLICIT_ONE: bool> Floats<V, EXPLICIT_ONE> {
    /// The kernel at scale 1.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    pub(in crate::codec::lanes) unsafe fn unscaled(base: &FloatBase) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::make(base, &GroupScale::step(1.0)) }
    }
    /// Exponent bits of the binade, and the number whose last place is the grid's step there.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn binade(&self, a: V::F) -> (V::I, V::F) {
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
        unsafe { Self::with(base, power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(base: &FloatBase, shift: i32) -> Factors {
        base.factors(shift)
    }
    #[inline(always)]
    unsafe fn with(base: &FloatBase, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        let emin = base.grid.emin + base.shift;
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
        unsafe {
            let a = V::min(self.top, V::abs(V::mul(x, self.multiplier)));
            // Adding a number whose last place is the step rounds to the step, ties to even.
            let (_, c) = self.binade(a);
            let r = V::sub(V::add(a, c), c);
            V::mul(V::positive_zero(V::with_sign(r, x)), self.step)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
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
pub(in crate::codec::lanes) struct Powers<V: Lanes> {
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
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn nearest(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
        unsafe { Self::with(base, power(-e), power(e), 0) }
    }
    #[inline(always)]
    fn factors(base: &FloatBase, shift: i32) -> Factors {
        base.factors(shift)
    }
    #[inline(always)]
    unsafe fn with(base: &FloatBase, multiplier: f32, step: f32, _: i32) -> Option<Self> {
        let emin = base.grid.emin + base.shift;
        // SAFETY: as the caller promises.
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
        // SAFETY: as the caller promises.
        unsafe {
            let q = V::mul(V::positive_zero(V::with_sign(self.nearest(x), x)), self.step);
            V::select(V::unordered(x), x, q)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let field = V::sub_i(V::shr(V::bits(self.nearest(x)), 23), self.field_zero);
            sign_bit::<V>(x, V::max_i(field, V::splat_i(0)), self.width)
        }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let field = V::and(code, V::splat_i((1 << (self.width - 1)) - 1));
            let power = V::from_bits(V::shl(V::add_i(field, self.field_zero), 23));
            let value = V::select_i(V::gt_i(field, V::splat_i(0)), V::bits(V::mul(power, self.step)), V::splat_i(0));
            V::with_sign(V::from_bits(value), V::from_bits(V::shl(code, 32 - self.width)))
        }
    }
}
