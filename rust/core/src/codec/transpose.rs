//! Transposes: an inner axis is moved last, and back. The codecs work on rows; only this file knows other axes.

use super::views::{Dst, Layout, Src};
use crate::error::{Error, Result};
use crate::huge_pages;
use crate::pool;

/// Columns that one unit of work moves; a tile of this width keeps whole cache lines on both sides.
const TILE: usize = 64;

/// Zeroed bytes, aligned for every dtype.
pub(crate) struct Buffer {
    words: Vec<u64>,
    bytes: usize,
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the words hold at least `bytes` initialized bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.bytes) }
    }
}

/// A zeroed buffer, or a typed error where memory is short.
pub(crate) fn buffer(bytes: usize) -> Result<Buffer> {
    Ok(Buffer { words: zeroed(bytes.div_ceil(8))?, bytes })
}

/// A vector of zeros, in huge pages where it fills some, or a typed error where memory is short.
pub(crate) fn zeroed<T: Clone + Default>(count: usize) -> Result<Vec<T>> {
    let mut zeros = Vec::<T>::new();
    zeros.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(count.saturating_mul(size_of::<T>())))?;
    huge_pages::advise(zeros.as_ptr().addr(), count.saturating_mul(size_of::<T>()));
    zeros.resize(count, T::default());
    Ok(zeros)
}

/// Makes a vector `count` long, or gives a typed error where memory is short.
pub(crate) fn set_len<T: Clone + Default>(all: &mut Vec<T>, count: usize) -> Result<()> {
    let more = count.saturating_sub(all.len());
    all.try_reserve(more).map_err(|_| Error::OutOfMemory(count.saturating_mul(size_of::<T>())))?;
    all.resize(count, T::default());
    Ok(())
}

/// `[outer, k, inner]` copied to `[outer, inner, k]`; `None` where the axis is last already.
pub(crate) fn forward(src: Src, layout: &Layout) -> Result<Option<Buffer>> {
    if layout.inner == 1 {
        return Ok(None);
    }
    let mut out = buffer(layout.len() * src.dtype.bytes())?;
    let dst = Dst::new(out.as_mut_ptr(), src.dtype);
    swap(src, dst, layout.outer, layout.k, layout.inner)?;
    Ok(Some(out))
}

/// `[outer, inner, k]` copied back to `[outer, k, inner]`.
pub(crate) fn backward(src: Src, dst: Dst, layout: &Layout) -> Result<()> {
    swap(src, dst, layout.outer, layout.inner, layout.k)
}

/// `[outer, a, b]` to `[outer, b, a]`; both of one dtype, and apart.
fn swap(src: Src, dst: Dst, outer: usize, a: usize, b: usize) -> Result<()> {
    let tiles = b.div_ceil(TILE);
    let bytes = outer * a * b * src.dtype.bytes();
    pool::for_each(outer * tiles, bytes, |unit| {
        let (matrix, columns) = (unit / tiles, (unit % tiles) * TILE);
        let columns = columns..(columns + TILE).min(b);
        // SAFETY: every index is below outer * a * b, the length of both buffers, which are of one dtype and apart; units
        // write disjoint rows of the result.
        unsafe {
            if src.dtype.bytes() == 4 {
                tile::<u32>(src.raw().cast(), dst.raw().cast(), matrix * a * b, a, b, columns);
            } else {
                tile::<u16>(src.raw().cast(), dst.raw().cast(), matrix * a * b, a, b, columns);
            }
        }
    })
}

/// Copies some columns of a matrix `[a, b]`, which begins at element `at`, to rows.
///
/// # Safety
/// Both pointers must cover `at + a * b` elements, aligned or not; `columns` must end at most at `b`. Nobody else may
/// write what is read here, or use those rows of `dst` that the columns become, meanwhile.
unsafe fn tile<T: Copy>(src: *const T, dst: *mut T, at: usize, a: usize, b: usize, columns: std::ops::Range<usize>) {
    for start in (0..a).step_by(TILE) {
        for column in columns.clone() {
            for row in start..(start + TILE).min(a) {
                // SAFETY: as the caller promises: row < a, column < b.
                unsafe {
                    let value = src.add(at + row * b + column).read_unaligned();
                    dst.add(at + column * a + row).write_unaligned(value);
                }
            }
        }
    }
}
