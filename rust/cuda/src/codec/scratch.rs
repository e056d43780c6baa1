//! Scratch memory of a launch: its size, and its layout.

use octavo_core::codec::lowered::Chooser;
use octavo_core::error::ShapeError;
use octavo_core::format::Granularity;
use octavo_core::{Error, Format, Layout, Sizes};

use super::programs::learns;
use super::{Buffer, Parts};
use crate::Result;

/// Elements of a chunk of a float sum, and bytes that it leaves behind at most; CHUNK and RECORD in the kernels.
pub(super) const CHUNK: usize = 16_384;
const RECORD: usize = 64;

/// Addresses inside the scratch memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    /// Pairs of words, zero before the launch: largest and lowest value of each group.
    pub(super) words: u64,
    /// Partial sums of chunks.
    pub(super) records: u64,
    /// Partial gradients of scales, of chunks.
    pub(super) terms: u64,
    /// Zero points, two bytes a group.
    pub(super) zeros: u64,
    /// Scales, where the caller does not keep them.
    pub(super) parts: Parts,
    bytes: usize,
}

impl Scratch {
    fn new(format: Format, layout: &Layout, sizes: &Sizes, base: u64) -> Option<Self> {
        let mut at = 0usize;
        let mut take = |bytes: Option<usize>| {
            let start = at;
            at = at.checked_add(bytes?)?.checked_next_multiple_of(16)?;
            Some(start as u64 + base)
        };
        let whole = matches!(Chooser::of(format), Chooser::NvFp4);
        let (groups, length) = match sizes.groups {
            _ if whole => (1, layout.len()),
            0 => (0, 0),
            groups => (groups, layout.len() / groups),
        };
        let sums = matches!(Chooser::of(format), Chooser::Binary { .. } | Chooser::Ternary | Chooser::Fraction { .. });
        let chunks = if sums { groups.checked_mul(length.div_ceil(CHUNK))? } else { 0 };
        let terms = if learns(format) { sizes.groups.checked_mul(chunks_of_group(format, layout))? } else { 0 };
        let counted = whole || !matches!(format.granularity(), Granularity::Block(_));
        let words = take(if counted { groups.checked_mul(8) } else { Some(0) })?;
        let records = take(chunks.checked_mul(RECORD))?;
        let terms = take(terms.checked_mul(8))?;
        let zeros = take(if format.has_zeros() { sizes.groups.checked_mul(2) } else { Some(0) })?;
        let mut part = |bytes| Some(Buffer { address: take(Some(bytes))?, bytes });
        let parts = Parts {
            codes: Buffer::default(),
            scales: part(sizes.scales)?,
            zeros: part(sizes.zeros)?,
            levels: part(sizes.levels)?,
        };
        Some(Self { words, records, terms, zeros, parts, bytes: at })
    }

    /// The parts of a buffer of [`scratch_bytes`].
    pub(super) fn of(format: Format, layout: &Layout, sizes: &Sizes, buffer: Buffer) -> Result<Self> {
        let scratch = Self::new(format, layout, sizes, buffer.address).ok_or_else(|| too_large(format, layout))?;
        buffer.check(format, "scratch", scratch.bytes, 16)?;
        Ok(scratch)
    }
}

/// Chunks of a group of a float sum.
pub(super) fn chunks_of_group(format: Format, layout: &Layout) -> usize {
    let length = match format.granularity() {
        Granularity::Block(block) => layout.k.min(block as usize),
        Granularity::Tensor => layout.len(),
        _ => layout.k,
    };
    length.div_ceil(CHUNK)
}

fn too_large(format: Format, layout: &Layout) -> Error {
    ShapeError::TooManyBytes { format, elements: layout.len() }.into()
}

/// Bytes of scratch memory, at a multiple of 16, for choosing scales of a tensor; and whether they must be zero before.
///
/// # Errors
/// `octavo_core::Error::Shape` where a size overflows.
pub fn scratch_bytes(format: Format, layout: &Layout) -> Result<(usize, bool)> {
    let sizes = Sizes::new(format, layout)?;
    let scratch = Scratch::new(format, layout, &sizes, 0).ok_or_else(|| too_large(format, layout))?;
    Ok((scratch.bytes, scratch.records > scratch.words))
}
