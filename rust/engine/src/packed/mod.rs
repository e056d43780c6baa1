//! Weights as they lie in a file, and what is computed with them: products and rows that ids look up.
//!
//! Packed weights stay packed; plain ones are float32. The products of packed weights are those of octavo-core, which takes
//! prepared weights where a [`Workspace`] has room for them.

mod linear;
mod matrix;
mod table;
mod workspace;

pub(crate) use linear::{Linear, Weight};
pub(crate) use matrix::Matrix;
pub(crate) use table::Table;
pub(crate) use workspace::{BYTES as WORKSPACE_BYTES, Workspace};
