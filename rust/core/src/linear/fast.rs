//! Products with instructions for bytes and tiles: which there are, and how they are cut into work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::codes::Table;
use super::digits::{Dot, FixedInputs, Plan, TOGETHER};
use super::float::{Biased, PANEL, Panel};
use super::output::Inputs;
use super::tiles::{self, Session};
use super::{Matrix, parts};
use crate::codec::rows::Rows;
use crate::error::Result;
use crate::format::Format;
use crate::level::Level;
use crate::pool;

/// Weights below which arranging inputs costs more than it saves, for few rows of inputs and for many.
const SMALL: [usize; 2] = [1 << 12, 1 << 15];
/// Rows of inputs for which codes are cheaper to unpack again than to decode for tiles.
const FEW: usize = 4;
/// Rows of weights in one unit of work on bytes.
const UNIT: usize = 64;

/// How a product runs.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Dot products of bytes.
    Digits(Arc<Plan>),
    /// Tiles of bfloat16, looked up where there is a table.
    Parts(Option<Arc<Table>>),
}

/// How `m` rows are multiplied with `n` rows of `k` weights, unless inputs or scales are extreme; `None` for the plain way.
pub(super) fn way(format: Format, m: usize, n: usize, k: usize, level: Level) -> Option<Way> {
    if n.saturating_mul(k) < SMALL[usize::from(m > FEW)] {
        return None;
    }
    let digits = if m > FEW { None } else { plan(format, level).map(Way::Digits) };
    digits.or_else(|| {
        let table = table(format);
        let better = m > FEW || table.is_some() && n.saturating_mul(k) >= SMALL[1];
        (better && tiles::available(level)).then_some(Way::Parts(table))
    })
}

thread_local! {
    /// The plans and tables made so far: making one takes longer than a small product.
    static PLANS: RefCell<HashMap<Format, Option<Arc<Plan>>>> = RefCell::default();
    static TABLES: RefCell<HashMap<Format, Option<Arc<Table>>>> = RefCell::default();
}

/// The codes of a format as digits, where `level` is AVX-512 and the processor has products and permutations of bytes.
fn plan(format: Format, level: Level) -> Option<Arc<Plan>> {
    let bytes = || is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512vnni");
    if level < Level::Avx512 || !bytes() {
        return None;
    }
    PLANS.with_borrow_mut(|plans| plans.entry(format).or_insert_with(|| Plan::new(format).map(Arc::new)).clone())
}

/// The numbers of a format by code.
fn table(format: Format) -> Option<Arc<Table>> {
    TABLES.with_borrow_mut(|tables| tables.entry(format).or_insert_with(|| Table::new(format).map(Arc::new)).clone())
}

/// Multiplies as `multiply` does; false, with nothing done, where the inputs are extreme.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn multiply(
    way: &Way,
    rows: &Rows<'_>,
    x: &Inputs<'_>,
    m: usize,
    w: &Matrix<'_>,
    out: &Biased<'_>,
) -> Result<bool> {
    let (n, k) = (w.rows, w.columns);
    let bytes = m.saturating_mul(n).saturating_mul(k);
    // Rows of weights whose scales are extreme.
    let otherwise = |first: usize, count: usize| {
        for start in (first..first + count).step_by(PANEL) {
            let panel = Panel { rows, x, first: start, count: PANEL.min(first + count - start) };
            // SAFETY: the rows belong to one unit of work.
            panel.run(m, |row, values| unsafe { out.write(row, start, values) });
        }
    };
    match way {
        Way::Digits(plan) => {
            // SAFETY: `way` found the instructions.
            let Some(fixed) = (unsafe { FixedInputs::new(x.values(), m, x.stride, k)? }) else { return Ok(false) };
            // SAFETY: as above.
            let product = unsafe { Dot::new(plan, rows, &fixed)? };
            pool::for_each(n.div_ceil(UNIT), bytes, |unit| {
                let mut scratch = product.scratch();
                for first in (unit * UNIT..n.min((unit + 1) * UNIT)).step_by(TOGETHER) {
                    let count = TOGETHER.min(n - first);
                    // SAFETY: as above; every unit writes its own columns.
                    let write = |row: usize, values: &mut [f32]| unsafe { out.write(row, first, values) };
                    // SAFETY: as above.
                    if !unsafe { product.run(first, count, &mut scratch, write) } {
                        otherwise(first, count);
                    }
                }
            })?;
        }
        Way::Parts(table) => {
            // SAFETY: as above.
            let Some(product) = (unsafe { parts::Product::new(w.format, table.as_deref(), rows, x, (m, n))? }) else {
                return Ok(false);
            };
            pool::for_each(n.div_ceil(parts::UNIT), bytes, |unit| {
                let first = unit * parts::UNIT;
                // SAFETY: as above; every unit writes its own columns.
                let write = |row: usize, column: usize, values: &mut [f32]| unsafe { out.write(row, column, values) };
                // SAFETY: as above.
                let done = unsafe { product.run(&Session::new(), first, &mut product.scratch(), write) };
                if !done {
                    otherwise(first, parts::UNIT.min(n - first));
                }
            })?;
        }
    }
    Ok(true)
}
