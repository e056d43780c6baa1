//! [`Segments`]: a tensor cut into units of work. They depend on shape and format alone.

use std::ops::Range;

use crate::format::{Format, Granularity};

use super::scale::CHUNK;
use super::views::Layout;

/// Rows and columns cut into units of about [`CHUNK`] elements, every one starting on a whole byte of codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments {
    pub(super) rows: usize,
    pub(super) k: usize,
    rows_each: usize,
    columns_each: usize,
}

/// One row's part of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// First element, counted over the whole tensor.
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) row: usize,
    /// First column.
    pub(super) column: usize,
    /// First group, counted over the whole tensor.
    pub(super) group: usize,
}

impl Segments {
    /// `byte_rows`: rows of codes start on a byte, which flattening must keep.
    pub(super) fn new(layout: &Layout, format: Format, known: bool, byte_rows: bool) -> Self {
        let (mut rows, mut k) = (layout.rows(), layout.k);
        let whole_bytes = !byte_rows || k.is_multiple_of(8) || (k * format.width() as usize).is_multiple_of(8);
        let joins = match format.granularity() {
            Granularity::None | Granularity::Tensor => true,
            Granularity::Block(block) => k.is_multiple_of(block as usize),
            Granularity::Channel => false,
        };
        if whole_bytes && joins {
            k *= rows;
            rows = 1;
        }
        let columns_each = match format.granularity() {
            Granularity::Block(block) => {
                let unit = 8 * block as usize;
                (CHUNK / unit).max(1) * unit
            }
            Granularity::Channel if !known => usize::MAX,
            _ => CHUNK,
        };
        let rows_each = if k <= columns_each { (CHUNK / k).max(1) } else { 1 };
        Self { rows, k, rows_each, columns_each }
    }

    fn per_row(&self) -> usize {
        self.k.div_ceil(self.columns_each)
    }

    pub(super) fn count(&self) -> usize {
        if self.k <= self.columns_each { self.rows.div_ceil(self.rows_each) } else { self.rows * self.per_row() }
    }

    /// The pieces of a segment, in order.
    pub(super) fn pieces(&self, segment: usize, format: Format) -> impl Iterator<Item = Piece> {
        let Self { k, columns_each, .. } = *self;
        let (rows, column): (Range<usize>, usize) = if k <= columns_each {
            let first = segment * self.rows_each;
            (first..(first + self.rows_each).min(self.rows), 0)
        } else {
            let row = segment / self.per_row();
            (row..row + 1, segment % self.per_row() * columns_each)
        };
        let len = (k - column).min(columns_each);
        rows.map(move |row| {
            let group = match format.granularity() {
                Granularity::None | Granularity::Tensor => 0,
                Granularity::Channel => row,
                Granularity::Block(block) => row * k.div_ceil(block as usize) + column / block as usize,
            };
            Piece { start: row * k + column, len, row, column, group }
        })
    }
}
