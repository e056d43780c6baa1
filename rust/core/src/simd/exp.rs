//! The exponential and what is made of it. Errors are stated here and held by the tests.
//!
//! On sixteen lanes with fused multiply-add: [`exp`], [`decay`], [`decay_2_less_1`], [`tanh`]. On one number, with products
//! and sums rounded one by one, for loops that compilers turn into vectors: [`unfused`]. The steps are the same, the last
//! bits are not; the answers of models are recorded with the one or the other.

use super::Proven;

/// Arguments of the functions of a gate are cut at this magnitude, where they differ from their limits by 3e-13: the
/// product of three denominators then stays below the largest float32.
const STEEPEST: f32 = 29.0;
/// Adding this rounds to a whole number, which then stands in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with whole numbers up to 2^15 are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// `(exp(r) - 1) / r` on `|r| <= ln 2 / 2`, least error relative to `exp(r)`: 2e-9.
const POLYNOMIAL: [f32; 6] = [1.0, 0.499_999_94, 0.166_664_3, 0.041_668_005, 0.008_374_196, 0.001_384_360_6];

/// What an exponential is computed with.
trait Arithmetic: Copy {
    /// A number, or lanes of them.
    type Value: Copy;

    fn splat(self, v: f32) -> Self::Value;
    fn sub(self, a: Self::Value, b: Self::Value) -> Self::Value;
    fn mul(self, a: Self::Value, b: Self::Value) -> Self::Value;
    /// `a * b + c`.
    fn mul_add(self, a: Self::Value, b: Self::Value, c: Self::Value) -> Self::Value;
    /// `2^n` of the whole number `n` in the low bits of `rounded`.
    fn power_of_2(self, rounded: Self::Value) -> Self::Value;
}

/// Lanes; a product is added with one rounding.
#[derive(Clone, Copy)]
struct Fused<L>(L);

impl<L: Proven> Arithmetic for Fused<L> {
    type Value = L::F;

    #[inline(always)]
    fn splat(self, v: f32) -> L::F {
        self.0.splat(v)
    }
    #[inline(always)]
    fn sub(self, a: L::F, b: L::F) -> L::F {
        self.0.sub(a, b)
    }
    #[inline(always)]
    fn mul(self, a: L::F, b: L::F) -> L::F {
        self.0.mul(a, b)
    }
    #[inline(always)]
    fn mul_add(self, a: L::F, b: L::F, c: L::F) -> L::F {
        self.0.fma(a, b, c)
    }
    #[inline(always)]
    fn power_of_2(self, rounded: L::F) -> L::F {
        let l = self.0;
        let bits = l.add_sums(l.to_exponent(l.bits(rounded)), l.splat_sum(1.0f32.to_bits().cast_signed()));
        l.bits_to_float(bits)
    }
}

/// `(s, p)` with `exp(x) = s + s p`: `s` a power of two, `p = exp(r) - 1` of the remainder. `|x|` at most 88.
#[inline(always)]
fn scale_and_rest<A: Arithmetic>(a: A, x: A::Value) -> (A::Value, A::Value) {
    let rounded = a.mul_add(x, a.splat(std::f32::consts::LOG2_E), a.splat(ROUNDING));
    let whole = a.sub(rounded, a.splat(ROUNDING));
    let r = a.mul_add(whole, a.splat(-LN_2.0), x);
    let r = a.mul_add(whole, a.splat(-LN_2.1), r);
    let [c0, c1, c2, c3, c4, c5] = POLYNOMIAL;
    let mut p = a.mul_add(r, a.splat(c5), a.splat(c4));
    for c in [c3, c2, c1, c0] {
        p = a.mul_add(p, r, a.splat(c));
    }
    (a.power_of_2(rounded), a.mul(p, r))
}

#[inline(always)]
fn cut<L: Proven>(l: L, x: L::F, magnitude: f32) -> L::F {
    l.min(l.max(x, l.splat(-magnitude)), l.splat(magnitude))
}

/// `exp(x)` for `x <= 0`, cut at -87; relative error at most 2e-7.
#[inline(always)]
pub fn exp<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(Fused(l), l.max(x, l.splat(-87.0)));
    l.fma(s, p, s)
}

/// `exp(-x)`, with `x` cut at a magnitude of 29.
#[inline(always)]
pub fn decay<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(Fused(l), cut(l, l.sub(l.splat(0.0), x), STEEPEST));
    l.fma(s, p, s)
}

/// `exp(-2 x) - 1`, with small error relative to itself; `x` is cut at a magnitude of 29 / 2.
#[inline(always)]
pub fn decay_2_less_1<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(Fused(l), cut(l, l.mul(x, l.splat(-2.0)), STEEPEST));
    l.fma(s, p, l.sub(s, l.splat(1.0)))
}

/// `tanh(x)`; relative error at most 4e-7.
#[inline(always)]
pub fn tanh<L: Proven>(l: L, x: L::F) -> L::F {
    let e = decay_2_less_1(l, x);
    l.div(l.sub(l.splat(0.0), e), l.add(e, l.splat(2.0)))
}

/// The same functions of one number, with products and sums rounded one by one: equal bits in loops that are compiled for
/// any instruction set.
pub mod unfused {
    use super::{Arithmetic, scale_and_rest};

    #[derive(Clone, Copy)]
    struct Number;

    impl Arithmetic for Number {
        type Value = f32;

        #[inline(always)]
        fn splat(self, v: f32) -> f32 {
            v
        }
        #[inline(always)]
        fn sub(self, a: f32, b: f32) -> f32 {
            a - b
        }
        #[inline(always)]
        fn mul(self, a: f32, b: f32) -> f32 {
            a * b
        }
        #[inline(always)]
        fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
            a * b + c
        }
        #[inline(always)]
        fn power_of_2(self, rounded: f32) -> f32 {
            f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
        }
    }

    /// `exp(x)`, x cut at -87 and 88; relative error at most 3e-7.
    #[inline(always)]
    pub fn exp(x: f32) -> f32 {
        let (s, p) = scale_and_rest(Number, x.clamp(-87.0, 88.0));
        s * p + s
    }

    /// `1 / (1 + exp(-x))`; absolute error at most 3e-7.
    #[inline(always)]
    pub fn sigmoid(x: f32) -> f32 {
        1.0 / (1.0 + exp(-x))
    }

    /// `tanh(x)`; absolute error at most 3e-7.
    #[inline(always)]
    pub fn tanh(x: f32) -> f32 {
        1.0 - 2.0 / (1.0 + exp(2.0 * x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Floats, Job, LANES, Level, Scalar, fast};

    /// Results of all functions on sixteen values.
    struct All(Floats);

    impl<L: Proven> Job<L> for All {
        type Output = [[f32; LANES]; 4];
        #[inline(always)]
        fn run(self, l: L) -> Self::Output {
            let x = l.load(&self.0);
            let below = l.min(x, l.splat(0.0));
            [exp(l, below), decay(l, x), decay_2_less_1(l, x), tanh(l, x)].map(|v| {
                let mut line = Floats::default();
                l.store(v, &mut line);
                line.0
            })
        }
    }

    #[test]
    fn errors_are_those_stated_and_levels_agree() {
        for i in 0..4000 {
            let x = Floats::part(&std::array::from_fn::<f32, LANES, _>(|lane| (i * 16 + lane) as f32 * 2e-3 - 64.0));
            let plain = All(x).run(Scalar);
            for level in Level::available() {
                if let Ok(got) = fast(level, All(x)) {
                    assert_eq!(got.map(|v| v.map(f32::to_bits)), plain.map(|v| v.map(f32::to_bits)));
                }
            }
            for (lane, &x) in x.0.iter().enumerate() {
                let x = f64::from(x);
                let near = |got: f32, exact: f64, error: f64| (f64::from(got) - exact).abs() <= error * exact.abs();
                assert!(near(plain[0][lane], x.min(0.0).exp(), 2e-7), "exp({x})");
                assert!(near(plain[1][lane], (-x.clamp(-29.0, 29.0)).exp(), 2e-7), "exp(-{x})");
                assert!(
                    near(plain[2][lane], (-2.0 * x).clamp(-29.0, 29.0).exp_m1(), 4e-7) || x == 0.0,
                    "expm1(-2 {x})"
                );
                assert!(near(plain[3][lane], x.tanh(), 4e-7), "tanh({x}): {}", plain[3][lane]);
            }
        }
    }

    #[test]
    fn unfused_functions_have_their_stated_errors() {
        use unfused::{exp, sigmoid, tanh};
        for i in -40_000..40_000 {
            let x = i as f32 / 450.0;
            let exact = f64::from(x.clamp(-87.0, 88.0));
            assert!((f64::from(exp(x)) / exact.exp() - 1.0).abs() < 3e-7, "exp {x}");
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 3e-7, "tanh {x}");
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-f64::from(x)).exp())).abs() < 3e-7, "sigmoid {x}");
        }
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((tanh(0.0), tanh(f32::INFINITY), sigmoid(f32::NEG_INFINITY) < 1e-37), (0.0, 1.0, true));
    }

    #[test]
    fn unfused_bits_are_recorded() {
        // The general route of the engine answers with these: another order of operations would change its answers.
        let bits = (-87_000..=88_000).map(|i| unfused::exp(i as f32 * 1e-3).to_bits());
        let sum = bits.fold(0u64, |sum, bits| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(bits));
        assert_eq!(sum, 0xd810_a286_1633_defe);
    }
}
