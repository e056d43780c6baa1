//! The architecture `transformer`: see `octavo.lab.polynomials.seq2seq.transformer`.

use candle_core::Tensor;
use octavo_engine::parts::{Norm, Table, Visible};

use super::Model;
use super::error::Result;
use super::layers::{Cross, FeedForward, Output, Own, Path};
use super::ops::Sum;
use super::state::{Encoded, Memory, Source, State, ids, look_up, norm};
use crate::config::Config;

/// Encoder-decoder with norms before the branches and learned positions.
pub(super) struct Transformer {
    source_embedding: Table,
    target_embedding: Table,
    source_positions: Table,
    target_positions: Table,
    encoder: Vec<(Own, FeedForward)>,
    memory_norm: Norm,
    decoder: Vec<(Own, Cross, FeedForward)>,
    output: Output,
}

impl Transformer {
    /// The decoder's layers come first: it runs once a token.
    pub(super) fn new(config: &Config, root: &Path<'_>) -> Result<Self> {
        let heads = config.heads;
        let encoder = |number: usize| {
            let path = root.at(&format!("encoder.{number}"));
            Ok((Own::new(&path, heads)?, FeedForward::new(&path)?))
        };
        let decoder = |number: usize| {
            let path = root.at(&format!("decoder.{number}"));
            Ok((Own::new(&path, heads)?, Cross::new(&path, heads)?, FeedForward::new(&path)?))
        };
        Ok(Self {
            decoder: (0..config.layers).map(decoder).collect::<Result<_>>()?,
            output: Output::new(root)?,
            source_embedding: root.table("source_embedding.weight")?,
            target_embedding: root.table("target_embedding.weight")?,
            source_positions: root.table("source_positions.weight")?,
            target_positions: root.table("target_positions.weight")?,
            encoder: (0..config.layers).map(encoder).collect::<Result<_>>()?,
            memory_norm: root.at("memory_norm").norm()?,
        })
    }
}

impl Model for Transformer {
    fn encode(&self, source: &Source<'_>) -> Result<Encoded> {
        let places: Vec<i64> = source.rows.iter().flat_map(|row| 0..row.len() as i64).collect();
        let positions = look_up(&self.source_positions, &places)?;
        let tokens = look_up(&self.source_embedding, &ids(&source.rows.concat()))?;
        let mut x = tokens.apply_op2_no_bwd(&positions, &Sum)?;
        let runs = source.positions();
        for (own, feedforward) in &self.encoder {
            x = feedforward.forward(&own.forward(&x, &mut Memory::default(), Visible::Runs(&runs))?)?;
        }
        let normed = norm(&x, &self.memory_norm)?;
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
        let place = state.pasts.first().map_or(0, Vec::len) as i64;
        let positions = look_up(&self.target_positions, &vec![place; tokens.len()])?;
        let mut x = look_up(&self.target_embedding, &ids(tokens))?.apply_op2_no_bwd(&positions, &Sum)?;
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
