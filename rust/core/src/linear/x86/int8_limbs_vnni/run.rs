//! Whole products in fixed point: of numbers, of codes, and with sparse weights.

use super::inputs::FixedInputs;
use super::product::Dot;
use super::sparse::{Scratch, SparseDot};
use crate::error::Result;
use crate::linear::fallback::{self, Fallback};
use crate::linear::float::FloatProduct;
use crate::linear::problem::{Input, Problem};
use crate::linear::ran;
use crate::linear::rounded::CodesProduct;
use crate::linear::sparse::SparseProduct;
use crate::linear::x86::code_tables::{plan, plan_or_offsets, require};
use crate::pool;
use crate::sparse::{self, PANEL};

/// Rows of inputs that are multiplied in one go, at most.
pub(super) const MAX_CHUNK_ROWS: usize = 16;
/// Panels of sparse weights in one unit of work.
const SPARSE_UNIT: usize = 4;

/// True for weights that have limbs.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    plan_or_offsets(problem.weight).is_some()
}

/// Multiplies numbers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    ran::note("int8 limbs vnni");
    let Problem { weight, columns: n, depth: k, .. } = product.problem;
    let (plan, rows) = (require(plan_or_offsets(weight), weight)?, &product.rows);
    product.in_chunks(MAX_CHUNK_ROWS, |x, m, out| {
        let (fallback, work) = (Fallback::new(rows, x, m, out), m.saturating_mul(n).saturating_mul(k));
        // SAFETY: the table asks for the instructions.
        unsafe {
            let fixed = FixedInputs::new(x.values(), m, x.stride, k)?;
            let dot = Dot::new(&plan, rows, &fixed)?;
            dot.multiply(n, work, out, |row, first, count| fallback.run(row, first, count))
        }
    })
}

/// True for weights that have limbs, and inputs whose codes are limbs.
pub(in crate::linear) fn takes_codes(problem: &Problem) -> bool {
    let Input::Rounded(input) = problem.input else { return false };
    plan(input).is_some_and(|plan| plan.has_codes()) && plan_or_offsets(problem.weight).is_some()
}

/// Multiplies codes.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run_codes(product: &CodesProduct<'_>) -> Result<()> {
    ran::note("int8 groups vnni");
    let Problem { weight, columns: n, depth: k, .. } = product.problem;
    let input = product.x.format;
    let (plan, inputs) = (require(plan_or_offsets(weight), weight)?, require(plan(input), input)?);
    product.in_chunks(MAX_CHUNK_ROWS, |chunk| {
        let work = chunk.m.saturating_mul(n).saturating_mul(k);
        // SAFETY: the table asks for the instructions; `takes_codes` found a plan of one limb without zero points.
        unsafe {
            let fixed = FixedInputs::encoded(&inputs, chunk.codes, chunk.m, |row| chunk.overflows(row))?;
            let dot = Dot::new(&plan, &product.rows, &fixed)?;
            dot.multiply(n, work, chunk.out, |row, first, count| chunk.fallback.run(row, first, count))
        }
    })
}

/// True for weights that have limbs, and codes of 0 that may be left out.
pub(in crate::linear) fn takes_sparse(problem: &Problem) -> bool {
    sparse::takes(problem.weight) && takes(problem)
}

/// Multiplies with sparse weights. All rows go the way of one row: a row's result is the same among others.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run_sparse(product: &SparseProduct<'_>) -> Result<()> {
    ran::note("sparse int8 limbs vnni");
    let SparseProduct { problem, w, rows, x, out } = product;
    let plan = require(plan(problem.weight), problem.weight)?;
    // SAFETY: the table asks for the instructions.
    let fixed = unsafe { FixedInputs::new(x.values(), problem.rows, x.stride, problem.depth)? };
    let dot = SparseDot::new(&plan, w, rows, &fixed)?;
    pool::try_for_each(problem.columns.div_ceil(SPARSE_UNIT * PANEL), problem.work(), |unit| {
        let mut scratch = Scratch::default();
        for panel in unit * SPARSE_UNIT..w.shape.panels().min((unit + 1) * SPARSE_UNIT) {
            // SAFETY: every panel writes its own columns.
            let write = |row: usize, values: &mut [f32]| unsafe { out.write(row, panel * PANEL, values) };
            // SAFETY: as above; the lengths of the matrix are checked.
            let left = unsafe { dot.run(panel, &mut scratch, write)? };
            if left != 0 {
                fallback::sparse_rows(w, rows.level(), x, panel, left, out)?;
            }
        }
        Ok(())
    })
}
