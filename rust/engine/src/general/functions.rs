//! Functions of many numbers in loops that compilers turn into vectors, run at the SIMD level in use.
//!
//! Plain multiplications and additions in a fixed order: the same bits at every level.

use octavo_core::simd::{Job, Level, fast};

/// Numbers that are added side by side.
const LANES: usize = 16;
/// Adding this rounds to a whole number, which then stands in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with whole numbers up to 2^15 are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// `(exp(r) - 1) / r` on `|r| <= ln 2 / 2`, least error relative to `exp(r)`: 2e-9.
const POLYNOMIAL: [f32; 6] = [0.001_384_360_6, 0.008_374_196, 0.041_668_005, 0.166_664_3, 0.499_999_94, 1.0];

/// Loops that are compiled for each instruction set; `run` is `#[inline(always)]`, as is everything that it calls.
pub(super) trait Loops {
    /// Runs them.
    fn run(self);
}

struct At<J>(J);

impl<J: Loops, L> Job<L> for At<J> {
    type Output = ();

    #[inline(always)]
    fn run(self, _lanes: L) {
        self.0.run();
    }
}

/// Runs loops with the instructions in use.
pub(super) fn at_level(loops: impl Loops) {
    if let Err(At(loops)) = fast(Level::current(), At(loops)) {
        loops.run();
    }
}

/// `exp(x)`, x cut at -87 and 88; relative error at most 3e-7.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUNDING;
    let whole = rounded - ROUNDING;
    let r = x - whole * LN_2.0 - whole * LN_2.1;
    let [first, ref rest @ ..] = POLYNOMIAL;
    let p = rest.iter().fold(first, |sum, c| sum * r + c);
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    scale + scale * (p * r)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `tanh(x)`; absolute error at most 3e-7.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp(2.0 * x))
}

/// The sum of products: [`LANES`] sums side by side, then one.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    a_rest.iter().zip(b_rest).fold(folded(sums), |sum, (a, b)| sum + a * b)
}

/// The sum of `f` of all numbers, in the order of [`dot`].
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (x, rest) = x.as_chunks::<LANES>();
    for x in x {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += f(*x);
        }
    }
    rest.iter().fold(folded(sums), |sum, x| sum + f(*x))
}

#[inline(always)]
fn folded(mut sums: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
    }
    sums[0]
}

/// Scores to shares that add up to 1.
#[inline(always)]
pub(super) fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let total = sum(scores, |score| score);
    for score in scores {
        *score /= total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_stated_errors() {
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
}
