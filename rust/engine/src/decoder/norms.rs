//! [`Norm`]: norms of the stream, and [`HeadNorms`]: those of queries and keys.

use super::names::Names;
use super::plan::{BlockPlan, Gains, HeadNorm, NormPlan, Plan};
use crate::error::Result;
use crate::functions::{Loops, at_level, sum};
use crate::layers::Source;
use crate::norm::Norm as LayerNorm;

/// A norm over the last axis.
pub(super) enum Norm {
    /// By the root mean square, with factors or without.
    Rms { width: usize, epsilon: f32, gain: Option<Vec<f32>> },
    /// By mean and variance.
    Layer(LayerNorm),
}

impl Norm {
    pub(super) fn load(source: &Source, names: &Names, path: &str, plan: &Plan) -> Result<Self> {
        Ok(match plan.norm {
            NormPlan::Layer { epsilon } => Self::Layer(source.norm(path, plan.width, epsilon)?),
            NormPlan::Rms { epsilon, gains } => {
                Self::Rms { width: plan.width, epsilon, gain: load_gains(source, names, path, plan.width, gains)? }
            }
        })
    }

    /// The norm of rows.
    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        self.apply_in_place(&mut out);
        out
    }

    /// The norm of rows, in their place.
    pub(super) fn apply_in_place(&self, x: &mut [f32]) {
        match self {
            Self::Layer(norm) => x.copy_from_slice(&norm.apply(x)),
            Self::Rms { width, epsilon, gain } => {
                at_level(RootMeanSquare { values: x, width: *width, epsilon: *epsilon, gain: gain.as_deref() });
            }
        }
    }
}

fn load_gains(source: &Source, names: &Names, path: &str, width: usize, gains: Gains) -> Result<Option<Vec<f32>>> {
    let read = || source.numbers(&format!("{path}.{}", names.gain), width);
    Ok(match gains {
        Gains::None => None,
        Gains::Whole => Some(read()?),
        Gains::LessOne => Some(read()?.into_iter().map(|gain| 1.0 + gain).collect()),
    })
}

/// Norms of the heads of queries and of keys.
pub(super) enum HeadNorms {
    None,
    /// Parts of `width` numbers by their root mean square: a head, or all heads of a position.
    Rms {
        epsilon: f32,
        parts: [(usize, Option<Vec<f32>>); 2],
    },
    /// Each head by mean and variance.
    Layers([Vec<LayerNorm>; 2]),
}

impl HeadNorms {
    /// Loads those of block `number`.
    pub(super) fn load(source: &Source, names: &Names, number: usize, plan: &BlockPlan) -> Result<Self> {
        let [query, key] = names.head_norms.map(|name| names.of_block(number, name));
        let (size, counts) = (plan.size, [plan.heads, plan.kv_heads]);
        let rms = |epsilon, widths: [usize; 2], gains| {
            let part = |path: &str, width| load_gains(source, names, path, width, gains).map(|gain| (width, gain));
            Ok(Self::Rms { epsilon, parts: [part(&query, widths[0])?, part(&key, widths[1])?] })
        };
        match plan.head_norm {
            HeadNorm::None => Ok(Self::None),
            HeadNorm::Bare { epsilon } => rms(epsilon, [size; 2], Gains::None),
            HeadNorm::Heads { epsilon, gains } => rms(epsilon, [size; 2], gains),
            HeadNorm::Together { epsilon } => rms(epsilon, counts.map(|count| count * size), Gains::Whole),
            HeadNorm::Layers { epsilon } => {
                let layer = |path: &str, head: usize| {
                    let weight = source.numbers(&format!("{path}.norms.{head}.weight"), size)?;
                    Ok(LayerNorm { weight, bias: vec![0.0; size], epsilon })
                };
                let all = |path: &str, count| (0..count).map(|head| layer(path, head)).collect::<Result<_>>();
                Ok(Self::Layers([all(&query, counts[0])?, all(&key, counts[1])?]))
            }
        }
    }

    /// Norms queries (0) or keys (1), `[rows, heads * size]`, in their place.
    pub(super) fn apply(&self, which: usize, heads: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Rms { epsilon, parts } => {
                let (width, gain) = &parts[which];
                at_level(RootMeanSquare { values: heads, width: *width, epsilon: *epsilon, gain: gain.as_deref() });
            }
            Self::Layers(norms) => {
                let norms = &norms[which];
                let size = norms.first().map_or(1, |norm| norm.weight.len());
                for (head, norm) in heads.chunks_exact_mut(size).zip(norms.iter().cycle()) {
                    head.copy_from_slice(&norm.apply(head));
                }
            }
        }
    }
}

/// Rows divided by their root mean square, in place.
struct RootMeanSquare<'a> {
    values: &'a mut [f32],
    width: usize,
    epsilon: f32,
    gain: Option<&'a [f32]>,
}

impl Loops for RootMeanSquare<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { values, width, epsilon, gain } = self;
        for row in values.chunks_exact_mut(width) {
            let scale = 1.0 / (sum(row, |x| x * x) / width as f32 + epsilon).sqrt();
            match gain {
                Some(gain) => row.iter_mut().zip(gain).for_each(|(x, gain)| *x = *x * scale * gain),
                None => row.iter_mut().for_each(|x| *x *= scale),
            }
        }
    }
}
