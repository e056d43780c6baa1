//! Decodes single rows of an encoded matrix, for products and gathers.

use std::ops::Range;

use super::grid::Grid;
use super::group_scales::{Scales, Work};
use super::scale_search::RawScale;
use super::views::{Layout, Sizes};
use super::{Packed, check_len, lanes, segment_driver};
use crate::bitpack::{Code, unpack};
use crate::error::Result;
use crate::format::{Format, Granularity, ScaleType};
use crate::simd::Level;

/// An encoded matrix whose rows are read.
pub(crate) struct Rows<'a> {
    work: Work,
    packed: Packed<'a>,
    sizes: Sizes,
    scale_bytes: usize,
    /// Rows decode as if their scale were 1.
    unscaled: bool,
    /// Elements of a row.
    pub(crate) k: usize,
}

/// What one thread unpacks codes and zero points into.
#[derive(Default)]
pub(crate) struct Unpacked {
    bytes: Vec<u8>,
    halves: Vec<u16>,
    words: Vec<u32>,
    zeros: Vec<u16>,
}

impl<'a> Rows<'a> {
    /// Checks the parts of a `rows` by `k` matrix.
    pub(crate) fn new(packed: Packed<'a>, rows: usize, k: usize, format: Format, level: Level) -> Result<Self> {
        let sizes = Sizes::new(format, &Layout::new(&[rows, k], -1, format)?)?;
        check_len(format, "codes (bytes)", packed.codes.len(), sizes.codes)?;
        Self::without_codes(packed, rows, k, format, level)
    }

    /// The same of a matrix whose codes are elsewhere, and whose rows cannot be decoded.
    pub(crate) fn without_codes(
        packed: Packed<'a>,
        rows: usize,
        k: usize,
        format: Format,
        level: Level,
    ) -> Result<Self> {
        let sizes = Sizes::new(format, &Layout::new(&[rows, k], -1, format)?)?;
        check_len(format, "scales (bytes)", packed.scales.len(), sizes.scales)?;
        check_len(format, "zeros (bytes)", packed.zeros.len(), sizes.zeros)?;
        check_len(format, "levels (bytes)", packed.levels.len(), sizes.levels)?;
        let mut work = Work::new(format, level);
        work.scales = Scales::Stored;
        work.tensor = segment_driver::first_level(&packed);
        let scale_bytes = sizes.scales.checked_div(sizes.groups).unwrap_or(0);
        Ok(Self { work, packed, sizes, scale_bytes, unscaled: false, k })
    }

    /// The same rows without the factor that [`Self::row_factor`] tells.
    pub(crate) fn unscaled(&self) -> Self {
        let tensor = if self.work.format.has_levels() { 1.0 } else { self.work.tensor };
        Self { work: Work { tensor, ..self.work }, unscaled: self.has_row_scale(), ..*self }
    }

    /// What an unscaled row is to be multiplied with: its only scale, or that of the tensor.
    pub(crate) fn row_factor(&self, row: usize) -> f32 {
        match self.has_row_scale() {
            true => self.row_step(row) as f32,
            false if self.work.format.has_levels() => self.work.tensor,
            false => 1.0,
        }
    }

    fn has_row_scale(&self) -> bool {
        let format = self.work.format;
        matches!(format.granularity(), Granularity::Channel | Granularity::Tensor) && format.scales_per_group() == 1
    }

    /// The SIMD level of the call.
    pub(crate) const fn level(&self) -> Level {
        self.work.level
    }

    /// Stored scales, and how many of them a row has.
    pub(crate) const fn scales(&self) -> (&'a [u8], usize) {
        (self.packed.scales, self.sizes.groups_per_row)
    }

    /// The packed codes, and the bytes of a row.
    pub(crate) const fn codes(&self) -> (&'a [u8], usize) {
        (self.packed.codes, self.sizes.row_bytes)
    }

    /// The step of a block by the code of its scale.
    pub(crate) fn block_step(&self, code: u8) -> f64 {
        self.work.resolve(&RawScale::code(code)).step
    }

    /// What the numbers of a row are multiplied with, in formats without groups and of one level.
    pub(crate) fn row_step(&self, row: usize) -> f64 {
        let scale = self.work.resolve(&self.of_row(row).load(0));
        if matches!(self.work.grid, Grid::Levels(_)) { f64::from(scale.levels[0]) } else { scale.step }
    }

    /// Zero points of a row, one for each of its groups; none in formats that have none.
    pub(crate) fn zeros(&self, row: usize, zeros: &mut Vec<u16>) {
        zeros.resize(if self.sizes.zeros_row > 0 { self.sizes.groups_per_row } else { 0 }, 0);
        if self.sizes.zeros_row > 0 {
            unpack(self.work.level, self.stored_zeros(row), self.work.width, zeros);
        }
    }

    /// The packed zero points of a row; none in formats that have none.
    pub(crate) fn stored_zeros(&self, row: usize) -> &'a [u8] {
        let first = if self.work.format.granularity() == Granularity::Tensor { 0 } else { row * self.sizes.zeros_row };
        &self.packed.zeros[first..][..self.sizes.zeros_row]
    }

    /// A stored scale of 1, as float32 or as a number of fraction bits.
    fn one(&self) -> *const u8 {
        static ONES: [f32; 4] = [1.0; 4];
        static ZERO: u8 = 0;
        if self.work.format.scale_type() == Some(ScaleType::I8) { &raw const ZERO } else { ONES.as_ptr().cast() }
    }

    /// The work of one row, whose scales are numbered from 0.
    fn of_row(&self, row: usize) -> Work {
        if self.unscaled {
            return Work { scale_in: self.one(), ..self.work };
        }
        let row_of_groups = if self.work.format.granularity() == Granularity::Tensor { 0 } else { row };
        let first = row_of_groups * self.sizes.groups_per_row * self.scale_bytes;
        Work { scale_in: self.packed.scales[first..].as_ptr(), ..self.work }
    }

    /// A number of columns near `wanted` after which a row may be cut: whole groups, whole bytes, a multiple of 32.
    pub(crate) fn cut(&self, wanted: usize) -> usize {
        let unit = match self.work.format.granularity() {
            Granularity::Block(block) if block.is_multiple_of(32) => block as usize,
            Granularity::Block(block) => 32 * block as usize,
            _ => 32,
        };
        (wanted / unit).max(1) * unit
    }

    /// Decodes `columns` of a row, beginning at a multiple of [`Self::cut`], into `out`.
    pub(crate) fn decode(&self, row: usize, columns: Range<usize>, out: &mut [f32], unpacked: &mut Unpacked) {
        let Unpacked { bytes, halves, words, zeros } = unpacked;
        let mut work = self.of_row(row);
        self.zeros(row, zeros);
        if !zeros.is_empty() {
            work.zero_in = zeros.as_ptr();
        }
        match work.width {
            0..=8 => self.piece(&work, row, columns, out, bytes),
            9..=16 => self.piece(&work, row, columns, out, halves),
            _ => self.piece(&work, row, columns, out, words),
        }
    }

    fn piece<C: Code>(&self, work: &Work, row: usize, columns: Range<usize>, out: &mut [f32], codes: &mut Vec<C>) {
        let width = work.width as usize;
        let packed = &self.packed.codes[row * self.sizes.row_bytes + columns.start * width / 8..];
        codes.resize(columns.len(), C::default());
        unpack(work.level, &packed[..(columns.len() * width).div_ceil(8)], work.width, codes);
        let group = match work.format.granularity() {
            Granularity::Block(block) => columns.start / block as usize,
            _ => 0,
        };
        assert!(columns.end <= self.k && out.len() >= columns.len());
        // SAFETY: `out` covers the codes. The columns lie inside the row, and the row, as slicing its codes has checked,
        // inside the matrix; so scales and zero points of all groups lie behind their pointers, as `new` checked.
        unsafe { lanes::decode_piece(work, codes, out.as_mut_ptr(), group) };
    }
}
