//! Rotary positions: pairs of a head's numbers are turned by angles that grow with the position.
//!
//! Source: Su et al. 2021, equation 15; the halves of `octavo.lab.language.gpt.rotary_positions`.

use super::plan::{RotaryKind, RotaryPlan};

/// The angle a position of each pair, in radians.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rotary {
    frequencies: Vec<f32>,
    sign: f32,
}

impl Rotary {
    /// For heads of `size` numbers.
    pub(super) fn new(plan: RotaryPlan, size: usize) -> Self {
        let pairs = size / 2;
        let power = |exponent: f32| f64::from(plan.base).powf(f64::from(exponent)) as f32;
        let frequencies = match plan.kind {
            // The exponents are rounded as PyTorch rounds them.
            RotaryKind::Full => (0..pairs).map(|i| power((-2.0 / size as f64) as f32 * i as f32)).collect(),
            RotaryKind::Counter => (0..pairs).map(|i| 1.0 / power((2 * i) as f32 / size as f32)).collect(),
            RotaryKind::Half => {
                let turned = pairs.div_ceil(2);
                let step = |i: usize| i as f32 / turned.saturating_sub(1).max(1) as f32;
                let of = |i: usize| if i < turned { (1.0f64 / 1024.0).powf(f64::from(step(i))) as f32 } else { 0.0 };
                (0..pairs).map(of).collect()
            }
        };
        Self { frequencies, sign: if plan.kind == RotaryKind::Counter { -1.0 } else { 1.0 } }
    }

    /// Cosines and sines of a position, one of each for every pair.
    pub(super) fn turns(&self, position: usize) -> (Vec<f32>, Vec<f32>) {
        let angles = self.frequencies.iter().map(|frequency| position as f32 * frequency);
        angles.map(|angle| (angle.cos(), self.sign * angle.sin())).unzip()
    }
}

/// Turns heads, `[heads, 2 * pairs]`: number `i` and number `i + pairs` of each are a pair.
pub(super) fn turn(heads: &mut [f32], (cosines, sines): &(Vec<f32>, Vec<f32>)) {
    let pairs = cosines.len();
    for head in heads.chunks_exact_mut(2 * pairs) {
        let (first, second) = head.split_at_mut(pairs);
        for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cosine + *b * sine, *b * cosine - *a * sine);
        }
    }
}
