//! [`Network`]: the layers of a decoder, loaded by name.

use super::architectures::Architecture;
use super::attention::slopes;
use super::feed::Feed;
use super::names::Names;
use super::norms::{HeadNorms, Norm};
use super::plan::{BlockPlan, Cap, Norms, Plan};
use super::rotary::Rotary;
use crate::error::Result;
use crate::functions::{Loops, at_level};
use crate::layers::{Demand, Dense, Source};
use crate::packed::Table;

/// Attention and a feed-forward network.
pub(super) struct Block {
    pub(super) plan: BlockPlan,
    /// Norms of what attention reads, and of what it gives.
    pub(super) attention_norms: [Option<Norm>; 2],
    /// Query, key and value, or one layer of all three.
    pub(super) projections: Vec<Dense>,
    pub(super) head_norms: HeadNorms,
    pub(super) rotary: Option<usize>,
    pub(super) out: Dense,
    /// Norms of what the feed-forward network reads, and of what it gives.
    pub(super) feed_norms: [Option<Norm>; 2],
    pub(super) feed: Feed,
    /// By head, where scores grow with positions.
    pub(super) slopes: Vec<f32>,
    /// By head, where they have a score for seeing nothing.
    pub(super) sinks: Vec<f32>,
}

impl Block {
    fn load(source: &Source, names: &Names, plan: &Plan, block: &BlockPlan, number: usize) -> Result<Self> {
        let at = |name: &str| names.of_block(number, name);
        let (seen, keyed) = (block.heads * block.size, block.kv_heads * block.size);
        let widths: &[usize] = if names.projections.len() == 1 { &[seen + 2 * keyed] } else { &[seen, keyed, keyed] };
        let demand = |inputs, outputs, biased| Demand { inputs, outputs, biased, transposed: names.transposed };
        let paths: Vec<String> = names.projections.iter().map(|name| at(name)).collect();
        let parts: Vec<_> = (paths.iter().zip(widths))
            .map(|(path, &outputs)| (path.as_str(), demand(plan.width, outputs, block.projections_biased)))
            .collect();
        let together = if parts.len() > 1 { source.dense_together(&parts)? } else { None };
        let projections = match together {
            Some(all) => vec![all],
            None => parts.iter().map(|&(path, part)| source.dense(path, part)).collect::<Result<_>>()?,
        };
        let norm =
            |name: &str, is_there: bool| is_there.then(|| Norm::load(source, names, &at(name), plan)).transpose();
        let (reads, gives) = match block.norms {
            Norms::Before | Norms::ParallelApart => ([true; 2], false),
            Norms::After | Norms::Sum => ([false; 2], true),
            Norms::Around => ([true; 2], true),
            Norms::ParallelShared => ([true, false], false),
        };
        let [reads_attention, gives_attention] = names.attention_norms;
        let [reads_feed, gives_feed] = names.feed_norms;
        Ok(Self {
            plan: block.clone(),
            attention_norms: [norm(reads_attention, reads[0])?, norm(gives_attention, gives)?],
            projections,
            head_norms: HeadNorms::load(source, names, number, block)?,
            rotary: None,
            out: source.dense(&at(names.out), demand(seen, plan.width, block.out_biased))?,
            feed_norms: [norm(reads_feed, reads[1])?, norm(gives_feed, gives)?],
            feed: Feed::load(source, names, number, &block.feed, plan.width)?,
            sinks: if block.has_sinks { source.numbers(&at(names.sinks), block.heads)? } else { Vec::new() },
            slopes: if block.is_sloped { slopes(block.heads) } else { Vec::new() },
        })
    }

    fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.projections.iter().chain([&self.out]).chain(self.feed.layers())
    }

    fn nbytes(&self) -> usize {
        self.projections.iter().chain([&self.out]).map(Dense::nbytes).sum::<usize>() + self.feed.nbytes()
    }
}

/// All layers.
pub(super) struct Network {
    pub(super) tokens: Table,
    /// Between rows of it and the network: into it, and out of it.
    pub(super) row_projections: Option<[Dense; 2]>,
    pub(super) positions: Option<Table>,
    pub(super) embedding_norm: Option<Norm>,
    pub(super) blocks: Vec<Block>,
    /// Each that some block turns by.
    pub(super) rotaries: Vec<Rotary>,
    pub(super) final_norm: Option<Norm>,
    pub(super) head: Dense,
    /// Logarithms of the noise of negative sampling, which scores are relative to.
    pub(super) log_noise: Option<Vec<f32>>,
}

impl Network {
    /// Loads the layers of an architecture.
    pub(super) fn load(source: &Source, architecture: &Architecture) -> Result<Self> {
        let (plan, names) = (&architecture.plan, architecture.names.in_file(source));
        let mut rotaries: Vec<Rotary> = Vec::new();
        let mut blocks = Vec::new();
        for (number, block) in plan.blocks.iter().enumerate() {
            let mut loaded = Block::load(source, &names, plan, block, number)?;
            if let Some(rotary) = block.rotary.as_ref().map(Rotary::new) {
                let known = rotaries.iter().position(|known| *known == rotary);
                loaded.rotary = Some(known.unwrap_or(rotaries.len()));
                if known.is_none() {
                    rotaries.push(rotary);
                }
            }
            blocks.push(loaded);
        }
        let tokens = source.table(&names.part(names.tokens), plan.rows, plan.row_width)?;
        let [into, out] = names.row_projections;
        let project = |name, sizes: [usize; 2]| source.dense(&names.part(name), Demand::of(sizes[0], sizes[1], false));
        let row_projections = if plan.row_width == plan.width {
            None
        } else {
            Some([project(into, [plan.row_width, plan.width])?, project(out, [plan.width, plan.row_width])?])
        };
        // Where transformers ties its head, that is a layer still, which may round its inputs or have formats of its own.
        let [head, _] = names.heads;
        let head = names.heads.into_iter().find(|name| source.has(&format!("{name}.weight"))).unwrap_or(head);
        let has_head = source.has(&format!("{head}.weight"));
        let head = match plan.head.tied && !has_head {
            true => Source::dense_of(&tokens, plan.rows, plan.row_width),
            false => source.dense(head, Demand::of(plan.row_width, plan.rows, plan.head.biased))?,
        };
        let noise = plan.head.adds_noise.then(|| source.numbers(Names::NOISE, plan.vocabulary)).transpose()?;
        let positions = plan.positions.zip(plan.position_rows_before).map(|(rows, before)| rows + before);
        let path = names.part(names.positions);
        let network = Self {
            positions: positions.map(|rows| source.table(&path, rows, plan.width)).transpose()?,
            embedding_norm: plan
                .norms_embedding
                .then(|| Norm::load(source, &names, "embedding_norm", plan))
                .transpose()?,
            final_norm: plan
                .norms_last
                .then(|| Norm::load(source, &names, &names.part(names.final_norm), plan))
                .transpose()?,
            tokens,
            row_projections,
            blocks,
            rotaries,
            head,
            log_noise: noise.map(|noise| noise.into_iter().map(f32::ln).collect()),
        };
        source.check_all_taken(names.is_idle)?;
        if let Some(format) = network.layers().find_map(Dense::spans_rows) {
            return Err(crate::error::refuse(format!(
                "inputs rounded to '{format}' share one scale among all positions of a text, so that earlier ones would see \
                 later ones; calibrate it, or give a format with groups, such as int8:g32"
            )));
        }
        Ok(network)
    }

    fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.blocks.iter().flat_map(Block::layers).chain(self.row_projections.iter().flatten()).chain([&self.head])
    }

    /// Bytes of the weights that a step reads: all but the tables that are looked up alone.
    pub(super) fn nbytes(&self) -> usize {
        let projections = self.row_projections.iter().flatten().map(Dense::nbytes).sum::<usize>();
        self.blocks.iter().map(Block::nbytes).sum::<usize>() + projections + self.head.nbytes()
    }

    /// Most positions of a text whose angles are the first ones, where longer texts have others.
    pub(super) fn switch(&self) -> Option<usize> {
        self.rotaries.iter().find_map(Rotary::switch)
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
