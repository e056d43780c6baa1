//! The operations of [`Lanes`] as safe methods of a value that proves the instructions.

use super::Lanes;
use crate::simd::{Doubles, Floats, Sums};

/// Methods that hand their registers to the function of the same name.
macro_rules! methods {
    ($($(#[doc = $doc:literal])* $name:ident = $function:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {$(
        $(#[doc = $doc])*
        #[inline(always)]
        fn $name(self, $($argument: $type),*) -> $output {
            // SAFETY: `self` exists only where the instructions do.
            unsafe { <Self as Lanes>::$function($($argument),*) }
        }
    )*};
}

/// Safe lanes: a value of an instruction set proves that the processor has it.
pub trait Proven: Lanes {
    /// The lanes of a line.
    #[inline(always)]
    fn load(self, from: &Floats) -> Self::F {
        // SAFETY: `self` exists only where the instructions do, and a line holds sixteen values.
        unsafe { <Self as Lanes>::load(from.0.as_ptr()) }
    }
    /// Writes a line.
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut Floats) {
        // SAFETY: as above.
        unsafe { <Self as Lanes>::store(to.0.as_mut_ptr(), v) };
    }
    /// The lanes of a line of integers.
    #[inline(always)]
    fn load_sums(self, from: &Sums) -> Self::I {
        // SAFETY: as above; integers pass through as bits.
        unsafe { <Self as Lanes>::bits(<Self as Lanes>::load(from.0.as_ptr().cast())) }
    }
    /// The lanes of a line of float64.
    #[inline(always)]
    fn load_d(self, from: &Doubles) -> Self::D {
        // SAFETY: as above.
        unsafe { <Self as Lanes>::load_d(from.0.as_ptr()) }
    }
    /// Writes a line of float64.
    #[inline(always)]
    fn store_d(self, v: Self::D, to: &mut Doubles) {
        // SAFETY: as above.
        unsafe { <Self as Lanes>::store_d(to.0.as_mut_ptr(), v) };
    }

    methods! {
        /// The float64 in all lanes.
        splat_d = splat_d(v: f64) -> Self::D;
        /// `a * b + c`, for products that float64 holds.
        add_exact_d = add_exact_d(c: Self::D, a: Self::D, b: Self::D) -> Self::D;
        /// `c - a * b` with two roundings.
        take_d = take_d(c: Self::D, a: Self::D, b: Self::D) -> Self::D;
        /// The value in all lanes.
        splat = splat(v: f32) -> Self::F;
        /// The integer in all lanes.
        splat_sum = splat_i(v: i32) -> Self::I;
        /// `a + b`.
        add = add(a: Self::F, b: Self::F) -> Self::F;
        /// `a - b`.
        sub = sub(a: Self::F, b: Self::F) -> Self::F;
        /// `a * b`.
        mul = mul(a: Self::F, b: Self::F) -> Self::F;
        /// `a / b`.
        div = div(a: Self::F, b: Self::F) -> Self::F;
        /// Square root, rounded to nearest.
        sqrt = sqrt(v: Self::F) -> Self::F;
        /// The smaller; `b` where one is NaN.
        min = min(a: Self::F, b: Self::F) -> Self::F;
        /// The larger; `b` where one is NaN.
        max = max(a: Self::F, b: Self::F) -> Self::F;
        /// `a * b + c` with one rounding.
        fma = fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
        /// Sums of integers, which wrap.
        add_sums = add_i(a: Self::I, b: Self::I) -> Self::I;
        /// Nearest float32, ties to even.
        to_floats = to_f(v: Self::I) -> Self::F;
        /// The bits of the lanes.
        bits = bits(v: Self::F) -> Self::I;
        /// The lanes of bits.
        bits_to_float = from_bits(v: Self::I) -> Self::F;
        /// Sum of the lanes as a tree: 8, 4, 2, 1.
        sum = tree_sum(v: Self::F) -> f32;
    }

    /// Lanes shifted left by the 23 bits of a mantissa.
    #[inline(always)]
    fn to_exponent(self, v: Self::I) -> Self::I {
        // SAFETY: as above.
        unsafe { <Self as Lanes>::shl(v, 23) }
    }
    /// Lanes shifted left by the 8 bits of a byte.
    #[inline(always)]
    fn to_high_bytes(self, v: Self::I) -> Self::I {
        // SAFETY: as above.
        unsafe { <Self as Lanes>::shl(v, 8) }
    }
}

impl<L: Lanes> Proven for L {}
