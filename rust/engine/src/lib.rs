//! octavo-engine: inference of packed models without Python.
//!
//! [`Encoder`] turns texts into vectors, [`Decoder`] continues them: both load a model folder as `octavo.save_model` writes
//! it. [`Tensors`] reads the weights of any folder, and [`parts`] has what networks of other crates are built of. The
//! feature `candle` adds packed weights as modules of candle: module `candle`.

mod attention;
#[cfg(feature = "candle")]
pub mod candle;
mod decoder;
mod encoder;
mod error;
mod file;
mod functions;
mod layers;
mod norm;
mod packed;
mod sizes;
mod tensors;
#[cfg(test)]
mod tests;

pub use decoder::{Decoder, Generation, Sampling};
pub use encoder::Encoder;
pub use error::{Error, ModelFault, Result, in_file, refuse};
pub use tensors::{Codes, StoredTensor, Tensors};

/// What networks of other crates are built of.
pub mod parts {
    pub use crate::attention::{Attend, Visible};
    pub use crate::functions::{Loops, at_level, dot, softmax, sum};
    pub use crate::norm::Norm;
    pub use crate::packed::{Matrix, Table, Weight};
}

/// The small files of a model folder, for crates that read a configuration of their own.
pub mod model_folder {
    pub use crate::file::{CONFIG, read, shown};
    pub use crate::sizes::whole;
}
