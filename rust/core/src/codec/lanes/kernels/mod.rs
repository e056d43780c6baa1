//! Kernels: the arithmetic of each kind of element on sixteen lanes.
//!
//! A kernel is made for the scale of one group. It declines (`None`) where float32 lanes could not give the bits of the
//! scalar reference: steps near the ends of the exponent range, elements of more than 16 bits. The scalar code then takes
//! the group.

mod books;
mod float32_bits;
mod integers;
mod minifloats;

pub(super) use books::{Book, Signs};
pub(super) use float32_bits::{Identity, ScaledE2M1, Truncated};
pub(super) use integers::{AffineSteps, PowerSteps, RealSteps};
pub(super) use minifloats::{FloatBase, Floats, Powers};

use crate::codec::grid::GroupScale;
use crate::codec::group_scales::Work;
use crate::simd::Lanes;

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

/// One group's arithmetic. `quantize` keeps NaN, saturates infinities and gives +0 where the code is that of zero; `code` is for finite lanes only.
pub(super) trait Kernel<V: Lanes>: Copy {
    /// What all groups of a call share; `None` where the format has no such kernel.
    type Base: Copy;
    fn base(work: &Work) -> Option<Self::Base>;
    /// # Safety
    /// The processor must have the features of `V`.
    unsafe fn make(base: &Self::Base, scale: &GroupScale) -> Option<Self>;
    /// The kind of factors that `with` takes, for scale codes with `step = 2^(code - 127 - shift)`.
    #[inline(always)]
    fn factors(_base: &Self::Base, _shift: i32) -> Factors {
        Factors::Single
    }
    /// The kernel from a batch's factors; they are in range.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn with(base: &Self::Base, first: f32, _second: f32, zero: i32) -> Option<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::make(base, &GroupScale { step: f64::from(first), zero, offset: 0.0, levels: [0.0; 4] }) }
    }
    /// # Safety
    /// The processor must have the features of `V`.
    unsafe fn quantize(&self, x: V::F) -> V::F;
    /// # Safety
    /// The processor must have the features of `V`.
    unsafe fn code(&self, x: V::F) -> V::I;
    /// Value of codes, zero-extended.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
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
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn sign_bit<V: Lanes>(x: V::F, magnitude: V::I, width: u32) -> V::I {
    // SAFETY: as the caller promises.
    unsafe {
        let sign = V::shr(V::and(V::bits(x), V::splat_i(i32::MIN)), 32 - width);
        V::select_i(V::gt_i(magnitude, V::splat_i(0)), V::or(magnitude, sign), magnitude)
    }
}
