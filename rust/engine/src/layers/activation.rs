//! What stands between the products of a feed-forward network, in loops that compilers turn into vectors.

use octavo_core::pool;
use octavo_core::simd::exp::unfused::{exp, sigmoid, tanh};

use crate::error::Result;
use crate::functions::{Loops, at_level};

/// A function of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `x * Phi(x)`, Hendrycks and Gimpel 2016.
    Gelu,
    /// The same with tanh in the place of the error function.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    SquaredRelu,
    /// `x * sigmoid(x)`.
    Silu,
}

/// Numbers of one unit of work.
const PIECE: usize = 1 << 14;

/// Replaces each number by its function: the same bits at every SIMD level.
pub(crate) fn activate(values: &mut [f32], activation: Activation) -> Result<()> {
    let pieces = values.chunks_mut(PIECE).collect();
    Ok(pool::consume(pieces, PIECE * size_of::<f32>() * 8, |piece| at_level(Each { values: piece, activation }))?)
}

/// Pairs of a number `x` and another one, both bounded by `most`, as `(other + 1) * x * sigmoid(slope * x)`. Source: gpt-oss.
pub(crate) fn gated_pairs(pairs: &[f32], slope: f32, most: f32) -> Result<Vec<f32>> {
    let mut out = vec![0.0; pairs.len() / 2];
    let pieces = out.chunks_mut(PIECE).zip(pairs.chunks(2 * PIECE)).collect();
    pool::consume(pieces, PIECE * size_of::<f32>() * 8, |(out, pairs): (&mut [f32], &[f32])| {
        at_level(Pairs { pairs, out, slope, most });
    })?;
    Ok(out)
}

struct Pairs<'a> {
    pairs: &'a [f32],
    out: &'a mut [f32],
    slope: f32,
    most: f32,
}

impl Loops for Pairs<'_> {
    #[inline(always)]
    fn run(self) {
        let (pairs, _) = self.pairs.as_chunks::<2>();
        for (out, [x, other]) in self.out.iter_mut().zip(pairs) {
            let x = x.min(self.most);
            *out = (other.clamp(-self.most, self.most) + 1.0) * x * sigmoid(self.slope * x);
        }
    }
}

struct Each<'a> {
    values: &'a mut [f32],
    activation: Activation,
}

impl Loops for Each<'_> {
    #[inline(always)]
    fn run(self) {
        let values = self.values;
        match self.activation {
            Activation::Gelu => values.iter_mut().for_each(|x| *x = gelu(*x)),
            Activation::GeluTanh => values.iter_mut().for_each(|x| {
                let inner = 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
                *x = 0.5 * *x * (1.0 + tanh(inner));
            }),
            Activation::Relu => values.iter_mut().for_each(|x| *x = x.max(0.0)),
            Activation::SquaredRelu => values.iter_mut().for_each(|x| *x = x.max(0.0) * x.max(0.0)),
            Activation::Silu => values.iter_mut().for_each(|x| *x *= sigmoid(*x)),
        }
    }
}

/// `exp(z^2) erfc(z) / t` as a polynomial of `t = 1 / (1 + z / 2)`, in the exponent; relative error of `erfc` 1.2e-7.
/// Source: Press et al., Numerical Recipes, section 6.2 (`erfcc`).
const ERFC: [f32; 10] = [
    -1.265_512_2,
    1.000_023_7,
    0.374_091_96,
    0.096_784_18,
    -0.186_288_06,
    0.278_868_07,
    -1.135_204,
    1.488_515_9,
    -0.822_152_23,
    0.170_872_77,
];
/// Exponents below which the exponential of float32 is 0 for our purposes.
const LEAST: f32 = -87.0;

/// `x * Phi(x)`, to a few units in the last place of `x * Phi(x)`, where it is not below the smallest normal number.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut sum = ERFC[9];
    for at in (0..9).rev() {
        sum = sum * t + ERFC[at];
    }
    let half = 0.5 * t * exp((sum - z * z).max(LEAST));
    if x < 0.0 { x * half } else { x - x * half }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_their_definitions() {
        let some: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.003).collect();
        let of = |activation: Activation| {
            let mut values = some.clone();
            activate(&mut values, activation).unwrap();
            values
        };
        type Function = fn(f64) -> f64;
        let exact: [(Activation, Function); 5] = [
            (Activation::Gelu, |x| 0.5 * x * libm::erfc(-x / 2f64.sqrt())),
            (Activation::GeluTanh, |x| {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }),
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::SquaredRelu, |x| x.max(0.0).powi(2)),
            (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        ];
        for (activation, function) in exact {
            for (&x, got) in some.iter().zip(of(activation)) {
                let wanted = function(f64::from(x));
                let off = (f64::from(got) - wanted).abs();
                assert!(
                    off <= 4e-7 * f64::from(x).abs().max(1e-3) * wanted.abs().max(1.0),
                    "{activation:?} {x}: {got} {wanted}"
                );
            }
        }
    }
}
