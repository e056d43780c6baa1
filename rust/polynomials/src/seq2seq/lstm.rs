//! The architecture `lstm`: see `octavo.lab.polynomials.seq2seq.lstm`.

use candle_core::Tensor;
use octavo_engine::parts::{Table, Visible};

use super::Model;
use super::error::{Error, Result};
use super::layers::{BidirectionalLstm, Lstm, Path, bridge};
use super::linear::Linear;
use super::state::{Encoded, Memory, Source, State, ids, linear, look_up};

/// Bidirectional LSTM encoder; LSTM decoder with additive attention.
pub(super) struct Recurrent {
    target_embedding: Table,
    encoder: BidirectionalLstm,
    bridge: Linear,
    attention_query: Linear,
    attention_key: Linear,
    attention_score: Vec<f32>,
    decoder: Lstm,
    output: Linear,
}

impl Recurrent {
    /// The decoder's layers come first: it runs once a token.
    pub(super) fn new(root: &Path<'_>) -> Result<Self> {
        Ok(Self {
            attention_query: root.at("attention_query").linear_without_bias()?,
            decoder: Lstm::new(&root.at("decoder"))?,
            output: root.at("output").linear()?,
            target_embedding: root.table("target_embedding.weight")?,
            encoder: BidirectionalLstm::new(&root.at("encoder"), || root.table("source_embedding.weight"))?,
            bridge: root.at("bridge").linear()?,
            attention_key: root.at("attention_key").linear()?,
            attention_score: root.at("attention_score").vector()?,
        })
    }
}

impl Model for Recurrent {
    fn encode(&self, source: &Source<'_>) -> Result<Encoded> {
        let (states, ends) = self.encoder.forward(source)?;
        let mut memory = Memory::default();
        memory.push(&linear(&states, &self.attention_key)?, &states)?;
        Ok(Encoded { runs: source.runs.clone(), memories: vec![memory], first: Some(bridge(&self.bridge, &ends)?) })
    }

    fn begin(&self, encoded: &Encoded) -> State {
        State::new(encoded, 0)
    }

    fn step(&self, tokens: &[u8], encoded: &Encoded, state: &mut State) -> Result<Tensor> {
        let (Some((hidden, cell)), [memory]) = (&state.recurrent, &encoded.memories[..]) else {
            return Err(Error::defect("a decoder without a state"));
        };
        let query = linear(hidden, &self.attention_query)?;
        let visible = Visible::Runs(&state.runs);
        let context = memory.additive(&query, &self.attention_score, self.attention_key.inputs(), visible)?;
        let token = look_up(&self.target_embedding, &ids(tokens))?;
        let (hidden, cell) = self.decoder.step(&Tensor::cat(&[&token, &context], 1)?, hidden, cell)?;
        let logits = linear(&Tensor::cat(&[&hidden, &context], 1)?, &self.output)?;
        state.recurrent = Some((hidden, cell));
        Ok(logits)
    }
}
