//! Products with packed weights, and gathers of packed rows.
//!
//! [`multiply`] is `y = x W^T + bias` for any format of W. Results of [`multiply_batch_invariant`] do not depend on the number of
//! rows, and it takes weights that are [`Prepared`]; [`multiply_rows_independently`] gives those of each row alone.
//! [`multiply_rounded`] rounds inputs to a format of their own. [`multiply_sparse`] reads sparse codes. [`multiply_integer`]
//! computes in integers, where inputs and weights are scaled integers. [`gather`] decodes rows by id.
//!
//! A product is a [`Problem`]; the first kernel of `table.rs` that takes it multiplies, and [`kernel`] names it. Kernels read W
//! in its packed form, a panel of rows at a time.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(test)]
mod encoded_sample;
mod f32_fma;
mod f32_prepared;
#[cfg(target_arch = "x86_64")]
mod fallback;
mod float;
mod gather;
mod int8_lanes;
mod integer;
#[cfg(test)]
mod law;
mod limbs;
mod output;
mod prepared;
mod problem;
mod ran;
mod reference;
mod rounded;
mod signed_codes;
mod sparse;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use float::{multiply, multiply_rows_independently};
pub use gather::gather;
pub use integer::{Bias, multiply_integer};
pub use prepared::{Prepared, multiply_batch_invariant};
pub use problem::{Batch, Input, Problem, Storage};
pub use rounded::{multiply_rounded, multiply_rounded_rows_independently};
pub use sparse::{SparseMatrix, multiply_sparse};
pub use table::{Kernel, kernel, kernels};

use crate::codec::Packed;
use crate::error::{Result, ShapeError};
use crate::format::Format;

/// A packed matrix, encoded along its rows.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Format of the weights.
    pub format: Format,
    /// Codes, scales, zeros, levels.
    pub packed: Packed<'a>,
    /// Rows: output features, or ids of an embedding.
    pub rows: usize,
    /// Columns: input features, or the width of an embedding.
    pub columns: usize,
}

/// Checks the number of inputs and outputs of a product.
fn check_sizes(m: usize, w: &Matrix<'_>, x: usize, out: usize) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    if m.checked_mul(k) != Some(x) || m.checked_mul(n) != Some(out) {
        return Err(ShapeError::Product { m, n, k, inputs: x, outputs: out }.into());
    }
    Ok(())
}
