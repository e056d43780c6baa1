//! Products whose rows do not depend on how many rows there are, with weights that stay prepared as the kernel reads them.

use std::fmt::Debug;

use super::output::Inputs;
use super::problem::{Batch, Input, MANY_ROWS, Problem, Storage};
use super::table::{self, Run};
use super::{Matrix, check_sizes, f32_prepared, float};
use crate::codec::rows::Rows;
use crate::codec::{DType, Values, ValuesMut};
use crate::error::Result;
use crate::float_state::FloatState;
use crate::simd::{LANES, Level, Processor};

/// The weights of a matrix as a kernel for many rows makes them of the codes at every call: limbs of bfloat16 where it runs on
/// AMX, otherwise float32. [`multiply_batch_invariant`] takes them.
#[derive(Debug)]
pub struct Prepared {
    weights: Box<dyn PreparedWeights>,
    /// Where these weights are those of the kernel in use.
    level: Level,
    rows: usize,
    columns: usize,
}

/// Weights as a kernel reads them.
pub(super) trait PreparedWeights: Debug + Send + Sync {
    /// Bytes that they take.
    fn nbytes(&self) -> usize;

    /// Writes the products of rows of inputs, filled with zeros to whole vectors, plus the bias if there is one, to `out`; false,
    /// with nothing of use written, where the kernel of the codes has to.
    ///
    /// # Errors
    /// Where memory is short.
    fn multiply(&self, level: Level, x: &Inputs<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<bool>;
}

/// Prepared weights of any kernel; none that it refuses.
pub(super) type AnyWeights = Option<Box<dyn PreparedWeights>>;

/// How a kernel prepares weights.
#[derive(Clone, Copy)]
pub(super) struct Preparation {
    /// Bytes that the prepared weights take.
    pub(super) bytes: fn(&Problem, &Rows<'_>) -> usize,
    /// Prepares weights.
    pub(super) prepare: fn(&Problem, &Rows<'_>) -> Result<AnyWeights>,
}

/// The choice of a kernel with prepared weights.
fn problem(w: &Matrix<'_>) -> Problem {
    let problem = Problem::new(w.format, Input::Plain(DType::F32), MANY_ROWS, w.rows, w.columns);
    Problem { storage: Storage::Prepared, batch: Batch::Invariant, ..problem }
}

impl Prepared {
    /// Bytes that the prepared weights of a matrix take at the SIMD level in use.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where a length does not fit.
    pub fn bytes(w: &Matrix<'_>) -> Result<usize> {
        let problem = problem(w);
        let rows = Rows::new(w.packed, w.rows, w.columns, w.format, problem.processor.level())?;
        // Where no kernel takes them, what the float32 one would.
        let preparation = table::choose(&problem, Run::preparation).map_or(f32_prepared::PREPARATION, |(_, how)| how);
        Ok((preparation.bytes)(&problem, &rows))
    }

    /// Prepares the weights of a matrix for the SIMD level in use; `None` where no kernel takes them prepared: at the level
    /// `scalar`, for magnitudes that AMX refuses, and for a matrix without weights.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where a length does not fit, [`crate::Error::OutOfMemory`] where memory is short.
    pub fn new(w: &Matrix<'_>) -> Result<Option<Self>> {
        let _state = FloatState::standard();
        let problem = problem(w);
        let (rows, columns, level) = (w.rows, w.columns, problem.processor.level());
        let of_weights = Rows::new(w.packed, rows, columns, w.format, level)?;
        let weights = match table::choose(&problem, Run::preparation) {
            Some((_, preparation)) if rows > 0 && columns > 0 => (preparation.prepare)(&problem, &of_weights)?,
            _ => None,
        };
        Ok(weights.map(|weights| Self { weights, level, rows, columns }))
    }

    /// Bytes that the weights take here.
    pub fn nbytes(&self) -> usize {
        self.weights.nbytes()
    }
}

/// As [`super::multiply`] for many rows, however many there are, but by kernels whose results are bit-identical with prepared
/// weights: a row's result depends on that row, the weights and the SIMD level alone.
///
/// With `prepared` weights, which must be those of `w`, the call works on its own thread and decodes nothing. The results
/// are the same to the bit.
///
/// # Errors
/// As for [`super::multiply`].
pub fn multiply_batch_invariant(
    x: &[f32],
    m: usize,
    w: &Matrix<'_>,
    prepared: Option<&Prepared>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let level = Processor::current().level();
    let fits = |prepared: &&Prepared| (prepared.rows, prepared.columns, prepared.level) == (w.rows, w.columns, level);
    if let Some(prepared) = prepared.filter(fits)
        && bias.is_none_or(|bias| bias.len() == w.rows)
    {
        let _state = FloatState::standard();
        check_sizes(m, w, x.len(), out.len())?;
        let x = Inputs::new(Values::F32(x), m, w.columns, LANES, level)?;
        if prepared.weights.multiply(level, &x, bias, out)? {
            return Ok(());
        }
    }
    let bias = bias.map(Values::F32);
    float::multiply_for(Values::F32(x), m, w, bias, ValuesMut::F32(out), Batch::Invariant)
}
