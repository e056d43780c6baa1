//! octavo-polynomials: the system that ships. Its lines, its alphabet, sequence-to-sequence models, and kernels for its
//! architecture.
//!
//! [`Generator`] draws lines and [`Factors`] expands one; [`tokenizer`] knows their characters. [`Engine::load`] reads the
//! folder of a sequence-to-sequence model, [`Engine::expand`] answers lines, [`Engine::expand_stream`] any number of them. The
//! models are defined in Python; the general route runs all of them on candle's tensors, and fused kernels in float32,
//! bfloat16 or static int8 give the greedy answers of the shipped architecture.

mod config;
mod engine;
mod error;
mod expander;
mod fused;
mod generator;
mod integer_weights;
mod line;
mod options;
mod schema;
mod seq2seq;
mod stream;
#[cfg(test)]
mod tests;
mod weights;

use octavo_core::text::characters::CharTokenizer;

pub use config::{Architecture, Config};
pub use engine::Engine;
pub use error::{Error, FactorFault, IntegerFault, LeftFault, Result};
pub use generator::{CHARACTERS, Factors, Function, Generator, Kind, LETTERS, LONGEST_LEFT, LONGEST_RIGHT, Linear};
pub use integer_weights::{IntegerLinear, IntegerLstm, IntegerWeights, Norm};
pub use line::LineError;
pub use options::{Options, Precision, Route};
pub use stream::{Failure, Form, Stream, Summary};

/// The tokenizer of the 28 [`CHARACTERS`] of both sides of a line, without the `=` that separates them.
///
/// # Errors
/// None in practice: the characters are few and no line feed is among them.
pub fn tokenizer() -> octavo_core::Result<CharTokenizer> {
    CharTokenizer::from_characters(CHARACTERS)
}
