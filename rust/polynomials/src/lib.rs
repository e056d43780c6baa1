//! octavo-polynomials: the system that ships. Its lines, its alphabet, and kernels for its architecture.
//!
//! [`Generator`] draws lines and [`Factors`] expands one, [`tokenizer`] knows their characters, and [`load`] gives an
//! [`octavo_engine::Engine`] whose greedy answers come from fused kernels in float32, bfloat16 or static int8.

mod error;
mod fused;
mod generator;
mod integer_weights;
#[cfg(test)]
mod tests;

use std::path::Path;

use octavo_core::text::characters::CharTokenizer;
use octavo_engine::{Config, Engine, Expander, Kernels, Options, Weights};

pub use error::{Error, FactorFault, IntegerFault, LeftFault, Result};
pub use generator::{CHARACTERS, Factors, Function, Generator, Kind, LETTERS, LONGEST_LEFT, LONGEST_RIGHT, Linear};
pub use integer_weights::{IntegerLinear, IntegerLstm, IntegerWeights, Norm};

/// The tokenizer of the 28 [`CHARACTERS`] of both sides of a line, without the `=` that separates them.
///
/// # Errors
/// None in practice: the characters are few and no line feed is among them.
pub fn tokenizer() -> octavo_core::Result<CharTokenizer> {
    CharTokenizer::from_characters(CHARACTERS)
}

/// Loads a model folder as [`Engine::load`] does, with the fused kernels of this crate for the architectures they are for.
///
/// # Errors
/// As [`Engine::load`]; [`octavo_core::Error::Container`] also for what is wrong with the file of the variant `integer`.
pub fn load(folder: &Path, options: Options) -> octavo_engine::Result<Engine> {
    Engine::load_with(folder, options, &Fused)
}

/// The kernels of the architecture `hybrid`.
struct Fused;

impl Kernels for Fused {
    fn float(&self, config: &Config, weights: &Weights) -> octavo_engine::Result<Option<Box<dyn Expander>>> {
        fused::float(config, weights)
    }

    fn bfloat16(&self, config: &Config, weights: &Weights) -> octavo_engine::Result<Option<Box<dyn Expander>>> {
        fused::bfloat16(config, weights)
    }

    fn integer(&self, folder: &Path, config: &Config) -> octavo_engine::Result<Option<Box<dyn Expander>>> {
        fused::integer(config, &IntegerWeights::load(folder, config)?)
    }
}
