//! Sparse codes: a bitmap of the elements whose code is not 0, and those codes. FORMATS.md section 5, "Sparse codes".
//!
//! Rows are taken sixteen at a time, a panel, and columns four at a time, a quad. A word of the bitmap is a quad of a panel:
//! bit `4 r + c` is column `c` of the quad in row `r` of the panel. Codes follow in the order of words and of bits in a word,
//! as one stream of bits. So one expansion of 64 bytes gives a kernel four columns of sixteen rows, a lane for each row.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod expand;
mod reference;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::expanded as expanded_word;
pub(crate) use expand::check;
#[cfg(target_arch = "x86_64")]
pub(crate) use expand::stream;
pub use expand::{expand, expanded};

use crate::bitpack::{pack, unpack};
use crate::codec::grid::{Grid, GroupScale, decode_element};
use crate::codec::zeroed;
use crate::error::{Result, ShapeError};
use crate::format::{Format, packed_bytes};
use crate::simd::Level;

/// Rows of a panel.
pub const PANEL: usize = 16;
/// Columns of a quad.
pub const QUAD: usize = 4;
/// Bits of the longest code that may be left out.
pub const MOST_WIDTH: u32 = 8;

/// Rows and columns of a matrix of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Shape {
    /// Panels of the rows; none where there is no element.
    pub const fn panels(self) -> usize {
        if self.columns == 0 { 0 } else { self.rows.div_ceil(PANEL) }
    }
    /// Quads of a row; none where there is no element.
    pub const fn quads(self) -> usize {
        if self.rows == 0 { 0 } else { self.columns.div_ceil(QUAD) }
    }
    /// Words of the bitmap.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where their number overflows.
    pub fn words(self) -> Result<usize> {
        let words = self.panels().checked_mul(self.quads()).filter(|&words| words <= isize::MAX as usize / 64);
        words.ok_or_else(|| ShapeError::TooManyElements { shape: vec![self.rows, self.columns] }.into())
    }
}

/// Codes of a matrix without those that are 0.
#[derive(Clone, Copy, Debug)]
pub struct Sparse<'a> {
    /// The codes that are not 0, a little-endian stream of bits.
    pub codes: &'a [u8],
    /// One word for each quad of each panel.
    pub bitmap: &'a [u64],
    /// Codes before each panel: what [`starts`] gives.
    pub starts: &'a [u64],
}

/// True for formats whose codes of 0 may be left out: at most 8 bits, no zero points or offsets, and 0 is the code of +0.
pub fn takes(format: Format) -> bool {
    let width = format.width();
    let one = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
    width <= MOST_WIDTH
        && !format.has_zeros()
        && !format.has_offsets()
        && f64::from(decode_element(&Grid::of(format), width, 0, &one)).to_bits() == 0
}

/// Bytes of `nonzero` codes.
///
/// # Errors
/// [`crate::Error::Shape`] where their number overflows.
pub fn code_bytes(nonzero: u64, width: u32) -> Result<usize> {
    packed_bytes(usize::try_from(nonzero).unwrap_or(usize::MAX), width)
}

/// Codes before each panel.
///
/// # Errors
/// [`crate::Error::Shape`] where the bitmap has another length, other than `nonzero` bits, or bits outside the matrix.
pub fn starts(bitmap: &[u64], shape: Shape, nonzero: u64) -> Result<Vec<u64>> {
    let words = shape.words()?;
    if bitmap.len() != words {
        return Err(ShapeError::SparseLength { what: "bitmap (words)", got: bitmap.len(), expected: words }.into());
    }
    let (mut starts, mut before) = (zeroed(shape.panels())?, 0u64);
    let quads = shape.quads().max(1);
    for (panel, (start, words)) in starts.iter_mut().zip(bitmap.chunks(quads)).enumerate() {
        *start = before;
        before += words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let rows = (shape.rows - panel * PANEL).min(PANEL);
        let rows_inside = u64::MAX >> (64 - QUAD * rows);
        let last = shape.columns - (quads - 1) * QUAD;
        let columns_inside = (0x1111_1111_1111_1111u64 << last).wrapping_sub(0x1111_1111_1111_1111);
        let columns_inside = if last == QUAD { u64::MAX } else { columns_inside };
        let outside = words.iter().any(|word| word & !rows_inside != 0)
            || words.last().is_some_and(|word| word & !columns_inside != 0);
        if outside {
            return Err(ShapeError::SparseOutside { rows: shape.rows, columns: shape.columns }.into());
        }
    }
    if before != nonzero {
        return Err(ShapeError::SparseCount { counted: before, expected: nonzero }.into());
    }
    Ok(starts)
}

/// Checks that rows of codes are those of a matrix; returns the bytes of a row.
fn row_bytes(codes: usize, width: u32, shape: Shape) -> Result<usize> {
    if !(1..=MOST_WIDTH).contains(&width) {
        return Err(ShapeError::CodeWidth { width }.into());
    }
    shape.words()?;
    let bytes = packed_bytes(shape.columns, width)?;
    if shape.rows.checked_mul(bytes) != Some(codes) {
        let expected = shape.rows.saturating_mul(bytes);
        return Err(ShapeError::SparseLength { what: "dense codes (bytes)", got: codes, expected }.into());
    }
    Ok(bytes)
}

/// Counts the codes of a dense matrix that are not 0.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit or `width` is above [`MOST_WIDTH`].
pub fn count(codes: &[u8], width: u32, shape: Shape) -> Result<u64> {
    let bytes = row_bytes(codes.len(), width, shape)?;
    let (mut row, mut all) = (zeroed::<u8>(shape.columns)?, 0u64);
    for packed in codes.chunks(bytes.max(1)) {
        unpack(Level::current(), packed, width, &mut row);
        all += row.iter().map(|&code| u64::from(code != 0)).sum::<u64>();
    }
    Ok(all)
}

/// Writes the codes of a dense matrix that are not 0, and the bitmap; `nonzero` is what [`count`] gives.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit.
pub fn compress(
    codes: &[u8],
    width: u32,
    shape: Shape,
    nonzero: u64,
    out: &mut [u8],
    bitmap: &mut [u64],
) -> Result<()> {
    let bytes = row_bytes(codes.len(), width, shape)?;
    let (words, expected) = (shape.words()?, code_bytes(nonzero, width)?);
    if bitmap.len() != words {
        return Err(ShapeError::SparseLength { what: "bitmap (words)", got: bitmap.len(), expected: words }.into());
    }
    if out.len() != expected {
        return Err(ShapeError::SparseLength { what: "codes (bytes)", got: out.len(), expected }.into());
    }
    let (quads, level) = (shape.quads(), Level::current());
    let stride = quads * QUAD;
    let mut rows = zeroed::<u8>(PANEL * stride)?;
    let mut kept = zeroed::<u8>(0)?;
    kept.try_reserve_exact(nonzero as usize).map_err(|_| crate::Error::OutOfMemory(nonzero as usize))?;
    for (panel, words) in codes.chunks((PANEL * bytes).max(1)).zip(bitmap.chunks_mut(quads.max(1))) {
        rows.fill(0);
        for (packed, row) in panel.chunks(bytes.max(1)).zip(rows.chunks_mut(stride.max(1))) {
            unpack(level, packed, width, &mut row[..shape.columns]);
        }
        reference::compress(&rows, stride, words, &mut kept);
    }
    if kept.len() as u64 != nonzero {
        return Err(ShapeError::SparseCount { counted: kept.len() as u64, expected: nonzero }.into());
    }
    pack(level, &kept, width, out);
    Ok(())
}

#[cfg(test)]
mod tests;
