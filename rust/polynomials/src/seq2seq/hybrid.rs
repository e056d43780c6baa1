//! The architecture `hybrid`: see `octavo.lab.polynomials.seq2seq.hybrid`.

use candle_core::Tensor;
use octavo_engine::parts::{Norm, Visible};

use super::Model;
use super::error::{Error, Result};
use super::layers::{BidirectionalLstm, Cross, FeedForward, Output, Own, Path, TokenLstm, bridge};
use super::linear::Linear;
use super::state::{Encoded, Memory, Source, State, norm};
use crate::config::Config;

/// Bidirectional LSTM encoder; decoder of LSTM cell, self-attention and blocks of cross-attention and feed-forward.
pub(super) struct Hybrid {
    encoder: BidirectionalLstm,
    memory_norm: Norm,
    bridge: Linear,
    decoder: TokenLstm,
    own: Own,
    blocks: Vec<(Cross, FeedForward)>,
    output: Output,
}

impl Hybrid {
    /// The decoder's layers come first: it runs once a token.
    pub(super) fn new(config: &Config, root: &Path<'_>) -> Result<Self> {
        let block = |number: usize| {
            let path = root.at(&format!("blocks.{number}"));
            Ok((Cross::new(&path, config.heads)?, FeedForward::new(&path)?))
        };
        Ok(Self {
            decoder: TokenLstm::new(&root.at("decoder"), root.table("target_embedding.weight")?)?,
            own: Own::new(root, config.heads)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            output: Output::new(root)?,
            encoder: BidirectionalLstm::new(&root.at("encoder"), || root.table("source_embedding.weight"))?,
            memory_norm: root.at("memory_norm").norm()?,
            bridge: root.at("bridge").linear()?,
        })
    }
}

impl Model for Hybrid {
    fn encode(&self, source: &Source<'_>) -> Result<Encoded> {
        let (states, ends) = self.encoder.forward(source)?;
        let normed = norm(&states, &self.memory_norm)?;
        let memories = self.blocks.iter().map(|(cross, _)| {
            let mut memory = Memory::default();
            cross.attention.remember(&normed, &mut memory)?;
            Ok(memory)
        });
        let memories = memories.collect::<Result<_>>()?;
        Ok(Encoded { runs: source.runs.clone(), memories, first: Some(bridge(&self.bridge, &ends)?) })
    }

    fn begin(&self, encoded: &Encoded) -> State {
        State::new(encoded, 1)
    }

    fn step(&self, tokens: &[u8], encoded: &Encoded, state: &mut State) -> Result<Tensor> {
        let before = state.recurrent.as_ref();
        let (hidden, cell) = before.ok_or_else(|| Error::defect("a decoder without a state"))?;
        let after = self.decoder.step(tokens, hidden, cell)?;
        let mut x = after.0.clone();
        state.recurrent = Some(after);
        state.advance();
        for cache in &mut state.caches {
            x = self.own.forward(&x, cache, Visible::Lists(&state.pasts))?;
        }
        for ((cross, feedforward), memory) in self.blocks.iter().zip(&encoded.memories) {
            x = feedforward.forward(&cross.forward(&x, memory, Visible::Runs(&state.runs))?)?;
        }
        self.output.forward(&x)
    }
}
