//! The scalar reference of the codecs: groups of elements, one element after the other.
//!
//! It is the definition, with `grid` (which code is nearest, and what a code means) and `scale` (which scale a group
//! gets). It calls nothing fast: the dispatch in `lanes` calls it, at the level `scalar` and for every group that no kernel
//! takes, and each kernel is compared with it bit for bit.

use crate::bitpack::Code;
use crate::float::{exp2, to_bf16_saturating, to_f16_saturating};

use super::Nonfinite;
use super::grid::{GroupScale, decode_element, encode_element};
use super::group_scales::Work;
use super::scale::{
    CHUNK, Query, Stat, block_code, block_error, block_step, ceil_code, choose as choose_by, mse_candidates, stat_chunk,
};
use super::scale_search::{Chooser, RawScale, ScaleRule};

/// Answers a query about values that may hold NaN and infinities: NaN takes no part, infinities count as the largest
/// finite value.
pub(crate) fn stat(work: &Work, x: &[f32], query: &Query) -> Stat {
    let bounded = |chunk: &[f32]| chunk.iter().map(|v| v.clamp(-work.largest, work.largest)).collect::<Vec<_>>();
    x.chunks(CHUNK).fold(Stat::default(), |all, chunk| all.join(&stat_chunk(&bounded(chunk), query)))
}

/// The scale that the rules choose for a whole group.
pub(crate) fn choose(work: &Work, x: &[f32]) -> RawScale {
    choose_from(work, x, |query| stat(work, x, query))
}

/// [`choose`] with the answers of `ask` to queries about `x`.
pub(crate) fn choose_from(work: &Work, x: &[f32], ask: impl Fn(&Query) -> Stat) -> RawScale {
    match work.chooser {
        Chooser::Unit(_) | Chooser::Carried => RawScale::default(),
        Chooser::Exponent { .. } | Chooser::NvFp4 => RawScale::code(choose_block(work, x)),
        // The closure never fails, so neither does the choice.
        _ => choose_by(&work.chooser, work.float16(), |query| Ok(ask(query))).unwrap_or_default(),
    }
}

/// The scale code of a block.
fn choose_block(work: &Work, x: &[f32]) -> u8 {
    let finite: Vec<f32>;
    let mut x = x;
    if x.iter().any(|v| !v.is_finite()) {
        // NaN counts as 0, and an infinity as the largest finite value.
        let bounded = |&v: &f32| if v.is_nan() { 0.0 } else { v.clamp(-work.largest, work.largest) };
        finite = x.iter().map(bounded).collect();
        x = &finite;
    }
    let absmax = stat_chunk(x, &Query::AbsMax).absmax;
    let default = block_code(&work.chooser, absmax, work.tensor);
    match work.rule {
        ScaleRule::Floor => default,
        ScaleRule::Ceil => ceil_code(&work.chooser, &work.grid, absmax, work.tensor, default),
        ScaleRule::Mse if absmax == 0 => default,
        ScaleRule::Mse => {
            let unit = match work.chooser {
                Chooser::NvFp4 => block_step(&work.chooser, default, work.tensor) as f32,
                _ => exp2(i32::from(default) - 127) as f32,
            };
            if unit == 0.0 {
                return default;
            }
            let mut best = (f32::INFINITY, default);
            for code in mse_candidates(&work.chooser, default).into_iter().flatten() {
                let scale = work.resolve(&RawScale::code(code));
                let error = block_error(x, 1.0 / unit, |v| round(work, v, &scale));
                if error < best.0 {
                    best = (error, code);
                }
            }
            best.1
        }
    }
}

/// The nearest representable value of one finite number.
pub(crate) fn round(work: &Work, v: f32, scale: &GroupScale) -> f32 {
    decode_element(&work.grid, work.width, encode_element(&work.grid, work.width, v, scale), scale)
}

/// Quantizes a group under a known scale. `out` may be `x`.
///
/// # Safety
/// `x` must be readable, `out` writable, for `len` elements, aligned or not; where they are not the same address, they
/// must be apart.
pub(crate) unsafe fn quantize_group(work: &Work, x: *const f32, out: *mut f32, len: usize, scale: &GroupScale) {
    for i in 0..len {
        // SAFETY: as the caller promises.
        unsafe {
            let v = x.add(i).read_unaligned();
            let q = if v.is_nan() { v } else { round(work, v.clamp(-work.largest, work.largest), scale) };
            out.add(i).write_unaligned(q);
        }
    }
}

/// Encodes a group under a known scale; returns the position of the first value that the policy refuses.
pub(crate) fn encode_group<C: Code>(
    work: &Work,
    x: &[f32],
    codes: &mut [C],
    scale: &GroupScale,
    group: usize,
) -> Option<usize> {
    let mut first = None;
    let mut nan_block = false;
    for (i, (&v, code)) in x.iter().zip(codes.iter_mut()).enumerate() {
        if !v.is_finite() && work.nonfinite == Nonfinite::Error && first.is_none() {
            first = Some(i);
        }
        *code = C::from_u32(if v.is_nan() {
            if work.nonfinite == Nonfinite::Nan {
                nan_block = true;
                work.format.nan_code()
            } else {
                encode_element(&work.grid, work.width, 0.0, scale)
            }
        } else {
            encode_element(&work.grid, work.width, v.clamp(-work.largest, work.largest), scale)
        });
    }
    if nan_block && work.format.is_block() {
        codes.fill(C::default());
        work.store(group, &RawScale::code(255));
    }
    first
}

/// Decodes a group under a known scale.
///
/// # Safety
/// `out` must be writable for `codes.len()` values, aligned or not.
pub(crate) unsafe fn decode_group<C: Code>(work: &Work, codes: &[C], out: *mut f32, scale: &GroupScale) {
    for (i, &code) in codes.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { out.add(i).write_unaligned(decode_element(&work.grid, work.width, code.to_u32(), scale)) };
    }
}

/// Widens 16-bit floats.
///
/// # Safety
/// `from` must be readable for `to.len()` values, aligned or not.
pub(crate) unsafe fn widen(from: *const u16, float16: bool, to: &mut [f32]) {
    for (i, value) in to.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        let bits = unsafe { from.add(i).read_unaligned() };
        *value = if float16 { half::f16::from_bits(bits).to_f32() } else { half::bf16::from_bits(bits).to_f32() };
    }
}

/// Narrows to 16-bit floats: one rounding, saturating.
///
/// # Safety
/// `to` must be writable for `from.len()` values, aligned or not.
pub(crate) unsafe fn narrow(from: &[f32], float16: bool, to: *mut u16) {
    for (i, &value) in from.iter().enumerate() {
        let bits = if float16 { to_f16_saturating(value) } else { to_bf16_saturating(value) };
        // SAFETY: as the caller promises.
        unsafe { to.add(i).write_unaligned(bits) };
    }
}
