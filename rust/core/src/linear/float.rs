//! `y = x W^T + bias` in float32, for weights of any format.

use super::dot::{LANES, ROWS, Sums, accumulate, tree};
#[cfg(target_arch = "x86_64")]
use super::fast;
use super::output::{Inputs, Outputs, widened};
use super::{Matrix, check_sizes};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{Values, ValuesMut};
use crate::error::{Error, Result};
use crate::level::Level;
use crate::pool;

/// Rows of weights in one unit of work.
pub(super) const PANEL: usize = 16;
/// Columns decoded at a time, about: [`ROWS`] rows of them stay in the first cache.
const COLUMNS: usize = 1024;

/// Multiplies `m` rows of inputs with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Weights are the decoded ones, sums are float32, and the result is
/// rounded once to the dtype of `out`. Results do not depend on the number of threads, nor does a row's result depend on
/// the other rows; small products have one order of summation at every SIMD level. Large ones ([`super::kernel`] tells)
/// have others on AVX-512 with VNNI, for up to four rows, and on AMX, for more: as exact, with other last bits.
///
/// # Errors
/// [`Error::Shape`] where a length does not fit.
pub fn multiply(
    x: Values<'_>,
    m: usize,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    mut out: ValuesMut<'_>,
) -> Result<()> {
    let level = Level::current();
    let (n, k) = (w.rows, w.columns);
    check_sizes(m, w, x.len(), out.len())?;
    let rows = Rows::new(w.packed, n, k, w.format, level)?;
    let bias = match bias {
        Some(bias) if bias.len() != n => {
            return Err(Error::Shape(format!("bias holds {} values, the weight has {n} rows", bias.len())));
        }
        Some(bias) => widened(bias, level)?,
        None => Vec::new(),
    };
    if m == 0 {
        return Ok(());
    }
    let x = Inputs::new(x, m, k, LANES, level)?;
    let out = Biased { out: Outputs::new(&mut out, n, level), bias: &bias };
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = fast::way(w.format, m, n, k, level)
        && fast::multiply(&way, &rows, &x, m, w, &out)?
    {
        return Ok(());
    }
    pool::for_each(n.div_ceil(PANEL), m.saturating_mul(n).saturating_mul(k), |panel| {
        let first = panel * PANEL;
        let panel = Panel { rows: &rows, x: &x, first, count: PANEL.min(n - first) };
        // SAFETY: every panel writes its own columns.
        panel.run(m, |row, values| unsafe { out.write(row, first, values) });
    })
}

/// Outputs to which a bias is added, if there is one.
pub(super) struct Biased<'a> {
    out: Outputs,
    bias: &'a [f32],
}

impl Biased<'_> {
    /// As [`Outputs::write`], biases added to the values first.
    ///
    /// # Safety
    /// As for [`Outputs::write`].
    pub(super) unsafe fn write(&self, row: usize, column: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias.get(column..column + values.len()) {
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        // SAFETY: as the caller promises.
        unsafe { self.out.write(row, column, values) };
    }
}

/// Some rows of weights, at most [`PANEL`], and all inputs.
pub(super) struct Panel<'a> {
    pub(super) rows: &'a Rows<'a>,
    pub(super) x: &'a Inputs<'a>,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Panel<'_> {
    /// Calls `write` with the products of each row of inputs.
    pub(super) fn run(&self, m: usize, mut write: impl FnMut(usize, &mut [f32])) {
        let mut products = vec![[0.0f32; PANEL]; m];
        let mut sums: Vec<Sums> = vec![Sums::default(); m];
        let mut unpacked = Unpacked::default();
        let each = self.rows.cut(COLUMNS);
        let stride = each.min(self.rows.k).next_multiple_of(LANES);
        let mut w = vec![0.0f32; ROWS * stride];
        for four in (0..self.count).step_by(ROWS) {
            let count = ROWS.min(self.count - four);
            sums.fill(Sums::default());
            for start in (0..self.rows.k).step_by(each) {
                let len = each.min(self.rows.k - start);
                let padded = len.next_multiple_of(LANES);
                for (r, w) in w.chunks_mut(stride).enumerate().take(count) {
                    self.rows.decode(self.first + four + r, start..start + len, w, &mut unpacked);
                    w[len..padded].fill(0.0);
                }
                accumulate(self.rows.level(), &w, stride, &self.x.values()[start..], self.x.stride, padded, &mut sums);
            }
            for (products, sums) in products.iter_mut().zip(&sums) {
                for (product, &lanes) in products[four..four + count].iter_mut().zip(sums) {
                    *product = tree(lanes);
                }
            }
        }
        for (row, products) in products.iter_mut().enumerate() {
            write(row, &mut products[..self.count]);
        }
    }
}
