//! [`Norm`]: layer norms.

use crate::functions::{Loops, at_level, sum};

/// A layer norm over the last dimension.
pub struct Norm {
    /// Gain of each element.
    pub weight: Vec<f32>,
    /// Offset of each element.
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub epsilon: f32,
}

impl Norm {
    /// The rows of `x` with mean 0 and variance 1, times the weight plus the bias.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        at_level(Normed { norm: self, x, out: &mut out });
        out
    }
}

struct Normed<'a> {
    norm: &'a Norm,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loops for Normed<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { norm: Norm { weight, bias, epsilon }, x, out } = self;
        let count = weight.len() as f32;
        for (row, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            let mean = sum(row, |x| x) / count;
            let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
            let scale = 1.0 / (variance + epsilon).sqrt();
            for (((out, x), weight), bias) in out.iter_mut().zip(row).zip(weight).zip(bias) {
                *out = (x - mean) * scale * weight + bias;
            }
        }
    }
}
