//! `y = x W^T + bias` in float32, for weights of any format.

use super::dot::{LANES, ROWS, Sums, accumulate, tree};
use super::output::{Inputs, Outputs, widened};
use super::{Matrix, check_sizes};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{Values, ValuesMut};
use crate::error::{Error, Result};
use crate::level::Level;
use crate::pool;

/// Rows of weights in one unit of work.
const PANEL: usize = 16;
/// Columns decoded at a time, about: [`ROWS`] rows of them stay in the first cache.
const COLUMNS: usize = 1024;

/// Multiplies `m` rows of inputs with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Weights are exactly the decoded ones, sums are float32, and
/// the result is rounded once to the dtype of `out`. Results do not depend on the number of threads, nor does a row's
/// result depend on the other rows.
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
    let out = Outputs::new(&mut out, n, level);
    let work = m.saturating_mul(n).saturating_mul(k);
    pool::for_each(n.div_ceil(PANEL), work, |panel| {
        let first = panel * PANEL;
        let panel = Panel { rows: &rows, x: &x, first, count: PANEL.min(n - first) };
        let bias = bias.get(first..first + panel.count);
        // SAFETY: every panel writes its own columns.
        panel.run(m, |row, values| unsafe {
            if let Some(bias) = bias {
                values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
            out.write(row, first, values);
        });
    })
}

/// Some rows of weights and all inputs.
struct Panel<'a> {
    rows: &'a Rows<'a>,
    x: &'a Inputs<'a>,
    first: usize,
    count: usize,
}

impl Panel<'_> {
    /// Calls `write` with the products of each row of inputs.
    fn run(&self, m: usize, mut write: impl FnMut(usize, &mut [f32])) {
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
