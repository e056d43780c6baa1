//! octavo-engine: runs exported sequence-to-sequence models without Python, on candle and octavo-core.
//!
//! [`Engine::load`] reads a model folder, [`Engine::expand`] answers lines, [`Engine::expand_stream`] any number of them.
//! The models are defined in Python (`octavo.models.seq2seq`); the general route runs all of them, the fused route the
//! shipped architecture, much faster.

mod config;
mod decoder;
mod encoder;
mod engine;
mod error;
mod file;
mod fused;
mod general;
mod integer_weights;
mod line;
mod options;
mod schema;
mod stream;
mod tensors;
#[cfg(test)]
mod tests;
mod weights;

pub use config::{Architecture, Config};
pub use decoder::Expander;
pub use encoder::Encoder;
pub use engine::Engine;
pub use error::{Error, Result};
pub use integer_weights::{IntegerLinear, IntegerLstm, IntegerWeights, Norm};
pub use line::LineError;
pub use options::{Options, Precision, Route};
pub use stream::{Failure, Form, Stream, Summary};
pub use weights::{Weight, Weights};
