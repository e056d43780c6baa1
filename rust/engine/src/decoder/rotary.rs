//! Rotary positions: pairs of a head's numbers are turned by angles that grow with the position.
//!
//! Source: Su et al. 2021, equation 15; the halves of `octavo.lab.language.gpt.rotary_positions`; scalings as in
//! `modeling_rope_utils.py` of transformers, whose order of roundings to float32 this is.

use std::f64::consts::PI;

use super::plan::{RotaryKind, RotaryPlan, Scaling};

/// The angle a position of each pair, in radians.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rotary {
    frequencies: Vec<f32>,
    /// Those of texts longer than [`Self::switch`].
    long: Vec<f32>,
    plan: RotaryPlan,
    /// Of cosines and sines.
    factor: f32,
}

/// Cosines and sines of a position, one of each for every pair.
pub(super) type Turns = (Vec<f32>, Vec<f32>);

impl Rotary {
    pub(super) fn new(plan: &RotaryPlan) -> Self {
        let (plain, base) = (frequencies(plan.base, plan), plan.base);
        let (frequencies, factor) = match &plan.scaling {
            Scaling::None | Scaling::Dynamic { .. } => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|frequency| frequency / factor).collect(), 1.0),
            &Scaling::Llama3 { factor, low, high, positions } => {
                (plain.iter().map(|&frequency| llama3(frequency, factor, low, high, positions)).collect(), 1.0)
            }
            &Scaling::Yarn { factor, fast, slow, positions, truncate, attention } => {
                let ramp = ramp(plan.turned, f64::from(base), [fast, slow], positions, truncate);
                let of = |(pair, own): (usize, f32)| {
                    let wave = power(base, pair, plan.turned);
                    1.0 / (factor * wave) * (1.0 - own) + 1.0 / wave * own
                };
                (ramp.into_iter().enumerate().map(of).collect(), attention)
            }
            Scaling::Long { short, attention, .. } => (divided(short, base, plan.turned), *attention),
        };
        let long = match &plan.scaling {
            Scaling::Long { long, .. } => divided(long, base, plan.turned),
            _ => Vec::new(),
        };
        Self { frequencies, long, plan: plan.clone(), factor }
    }

    /// Most positions of a text whose angles are the first ones; longer texts have other angles at every position.
    pub(super) const fn switch(&self) -> Option<usize> {
        match self.plan.scaling {
            Scaling::Long { positions, .. } => Some(positions),
            _ => None,
        }
    }

    /// The turns of a position of a text that is longer than [`Self::switch`], or is not.
    pub(super) fn turns(&self, position: usize, is_long: bool) -> Turns {
        let dynamic;
        let frequencies = match self.plan.scaling {
            Scaling::Dynamic { factor, positions } if position >= positions => {
                // As every step of transformers has them, whose text ends at this position.
                let length = (position + 1) as f64 / positions as f64;
                let (factor, turned) = (f64::from(factor), self.plan.turned as f64);
                let growth = (factor * length - (factor - 1.0)).powf(turned / (turned - 2.0));
                dynamic = self::frequencies((f64::from(self.plan.base) * growth) as f32, &self.plan);
                &dynamic
            }
            _ if is_long => &self.long,
            _ => &self.frequencies,
        };
        let sign = if self.plan.kind == RotaryKind::Counter { -self.factor } else { self.factor };
        let angles = frequencies.iter().map(|frequency| position as f32 * frequency);
        angles.map(|angle| (self.factor * angle.cos(), sign * angle.sin())).unzip()
    }
}

/// `base^(2 pair / turned)`; the exponent is rounded as PyTorch rounds it.
fn power(base: f32, pair: usize, turned: usize) -> f32 {
    f64::from(base).powf(f64::from((2 * pair) as f32 / turned as f32)) as f32
}

/// Angles without scaling.
fn frequencies(base: f32, plan: &RotaryPlan) -> Vec<f32> {
    let pairs = plan.turned / 2;
    match plan.kind {
        RotaryKind::Full => {
            let exponent = |i: usize| (-2.0 / plan.turned as f64) as f32 * i as f32;
            (0..pairs).map(|i| f64::from(base).powf(f64::from(exponent(i))) as f32).collect()
        }
        RotaryKind::Counter => (0..pairs).map(|i| 1.0 / power(base, i, plan.turned)).collect(),
        RotaryKind::Half => {
            let turned = pairs.div_ceil(2);
            let step = |i: usize| i as f32 / turned.saturating_sub(1).max(1) as f32;
            let of = |i: usize| if i < turned { (1.0f64 / 1024.0).powf(f64::from(step(i))) as f32 } else { 0.0 };
            (0..pairs).map(of).collect()
        }
    }
}

/// Angles with a divisor for each pair.
fn divided(divisors: &[f32], base: f32, turned: usize) -> Vec<f32> {
    divisors.iter().enumerate().map(|(pair, divisor)| 1.0 / (divisor * power(base, pair, turned))).collect()
}

/// Source: Grattafiori et al. 2024, as in transformers: angles of long waves are divided, those of short ones are not, and
/// those between get a share of both.
fn llama3(frequency: f32, factor: f32, low: f32, high: f32, positions: usize) -> f32 {
    let positions = positions as f32;
    let wave = (2.0 * PI) as f32 / frequency;
    if wave < positions / high {
        frequency
    } else if wave > positions / low {
        frequency / factor
    } else {
        let smooth = (positions / wave - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// The share of its own angle that each pair keeps. Source: Peng et al. 2023, section 3.2.
fn ramp(turned: usize, base: f64, [fast, slow]: [f64; 2], positions: usize, truncate: bool) -> Vec<f32> {
    let place = |turns: f64| turned as f64 * (positions as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (low, high) = (place(fast), place(slow));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min((turned - 1) as f64));
    let high = if low == high { high + 0.001 } else { high };
    let of = |pair: usize| 1.0 - ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
    (0..turned / 2).map(of).collect()
}

/// Turns heads of `size` numbers: number `i` and number `i + pairs` of each are a pair, and those behind stay.
pub(super) fn turn(heads: &mut [f32], size: usize, (cosines, sines): &Turns) {
    let pairs = cosines.len();
    for head in heads.chunks_exact_mut(size) {
        let (first, second) = head[..2 * pairs].split_at_mut(pairs);
        for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cosine + *b * sine, *b * cosine - *a * sine);
        }
    }
}
