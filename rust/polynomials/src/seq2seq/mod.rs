//! The general route: every architecture on candle's tensors, greedy and with a beam.
//!
//! Attention, norms, embeddings and caches are float32; products read the weights as the file packs them ([`linear::Linear`]), those
//! of small models as their kernel wants them ([`Workspace`]).
//!
//! Rows stand one after the other without padding, and every operation treats each row by itself, so an answer depends
//! neither on the other lines of its tile nor on the thread, to the last bit. Parallelism is over tiles.

mod error;
mod hybrid;
mod layers;
pub(crate) mod linear;
mod lstm;
mod ops;
mod search;
mod state;
mod transformer;
pub(crate) mod workspace;

use std::sync::Arc;

use candle_core::Tensor;

use crate::config::{Architecture, Config};
use crate::weights::Weights;
use error::Result;
use layers::Path;
pub(crate) use search::Answer;
use state::{Encoded, Source, State};
use workspace::{BYTES, Workspace};

/// Hypotheses that are computed together.
const TILE: usize = 256;

/// What every architecture offers to the search.
trait Model: Send + Sync {
    /// What the decoder needs of the sources.
    fn encode(&self, source: &Source<'_>) -> Result<Encoded>;

    /// The state before the first token, one hypothesis a source.
    fn begin(&self, encoded: &Encoded) -> State;

    /// Takes in one token a hypothesis and returns the logits `[hypotheses, vocabulary]` of the next.
    fn step(&self, tokens: &[u8], encoded: &Encoded, state: &mut State) -> Result<Tensor>;
}

/// A model of any architecture.
pub(crate) struct General {
    model: Box<dyn Model>,
    max_target: usize,
    workspace: Arc<Workspace>,
}

impl General {
    pub(crate) fn new(config: &Config, weights: &Weights) -> octavo_engine::Result<Self> {
        let workspace = Workspace::new(BYTES);
        let root = Path::root(weights, &workspace);
        let model: Box<dyn Model> = match config.architecture {
            Architecture::Lstm => Box::new(lstm::Recurrent::new(&root)?),
            Architecture::Hybrid => Box::new(hybrid::Hybrid::new(config, &root)?),
            Architecture::Transformer => Box::new(transformer::Transformer::new(config, &root)?),
        };
        Ok(Self { model, max_target: config.max_target, workspace })
    }

    /// Bytes of the weights that products have prepared so far, at most [`BYTES`].
    pub(crate) fn prepared_nbytes(&self) -> usize {
        self.workspace.nbytes()
    }

    /// Rows that are best given to [`General::expand`] at once.
    pub(crate) const fn tile(beam: usize) -> usize {
        if beam >= TILE { 1 } else { TILE / beam }
    }

    /// The answers to rows of at least one id each, with `beam` hypotheses a row.
    pub(crate) fn expand(&self, rows: &[&[u8]], beam: usize) -> octavo_engine::Result<Vec<Answer>> {
        Ok(match beam {
            _ if rows.is_empty() => Vec::new(),
            1 => search::greedy(&*self.model, rows, self.max_target)?,
            _ => search::beam(&*self.model, rows, self.max_target, beam)?,
        })
    }
}
