//! Products on VNNI and AMX: the choice of the kernel, and the division of a product into units of work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::bf16_codes_vbmi::Table;
use super::float::{Biased, MANY, PANEL, Panel};
use super::int8_limbs_vnni::{Dot, FixedInputs, MOST_ROWS, Plan};
use super::output::Inputs;
use super::{Matrix, bf16_limbs_amx};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::format::Format;
use crate::pool;
use crate::simd::Level;
use crate::simd::amx::{self, Session};

/// Weights below which arranging inputs costs more than it saves, for few rows of inputs and for many.
const SMALL: [usize; 2] = [1 << 12, 1 << 15];
/// Rows of inputs up to which unpacking codes again for VNNI is cheaper than decoding them for AMX.
const FEW: usize = MANY - 1;
/// The same of inputs that are codes, whose products cost a third.
const FEW_CODES: usize = 8;

/// How a product runs.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Dot products of bytes.
    Int8Limbs(Arc<Plan>),
    /// Tiles of bfloat16, looked up where there is a table.
    Bf16Limbs(Option<Arc<Table>>),
}

/// The kernel for `m` rows times `n` rows of `k` weights; `None` for the float32 kernel, which also takes over rows with
/// extreme inputs or scales.
pub(super) fn way(format: Format, m: usize, n: usize, k: usize, level: Level) -> Option<Way> {
    if n.saturating_mul(k) < SMALL[usize::from(m > FEW)] {
        return None;
    }
    let limbs = if m > FEW { None } else { plan(format, level).map(Way::Int8Limbs) };
    limbs.or_else(|| {
        let table = table(format);
        let better = m > FEW || table.is_some() && n.saturating_mul(k) >= SMALL[1];
        (better && amx::available(level)).then_some(Way::Bf16Limbs(table))
    })
}

/// The kernel for many rows of inputs.
pub(super) fn way_of_many(format: Format, n: usize, k: usize, level: Level) -> Option<Way> {
    way(format, MANY, n, k, level)
}

/// The plans of weights and of inputs whose codes are multiplied, group by group, for `m` rows of inputs rounded to `input`
/// and `n` rows of `k` weights; `None` where rounded inputs are multiplied as others are.
pub(super) fn groups(
    format: Format,
    input: Format,
    m: usize,
    n: usize,
    k: usize,
    level: Level,
) -> Option<(Arc<Plan>, Arc<Plan>)> {
    let most = if amx::available(level) { FEW_CODES } else { MOST_ROWS };
    if !(1..=most).contains(&m) || n.saturating_mul(k) < SMALL[0] {
        return None;
    }
    let inputs = plan(input, level).filter(|plan| plan.has_codes())?;
    Some((plan(format, level)?, inputs))
}

thread_local! {
    /// Cache of plans and tables: making one takes longer than a small product.
    static PLANS: RefCell<HashMap<Format, Option<Arc<Plan>>>> = RefCell::default();
    static TABLES: RefCell<HashMap<Format, Option<Arc<Table>>>> = RefCell::default();
}

/// The codes of a format as limbs, where `level` is AVX-512 and the processor has products and permutations of bytes.
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

/// Multiplies as `multiply` does. The float32 kernel takes over rows of inputs, and weights of extreme scales, that a fast
/// kernel cannot. That depends on the row and the weights alone, so no row of inputs changes the result of another.
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
) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    let (bytes, stride) = (m.saturating_mul(n).saturating_mul(k), x.stride);
    // Products of all rows of inputs, or of one, with some rows of weights of one unit of work.
    let plain = |row: Option<usize>, first: usize, count: usize| {
        let (x, m) = row.map_or((x.values(), m), |row| (x.row(row), 1));
        for start in (first..first + count).step_by(PANEL) {
            let panel = Panel { rows, x, stride, first: start, count: PANEL.min(first + count - start) };
            // SAFETY: the rows of weights belong to one unit of work.
            panel.run(m, |i, values| unsafe { out.write(row.unwrap_or(i), start, values) })?;
        }
        Ok(())
    };
    match way {
        Way::Int8Limbs(plan) => {
            // SAFETY: `way` found the instructions.
            let fixed = unsafe { FixedInputs::new(x.values(), m, x.stride, k)? };
            // SAFETY: as above.
            unsafe { Dot::new(plan, rows, &fixed)?.multiply(n, bytes, out, plain) }
        }
        Way::Bf16Limbs(table) => {
            let weights = bf16_limbs_amx::Weights::new(w.format, table.as_deref(), rows, n);
            // SAFETY: as above.
            let product = unsafe { bf16_limbs_amx::Product::new(weights, x, m)? };
            let left = Left::new(&product, x)?;
            pool::try_for_each(n.div_ceil(bf16_limbs_amx::UNIT), bytes, |unit| {
                let first = unit * bf16_limbs_amx::UNIT;
                let count = bf16_limbs_amx::UNIT.min(n - first);
                // SAFETY: as above; every unit writes its own columns.
                let write = |row: usize, column: usize, values: &mut [f32]| unsafe { out.write(row, column, values) };
                // SAFETY: as above.
                let done = left.rows.len() < m
                    && unsafe { product.run(&Session::new(), first, &mut product.scratch()?, write)? };
                if !done {
                    return plain(None, first, count);
                }
                left.multiply(rows, first, count, out)
            })
        }
    }
}

/// Rows of inputs that a kernel leaves to the float32 kernel, gathered.
struct Left {
    rows: Vec<usize>,
    values: Vec<f32>,
    stride: usize,
}

impl Left {
    fn new(product: &bf16_limbs_amx::Product<'_>, x: &Inputs<'_>) -> Result<Self> {
        let mut rows = zeroed(product.left().count())?;
        rows.iter_mut().zip(product.left()).for_each(|(to, row)| *to = row);
        let mut values = zeroed(rows.len() * x.stride)?;
        for (to, &row) in values.chunks_mut(x.stride.max(1)).zip(&rows) {
            to.copy_from_slice(x.row(row));
        }
        Ok(Self { rows, values, stride: x.stride })
    }

    /// Writes their products with `count` rows of weights from `first` on, which belong to one unit of work.
    fn multiply(&self, rows: &Rows<'_>, first: usize, count: usize, out: &Biased<'_>) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        for start in (first..first + count).step_by(PANEL) {
            let count = PANEL.min(first + count - start);
            let panel = Panel { rows, x: &self.values, stride: self.stride, first: start, count };
            // SAFETY: as for the caller; each of the rows is there once.
            panel.run(self.rows.len(), |i, values| unsafe { out.write(self.rows[i], start, values) })?;
        }
        Ok(())
    }
}
