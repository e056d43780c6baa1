//! `y = x W^T + bias` in float32, for weights of any format.

use super::output::{Biased, Inputs, Outputs, widened_bias};
use super::problem::{Batch, Input, Problem};
use super::rounded::RoundedInputs;
use super::table::{self, Run};
use super::{Matrix, check_sizes, f32_fma};
use crate::codec::rows::Rows;
use crate::codec::{Values, ValuesMut};
use crate::error::Result;
use crate::float_state::FloatState;
use crate::simd::LANES;

/// Most rows of inputs per pass over the weights: a multiple of the rows that any kernel takes at a time.
const MAX_CHUNK_ROWS: usize = 4096;
/// The same, at least, however many columns there are.
const MIN_CHUNK_ROWS: usize = 64;
/// Bytes of inputs, widened and arranged for a kernel, that are in memory at once, about.
const CHUNK_BYTES: usize = 256 << 20;
/// Bytes that a column of a row of inputs takes there, at most: float32, and four limbs of 8 bits as planes and as tiles.
const BYTES_PER_INPUT: usize = 12;

/// Multiplies `m` rows of inputs with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Weights are the decoded ones, sums are float32, and the result is
/// rounded once to the dtype of `out`. A row's result depends on that row and its dtype, the weights, the number of rows and
/// the SIMD level alone: neither on the other rows, nor on the number of threads, nor on alignment. Small products have one
/// order of summation at every SIMD level. Large ones ([`super::kernel`] tells) have others on AVX-512: in fixed point, for
/// one row and of some formats for up to four, and in tiles (of bfloat16, and with AMX of int8), for more than four: within
/// the bound of FORMATS.md section 6, with other last bits.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit, [`crate::Error::OutOfMemory`] where memory is short.
pub fn multiply(x: Values<'_>, m: usize, w: &Matrix<'_>, bias: Option<Values<'_>>, out: ValuesMut<'_>) -> Result<()> {
    multiply_for(x, m, w, bias, out, Batch::Any)
}

/// As [`multiply`] of each row by itself: a row's result depends on that row, the weights and the SIMD level alone, however
/// many rows there are. Weights are read once for several rows.
///
/// # Errors
/// As for [`multiply`].
pub fn multiply_rows_independently(
    x: &[f32],
    m: usize,
    w: &Matrix<'_>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    multiply_for(Values::F32(x), m, w, bias.map(Values::F32), ValuesMut::F32(out), Batch::Independent)
}

/// [`multiply`] with results that depend on the number of rows, or not.
///
/// # Errors
/// As for [`multiply`].
pub(super) fn multiply_for(
    x: Values<'_>,
    m: usize,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    mut out: ValuesMut<'_>,
    batch: Batch,
) -> Result<()> {
    let _state = FloatState::standard();
    check_sizes(m, w, x.len(), out.len())?;
    let problem = Problem::new(w.format, Input::Plain(x.src().dtype), m, w.rows, w.columns);
    let problem = Problem { batch, ..problem };
    let level = problem.processor.level();
    let rows = Rows::new(w.packed, w.rows, w.columns, w.format, level)?;
    let bias = widened_bias(bias, w.rows, level)?;
    let out = Biased::new(Outputs::new(&mut out, w.rows, level), &bias);
    FloatProduct { problem, rows, inputs: FloatInputs::Values(x), out }.run()
}

/// A product whose inputs are numbers, as kernels take it.
pub(super) struct FloatProduct<'a> {
    pub(super) problem: Problem,
    /// Rows of weights.
    pub(super) rows: Rows<'a>,
    pub(super) inputs: FloatInputs<'a>,
    pub(super) out: Biased<'a>,
}

/// Where inputs come from.
#[derive(Clone, Copy)]
pub(super) enum FloatInputs<'a> {
    /// All of them.
    Values(Values<'a>),
    /// Rows that are rounded when they are needed.
    Rounded(&'a RoundedInputs<'a>),
}

impl FloatProduct<'_> {
    /// Has the first kernel of the table that takes the problem multiply.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    pub(super) fn run(&self) -> Result<()> {
        if self.problem.rows == 0 {
            return Ok(());
        }
        let run = table::choose(&self.problem, Run::float).map_or(f32_fma::run as fn(&Self) -> _, |(_, run)| run);
        run(self)
    }

    /// Calls `run` with rows of inputs in float32, filled with zeros to whole vectors, at most `most` at a time: their number and
    /// outputs besides.
    ///
    /// # Errors
    /// Where memory is short, and those of `run`.
    pub(super) fn in_chunks(
        &self,
        most: usize,
        mut run: impl FnMut(&Inputs<'_>, usize, &Biased<'_>) -> Result<()>,
    ) -> Result<()> {
        let (m, k, level) = (self.problem.rows, self.problem.depth, self.rows.level());
        let rounded;
        let x = match self.inputs {
            FloatInputs::Values(x) => x,
            FloatInputs::Rounded(x) => {
                rounded = x.round_all()?;
                Values::F32(&rounded)
            }
        };
        let chunk_rows = rows_at_a_time(k).min(most);
        for first in (0..m).step_by(chunk_rows) {
            let count = chunk_rows.min(m - first);
            let mut x = Inputs::new(x.range(first * k..(first + count) * k), count, k, LANES, level)?;
            x.dtype = self.problem.dtype();
            run(&x, count, &self.out.after(first))?;
        }
        Ok(())
    }
}

/// Rows of `k` inputs that are multiplied in one go: many enough that weights are seldom read again, few enough that work
/// buffers stay small beside inputs and outputs. No row's result depends on it.
pub(super) const fn rows_at_a_time(k: usize) -> usize {
    let fit = CHUNK_BYTES / k.saturating_mul(BYTES_PER_INPUT).saturating_add(1) / MIN_CHUNK_ROWS * MIN_CHUNK_ROWS;
    if fit < MIN_CHUNK_ROWS {
        MIN_CHUNK_ROWS
    } else if fit > MAX_CHUNK_ROWS {
        MAX_CHUNK_ROWS
    } else {
        fit
    }
}
