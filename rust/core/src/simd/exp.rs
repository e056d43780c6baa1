//! Exponential and tanh of sixteen lanes. Errors are stated here and held by the tests.

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

/// `(s, p)` with `exp(x) = s + s p`: `s` a power of two, `p = exp(r) - 1` of the remainder. `|x|` at most 87.
#[inline(always)]
fn scale_and_rest<L: Proven>(l: L, x: L::F) -> (L::F, L::F) {
    let rounded = l.fma(x, l.splat(std::f32::consts::LOG2_E), l.splat(ROUNDING));
    let whole = l.sub(rounded, l.splat(ROUNDING));
    let r = l.fma(whole, l.splat(-LN_2.0), x);
    let r = l.fma(whole, l.splat(-LN_2.1), r);
    let [c0, c1, c2, c3, c4, c5] = POLYNOMIAL;
    let mut p = l.fma(r, l.splat(c5), l.splat(c4));
    for c in [c3, c2, c1, c0] {
        p = l.fma(p, r, l.splat(c));
    }
    let s = l.add_sums(l.to_exponent(l.bits(rounded)), l.splat_sum(1.0f32.to_bits().cast_signed()));
    (l.bits_to_float(s), l.mul(p, r))
}

#[inline(always)]
fn cut<L: Proven>(l: L, x: L::F, magnitude: f32) -> L::F {
    l.min(l.max(x, l.splat(-magnitude)), l.splat(magnitude))
}

/// `exp(x)` for `x <= 0`, cut at -87; relative error at most 2e-7.
#[inline(always)]
pub fn exp<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(l, l.max(x, l.splat(-87.0)));
    l.fma(s, p, s)
}

/// `exp(-x)`, with `x` cut at a magnitude of 29.
#[inline(always)]
pub fn decay<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(l, cut(l, l.sub(l.splat(0.0), x), STEEPEST));
    l.fma(s, p, s)
}

/// `exp(-2 x) - 1`, with small error relative to itself; `x` is cut at a magnitude of 29 / 2.
#[inline(always)]
pub fn decay_2_less_1<L: Proven>(l: L, x: L::F) -> L::F {
    let (s, p) = scale_and_rest(l, cut(l, l.mul(x, l.splat(-2.0)), STEEPEST));
    l.fma(s, p, l.sub(s, l.splat(1.0)))
}

/// `tanh(x)`; relative error at most 4e-7.
#[inline(always)]
pub fn tanh<L: Proven>(l: L, x: L::F) -> L::F {
    let e = decay_2_less_1(l, x);
    l.div(l.sub(l.splat(0.0), e), l.add(e, l.splat(2.0)))
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
            for level in [Level::Avx2, Level::Avx512] {
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
}
