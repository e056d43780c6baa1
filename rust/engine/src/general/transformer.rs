//! The architecture `transformer`: see `octavo.models.seq2seq.transformer`.

use candle_core::{Device, Tensor};

use super::Model;
use super::layers::{Cross, FeedForward, Output, Own, Path};
use super::ops::{Norm, Visible};
use super::state::{Encoded, Memory, Source, State, ids};
use crate::config::Config;
use crate::error::Result;
use crate::weights::Weights;

/// Encoder-decoder with norms before the branches and learned positions.
pub(super) struct Transformer {
    source_embedding: Tensor,
    target_embedding: Tensor,
    source_positions: Tensor,
    target_positions: Tensor,
    encoder: Vec<(Own, FeedForward)>,
    memory_norm: Norm,
    decoder: Vec<(Own, Cross, FeedForward)>,
    output: Output,
}

impl Transformer {
    pub(super) fn new(config: &Config, weights: &Weights) -> Result<Self> {
        let (root, heads) = (Path::root(weights), config.heads);
        let encoder = |number: usize| {
            let path = root.at(&format!("encoder.{number}"));
            Ok((Own::new(&path, heads)?, FeedForward::new(&path)?))
        };
        let decoder = |number: usize| {
            let path = root.at(&format!("decoder.{number}"));
            Ok((Own::new(&path, heads)?, Cross::new(&path, heads)?, FeedForward::new(&path)?))
        };
        Ok(Self {
            source_embedding: root.tensor("source_embedding.weight")?,
            target_embedding: root.tensor("target_embedding.weight")?,
            source_positions: root.tensor("source_positions.weight")?,
            target_positions: root.tensor("target_positions.weight")?,
            encoder: (0..config.layers).map(encoder).collect::<Result<_>>()?,
            memory_norm: root.at("memory_norm").norm()?,
            decoder: (0..config.layers).map(decoder).collect::<Result<_>>()?,
            output: Output::new(&root)?,
        })
    }
}

impl Model for Transformer {
    fn encode(&self, source: &Source<'_>) -> Result<Encoded> {
        let tokens = ids(source.rows.iter().flat_map(|row| row.iter().copied()))?;
        let places: Vec<u32> = source.rows.iter().flat_map(|row| 0..row.len() as u32).collect();
        let positions = self.source_positions.index_select(&Tensor::new(places, &Device::Cpu)?, 0)?;
        let mut x = (self.source_embedding.index_select(&tokens, 0)? + positions)?;
        let runs = source.positions();
        for (own, feedforward) in &self.encoder {
            x = feedforward.forward(&own.forward(&x, &mut Memory::default(), Visible::Runs(&runs))?)?;
        }
        let normed = x.apply_op1_no_bwd(&self.memory_norm)?;
        let memories = self.decoder.iter().map(|(_, cross, _)| {
            let mut memory = Memory::default();
            cross.attention.remember(&normed, &mut memory)?;
            Ok(memory)
        });
        Ok(Encoded { runs: source.runs.clone(), memories: memories.collect::<Result<_>>()?, first: None })
    }

    fn begin(&self, encoded: &Encoded) -> State {
        State::new(encoded, self.decoder.len())
    }

    fn step(&self, tokens: &[u8], encoded: &Encoded, state: &mut State) -> Result<Tensor> {
        let position = self.target_positions.get(state.pasts.first().map_or(0, Vec::len))?;
        let mut x = self.target_embedding.index_select(&ids(tokens.iter().copied())?, 0)?.broadcast_add(&position)?;
        state.advance();
        for (((own, cross, feedforward), cache), memory) in
            self.decoder.iter().zip(&mut state.caches).zip(&encoded.memories)
        {
            x = own.forward(&x, cache, Visible::Lists(&state.pasts))?;
            x = feedforward.forward(&cross.forward(&x, memory, Visible::Runs(&state.runs))?)?;
        }
        self.output.forward(&x)
    }
}
