//! Rows of weights of at most 4 bits as nibbles, with a scale and a zero point for each group.

use super::group_scales_avx2::GroupScales;
use super::int8_limbs_vnni::{self, Plan};
use crate::bitpack::{pack, unpack};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;

/// Columns that share a scale, at most. A longer stored group is several of these.
pub(super) const GROUP: usize = 32;

/// Reads rows of weights.
pub(super) struct NibbleRows<'a> {
    scales: GroupScales<'a>,
    /// Columns of a block, whole ones of which a row is.
    block: usize,
    /// The code of 0, which rows are filled up with.
    none: u8,
}

/// Some rows of weights.
pub(super) struct Scratch {
    /// Nibbles of whole blocks; none where rows are read as they are stored.
    codes: Vec<u8>,
    /// Codes of a row before they are nibbles.
    wide: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
    stored_zeros: Vec<u16>,
}

/// A row that has been read: whole blocks of nibbles, and a scale for each group; zero points where the format has them.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) codes: *const u8,
    pub(super) scales: *const f32,
    pub(super) zeros: *const f32,
}

impl<'a> NibbleRows<'a> {
    /// A reader of rows whose format has the plan, for groups of at most `group` columns, in whole blocks of `block`.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, group: usize, block: usize) -> Self {
        let none = plan.numbers.iter().position(|&number| number == 0.0).unwrap_or(0);
        Self { scales: GroupScales::new(plan, rows, group.min(GROUP)), block, none: none as u8 }
    }

    /// Columns that share a scale.
    pub(super) const fn group(&self) -> usize {
        self.scales.group
    }

    /// Blocks in a row.
    pub(super) const fn blocks(&self) -> usize {
        self.scales.rows.k.div_ceil(self.block)
    }

    /// Groups in a row.
    const fn groups(&self) -> usize {
        self.blocks() * (self.block / self.scales.group)
    }

    /// Bytes of the nibbles of a row.
    const fn bytes(&self) -> usize {
        self.blocks() * self.block / 2
    }

    /// Room for `rows` rows.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn scratch(&self, rows: usize) -> Result<Scratch> {
        let (plan, k) = (self.scales.plan, self.scales.rows.k);
        let stored = plan.width == 4 && k.is_multiple_of(self.block);
        Ok(Scratch {
            codes: zeroed(if stored { 0 } else { rows * self.bytes() })?,
            wide: zeroed(if stored { 0 } else { 2 * self.bytes() })?,
            scales: zeroed(rows * self.groups())?,
            zeros: zeroed(if plan.zeros { rows * self.groups() } else { 0 })?,
            stored_zeros: Vec::new(),
        })
    }

    /// Reads one row to a place of `to`; false where a scale is so large or so small that weights may not be a number times
    /// it.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C; the matrix must have the row, and `to` the place.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn read(&self, row: usize, place: usize, to: &mut Scratch) -> bool {
        let (plan, rows, groups) = (self.scales.plan, self.scales.rows, self.groups());
        // SAFETY: as the caller promises.
        if !unsafe { self.scales.read(row, &mut to.scales[place * groups..][..groups]) } {
            return false;
        }
        if plan.zeros {
            let zeros = &mut to.zeros[place * groups..][..groups];
            int8_limbs_vnni::zeros(rows, row, self.scales.each(), zeros, &mut to.stored_zeros);
        }
        if !to.codes.is_empty() {
            let (codes, row_bytes) = rows.codes();
            to.wide[rows.k..].fill(self.none);
            unpack(rows.level(), &codes[row * row_bytes..][..row_bytes], plan.width, &mut to.wide[..rows.k]);
            pack(rows.level(), &to.wide, 4, &mut to.codes[place * self.bytes()..][..self.bytes()]);
        }
        true
    }

    /// The row at a place, which [`Self::read`] read as `row`.
    pub(super) fn row(&self, row: usize, place: usize, from: &Scratch) -> Row {
        let ((codes, row_bytes), groups) = (self.scales.rows.codes(), self.groups());
        let codes = match from.codes.is_empty() {
            true => codes[row * row_bytes..][..row_bytes].as_ptr(),
            false => from.codes[place * self.bytes()..].as_ptr(),
        };
        let zeros = from.zeros.get(place * groups..).unwrap_or_default().as_ptr();
        Row { codes, scales: from.scales[place * groups..].as_ptr(), zeros }
    }

    /// Bytes from the codes of a row to those of the one `rows` further, where both are read as they are stored; else 0.
    pub(super) const fn ahead(&self, rows: usize, from: &Scratch) -> usize {
        if from.codes.is_empty() { rows * self.scales.rows.codes().1 } else { 0 }
    }
}
