//! The float32 kernel as the one that takes over rows of inputs, and weights of extreme scales, that a fast kernel cannot
//! multiply.
//!
//! What is taken over depends on the row and the weights alone, so no row of inputs changes the result of another.

use std::sync::OnceLock;

use super::f32_fma::{PANEL, Panel};
use super::output::{Biased, Inputs};
use super::ran;
use super::rounded::RoundedInputs;
use super::sparse::SparseMatrix;
use crate::codec::rows::Rows;
use crate::codec::{Packed, zeroed};
use crate::error::Result;
use crate::format::Granularity;
use crate::simd::{LANES, Level};
use crate::sparse;

/// Products in float32 of what a kernel leaves.
pub(super) struct Fallback<'a> {
    rows: &'a Rows<'a>,
    inputs: Source<'a>,
    /// Rows of inputs.
    m: usize,
    out: &'a Biased<'a>,
    /// The rows of inputs of [`Self::run_rows`].
    gathered: OnceLock<FallbackRows>,
}

enum Source<'a> {
    Inputs(&'a Inputs<'a>),
    /// Rounded when the first is needed.
    Rounded(&'a RoundedInputs<'a>, OnceLock<Inputs<'static>>),
}

impl<'a> Fallback<'a> {
    /// Of `m` rows of inputs.
    pub(super) const fn new(rows: &'a Rows<'a>, x: &'a Inputs<'a>, m: usize, out: &'a Biased<'a>) -> Self {
        Self { rows, inputs: Source::Inputs(x), m, out, gathered: OnceLock::new() }
    }

    /// Of rounded inputs.
    pub(super) const fn rounded(rows: &'a Rows<'a>, x: &'a RoundedInputs<'a>, out: &'a Biased<'a>) -> Self {
        Self { rows, inputs: Source::Rounded(x, OnceLock::new()), m: x.rows, out, gathered: OnceLock::new() }
    }

    fn inputs(&self) -> Result<&Inputs<'_>> {
        let (x, rounded) = match &self.inputs {
            Source::Inputs(x) => return Ok(x),
            Source::Rounded(x, rounded) => (x, rounded),
        };
        if let Some(inputs) = rounded.get() {
            return Ok(inputs);
        }
        let inputs = Inputs::owned(x.round_all()?, x.rows, x.depth, LANES, x.level)?;
        Ok(rounded.get_or_init(|| inputs))
    }

    /// Writes the products of a row of inputs, or of all, with `count` rows of weights from `first` on, which belong to one unit
    /// of work.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn run(&self, row: Option<usize>, first: usize, count: usize) -> Result<()> {
        ran::note(ran::FALLBACK);
        let x = self.inputs()?;
        let (values, m) = row.map_or((x.values(), self.m), |row| (x.row(row), 1));
        for start in (first..first + count).step_by(PANEL) {
            let count = PANEL.min(first + count - start);
            let panel = Panel { rows: self.rows, x: values, stride: x.stride, first: start, count };
            // SAFETY: the rows of weights belong to one unit of work.
            panel.run(m, |i, values| unsafe { self.out.write(row.unwrap_or(i), start, values) })?;
        }
        Ok(())
    }

    /// The same of some rows of inputs, the same ones at every call.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn run_rows(&self, rows: impl Iterator<Item = usize> + Clone, first: usize, count: usize) -> Result<()> {
        if rows.clone().next().is_none() {
            return Ok(());
        }
        let gathered = match self.gathered.get() {
            Some(gathered) => gathered,
            None => {
                let gathered = FallbackRows::new(rows, self.inputs()?)?;
                self.gathered.get_or_init(|| gathered)
            }
        };
        gathered.multiply(self.rows, first, count, self.out)
    }
}

/// Rows of inputs that a kernel leaves to the float32 kernel, gathered.
pub(super) struct FallbackRows {
    rows: Vec<usize>,
    values: Vec<f32>,
    stride: usize,
}

impl FallbackRows {
    /// Gathers rows of `x`.
    ///
    /// # Errors
    /// Where memory is short.
    fn new(rows_of_x: impl Iterator<Item = usize> + Clone, x: &Inputs<'_>) -> Result<Self> {
        let mut rows = zeroed(rows_of_x.clone().count())?;
        rows.iter_mut().zip(rows_of_x).for_each(|(to, row)| *to = row);
        let mut values = zeroed(rows.len() * x.stride)?;
        for (to, &row) in values.chunks_mut(x.stride.max(1)).zip(&rows) {
            to.copy_from_slice(x.row(row));
        }
        Ok(Self { rows, values, stride: x.stride })
    }

    /// Gathers rows of `k` values that `write` writes.
    ///
    /// # Errors
    /// Where memory is short, and those of `write`.
    pub(super) fn written(
        rows: Vec<usize>,
        k: usize,
        write: impl Fn(usize, &mut [f32], usize) -> Result<()>,
    ) -> Result<Self> {
        let stride = k.next_multiple_of(LANES);
        let mut values = zeroed(rows.len() * stride)?;
        for (to, &row) in values.chunks_mut(stride).zip(&rows) {
            write(row, to, stride)?;
        }
        Ok(Self { rows, values, stride })
    }

    /// How many rows there are.
    pub(super) const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Writes their products with `count` rows of weights from `first` on, which belong to one unit of work.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn multiply(&self, rows: &Rows<'_>, first: usize, count: usize, out: &Biased<'_>) -> Result<()> {
        ran::note(ran::FALLBACK);
        for start in (first..first + count).step_by(PANEL) {
            let count = PANEL.min(first + count - start);
            let panel = Panel { rows, x: &self.values, stride: self.stride, first: start, count };
            // SAFETY: as for the caller; each of the rows is there once.
            panel.run(self.rows.len(), |i, values| unsafe { out.write(self.rows[i], start, values) })?;
        }
        Ok(())
    }
}

/// Writes the products of rows of inputs, a bit each, with a panel of sparse weights.
///
/// # Errors
/// Where memory is short.
pub(super) fn sparse_rows(
    w: &SparseMatrix<'_>,
    level: Level,
    x: &Inputs<'_>,
    panel: usize,
    bits: u32,
    out: &Biased<'_>,
) -> Result<()> {
    ran::note(ran::FALLBACK);
    const { assert!(sparse::PANEL <= PANEL, "a panel of sparse codes is one of products") };
    let first = panel * sparse::PANEL;
    let count = sparse::PANEL.min(w.shape.rows - first);
    let mut codes = zeroed(count * w.format.row_bytes(w.shape.columns)?)?;
    sparse::expand(&w.sparse, w.format.width(), w.shape, first, count, &mut codes)?;
    let of_tensor = w.format.granularity() == Granularity::Tensor || w.shape.rows == 0;
    let row_scales = if of_tensor { 0 } else { w.packed.scales.len() / w.shape.rows };
    let scales = if of_tensor { w.packed.scales } else { &w.packed.scales[first * row_scales..][..count * row_scales] };
    let packed = Packed { codes: &codes, scales, ..w.packed };
    let rows = Rows::new(packed, count, w.shape.columns, w.format, level)?;
    for row in (0..u32::BITS as usize).filter(|row| bits >> row & 1 == 1) {
        let panel = Panel { rows: &rows, x: x.row(row), stride: x.stride, first: 0, count };
        // SAFETY: the panel belongs to one unit of work.
        panel.run(1, |_, values| unsafe { out.write(row, first, values) })?;
    }
    Ok(())
}
