//! Fast paths. Each function here gives the bits of its scalar twin in `work`, `scale` or `buffers`.
//!
//! `lanes` is the instruction set, `kernels` the element arithmetic, `run` the loops. The functions below match the level
//! once for each piece and enter a wrapper compiled for it; everything inside is inlined into that wrapper.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod batch;
mod kernels;
mod lanes;
mod run;

use crate::level::Level;
use crate::pack::Code;

use super::buffers::{narrow_reference, widen_reference};
use super::grid::Grid;
use super::scale::{Query, Stat};
use super::work::Work;

/// Calls `$body` with `$K` bound to the first kernel that knows the format, and `$base` to what it shares.
macro_rules! with_kernel {
    ($V:ty, $work:expr, |$K:ident, $base:ident| $body:expr, else $otherwise:expr) => {{
        use kernels::*;
        let work = $work;
        if let Some($base) = <PowerSteps<$V> as Kernel<$V>>::base(work) {
            type $K = PowerSteps<$V>;
            $body
        } else if let Some($base) = <Floats<$V, false> as Kernel<$V>>::base(work) {
            type $K = Floats<$V, false>;
            $body
        } else if let Some($base) = <Floats<$V, true> as Kernel<$V>>::base(work) {
            type $K = Floats<$V, true>;
            $body
        } else if let Some($base) = <RealSteps<$V> as Kernel<$V>>::base(work) {
            type $K = RealSteps<$V>;
            $body
        } else if let Some($base) = <Truncated as Kernel<$V>>::base(work) {
            type $K = Truncated;
            $body
        } else if let Some($base) = <Identity as Kernel<$V>>::base(work) {
            type $K = Identity;
            $body
        } else if let Some($base) = <Powers<$V> as Kernel<$V>>::base(work) {
            type $K = Powers<$V>;
            $body
        } else if let Some($base) = <ScaledE2M1<$V> as Kernel<$V>>::base(work) {
            type $K = ScaledE2M1<$V>;
            $body
        } else if let Some($base) = <Book<$V> as Kernel<$V>>::base(work) {
            type $K = Book<$V>;
            $body
        } else if let Some($base) = <Signs<$V> as Kernel<$V>>::base(work) {
            type $K = Signs<$V>;
            $body
        } else {
            $otherwise
        }
    }};
}

/// The entry points of one instruction set.
macro_rules! level {
    ($module:ident, $V:ty, $features:literal) => {
        #[cfg(target_arch = "x86_64")]
        mod $module {
            use super::kernels;
            use super::{Code, Query, Stat, Work, run};

            /// # Safety
            /// The processor must have the features named.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn stat(x: &[f32], query: &Query) -> Stat {
                // SAFETY: as the caller promises; the features are those of the lanes.
                unsafe { run::stat::<$V>(x, query) }
            }
            /// # Safety
            /// The processor must have the features named; else as for [`super::quantize_piece`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn quantize(work: &Work, x: *const f32, out: *mut f32, len: usize, group: usize) -> bool {
                // SAFETY: as above.
                unsafe {
                    with_kernel!(
                        $V,
                        work,
                        |K, base| { run::quantize::<$V, K>(work, &base, x, out, len, group); true },
                        else false
                    )
                }
            }
            /// # Safety
            /// The processor must have the features named. Scales must be there for all groups, as [`Work`] says.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn encode<C: Code>(
                work: &Work,
                x: &[f32],
                codes: &mut [C],
                group: usize,
            ) -> Result<Option<usize>, ()> {
                // SAFETY: as above.
                unsafe {
                    with_kernel!($V, work, |K, base| Ok(run::encode::<$V, K, C>(work, &base, x, codes, group)), else Err(()))
                }
            }
            /// # Safety
            /// The processor must have the features named; else as for [`super::decode_piece`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn decode<C: Code>(work: &Work, codes: &[C], out: *mut f32, group: usize) -> bool {
                // SAFETY: as above.
                unsafe {
                    with_kernel!(
                        $V,
                        work,
                        |K, base| { run::decode::<$V, K, C>(work, &base, codes, out, group); true },
                        else false
                    )
                }
            }
            /// # Safety
            /// The processor must have the features named; else as for [`super::widen`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn widen(from: *const u16, float16: bool, to: &mut [f32]) {
                // SAFETY: as above.
                unsafe { run::widen::<$V>(from, float16, to) }
            }
            /// # Safety
            /// The processor must have the features named; else as for [`super::narrow`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn narrow(from: &[f32], float16: bool, to: *mut u16) {
                // SAFETY: as above.
                unsafe { run::narrow::<$V>(from, float16, to) }
            }
        }
    };
}

level!(on_avx2, super::avx2::Avx2, "avx2,fma,f16c,bmi2,popcnt");
level!(on_avx512, super::avx512::Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi2,popcnt");

/// Answers a query over one chunk of values. `level` is one that this processor has, as [`Level::current`]'s is.
pub(crate) fn stat_chunk(level: Level, x: &[f32], query: &Query) -> Stat {
    match level {
        // SAFETY: `level` is one that this processor has.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512::stat(x, query) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2::stat(x, query) },
        _ => super::scale::stat_chunk(x, query),
    }
}

/// True where every code is a number that float32 holds, or the bits of one: all but fixed point of 25 to 32 bits.
fn counts_in_lanes(work: &Work) -> bool {
    work.width <= 24 || !matches!(work.grid, Grid::Integer { .. })
}

/// Encodes a piece; returns the first position that the non-finite policy refuses.
pub(crate) fn encode_piece<C: Code>(work: &Work, x: &[f32], group: usize, codes: &mut [C]) -> Option<usize> {
    let fast = match work.level {
        // float32 lanes cannot count so far.
        _ if !counts_in_lanes(work) => Err(()),
        // SAFETY: the level of a `Work` is one that this processor has; scales are there for all groups, as `Work` says.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512::encode(work, x, codes, group) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2::encode(work, x, codes, group) },
        _ => Err(()),
    };
    if let Ok(first) = fast {
        return first;
    }
    let len = work.group_len(x.len());
    let mut first = None;
    for (i, (x, codes)) in x.chunks(len).zip(codes.chunks_mut(len)).enumerate() {
        let failed = run::scalar_encode(work, x, codes, group + i);
        first = first.or(failed.map(|position| i * len + position));
    }
    first
}

/// Quantizes a piece; `out` may be `x`.
///
/// # Safety
/// `x` must be aligned and readable, `out` writable, for `len` elements; where they are not the same address, they must be
/// apart. Nobody else may use `out`, or the scales of these groups, meanwhile. Scales must be there for all groups, as
/// [`Work`] says.
pub(crate) unsafe fn quantize_piece(work: &Work, x: *const f32, out: *mut f32, len: usize, group: usize) {
    let done = match work.level {
        // SAFETY: as the caller promises; the level of a `Work` is one that this processor has.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512::quantize(work, x, out, len, group) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2::quantize(work, x, out, len, group) },
        _ => false,
    };
    if done {
        return;
    }
    let each = work.group_len(len);
    for (i, start) in (0..len).step_by(each).enumerate() {
        // SAFETY: as the caller promises; the group lies inside both buffers.
        unsafe { run::scalar_quantize(work, x.add(start), out.add(start), each.min(len - start), group + i) };
    }
}

/// Decodes a piece.
///
/// # Safety
/// `out` must be aligned and writable for `codes.len()` elements, which nobody else may use meanwhile. Scales must be there
/// for all groups, as [`Work`] says.
pub(crate) unsafe fn decode_piece<C: Code>(work: &Work, codes: &[C], out: *mut f32, group: usize) {
    let done = match work.level {
        _ if !counts_in_lanes(work) => false,
        // SAFETY: as the caller promises; the level of a `Work` is one that this processor has.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512::decode(work, codes, out, group) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2::decode(work, codes, out, group) },
        _ => false,
    };
    if done {
        return;
    }
    let len = work.group_len(codes.len());
    for (i, codes) in codes.chunks(len).enumerate() {
        let scale = work.resolve(&work.load(group + i));
        // SAFETY: as the caller promises; the group lies inside `out`.
        unsafe { run::scalar_decode(work, codes, out.add(i * len), &scale) };
    }
}

/// Widens 16-bit floats.
///
/// # Safety
/// `from` must be readable for `to.len()` values; `level` must be one that this processor has.
pub(crate) unsafe fn widen(level: Level, from: *const u16, float16: bool, to: &mut [f32]) {
    // SAFETY: as the caller promises.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => on_avx512::widen(from, float16, to),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => on_avx2::widen(from, float16, to),
            _ => widen_reference(from, float16, to),
        }
    }
}

/// Narrows to 16-bit floats.
///
/// # Safety
/// `to` must be writable for `from.len()` values, which nobody else may use meanwhile; `level` must be one that this
/// processor has.
pub(crate) unsafe fn narrow(level: Level, from: &[f32], float16: bool, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => on_avx512::narrow(from, float16, to),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => on_avx2::narrow(from, float16, to),
            _ => narrow_reference(from, float16, to),
        }
    }
}
