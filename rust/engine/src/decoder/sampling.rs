//! [`Sampling`]: which token follows, of scores.

use octavo_core::error::SettingError;

use crate::error::Result;
use crate::functions::{Loops, at_level};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Scores are divided by it before they become probabilities; 0 takes the most likely token.
    pub temperature: f32,
    /// Only so many of the most likely tokens are drawn from; 0 for all.
    pub top_k: usize,
    /// Only the fewest tokens are drawn from whose probabilities add up to it; 1 for all.
    pub top_p: f32,
    /// Of the draws: the same seed gives the same tokens, on any number of threads.
    pub seed: u64,
}

impl Sampling {
    /// Refuses numbers outside their ranges.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`].
    pub(super) fn check(&self) -> Result<()> {
        let refused = |name: &str, value: f32, accepted: &str| {
            let text = format!("{name} is {value}; accepted are numbers {accepted}");
            Err(crate::Error::Core(octavo_core::Error::from(SettingError::Other(text))))
        };
        if !(0.0..=1e4).contains(&self.temperature) {
            return refused("temperature", self.temperature, "from 0 to 10000");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refused("top_p", self.top_p, "above 0, up to 1");
        }
        Ok(())
    }

    /// The token after position `position` of a text, of its scores; equal scores go to the smaller id.
    pub(super) fn choose(&self, scores: &[f32], stream: u64, position: usize) -> u32 {
        let best = most(scores);
        if self.temperature == 0.0 || self.top_k == 1 {
            return best as u32;
        }
        let mut shares = scores.to_vec();
        at_level(Shares { scores: &mut shares, most: scores[best], temperature: self.temperature });
        let draw = uniform(self.seed, stream, position as u64);
        if self.top_k == 0 && self.top_p >= 1.0 {
            return drawn((0..).zip(shares.iter().copied()), total(&shares), draw);
        }
        let ranked = self.ranked(&shares);
        let total = ranked.iter().map(|&(_, share)| f64::from(share)).sum();
        drawn(ranked.into_iter(), total, draw)
    }

    /// The tokens that are drawn from, the most likely first, with their shares.
    fn ranked(&self, shares: &[f32]) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..).zip(shares.iter().copied()).collect();
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let whole = total(shares);
        let limit = if self.top_k == 0 { all.len() } else { self.top_k.min(all.len()) };
        // Sorting all is slow: most often a few of them suffice.
        let mut count = if self.top_p < 1.0 { limit.min(256) } else { limit };
        loop {
            if count < all.len() {
                all.select_nth_unstable_by(count, order);
            }
            all[..count].sort_unstable_by(order);
            // Probabilities are those among the `top_k`.
            let of =
                if self.top_k == 0 { whole } else { all[..count].iter().map(|&(_, share)| f64::from(share)).sum() };
            let mut sum = 0.0;
            let enough = all[..count].iter().position(|&(_, share)| {
                sum += f64::from(share);
                sum >= of * f64::from(self.top_p)
            });
            match enough {
                Some(last) if self.top_k == 0 || count == limit => {
                    all.truncate(last + 1);
                    return all;
                }
                _ if count == limit => {
                    all.truncate(count);
                    return all;
                }
                _ => count = if self.top_k == 0 { limit.min(count * 8) } else { limit },
            }
        }
    }
}

/// The place of the largest score, the first of equal ones.
fn most(scores: &[f32]) -> usize {
    // Two passes that become vectors: one with places would not.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (lines, rest) = scores.as_chunks::<16>();
    for line in lines {
        lanes.iter_mut().zip(line).for_each(|(most, score)| *most = if score > most { *score } else { *most });
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |most, score| most.max(*score));
    scores.iter().position(|score| *score == largest).unwrap_or(0)
}

fn total(shares: &[f32]) -> f64 {
    shares.iter().map(|&share| f64::from(share)).sum()
}

/// The first token at which the sum of shares passes `draw` of the total.
fn drawn(shares: impl Iterator<Item = (u32, f32)>, total: f64, draw: f64) -> u32 {
    let (mut left, mut last) = (draw * total, 0);
    for (id, share) in shares {
        if share > 0.0 {
            last = id;
            left -= f64::from(share);
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// A number from 0 to below 1 of a counter: any draw can be made again. Source: Steele, Lea and Flood 2014 (SplitMix64).
fn uniform(seed: u64, stream: u64, position: u64) -> f64 {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let bits = mix(mix(mix(seed).wrapping_add(stream)).wrapping_add(position));
    (bits >> 11) as f64 * (0.5f64).powi(53)
}

/// `exp((score - most) / temperature)`, in place.
struct Shares<'a> {
    scores: &'a mut [f32],
    most: f32,
    temperature: f32,
}

impl Loops for Shares<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { scores, most, temperature } = self;
        for score in scores {
            let exponent = (*score - most) / temperature;
            *score = if exponent > -87.0 { octavo_core::simd::exp::unfused::exp(exponent) } else { 0.0 };
        }
    }
}
