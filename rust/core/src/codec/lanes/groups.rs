//! Loops over the groups of a piece: find the scale of a group, make its kernel, run it over the elements.

use super::batch::Batches;
use super::kernels::Kernel;
use super::statistics::{AHEAD, absmax, extremes};
use crate::bitpack::Code;
use crate::codec::grid::GroupScale;
use crate::codec::group_scales::{Scales, Work};
use crate::codec::reference;
use crate::codec::scale::Stat;
use crate::codec::scale_search::Chooser;
use crate::simd::Lanes;

const INFINITY: u32 = 0x7f80_0000;

/// Stores a vector, past the caches or through them.
///
/// # Safety
/// As for [`Lanes::store`]; for `stream`, `to` must be a multiple of 64.
#[inline(always)]
pub(super) unsafe fn put<V: Lanes>(to: *mut f32, v: V::F, stream: bool) {
    // SAFETY: as the caller promises.
    unsafe { if stream { V::stream(to, v) } else { V::store(to, v) } }
}

/// The group's kernel, its scale chosen and kept or read. `None`: the scalar code does this group, choice included.
///
/// # Safety
/// The processor must have the features of `V`. `x` must be aligned and readable for `len` values, and the scale of the
/// group be there, as [`Work`] says.
#[inline(always)]
pub(super) unsafe fn group_kernel<V: Lanes, K: Kernel<V>>(
    work: &Work,
    base: &K::Base,
    x: *const f32,
    len: usize,
    group: usize,
) -> Option<K> {
    // SAFETY: as the caller promises.
    unsafe {
        if matches!(work.scales, Scales::Stored) {
            return K::make(base, &work.resolve(&work.load(group)));
        }
        let raw = match work.chooser {
            Chooser::Unit(step) => {
                return K::make(base, &GroupScale { step, zero: 0, offset: 0.0, levels: [1.0; 4] });
            }
            // Blocks come here only under rules and shapes that no batch takes.
            Chooser::Exponent { .. } | Chooser::NvFp4 => return None,
            Chooser::Symmetric { .. } => {
                let absmax = absmax::<V>(x, len);
                if absmax == 0 || absmax >= INFINITY {
                    return None;
                }
                let stat = Stat { absmax, ..Stat::default() };
                crate::codec::scale::choose(&work.chooser, work.float16(), |_| Ok(stat)).ok()?
            }
            Chooser::Asymmetric { .. } => {
                let (min, max, absmax) = extremes::<V>(x, len);
                if absmax == 0 || absmax >= INFINITY {
                    return None;
                }
                let stat = Stat { min, max, ..Stat::default() };
                crate::codec::scale::choose(&work.chooser, work.float16(), |_| Ok(stat)).ok()?
            }
            _ => super::choose(work, std::slice::from_raw_parts(x, len)),
        };
        let kernel = K::make(base, &work.resolve(&raw))?;
        work.store(group, &raw);
        Some(kernel)
    }
}

/// Quantizes the groups of a piece; `out` may be `x`.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::quantize_piece`].
#[inline(always)]
pub(super) unsafe fn quantize<V: Lanes, K: Kernel<V>>(
    work: &Work,
    base: &K::Base,
    x: *const f32,
    out: *mut f32,
    len: usize,
    group: usize,
) {
    let each = work.group_len(len);
    // SAFETY: as the caller promises; groups lie inside the `len` elements.
    unsafe {
        let mut batches = Batches::new::<V, K>(work, base, len);
        let (mut start, mut g) = (0, group);
        while start < len {
            let batch = batches.next::<V, K>(work, base, x.add(start), len - start, g);
            for j in 0..batch.groups {
                let n = each.min(len - start);
                let (x, out) = (x.add(start), out.add(start));
                let kernel = match batch.batched {
                    true if batch.valid >> j & 1 == 1 => K::with(base, batch.first[j], batch.second[j], batch.zero[j]),
                    true => None,
                    false => group_kernel::<V, K>(work, base, x, n, g),
                };
                match kernel {
                    // Constant lengths let the compiler unroll the common blocks.
                    Some(kernel) if n == 32 => quantize_group(&kernel, x, out, 32, work.stream),
                    Some(kernel) if n == 16 => quantize_group(&kernel, x, out, 16, work.stream),
                    Some(kernel) => quantize_group(&kernel, x, out, n, work.stream),
                    None => scalar_quantize(work, x, out, n, g),
                }
                start += n;
                g += 1;
            }
        }
        if work.stream {
            V::fence();
        }
    }
}

/// Quantizes one group.
///
/// # Safety
/// The processor must have the features of `V`. `x` must be aligned and readable, `out` writable, for `n` elements;
/// where they are not the same address, they must be apart.
#[inline(always)]
unsafe fn quantize_group<V: Lanes, K: Kernel<V>>(kernel: &K, x: *const f32, out: *mut f32, n: usize, stream: bool) {
    let stream = stream && out.addr().is_multiple_of(64);
    // SAFETY: as the caller promises; what is read of a vector is read before it is written.
    unsafe {
        let mut i = 0;
        while i + 16 <= n {
            V::prefetch(x.wrapping_add(i + AHEAD));
            put::<V>(out.add(i), kernel.quantize(V::load(x.add(i))), stream);
            i += 16;
        }
        if i < n {
            V::store_part(out.add(i), kernel.quantize(V::load_part(x.add(i), n - i)), n - i);
        }
    }
}

/// # Safety
/// As for [`super::quantize_piece`], of one group.
#[inline(never)]
pub(super) unsafe fn scalar_quantize(work: &Work, x: *const f32, out: *mut f32, len: usize, group: usize) {
    // SAFETY: as the caller promises; the slice is gone before anything is written.
    unsafe {
        let scale = super::group_scale(work, std::slice::from_raw_parts(x, len), group);
        reference::quantize_group(work, x, out, len, &scale);
    }
}

/// Encodes the groups of a piece; the answer is the first position that the non-finite policy refuses.
///
/// # Safety
/// The processor must have the features of `V`. Scales must be there for all groups, as [`Work`] says.
#[inline(always)]
pub(super) unsafe fn encode<V: Lanes, K: Kernel<V>, C: Code>(
    work: &Work,
    base: &K::Base,
    x: &[f32],
    codes: &mut [C],
    group: usize,
) -> Option<usize> {
    let (each, len) = (work.group_len(x.len()), x.len());
    let mut first = None;
    // SAFETY: as the caller promises; groups lie inside `x` and, as slicing checks, inside `codes`.
    unsafe {
        let mut batches = Batches::new::<V, K>(work, base, len);
        let (mut start, mut g) = (0, group);
        while start < len {
            let batch = batches.next::<V, K>(work, base, x.as_ptr().add(start), len - start, g);
            for j in 0..batch.groups {
                let n = each.min(len - start);
                let (x, codes) = (&x[start..start + n], &mut codes[start..start + n]);
                let kernel = match batch.batched {
                    true if batch.valid >> j & 1 == 1 => K::with(base, batch.first[j], batch.second[j], batch.zero[j]),
                    true => None,
                    false => group_kernel::<V, K>(work, base, x.as_ptr(), n, g),
                };
                // A scale chosen from finite values leaves nothing to check.
                let how = (!batch.finite, work.stream);
                let (from, to) = (x.as_ptr(), codes.as_mut_ptr());
                let done = match kernel {
                    Some(kernel) if n == 32 => encode_group::<V, K, C>(&kernel, from, to, 32, how),
                    Some(kernel) if n == 16 => encode_group::<V, K, C>(&kernel, from, to, 16, how),
                    Some(kernel) => encode_group::<V, K, C>(&kernel, from, to, n, how),
                    None => false,
                };
                if !done {
                    V::fence();
                    let failed = scalar_encode(work, x, codes, g);
                    first = first.or(failed.map(|position| start + position));
                }
                start += n;
                g += 1;
            }
        }
        if work.stream {
            V::fence();
        }
    }
    first
}

#[inline(never)]
pub(super) fn scalar_encode<C: Code>(work: &Work, x: &[f32], codes: &mut [C], group: usize) -> Option<usize> {
    let scale = super::group_scale(work, x, group);
    reference::encode_group(work, x, codes, &scale, group)
}

/// Codes of a group; false where a value is not finite, and the scalar code must do it again. With `check`, values are looked
/// at; with `stream`, codes of a byte go past the caches.
///
/// # Safety
/// The processor must have the features of `V`. `from` must be aligned and readable for `n` values, `to` writable for
/// `n` codes.
#[inline(always)]
unsafe fn encode_group<V: Lanes, K: Kernel<V>, C: Code>(
    kernel: &K,
    from: *const f32,
    to: *mut C,
    n: usize,
    (check, stream): (bool, bool),
) -> bool {
    let stream = stream && to.addr().is_multiple_of(16);
    // SAFETY: as the caller promises.
    unsafe {
        let mask = V::splat_i(0x7fff_ffff);
        let mut most = V::splat_i(0);
        let mut i = 0;
        while i + 16 <= n {
            V::prefetch(from.wrapping_add(i + AHEAD));
            let v = V::load(from.add(i));
            if check {
                most = V::max_i(most, V::and(V::bits(v), mask));
            }
            let code = kernel.code(v);
            match size_of::<C>() {
                1 if stream => V::stream_u8(to.add(i).cast(), code),
                1 => V::store_u8(to.add(i).cast(), code),
                2 => V::store_u16(to.add(i).cast(), code),
                _ => V::store(to.add(i).cast(), V::from_bits(code)),
            }
            i += 16;
        }
        if i < n {
            let v = V::load_part(from.add(i), n - i);
            most = V::max_i(most, V::and(V::bits(v), mask));
            let lanes = V::store_i(kernel.code(v));
            for (j, &code) in lanes.iter().enumerate().take(n - i) {
                *to.add(i + j) = C::from_u32(code);
            }
        }
        !V::any(V::gt_i(most, V::splat_i(INFINITY as i32 - 1)))
    }
}

/// Decodes the groups of a piece.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::decode_piece`].
#[inline(always)]
pub(super) unsafe fn decode<V: Lanes, K: Kernel<V>, C: Code>(
    work: &Work,
    base: &K::Base,
    codes: &[C],
    out: *mut f32,
    group: usize,
) {
    let (each, len) = (work.group_len(codes.len()), codes.len());
    // SAFETY: as the caller promises; groups lie inside the codes.
    unsafe {
        let mut batches = Batches::new::<V, K>(work, base, len);
        let (mut start, mut g) = (0, group);
        while start < len {
            let batch = batches.next::<V, K>(work, base, std::ptr::null(), len - start, g);
            for j in 0..batch.groups {
                let n = each.min(len - start);
                let (codes, out) = (&codes[start..start + n], out.add(start));
                let kernel = match batch.batched {
                    true if batch.valid >> j & 1 == 1 => K::with(base, batch.first[j], batch.second[j], batch.zero[j]),
                    true => None,
                    false => K::make(base, &work.resolve(&work.load(g))),
                };
                match kernel {
                    Some(kernel) if n == 32 => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, 32, work.stream),
                    Some(kernel) if n == 16 => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, 16, work.stream),
                    Some(kernel) => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, n, work.stream),
                    None => scalar_decode(work, codes, out, &work.resolve(&work.load(g))),
                }
                start += n;
                g += 1;
            }
        }
        if work.stream {
            V::fence();
        }
    }
}

/// Values of a group.
///
/// # Safety
/// The processor must have the features of `V`. `from` must be readable for `n` codes, `out` aligned and writable for
/// `n` values.
#[inline(always)]
unsafe fn decode_group<V: Lanes, K: Kernel<V>, C: Code>(
    kernel: &K,
    from: *const C,
    out: *mut f32,
    n: usize,
    stream: bool,
) {
    let stream = stream && out.addr().is_multiple_of(64);
    // SAFETY: as the caller promises.
    unsafe {
        let mut i = 0;
        while i + 16 <= n {
            let code = match size_of::<C>() {
                1 => V::load_u8(from.add(i).cast()),
                2 => V::load_u16(from.add(i).cast()),
                _ => V::bits(V::load(from.add(i).cast())),
            };
            put::<V>(out.add(i), kernel.decode(code), stream);
            i += 16;
        }
        if i < n {
            let mut part = [0u32; 16];
            for (j, to) in part.iter_mut().enumerate().take(n - i) {
                *to = (*from.add(i + j)).to_u32();
            }
            V::store_part(out.add(i), kernel.decode(V::bits(V::load(part.as_ptr().cast()))), n - i);
        }
    }
}

/// Values of a group, one by one.
///
/// # Safety
/// `out` must be writable for `codes.len()` values.
#[inline(never)]
pub(super) unsafe fn scalar_decode<C: Code>(work: &Work, codes: &[C], out: *mut f32, scale: &GroupScale) {
    // SAFETY: as the caller promises.
    unsafe { reference::decode_group(work, codes, out, scale) };
}
