//! Whole products in tiles of bfloat16: of numbers, and of codes.

use super::weights::Weights;
use super::{InputView, PreparedTiles, Product, UNIT, multiplications};
use crate::codec::DType;
use crate::error::Result;
use crate::format::{Format, Granularity};
use crate::linear::f32_fma::PANEL;
use crate::linear::fallback::{Fallback, FallbackRows};
use crate::linear::float::{FloatInputs, FloatProduct, rows_at_a_time};
use crate::linear::limbs::narrowest_dtype;
use crate::linear::output::Biased;
use crate::linear::problem::{Input, MANY_ROWS, Problem};
use crate::linear::ran;
use crate::linear::rounded::CodesProduct;
use crate::linear::x86::code_tables::table;
use crate::linear::x86::pieces::{Times, min_pieces, piece};
use crate::pool;
use crate::simd::tiles::{Session, Tiles};

/// Limbs of an input that are made, at most: for each piece of weights again.
const MAX_ARRANGED: usize = 24;
/// Products that take as long as a limb of a weight to make, and one of an input.
const WEIGHT_TIME: usize = 270;
const INPUT_TIME: usize = 150;
/// Products of limbs for each product of a weight and an input, up to which vectors take no longer than in float32: of
/// float32 they take as long as two of them.
const MAX_MULTIPLICATIONS: usize = 2;

/// True where the kernel on AMX takes the problem: for few rows, formats of a table.
pub(in crate::linear) fn takes_amx(problem: &Problem) -> bool {
    problem.batch_rows() >= MANY_ROWS || table(problem.weight).is_some()
}

/// True where that on AVX-512 does, which needs few products of limbs besides.
pub(in crate::linear) fn takes_avx512(problem: &Problem) -> bool {
    takes_amx(problem) && is_cheap(problem.weight, problem.dtype())
}

/// True where products of limbs with inputs of a dtype are as fast as those of float32, or faster, on vectors; or as scaling the
/// sums of a group on AMX, by the count of their instructions.
pub(in crate::linear::x86) fn is_cheap(format: Format, inputs: DType) -> bool {
    multiplications(format, table(format).as_deref(), inputs) <= MAX_MULTIPLICATIONS
}

/// Multiplies numbers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    let Problem { weight: format, columns: n, processor, .. } = product.problem;
    let (table, tiles, rows) = (table(format), Tiles::of(processor), &product.rows);
    ran::note(if tiles == Tiles::Amx { "bfloat16 limbs amx" } else { "bfloat16 limbs avx512" });
    let weights = || Weights::new(format, table.as_deref(), rows, n, tiles, product.problem.dtype());
    if tiles == Tiles::Amx && run_pieces(product, &weights())? {
        return Ok(());
    }
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the instructions.
        let product = unsafe { Product::new(weights(), x, m)? };
        multiply_tiles(&product, tiles, out, &Fallback::new(rows, x, m, out))
    })
}

/// Multiplies all rows of inputs in pieces that make all the limbs they need, if it does not pay more to make those of inputs
/// once, and no weight is of extreme magnitude; else false.
///
/// # Errors
/// Where memory is short or threads cannot be started.
fn run_pieces(product: &FloatProduct<'_>, weights: &Weights<'_>) -> Result<bool> {
    let Problem { weight: format, rows: m, columns: n, depth: k, .. } = product.problem;
    let (dtype, out) = (product.problem.dtype(), &product.out);
    let round;
    let x = match product.inputs {
        FloatInputs::Values(x) => InputView::new(x, k, k, dtype),
        FloatInputs::Rounded(x) => {
            round = move |rows, to: &mut [f32]| x.round_rows(rows, to);
            InputView::written(&round, k, dtype)
        }
    };
    let bytes = PreparedTiles::bytes(weights);
    if min_pieces(bytes) * x.limbs() > MAX_ARRANGED {
        return Ok(false);
    }
    let multiplications = multiplications(format, table(format).as_deref(), dtype);
    let times = Times { weight: WEIGHT_TIME * weights.limbs, input: INPUT_TIME * x.limbs(), product: multiplications };
    let (weight_rows, input_rows) = piece(bytes, &times, n, m);
    let parts = m.div_ceil(input_rows);
    // Of each piece the rows of inputs that are left, the same ones for all weights; none where weights are extreme.
    let left = pool::map(n.div_ceil(weight_rows) * parts, product.problem.work(), |piece| {
        let (first, from) = (piece / parts * weight_rows, piece % parts * input_rows);
        let (of_weights, of_inputs) = (first..n.min(first + weight_rows), from..m.min(from + input_rows));
        let mut left = Vec::new();
        // SAFETY: the table asks for AMX; outputs have the rows and the columns, which no other piece has.
        let done = unsafe {
            PreparedTiles::with(weights, of_weights, |tiles| tiles.multiply_rows(&x, of_inputs, first, out, &mut left))
        };
        done.map(|done| done.map(|()| left))
    })?;
    let left = left.into_iter().collect::<Result<Option<Vec<_>>>>()?;
    let Some(left) = left else { return Ok(false) };
    let left: Vec<usize> = left.into_iter().take(parts).flatten().collect();
    if !left.is_empty() {
        let left = FallbackRows::written(left, k, |row, to, stride| x.widen(row..row + 1, to, stride))?;
        pool::try_for_each(n.div_ceil(PANEL), left.len().saturating_mul(product.problem.weights()), |panel| {
            left.multiply(&product.rows, panel * PANEL, PANEL.min(n - panel * PANEL), out)
        })?;
    }
    Ok(true)
}

/// True where codes of inputs are multiplied. On AMX, and where decoded inputs have one limb, products of numbers are no slower.
pub(in crate::linear) fn takes_codes(problem: &Problem) -> bool {
    let Input::Rounded(input) = problem.input else { return false };
    input.granularity() != Granularity::Tensor
        && narrowest_dtype(input) != DType::BF16
        && table(input).is_some_and(|table| table.has_codes())
        && is_cheap(problem.weight, DType::BF16)
}

/// Multiplies codes.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run_codes(product: &CodesProduct<'_>) -> Result<()> {
    ran::note("bfloat16 codes avx512");
    let Problem { weight, columns: n, depth: k, processor, .. } = product.problem;
    let (weight_table, input_table, tiles) = (table(weight), table(product.x.format), Tiles::of(processor));
    product.in_chunks(rows_at_a_time(k), |chunk| {
        let new = |format, table, rows, n| Weights::new(format, table, rows, n, tiles, DType::BF16);
        let x = new(product.x.format, input_table.as_deref(), chunk.codes, chunk.m);
        let weights = new(weight, weight_table.as_deref(), &product.rows, n);
        // SAFETY: the table asks for the instructions.
        let product = unsafe { Product::encoded(weights, &x, |row| chunk.overflows(row))? };
        multiply_tiles(&product, tiles, chunk.out, chunk.fallback)
    })
}

/// Multiplies all rows of weights, unit by unit.
///
/// # Errors
/// Where memory is short or threads cannot be started.
fn multiply_tiles(product: &Product<'_>, tiles: Tiles, out: &Biased<'_>, fallback: &Fallback<'_>) -> Result<()> {
    let ((m, n, k), unit_rows) = (product.sizes(), product.unit());
    let (work, any) = (m.saturating_mul(n).saturating_mul(k), product.left().count() < m);
    pool::try_for_each(n.div_ceil(unit_rows), work, |unit| {
        let first = unit * unit_rows;
        let count = unit_rows.min(n - first);
        // SAFETY: the rows of weights belong to one unit of work.
        let write = |row: usize, column: usize, values: &mut [f32]| unsafe { out.write(row, column, values) };
        let mut done = 0;
        if any {
            // SAFETY: the table asks for the instructions.
            done = unsafe { product.run(&Session::new(tiles), first, write)? };
        }
        (0..count).step_by(UNIT).enumerate().try_for_each(|(pair, start)| {
            let (first, count) = (first + start, UNIT.min(count - start));
            if done >> pair & 1 == 1 {
                fallback.run_rows(product.left(), first, count)
            } else {
                fallback.run(None, first, count)
            }
        })
    })
}
