//! Weights as they lie in a file, and what is computed with them: products and rows that ids look up.
//!
//! Packed weights stay packed; plain ones are float32. The products of packed weights are those of octavo-core.

mod matrix;
mod table;

use std::sync::Arc;

pub use matrix::Matrix;
pub use table::Table;

use crate::tensors::StoredTensor;

/// What a layer multiplies with.
pub enum Weight {
    /// `[outputs, inputs]`, in the codes of the file.
    Packed(Arc<StoredTensor>),
    /// Plain numbers, the bias among them.
    Plain(Matrix),
}
