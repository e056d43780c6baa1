//! [`Problem`]: everything that the choice of a kernel depends on.

use super::limbs::narrowest_dtype;
use crate::codec::DType;
use crate::format::Format;
use crate::simd::Processor;

/// Rows of inputs from which on one kernel multiplies, whatever their number.
pub(super) const MANY_ROWS: usize = 5;

/// A product whose kernel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Format of the weights.
    pub weight: Format,
    /// How the weights are stored.
    pub storage: Storage,
    /// What the inputs are.
    pub input: Input,
    /// Rows of inputs.
    pub rows: usize,
    /// Columns of outputs: rows of weights.
    pub columns: usize,
    /// Columns of weights and of inputs: products that an output is the sum of.
    pub depth: usize,
    /// Whether results may depend on the number of rows.
    pub batch: Batch,
    /// What the processor has.
    pub processor: Processor,
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Codes of all elements.
    Dense,
    /// Codes that are not 0, with a bitmap.
    Sparse,
    /// As a kernel reads them: [`super::Prepared`].
    Prepared,
}

/// What the inputs of a product are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Numbers of a dtype.
    Plain(DType),
    /// Numbers rounded to a format.
    Rounded(Format),
    /// Codes of a format, multiplied with the codes of weights as integers.
    Integer(Format),
}

/// Whether results may depend on the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// They may: the fastest kernel for so many rows.
    Any,
    /// They may not, and are those of prepared weights.
    Invariant,
    /// They may not, and are those of a row alone.
    Independent,
}

impl Problem {
    /// A product with dense weights on the processor in use, whose results may depend on the number of rows.
    pub fn new(weight: Format, input: Input, rows: usize, columns: usize, depth: usize) -> Self {
        let (storage, batch, processor) = (Storage::Dense, Batch::Any, Processor::current());
        Self { weight, storage, input, rows, columns, depth, batch, processor }
    }

    /// Weights of the matrix.
    pub(super) const fn weights(&self) -> usize {
        self.columns.saturating_mul(self.depth)
    }

    /// Multiplications of a weight and an input.
    pub(super) const fn work(&self) -> usize {
        self.rows.saturating_mul(self.weights())
    }

    /// The number of rows by which a kernel is chosen.
    pub(super) const fn batch_rows(&self) -> usize {
        match self.batch {
            Batch::Any => self.rows,
            Batch::Invariant if self.rows < MANY_ROWS => MANY_ROWS,
            Batch::Invariant => self.rows,
            Batch::Independent => 1,
        }
    }

    /// A dtype that holds all inputs.
    pub(super) fn dtype(&self) -> DType {
        match self.input {
            Input::Plain(dtype) => dtype,
            Input::Rounded(format) | Input::Integer(format) => narrowest_dtype(format),
        }
    }
}
