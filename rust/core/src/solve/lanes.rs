//! Sixteen rows or elements at a time in plain Rust. Loops over lanes have a fixed length and no branch, so the compiler
//! turns them into instructions of the function they are inlined into: one text serves every SIMD level and gives the
//! same bits at each.

use crate::codec::scale::LANES;

/// Sixteen lanes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct F(pub(super) [f32; LANES]);

impl F {
    #[inline(always)]
    pub(super) const fn splat(v: f32) -> Self {
        Self([v; LANES])
    }
    /// Up to sixteen values, zeros behind.
    #[inline(always)]
    pub(super) fn part(x: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        Self(lanes)
    }
}

/// `v^p` of a normal positive number, to 5e-5 of itself: powers only weigh errors here.
#[inline(always)]
pub(super) fn power(v: f32, p: f32) -> f32 {
    exp2(p * log2(v))
}

/// Polynomials of least error at Chebyshev points.
const LOG2: [f32; 6] = [-2.794_153_7, 5.069_756_5, -3.520_218_8, 1.610_177_5, -0.409_475_6, 0.043_928_627];
const EXP2: [f32; 5] = [1.0, 0.693_121, 0.240_221_08, 0.055_922_035, 0.009_676_037];

#[inline(always)]
fn polynomial<const N: usize>(x: f32, terms: &[f32; N]) -> f32 {
    terms.iter().rev().fold(0.0, |sum, term| sum * x + term)
}

#[inline(always)]
fn log2(v: f32) -> f32 {
    let bits = v.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    exponent as f32 + polynomial(f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000), &LOG2)
}

#[inline(always)]
fn exp2(v: f32) -> f32 {
    let v = if v > -126.0 { v } else { -126.0 };
    let v = if v < 126.0 { v } else { 126.0 };
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    let shifted = v + 12_582_912.0;
    let whole = shifted - 12_582_912.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(0x4b40_0000).wrapping_add(127) << 23);
    scale * polynomial(v - whole, &EXP2)
}

/// Defines `$name` as a clone of the inlined `$body` for every SIMD level, chosen by its first argument.
macro_rules! for_levels {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) $(-> $r:ty)? = $body:path) => {
        $(#[$doc])*
        pub(super) fn $name(level: crate::level::Level, $($arg: $t),*) $(-> $r)? {
            #[cfg(target_arch = "x86_64")]
            {
                /// # Safety
                /// The processor must have the features of [`crate::level::Level::Avx2`].
                #[target_feature(enable = "avx2,fma,f16c,bmi2,popcnt")]
                fn avx2($($arg: $t),*) $(-> $r)? {
                    $body($($arg),*)
                }
                /// # Safety
                /// The processor must have the features of [`crate::level::Level::Avx512`].
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi2,popcnt")]
                fn avx512($($arg: $t),*) $(-> $r)? {
                    $body($($arg),*)
                }
                match level {
                    // SAFETY: `level` is that of a `Work`, which this processor has.
                    crate::level::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    crate::level::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    crate::level::Level::Scalar => {}
                }
            }
            let _ = level;
            $body($($arg),*)
        }
    };
}
pub(super) use for_levels;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_close() {
        for p in [-1.3f32, -0.3, 0.7, 1.0, 2.0] {
            for i in 0..2000 {
                let v = 1e-3 * 1.01f32.powi(i);
                let exact = f64::from(v).powf(f64::from(p));
                let got = f64::from(power(v, p));
                assert!((got / exact - 1.0).abs() < 6e-5, "{v}^{p}: {got} against {exact}");
            }
        }
    }
}
