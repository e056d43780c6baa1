//! Products on AMX: which there are, and how they are cut into work.

use super::Matrix;
use super::digits::{FixedInputs, PANELS, Plan, Single, Wide};
use super::float::{Biased, PANEL, Panel};
use super::output::Inputs;
use super::tiles::{LINE, Session, available};
use crate::codec::rows::Rows;
use crate::error::Result;
use crate::format::Format;
use crate::level::Level;
use crate::pool;

/// Weights below which arranging inputs and configuring tiles costs more than they save.
const SMALL: usize = 1 << 15;
/// Panels of 16 rows of weights in one unit of work.
const UNIT: usize = 4;

/// How to multiply with `n` rows of `k` weights on AMX, if that is possible and worth it.
pub(super) fn plan(format: Format, n: usize, k: usize, level: Level) -> Option<Plan> {
    if available(level) && n.saturating_mul(k) >= SMALL { Plan::new(format) } else { None }
}

/// Multiplies as `multiply` does; false, with nothing done, where the inputs do not fit fixed point.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn multiply(
    plan: &Plan,
    rows: &Rows<'_>,
    x: &Inputs<'_>,
    m: usize,
    w: &Matrix<'_>,
    out: &Biased<'_>,
) -> Result<bool> {
    let (n, k) = (w.rows, w.columns);
    // SAFETY: `plan` found AVX-512 and more.
    let Some(fixed) = (unsafe { FixedInputs::new(x.values(), m, x.stride, k)? }) else { return Ok(false) };
    // Panels whose scales are extreme.
    let otherwise = |first: usize, count: usize| {
        for start in (first..first + count).step_by(PANEL) {
            let panel = Panel { rows, x, first: start, count: PANEL.min(first + count - start) };
            // SAFETY: the rows belong to one unit of work.
            panel.run(m, |row, values| unsafe { out.write(row, start, values) });
        }
    };
    let each = UNIT * PANEL;
    let bytes = m.saturating_mul(n).saturating_mul(k);
    if m == 1 {
        let product = Single::new(plan, rows, &fixed)?;
        pool::for_each(n.div_ceil(each), bytes, |unit| {
            let mut scratch = product.scratch();
            // SAFETY: `plan` found the instructions.
            let session = unsafe { Session::new(LINE) };
            for first in (unit * each..n.min((unit + 1) * each)).step_by(PANEL) {
                let mut values = [0.0f32; PANEL];
                let values = &mut values[..PANEL.min(n - first)];
                // SAFETY: as above; every panel writes its own columns.
                unsafe {
                    if product.run(&session, first, values, &mut scratch) {
                        out.write(0, first, values);
                    } else {
                        otherwise(first, values.len());
                    }
                }
            }
        })?;
        return Ok(true);
    }
    let product = Wide::new(plan, rows, &fixed)?;
    pool::for_each(n.div_ceil(each), bytes, |unit| {
        let (first, count) = (unit * each, each.min(n - unit * each));
        // SAFETY: as above.
        unsafe {
            let session = Session::new(product.depth());
            let write = |row: usize, values: &mut [f32]| out.write(row, first, values);
            if !product.run(&session, first, count, &mut product.scratch(), write) {
                otherwise(first, count);
            }
        }
    })?;
    Ok(true)
}

const _: () = assert!(PANEL == super::tiles::ROWS && UNIT == PANELS);
