//! The rows and units into which kernels divide a tensor.

use octavo_core::format::Granularity;
use octavo_core::{Error, Format, Layout, Sizes};

use crate::{Argument, Result};

/// Threads of a block; THREADS in the kernels.
pub(super) const THREADS: u32 = 256;
/// Elements that a thread of `encode` and `gradient` takes; UNIT_SIZE.
pub(super) const UNIT: usize = 8;

/// Rows of a tensor; joined to one row where neither scales nor bytes end at a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) row_bytes: usize,
    pub(super) groups_per_row: usize,
    pub(super) zeros_row: usize,
}

impl Shape {
    /// `byte_rows`: rows of codes begin on a byte, which joining must keep.
    pub(super) fn new(format: Format, layout: &Layout, sizes: &Sizes, byte_rows: bool) -> Self {
        let (rows, k) = (layout.rows(), layout.k);
        let width = format.width() as usize;
        let whole_bytes = !byte_rows || (k * width).is_multiple_of(8);
        let joins = match format.granularity() {
            Granularity::None | Granularity::Tensor => true,
            Granularity::Block(block) => {
                k.is_multiple_of(block as usize) && sizes.zeros_row * 8 == sizes.groups_per_row * zero_bits(format)
            }
            Granularity::Channel => false,
        };
        let per_row = if format.granularity() == Granularity::Tensor { 0 } else { sizes.groups_per_row };
        let each = Self { rows, k, row_bytes: sizes.row_bytes, groups_per_row: per_row, zeros_row: sizes.zeros_row };
        if whole_bytes && joins {
            Self { rows: 1, k: rows * k, row_bytes: sizes.codes, groups_per_row: per_row * rows, ..each }
        } else {
            each
        }
    }

    /// Units of `size` elements in all rows.
    pub(super) const fn units(&self, size: usize) -> u64 {
        (self.rows * self.k.div_ceil(size)) as u64
    }

    /// The arguments `rows, k, row_bytes, groups_per_row, zeros_row`.
    pub(super) fn arguments(&self) -> [Argument; 5] {
        [self.rows, self.k, self.row_bytes, self.groups_per_row, self.zeros_row].map(|v| Argument::I64(v as i64))
    }
}

/// Bits of a group's zero point; 0 where there is none.
const fn zero_bits(format: Format) -> usize {
    if format.has_zeros() { format.width() as usize } else { 0 }
}

/// Refuses a layout whose axis is not the last.
pub(super) fn check_last(format: Format, layout: &Layout) -> Result<()> {
    if layout.inner == 1 {
        Ok(())
    } else {
        Err(Error::shape(format!("'{format}': kernels take rows along the last dimension; move the axis there")).into())
    }
}
