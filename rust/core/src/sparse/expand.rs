//! Dense codes of some rows again, panels in parallel.

use std::sync::{Mutex, PoisonError};

use super::{MOST_WIDTH, PANEL, QUAD, Shape, Sparse, reference, starts};
use crate::bitpack::{pack, unpack};
use crate::codec::{set_len, zeroed};
use crate::error::{Result, ShapeError};
use crate::format::packed_bytes;
use crate::pool;
use crate::simd::Level;

/// Bytes that may be read behind the codes of a panel.
const BEHIND: usize = 64;
/// Rows of a panel in scratch memory are a multiple of this apart.
const STRIDE: usize = 64;

/// Writes the dense codes of `count` rows from `first` on, a multiple of [`PANEL`]: those that [`super::compress`] was
/// given.
///
/// # Errors
/// [`crate::Error::Shape`] where lengths do not fit the matrix, or a panel has more codes than there are.
pub fn expand(sparse: &Sparse<'_>, width: u32, shape: Shape, first: usize, count: usize, out: &mut [u8]) -> Result<()> {
    check(sparse, width, shape)?;
    let bytes = packed_bytes(shape.columns, width)?;
    if !first.is_multiple_of(PANEL) || first.checked_add(count).is_none_or(|end| end > shape.rows) {
        return Err(ShapeError::SparseRows { first, count, rows: shape.rows }.into());
    }
    if count.checked_mul(bytes) != Some(out.len()) {
        let expected = count.saturating_mul(bytes);
        return Err(ShapeError::SparseLength { what: "dense codes (bytes)", got: out.len(), expected }.into());
    }
    if out.is_empty() {
        return Ok(());
    }
    let (level, work) = (Level::current(), out.len());
    let pieces: Vec<_> = out.chunks_mut(PANEL * bytes).map(Mutex::new).collect();
    pool::try_for_each(pieces.len(), work, |piece| {
        let (mut codes, mut rows) = (Vec::new(), Vec::new());
        let stride = panel_bytes(level, sparse, width, shape, first / PANEL + piece, &mut codes, &mut rows)?;
        let mut out = pieces[piece].lock().unwrap_or_else(PoisonError::into_inner);
        for (packed, row) in out.chunks_mut(bytes).zip(rows.chunks(stride)) {
            pack(level, &row[..shape.columns], width, packed);
        }
        Ok(())
    })
}

/// The dense codes of a whole matrix, of parts as a file holds them.
///
/// # Errors
/// As [`starts`] and [`expand`].
pub fn expanded(codes: &[u8], bitmap: &[u64], nonzero: u64, width: u32, shape: Shape) -> Result<Vec<u8>> {
    let starts = starts(bitmap, shape, nonzero)?;
    let bytes = shape.rows.saturating_mul(packed_bytes(shape.columns, width)?);
    let mut out = zeroed(bytes)?;
    expand(&Sparse { codes, bitmap, starts: &starts }, width, shape, 0, shape.rows, &mut out)?;
    Ok(out)
}

/// Checks lengths that reading a panel relies on.
pub(crate) fn check(sparse: &Sparse<'_>, width: u32, shape: Shape) -> Result<()> {
    if !(1..=MOST_WIDTH).contains(&width) {
        return Err(ShapeError::CodeWidth { width }.into());
    }
    let words = shape.words()?;
    let lengths =
        [("bitmap (words)", sparse.bitmap.len(), words), ("starts (panels)", sparse.starts.len(), shape.panels())];
    match lengths.into_iter().find(|(_, got, expected)| got != expected) {
        Some((what, got, expected)) => Err(ShapeError::SparseLength { what, got, expected }.into()),
        None => Ok(()),
    }
}

/// The codes of a panel as bytes, with [`BEHIND`] more that may be read, in `scratch` where they cannot stay where they
/// are. The lengths must be checked.
///
/// # Errors
/// [`crate::Error::Shape`] where the panel has more codes than there are.
pub(crate) fn stream<'s>(
    level: Level,
    sparse: &Sparse<'s>,
    width: u32,
    panel: usize,
    words: &[u64],
    scratch: &'s mut Vec<u8>,
) -> Result<&'s [u8]> {
    let there = sparse.codes.len() as u64 * 8 / u64::from(width);
    let start = sparse.starts[panel];
    // No word has more codes than bits: where all of those are there, they need not be counted.
    if width == 8 && start.saturating_add((64 * words.len() + BEHIND) as u64) <= there {
        return Ok(&sparse.codes[start as usize..]);
    }
    let count: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
    let end = start.checked_add(count).filter(|&end| end <= there);
    let Some(end) = end else {
        return Err(ShapeError::SparseEnd { panel, count, start, there }.into());
    };
    // Eight codes end on a byte.
    let whole = start & !7;
    let codes = &sparse.codes[(whole * u64::from(width) / 8) as usize..];
    let (before, count) = ((start - whole) as usize, (end - whole) as usize);
    scratch.clear();
    set_len(scratch, count + BEHIND)?;
    unpack(level, codes, width, &mut scratch[..count]);
    Ok(&scratch[before..])
}

/// Writes the codes of a panel as bytes to `rows`; returns how far apart its rows are. The lengths must be checked.
///
/// # Errors
/// As [`stream`].
pub(super) fn panel_bytes(
    level: Level,
    sparse: &Sparse<'_>,
    width: u32,
    shape: Shape,
    panel: usize,
    codes: &mut Vec<u8>,
    rows: &mut Vec<u8>,
) -> Result<usize> {
    let quads = shape.quads();
    let stride = (quads * QUAD).next_multiple_of(STRIDE);
    set_len(rows, PANEL * stride)?;
    let words = &sparse.bitmap[panel * quads..][..quads];
    let stream = stream(level, sparse, width, panel, words, codes)?;
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if is_x86_feature_detected!("avx512vbmi2") && is_x86_feature_detected!("popcnt") => {
            // SAFETY: the instructions are there; the stream has the codes of all words and as many bytes behind, rows are
            // whole vectors apart.
            unsafe { super::avx512::expand(stream, words, rows, stride) };
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => {
            // SAFETY: as above.
            unsafe { super::avx2::expand(stream, words, rows, stride) };
        }
        _ => reference::expand(stream, words, rows, stride),
    }
    Ok(stride)
}
