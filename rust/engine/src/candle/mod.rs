//! Packed weights as modules of candle (feature `candle`).
//!
//! [`PackedVarBuilder`] opens a model folder and gives layers by the names of their weights, as candle's own does;
//! [`PackedLinear`] and [`PackedEmbedding`] are modules that stand where candle's would. The weights stay packed: a product reads
//! their codes. What a layer computes is what [`crate::Decoder`] computes with it, to the last bit, roundings of inputs and
//! outputs included; `examples/candle_llama.rs` builds a Llama of them.

mod builder;
mod embedding;
mod linear;

pub use builder::PackedVarBuilder;
pub use embedding::PackedEmbedding;
pub use linear::PackedLinear;

use crate::error::Error;

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        Self::wrap(error)
    }
}
