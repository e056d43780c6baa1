//! Products with sparse codes, for few rows of inputs and on AVX-512: codes are expanded in registers.

use super::Kernel;
use super::float::PANEL as ROWS;
use super::float::{Biased, Panel};
#[cfg(target_arch = "x86_64")]
use super::int8_limbs_vnni::{FixedInputs, SparseDot, SparseScratch};
use super::output::{Inputs, Outputs, widened};
#[cfg(target_arch = "x86_64")]
use super::route;
use crate::codec::rows::Rows;
use crate::codec::{DType, Packed, Values, ValuesMut, zeroed};
use crate::error::{FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::{LANES, Level};
use crate::sparse::{self, PANEL, Shape, Sparse};

/// Panels of weights in one unit of work.
const UNIT: usize = 4;

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

/// Most rows of inputs that are multiplied with sparse codes. They all go the way of one row: a row's result is the same
/// among others.
const MOST_ROWS: usize = 4;

/// The kernel that multiplies `m` rows with sparse codes; `None` where they are expanded first.
pub fn sparse_kernel(format: Format, m: usize, shape: Shape) -> Option<Kernel> {
    #[cfg(target_arch = "x86_64")]
    if sparse::takes(format)
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
        && (1..=MOST_ROWS).contains(&m)
        && let Some(route::Way::Int8Limbs(_)) =
            route::way(format, DType::F32, 1, shape.rows, shape.columns, Level::current())
    {
        return Some(Kernel::SparseLimbs);
    }
    let _ = (format, m, shape);
    None
}

/// Multiplies as [`super::multiply`] does, where there is a kernel ([`sparse_kernel`]): within the same bound, with sums in
/// an order of its own. A row's result depends on that row and the weights alone.
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
    let level = Level::current();
    let (n, k) = (w.shape.rows, w.shape.columns);
    if m.checked_mul(k) != Some(x.len()) || m.checked_mul(n) != Some(out.len()) {
        return Err(ShapeError::Product { m, n, k, inputs: x.len(), outputs: out.len() }.into());
    }
    sparse::check(&w.sparse, w.format.width(), w.shape)?;
    let rows = Rows::without_codes(w.packed, n, k, w.format, level)?;
    let bias = match bias {
        Some(bias) if bias.len() != n => return Err(ShapeError::Bias { got: bias.len(), rows: n }.into()),
        Some(bias) => widened(bias, level)?,
        None => Vec::new(),
    };
    if sparse_kernel(w.format, m, w.shape).is_none() {
        return Err(FormatError::SparseProduct { format: w.format, rows: m }.into());
    }
    let out = Biased::new(Outputs::new(&mut out, n, level), &bias);
    let x = Inputs::new(x, m, k, LANES, level)?;
    #[cfg(target_arch = "x86_64")]
    if let Some(route::Way::Int8Limbs(plan)) = route::way(w.format, DType::F32, 1, n, k, level) {
        // SAFETY: the way, and the kernel, were found with their instructions.
        let fixed = unsafe { FixedInputs::new(x.values(), m, x.stride, k)? };
        let dot = SparseDot::new(&plan, w, &rows, &fixed)?;
        let work = m.saturating_mul(n).saturating_mul(k);
        return pool::try_for_each(n.div_ceil(UNIT * PANEL), work, |unit| {
            let mut scratch = SparseScratch::default();
            for panel in unit * UNIT..w.shape.panels().min((unit + 1) * UNIT) {
                // SAFETY: every panel writes its own columns.
                let write = |row: usize, values: &mut [f32]| unsafe { out.write(row, panel * PANEL, values) };
                // SAFETY: as above; the lengths of the matrix are checked.
                let left = unsafe { dot.run(panel, &mut scratch, write)? };
                if left != 0 {
                    decoded(w, level, &x, panel, left, &out)?;
                }
            }
            Ok(())
        });
    }
    let _ = (rows, x, out);
    Ok(())
}

/// Writes the products of some rows of inputs, a bit each, with a panel of weights, in float32.
fn decoded(
    w: &SparseMatrix<'_>,
    level: Level,
    x: &Inputs<'_>,
    panel: usize,
    left: u32,
    out: &Biased<'_>,
) -> Result<()> {
    const { assert!(PANEL <= ROWS, "a panel of sparse codes is one of products") };
    let first = panel * PANEL;
    let count = PANEL.min(w.shape.rows - first);
    let mut codes = zeroed(count * w.format.row_bytes(w.shape.columns)?)?;
    sparse::expand(&w.sparse, w.format.width(), w.shape, first, count, &mut codes)?;
    let of_tensor = w.format.granularity() == Granularity::Tensor || w.shape.rows == 0;
    let each = if of_tensor { 0 } else { w.packed.scales.len() / w.shape.rows };
    let scales = if of_tensor { w.packed.scales } else { &w.packed.scales[first * each..][..count * each] };
    let packed = Packed { codes: &codes, scales, ..w.packed };
    let rows = Rows::new(packed, count, w.shape.columns, w.format, level)?;
    for row in (0..u32::BITS as usize).filter(|row| left >> row & 1 == 1) {
        let panel = Panel { rows: &rows, x: x.row(row), stride: x.stride, first: 0, count };
        // SAFETY: the panel belongs to one unit of work.
        panel.run(1, |_, values| unsafe { out.write(row, first, values) })?;
    }
    Ok(())
}
