//! octavo-engine: inference of packed models without Python, on candle and octavo-core.
//!
//! [`Engine::load`] reads the folder of a sequence-to-sequence model, [`Engine::expand`] answers lines,
//! [`Engine::expand_stream`] any number of them. The models are defined in Python (`octavo.lab.polynomials.seq2seq`); the general
//! route runs all of them. A crate above this one may offer [`Kernels`] that are written for one architecture.
//! [`Encoder`] turns texts into vectors, [`Decoder`] continues them.

mod config;
mod decoder;
mod encoder;
mod engine;
mod error;
mod expander;
mod file;
mod general;
mod layers;
mod line;
mod options;
mod packed;
mod schema;
mod sizes;
mod stream;
mod tensors;
#[cfg(test)]
mod tests;
mod weights;

pub use config::{Architecture, Config};
pub use decoder::{Decoder, Generation, Sampling};
pub use encoder::Encoder;
pub use engine::Engine;
pub use error::{Error, ModelFault, Result, refuse};
pub use expander::{Expander, Kernels};
pub use line::LineError;
pub use options::{Options, Precision, Route};
pub use schema::tensors as demanded_tensors;
pub use stream::{Failure, Form, Stream, Summary};
pub use tensors::{Codes, Held, Tensors};
pub use weights::{Weight, Weights};
