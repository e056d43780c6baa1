//! Rounding that marks, bit by bit, which values lie inside the range of their group; and gradients passed by such marks.
//! [`super::super::grad`] says where the range is. A later pass then needs neither the values nor their scales.

use super::batch::Batches;
use super::groups::{group_kernel, put, scalar_quantize};
use super::kernels::Kernel;
use super::masks::{Limits, bounds32};
use super::statistics::AHEAD;
use crate::codec::grad::Inside;
use crate::codec::grid::range;
use crate::codec::group_scales::Work;
use crate::codec::reference;
use crate::simd::{LANES, Lanes};

/// A piece that is rounded and marked: value i has bit `i % 8` of byte `i / 8`. `out` may be `x`.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a> {
    pub(super) work: &'a Work,
    pub(super) x: *const f32,
    pub(super) out: *mut f32,
    pub(super) marks: *mut u8,
    pub(super) len: usize,
    pub(super) group: usize,
}

impl Marked<'_> {
    /// The part of `len` values from `start` on, of a group.
    ///
    /// # Safety
    /// The part must lie inside the piece.
    unsafe fn part(self, start: usize, len: usize, group: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            let (x, out, marks) = (self.x.add(start), self.out.add(start), self.marks.add(start / 8));
            Self { x, out, marks, len, group, ..self }
        }
    }
}

/// Rounds and marks a piece.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::mark_piece`].
#[inline(always)]
pub(super) unsafe fn piece<V: Lanes, K: Kernel<V>>(piece: Marked<'_>, base: &K::Base) {
    let Marked { work, x, len, group, .. } = piece;
    let everywhere = Inside::of(work).everywhere().map(bounds32);
    let each = work.group_len(len);
    // SAFETY: as the caller promises; groups lie inside the `len` elements.
    unsafe {
        let mut batches = Batches::new::<V, K>(work, base, len);
        let limits = Limits::new::<V, K>(work, base);
        let (mut start, mut g) = (0, group);
        while start < len {
            let batch = batches.next::<V, K>(work, base, x.add(start), len - start, g);
            let (mut lows, mut highs, mut valid) = ([0.0; 16], [0.0; 16], 0);
            if let (Some(limits), None) = (&limits, everywhere) {
                valid = batch.valid & limits.of_batch::<V>(batch, &mut lows, &mut highs);
            }
            for j in 0..batch.groups {
                let one = piece.part(start, each.min(len - start), g);
                let bounds = match everywhere {
                    Some(bounds) => bounds,
                    None if batch.batched && valid >> j & 1 == 1 => (lows[j], highs[j]),
                    None => {
                        let scale = super::group_scale(work, std::slice::from_raw_parts(one.x, one.len), g);
                        bounds32(range(&work.grid, &scale))
                    }
                };
                let kernel = match batch.batched {
                    true if batch.valid >> j & 1 == 1 => K::with(base, batch.first[j], batch.second[j], batch.zero[j]),
                    true => None,
                    false => group_kernel::<V, K>(work, base, one.x, one.len, g),
                };
                match kernel {
                    // Constant lengths let the compiler unroll the common blocks.
                    Some(kernel) if one.len == 32 => mark_group(&kernel, Marked { len: 32, ..one }, bounds),
                    Some(kernel) if one.len == 16 => mark_group(&kernel, Marked { len: 16, ..one }, bounds),
                    Some(kernel) => mark_group(&kernel, one, bounds),
                    None => {
                        mark(one, (f64::from(bounds.0), f64::from(bounds.1)));
                        scalar_quantize(work, one.x, one.out, one.len, g);
                    }
                }
                start += one.len;
                g += 1;
            }
        }
        V::fence();
    }
}

/// Rounds and marks one group.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::mark_piece`].
#[inline(always)]
unsafe fn mark_group<V: Lanes, K: Kernel<V>>(kernel: &K, group: Marked<'_>, (lo, hi): (f32, f32)) {
    let Marked { work, x, out, marks, len: n, .. } = group;
    let stream = work.stream && out.addr().is_multiple_of(64);
    // SAFETY: as the caller promises; what is read of a vector is read before it is written.
    unsafe {
        let (lo, hi) = (V::splat(lo), V::splat(hi));
        let (least, most) = (V::splat(-work.largest), V::splat(work.largest));
        let inside = |v: V::F| {
            let v = V::min(most, V::max(least, v)); // NaN stays, and is not inside
            V::mask_bits(V::ge(v, lo)) & V::mask_bits(V::ge(hi, v))
        };
        let mut i = 0;
        while i + 16 <= n {
            V::prefetch(x.wrapping_add(i + AHEAD));
            let v = V::load(x.add(i));
            marks.add(i / 8).cast::<[u8; 2]>().write((inside(v) as u16).to_le_bytes());
            put::<V>(out.add(i), kernel.quantize(v), stream);
            i += 16;
        }
        if i < n {
            let v = V::load_part(x.add(i), n - i);
            marks.add(i / 8).write(inside(v) as u8);
            V::store_part(out.add(i), kernel.quantize(v), n - i);
        }
    }
}

/// Marks one group, value by value.
///
/// # Safety
/// As for [`super::mark_piece`], of one group.
unsafe fn mark(group: Marked<'_>, (lo, hi): (f64, f64)) {
    let Marked { work, x, marks, len, .. } = group;
    for byte in 0..len / 8 {
        let mut bits = 0;
        for bit in 0..8 {
            // SAFETY: as the caller promises; the length is a multiple of 8.
            let v = f64::from(unsafe { *x.add(8 * byte + bit) }.clamp(-work.largest, work.largest));
            bits |= u8::from(v >= lo && v <= hi) << bit;
        }
        // SAFETY: as above.
        unsafe { *marks.add(byte) = bits };
    }
}

/// The scalar reference of [`piece`], which also takes the formats that no kernel knows.
///
/// # Safety
/// As for [`super::mark_piece`].
pub(super) unsafe fn reference(piece: Marked<'_>) {
    let Marked { work, x, len, group, .. } = piece;
    let each = work.group_len(len);
    for (i, start) in (0..len).step_by(each).enumerate() {
        // SAFETY: as the caller promises; the group lies inside the piece.
        unsafe {
            let one = piece.part(start, each.min(len - start), group + i);
            let scale = super::group_scale(work, std::slice::from_raw_parts(x.add(start), one.len), group + i);
            mark(one, Inside::of(work).everywhere().unwrap_or_else(|| range(&work.grid, &scale)));
            reference::quantize_group(work, one.x, one.out, one.len, &scale);
        }
    }
}

/// Copies the gradients of marked values; those of others become +0.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::pass_marked`].
#[inline(always)]
pub(super) unsafe fn pass<V: Lanes>(grad: *const f32, marks: *const u8, out: *mut f32, len: usize) {
    const BITS: [u32; LANES] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
    // SAFETY: as the caller promises; the array holds 16 lanes.
    unsafe {
        let (bits, zero) = (V::bits(V::load(BITS.as_ptr().cast())), V::splat_i(0));
        let passed = |marks: u16, grad: V::F| {
            let marked = V::gt_i(V::and(V::splat_i(i32::from(marks)), bits), zero);
            V::from_bits(V::select_i(marked, V::bits(grad), zero))
        };
        let mut i = 0;
        while i + 16 <= len {
            V::prefetch(grad.wrapping_add(i + AHEAD));
            let marks = u16::from_le_bytes(marks.add(i / 8).cast::<[u8; 2]>().read());
            V::store(out.add(i), passed(marks, V::load(grad.add(i))));
            i += 16;
        }
        if i < len {
            let marks = u16::from(*marks.add(i / 8));
            V::store_part(out.add(i), passed(marks, V::load_part(grad.add(i), len - i)), len - i);
        }
    }
}
