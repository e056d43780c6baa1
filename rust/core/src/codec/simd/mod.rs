//! Fast paths. Each function here gives the bits of its scalar twin in `work`, `scale` or `buffers`.

use crate::level::Level;
use crate::pack::Code;

use super::buffers::{narrow_reference, widen_reference};
use super::scale::{Query, Stat};
use super::work::Work;

/// Answers a query over one chunk of float32 values.
pub(crate) fn stat_chunk(_level: Level, x: &[f32], query: &Query) -> Stat {
    super::scale::stat_chunk(x, query)
}

/// Encodes a piece; returns the first position that the non-finite policy refuses.
pub(crate) fn encode_piece<C: Code>(work: &Work, x: &[f32], group: usize, codes: &mut [C]) -> Option<usize> {
    let len = work.group_len(x.len());
    let mut first = None;
    for (i, (x, codes)) in x.chunks(len).zip(codes.chunks_mut(len)).enumerate() {
        let scale = work.group_scale(x, group + i);
        let failed = work.encode_group(x, codes, &scale, group + i);
        first = first.or(failed.map(|position| i * len + position));
    }
    first
}

/// Quantises a piece; `out` may be `x`.
///
/// # Safety
/// Both pointers must cover `len` elements.
pub(crate) unsafe fn quantize_piece(work: &Work, x: *const f32, out: *mut f32, len: usize, group: usize) {
    let each = work.group_len(len);
    for (i, start) in (0..len).step_by(each).enumerate() {
        let n = each.min(len - start);
        // SAFETY: start + n <= len; the values are copied for the choice of a scale, since `out` may be `x`.
        unsafe {
            let values: Vec<f32> = (start..start + n).map(|j| x.add(j).read_unaligned()).collect();
            let scale = work.group_scale(&values, group + i);
            work.quantize_group(x.add(start), out.add(start), n, &scale);
        }
    }
}

/// Decodes a piece.
///
/// # Safety
/// `out` must cover `codes.len()` elements.
pub(crate) unsafe fn decode_piece<C: Code>(work: &Work, codes: &[C], out: *mut f32, group: usize) {
    let len = work.group_len(codes.len());
    for (i, codes) in codes.chunks(len).enumerate() {
        let scale = work.resolve(&work.load(group + i));
        let mut values = vec![0.0; codes.len()];
        work.decode_group(codes, &mut values, &scale);
        // SAFETY: the group lies inside `out`.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), out.add(i * len), codes.len()) };
    }
}

/// Widens 16-bit floats.
///
/// # Safety
/// `from` must cover `to.len()` values.
pub(crate) unsafe fn widen(_level: Level, from: *const u16, float16: bool, to: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe { widen_reference(from, float16, to) }
}

/// Narrows to 16-bit floats.
///
/// # Safety
/// `to` must cover `from.len()` values.
pub(crate) unsafe fn narrow(_level: Level, from: &[f32], float16: bool, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe { narrow_reference(from, float16, to) }
}
