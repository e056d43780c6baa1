//! Products with sparse codes, for few rows of inputs.

use super::output::{Biased, Inputs, Outputs, widened_bias};
use super::problem::{Input, Problem, Storage};
use super::table::{self, Run};
use crate::codec::rows::Rows;
use crate::codec::{Packed, Values, ValuesMut};
use crate::error::{FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::Format;
use crate::simd::LANES;
use crate::sparse::{self, Shape, Sparse};

/// A packed matrix with sparse codes, encoded along its rows.
#[derive(Clone, Copy, Debug)]
pub struct SparseMatrix<'a> {
    /// Format of the weights.
    pub format: Format,
    /// Codes that are not 0.
    pub sparse: Sparse<'a>,
    /// Scales and levels; codes and zeros are empty.
    pub packed: Packed<'a>,
    /// Rows: output features. Columns: input features.
    pub shape: Shape,
}

/// Multiplies as [`super::multiply`] does, where there is a kernel (of [`super::kernel`], with [`Storage::Sparse`]): within the
/// same bound, with sums in an order of its own. A row's result depends on that row and the weights alone.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit, or codes and bitmap do not, [`crate::Error::Format`] where there is
/// no kernel, [`crate::Error::OutOfMemory`] where memory is short.
pub fn multiply_sparse(
    x: Values<'_>,
    m: usize,
    w: &SparseMatrix<'_>,
    bias: Option<Values<'_>>,
    mut out: ValuesMut<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    let (n, k) = (w.shape.rows, w.shape.columns);
    let problem = Problem::new(w.format, Input::Plain(x.src().dtype), m, n, k);
    let problem = Problem { storage: Storage::Sparse, ..problem };
    let level = problem.processor.level();
    if m.checked_mul(k) != Some(x.len()) || m.checked_mul(n) != Some(out.len()) {
        return Err(ShapeError::Product { m, n, k, inputs: x.len(), outputs: out.len() }.into());
    }
    sparse::check(&w.sparse, w.format.width(), w.shape)?;
    let rows = Rows::without_codes(w.packed, n, k, w.format, level)?;
    let bias = widened_bias(bias, n, level)?;
    let Some((_, run)) = table::choose(&problem, Run::sparse) else {
        return Err(FormatError::SparseProduct { format: w.format, rows: m }.into());
    };
    let x = Inputs::new(x, m, k, LANES, level)?;
    run(&SparseProduct { problem, w, rows, x, out: Biased::new(Outputs::new(&mut out, n, level), &bias) })
}

/// A product with sparse codes, as kernels take it.
pub(super) struct SparseProduct<'a> {
    pub(super) problem: Problem,
    pub(super) w: &'a SparseMatrix<'a>,
    /// Rows of weights, without codes.
    pub(super) rows: Rows<'a>,
    /// Rows of inputs, filled with zeros to whole vectors.
    pub(super) x: Inputs<'a>,
    pub(super) out: Biased<'a>,
}
