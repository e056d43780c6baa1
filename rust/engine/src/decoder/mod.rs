//! [`Decoder`]: language models of the family of GPT, from a model folder to the next token, without Python.
//!
//! Weights stay packed; every linear layer is a product of octavo-core whose results do not depend on the number of rows, so
//! that a token is the same whether its text was computed at once, in blocks, or step by step from the cache.

mod architectures;
mod attention;
mod cache;
mod compacted;
mod config;
mod feed;
mod fields;
mod generation;
mod names;
mod network;
mod norms;
mod plan;
mod rope;
mod rotary;
mod run;
mod sampling;

use std::path::Path;

pub use generation::Generation;
pub use sampling::Sampling;

use crate::error::Result;
use crate::layers::Source;
use network::Network;
use plan::Plan;

/// A loaded decoder. Its methods may be called from several threads at once.
pub struct Decoder {
    plan: Plan,
    network: Network,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Decoder {
    /// Loads a model folder: `config.json` of `octavo.lab.language.gpt`, or of an architecture of transformers that
    /// `architectures` lists, and the weights, packed or plain, in `model.octavo.safetensors` or `model.safetensors`.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where a file cannot be read; [`octavo_core::Error::Container`] naming the file, and in
    /// it the field, layer or tensor, for another architecture, a technique that is not run here, and everything that
    /// `octavo.save_model` and `octavo pack` would not write.
    pub fn load(folder: &Path) -> Result<Self> {
        let architecture = config::load(folder)?;
        let source = Source::open(folder, &[])?;
        let network = Network::load(&source, &architecture)?;
        Ok(Self { plan: architecture.plan, network })
    }

    /// Ids.
    pub const fn vocabulary(&self) -> usize {
        self.plan.vocabulary
    }

    /// Most tokens of a text; none where there is no such bound.
    pub const fn positions(&self) -> Option<usize> {
        self.plan.positions
    }

    /// Bytes of weights that one step reads.
    pub fn nbytes(&self) -> usize {
        self.network.nbytes()
    }

    /// Scores of hidden states, `[rows, vocabulary]`.
    fn scores(&self, hidden: &[f32]) -> Result<Vec<f32>> {
        let mut scores = match &self.network.row_projections {
            Some([_, out]) => self.network.head.apply_rows_independently(&out.apply_rows_independently(hidden)?)?,
            None => self.network.head.apply_rows_independently(hidden)?,
        };
        let divisor = self.plan.head.divisor;
        if divisor != 1.0 {
            scores.iter_mut().for_each(|score| *score /= divisor);
        }
        if let Some(cap) = self.plan.head.cap {
            network::bound(&mut scores, cap);
        }
        let (rows, vocabulary) = (self.plan.rows, self.plan.vocabulary);
        if scores.len() == rows {
            scores.truncate(vocabulary); // one row, as at every step
        }
        if rows != vocabulary && scores.len() != vocabulary {
            scores = scores.chunks_exact(rows).flat_map(|row| &row[..vocabulary]).copied().collect();
        }
        if let Some(log_noise) = &self.network.log_noise {
            for row in scores.chunks_exact_mut(vocabulary) {
                row.iter_mut().zip(log_noise).for_each(|(score, noise)| *score += noise);
            }
        }
        Ok(scores)
    }
}
