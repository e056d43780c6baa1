//! [`Network`]: the layers of a decoder, loaded by name.

use super::config::Family;
use super::names::{BlockNames, Names};
use super::plan::{BlockPlan, Cap, NormPlan, Plan};
use super::rotary::Rotary;
use crate::error::Result;
use crate::functions::{Loops, at_level, sum};
use crate::layers::{Activation, Demand, Dense, Source};
use crate::norm::Norm as LayerNorm;
use crate::packed::Table;

/// A norm over the last axis.
pub(super) enum Norm {
    /// By the root mean square, with factors or without.
    Rms { width: usize, epsilon: f32, gain: Option<Vec<f32>> },
    /// By mean and variance.
    Layer(LayerNorm),
}

impl Norm {
    fn load(source: &Source, names: &Names, path: &str, plan: &Plan) -> Result<Self> {
        Ok(match plan.norm {
            NormPlan::Layer { epsilon } => Self::Layer(source.norm(path, plan.width, epsilon)?),
            NormPlan::Rms { epsilon, gains } => {
                let gain = gains.then(|| source.numbers(&names.gain(path), plan.width)).transpose()?;
                Self::Rms { width: plan.width, epsilon, gain }
            }
        })
    }

    /// The norm of rows.
    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        match self {
            Self::Layer(norm) => norm.apply(x),
            Self::Rms { width, epsilon, gain } => {
                let mut out = x.to_vec();
                at_level(RootMeanSquare { values: &mut out, width: *width, epsilon: *epsilon, gain: gain.as_deref() });
                out
            }
        }
    }
}

/// Rows divided by their root mean square, in place.
pub(super) struct RootMeanSquare<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) width: usize,
    pub(super) epsilon: f32,
    pub(super) gain: Option<&'a [f32]>,
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

/// Attention and a feed-forward network.
pub(super) struct Block {
    pub(super) plan: BlockPlan,
    pub(super) attention_norm: Norm,
    /// Query, key and value, or one layer of all three.
    pub(super) projections: Vec<Dense>,
    pub(super) rotary: Option<usize>,
    pub(super) out: Dense,
    pub(super) feed_norm: Norm,
    pub(super) gate: Option<Dense>,
    pub(super) up: Dense,
    pub(super) down: Dense,
}

impl Block {
    fn load(source: &Source, names: &Names, plan: &Plan, block: &BlockPlan, at: &BlockNames) -> Result<Self> {
        let (seen, held) = (block.heads * block.size, block.kv_heads * block.size);
        let dense = |name: &str, inputs, outputs, biased| {
            source.dense(name, Demand { inputs, outputs, biased, transposed: names.transposed() })
        };
        let widths: &[usize] = if at.projections.len() == 1 { &[seen + 2 * held] } else { &[seen, held, held] };
        let biased = block.attention_biased;
        let parts: Vec<_> = (at.projections.iter().zip(widths))
            .map(|(name, &outputs)| (name.as_str(), Demand::of(plan.width, outputs, biased)))
            .collect();
        let together = if parts.len() > 1 { source.dense_together(&parts)? } else { None };
        let projections = match together {
            Some(all) => vec![all],
            None => parts
                .iter()
                .map(|(name, part)| dense(name, part.inputs, part.outputs, biased))
                .collect::<Result<_>>()?,
        };
        let gate = block.gated.then(|| dense(&at.gate, plan.width, block.inner, block.inner_biased)).transpose()?;
        Ok(Self {
            plan: block.clone(),
            attention_norm: Norm::load(source, names, &at.attention_norm, plan)?,
            projections,
            rotary: None,
            out: dense(&at.out, seen, plan.width, block.attention_biased)?,
            feed_norm: Norm::load(source, names, &at.feed_norm, plan)?,
            gate,
            up: dense(&at.up, plan.width, block.inner, block.inner_biased)?,
            down: dense(&at.down, block.inner, plan.width, block.inner_biased)?,
        })
    }

    /// The activations of the feed-forward network before its last product.
    pub(super) const fn activation(&self) -> Activation {
        self.plan.activation
    }

    fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.projections.iter().chain([&self.out, &self.up, &self.down]).chain(&self.gate)
    }
}

/// All layers.
pub(super) struct Network {
    pub(super) tokens: Table,
    pub(super) positions: Option<Table>,
    pub(super) embedding_norm: Option<Norm>,
    pub(super) blocks: Vec<Block>,
    /// Each that some block turns by.
    pub(super) rotaries: Vec<Rotary>,
    pub(super) final_norm: Norm,
    pub(super) head: Dense,
    /// Logarithms of the noise of negative sampling, which scores are relative to.
    pub(super) log_noise: Option<Vec<f32>>,
}

impl Network {
    /// Loads the layers of a plan.
    pub(super) fn load(source: &Source, family: Family, plan: &Plan) -> Result<Self> {
        let names = Names::new(family, source);
        let mut rotaries: Vec<Rotary> = Vec::new();
        let mut blocks = Vec::new();
        for (number, block) in plan.blocks.iter().enumerate() {
            let mut loaded = Block::load(source, &names, plan, block, &names.block(number))?;
            if let Some(rotary) = block.rotary.map(|rotary| Rotary::new(rotary, block.size)) {
                let known = rotaries.iter().position(|known| *known == rotary);
                loaded.rotary = Some(known.unwrap_or(rotaries.len()));
                if known.is_none() {
                    rotaries.push(rotary);
                }
            }
            blocks.push(loaded);
        }
        let tokens = source.table(&names.tokens(), plan.rows, plan.width)?;
        // Where transformers ties its head, that is a layer still, which may round its inputs or have formats of its own.
        let has_head = source.has(&format!("{}.weight", names.head()));
        let head = match plan.head.tied && !has_head {
            true => Source::dense_of(&tokens, plan.rows, plan.width),
            false => source.dense(names.head(), Demand::of(plan.width, plan.rows, plan.head.biased))?,
        };
        let noise = plan.head.adds_noise.then(|| source.numbers(names.noise(), plan.vocabulary)).transpose()?;
        let positions = plan.positions.filter(|_| plan.has_position_table);
        let network = Self {
            positions: positions.map(|rows| source.table(&names.positions(), rows, plan.width)).transpose()?,
            embedding_norm: plan
                .norms_embedding
                .then(|| Norm::load(source, &names, "embedding_norm", plan))
                .transpose()?,
            final_norm: Norm::load(source, &names, &names.final_norm(), plan)?,
            tokens,
            blocks,
            rotaries,
            head,
            log_noise: noise.map(|noise| noise.into_iter().map(f32::ln).collect()),
        };
        source.check_all_taken(|name| names.is_idle(name))?;
        if let Some(format) = network.layers().find_map(Dense::spans_rows) {
            return Err(crate::error::refuse(format!(
                "inputs rounded to '{format}' share one scale among all positions of a text, so that earlier ones would see \
                 later ones; calibrate it, or give a format with groups, such as int8:g32"
            )));
        }
        Ok(network)
    }

    fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.blocks.iter().flat_map(Block::layers).chain([&self.head])
    }

    /// Bytes of the weights that a step reads: all but the tables that are looked up alone.
    pub(super) fn nbytes(&self) -> usize {
        self.layers().map(Dense::nbytes).sum()
    }
}

/// Bounds scores in place.
pub(super) fn bound(scores: &mut [f32], cap: Cap) {
    at_level(Bounded(scores, cap));
}

struct Bounded<'a>(&'a mut [f32], Cap);

impl Loops for Bounded<'_> {
    #[inline(always)]
    fn run(self) {
        match self.1 {
            Cap::Rational(cap) => self.0.iter_mut().for_each(|z| *z = cap * *z / (*z * *z + cap * cap).sqrt()),
            Cap::Tanh(cap) => {
                self.0.iter_mut().for_each(|z| *z = cap * octavo_core::simd::exp::unfused::tanh(*z / cap))
            }
        }
    }
}
