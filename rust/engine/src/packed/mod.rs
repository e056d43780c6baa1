//! Weights as they lie in a file, and what is computed with them: products and rows that ids look up.
//!
//! Packed weights stay packed; plain ones are float32. The products of packed weights are those of octavo-core.

mod linear;
mod matrix;
mod table;

pub(crate) use linear::{Linear, Weight};
pub(crate) use matrix::Matrix;
pub(crate) use table::Table;
