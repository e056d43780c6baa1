//! Gradients of values outside the representable range become zero: [`super::super::grad`] says where, group by group.

use super::batch::{Batch, Batches};
use super::groups::put;
use super::kernels::{Factors, Kernel};
use super::statistics::AHEAD;
use crate::codec::grad::{Inside, mask};
use crate::codec::grid::{GroupScale, Integers, range};
use crate::codec::group_scales::Work;
use crate::simd::Lanes;

/// The magnitude below which products of two float32 may lose bits, whose errors no fused operation would tell.
const SMALL: f32 = f32::MIN_POSITIVE;

/// A piece whose gradients are masked. `out` may be `grad`.
#[derive(Clone, Copy)]
pub(super) struct Masked<'a> {
    pub(super) work: &'a Work,
    pub(super) x: *const f32,
    pub(super) grad: *const f32,
    pub(super) out: *mut f32,
    pub(super) len: usize,
    pub(super) group: usize,
}

/// Largest float32 that is not above `v`.
fn floor32(v: f64) -> f32 {
    let nearest = v as f32;
    if f64::from(nearest) > v { nearest.next_down() } else { nearest }
}

/// Bounds in float64 as float32 ones that the same float32 values lie between.
pub(super) fn bounds32((lo, hi): (f64, f64)) -> (f32, f32) {
    (-floor32(-lo), floor32(hi))
}

/// Masks the gradients of a piece.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::mask_piece`].
#[inline(always)]
pub(super) unsafe fn piece<V: Lanes, K: Kernel<V>>(piece: Masked<'_>, base: &K::Base) {
    let Masked { work, x, grad, out, len, group } = piece;
    // SAFETY: as the caller promises; groups lie inside the `len` elements.
    unsafe {
        if let Some(bounds) = Inside::of(work).everywhere() {
            between::<V>(piece, bounds32(bounds));
            return V::fence();
        }
        let each = work.group_len(len);
        let mut batches = Batches::new::<V, K>(work, base, len);
        let limits = Limits::new::<V, K>(work, base);
        let (mut start, mut g) = (0, group);
        while start < len {
            let batch = batches.next::<V, K>(work, base, x.add(start), len - start, g);
            let (mut lows, mut highs, mut valid) = ([0.0; 16], [0.0; 16], 0);
            if let Some(limits) = &limits {
                valid = batch.valid & limits.of_batch::<V>(batch, &mut lows, &mut highs);
            }
            for j in 0..batch.groups {
                let n = each.min(len - start);
                let (x, grad, out) = (x.add(start), grad.add(start), out.add(start));
                let one = Masked { work, x, grad, out, len: n, group: g };
                match batch.batched && valid >> j & 1 == 1 {
                    // Constant lengths let the compiler unroll the common blocks.
                    true if n == 32 => between::<V>(Masked { len: 32, ..one }, (lows[j], highs[j])),
                    true if n == 16 => between::<V>(Masked { len: 16, ..one }, (lows[j], highs[j])),
                    true => between::<V>(one, (lows[j], highs[j])),
                    false => {
                        let scale = super::group_scale(work, std::slice::from_raw_parts(x, n), g);
                        between::<V>(one, bounds32(range(&work.grid, &scale)));
                    }
                }
                start += n;
                g += 1;
            }
        }
        V::fence();
    }
}

/// Passes the gradients of values from `lo` to `hi`; those of others become +0. An infinity counts as the largest value.
///
/// # Safety
/// The processor must have the features of `V`; else as for [`super::mask_piece`].
#[inline(always)]
unsafe fn between<V: Lanes>(piece: Masked<'_>, (lo, hi): (f32, f32)) {
    let Masked { work, x, grad, out, len, .. } = piece;
    let stream = work.stream && out.addr().is_multiple_of(64);
    // SAFETY: as the caller promises; what is read of a vector is read before it is written.
    unsafe {
        let (lo, hi, zero) = (V::splat(lo), V::splat(hi), V::splat(0.0));
        let (least, most) = (V::splat(-work.largest), V::splat(work.largest));
        let passed = |v: V::F, g: V::F| {
            let v = V::min(most, V::max(least, v)); // NaN stays, and is not inside
            V::select(V::ge(v, lo), V::select(V::ge(hi, v), g, zero), zero)
        };
        let mut i = 0;
        while i + 16 <= len {
            V::prefetch(x.wrapping_add(i + AHEAD));
            V::prefetch(grad.wrapping_add(i + AHEAD));
            put::<V>(out.add(i), passed(V::load(x.add(i)), V::load(grad.add(i))), stream);
            i += 16;
        }
        if i < len {
            let n = len - i;
            V::store_part(out.add(i), passed(V::load_part(x.add(i), n), V::load_part(grad.add(i), n)), n);
        }
    }
}

/// The bounds of sixteen groups as multiples of what a batch gives for each.
pub(super) struct Limits {
    lo: f32,
    hi: f32,
    /// Steps are the batch's second factors, powers of two; else its first.
    powers: bool,
    /// Zero points move both bounds.
    moved: bool,
}

impl Limits {
    /// `None` where groups find their own scale, or float32 does not hold the multiples.
    pub(super) fn new<V: Lanes, K: Kernel<V>>(work: &Work, base: &K::Base) -> Option<Self> {
        let shift = work.chooser.shift();
        let (powers, binades) = match K::factors(base, shift) {
            Factors::Powers { bias, .. } => (true, bias - 127 - shift),
            Factors::Real => (false, 0),
            Factors::Single => return None,
        };
        let (lo, hi) = range(&work.grid, &GroupScale::step(crate::float::exp2(binades)));
        let moved = matches!(work.grid, crate::codec::grid::Grid::Integer { layout: Integers::Offset, .. });
        let limits = Self { lo: lo as f32, hi: hi as f32, powers, moved };
        (f64::from(limits.lo) == lo && f64::from(limits.hi) == hi).then_some(limits)
    }

    /// Writes the bounds of the groups of a batch; the answer has a bit for each group whose bounds are those of float64.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn of_batch<V: Lanes>(&self, batch: &Batch, lows: &mut [f32; 16], highs: &mut [f32; 16]) -> u32 {
        let steps = if self.powers { &batch.second } else { &batch.first };
        // SAFETY: as the caller promises.
        unsafe { self.of::<V>(steps, &batch.zero, lows, highs) }
    }

    /// Writes the bounds under each step; the answer has a bit for each group whose bounds are those of float64.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn of<V: Lanes>(
        &self,
        steps: &[f32; 16],
        zeros: &[i32; 16],
        lows: &mut [f32; 16],
        highs: &mut [f32; 16],
    ) -> u32 {
        // SAFETY: as the caller promises; the arrays hold 16 lanes.
        unsafe {
            let step = V::load(steps.as_ptr());
            let zero = match self.moved {
                true => V::to_f(V::bits(V::load(zeros.as_ptr().cast()))),
                false => V::splat(0.0),
            };
            // The product, or its neighbour towards zero where rounding has taken it beyond the exact one.
            let toward_zero = |number: V::F| {
                let product = V::mul(number, step);
                let beyond = V::abs(product);
                let beyond = V::lt(V::splat(0.0), V::fnmadd(V::abs(number), step, beyond));
                V::from_bits(V::select_i(beyond, V::sub_i(V::bits(product), V::splat_i(1)), V::bits(product)))
            };
            let (lo, hi) = (V::sub(V::splat(self.lo), zero), V::sub(V::splat(self.hi), zero));
            let (low, high) = (toward_zero(lo), toward_zero(hi));
            V::store(lows.as_mut_ptr(), low);
            V::store(highs.as_mut_ptr(), high);
            let exact = |number: V::F, bound: V::F| {
                let none = V::mask_bits(V::eq(number, V::splat(0.0)));
                none | V::mask_bits(V::ge(V::abs(bound), V::splat(SMALL)))
            };
            match self.powers && self.hi >= 1.0 {
                true => 0xffff, // a normal power of two times a number of at least 1
                false => exact(lo, low) & exact(hi, high),
            }
        }
    }
}

/// The scalar reference of [`piece`], which also takes the formats that no kernel knows.
///
/// # Safety
/// As for [`super::mask_piece`].
pub(super) unsafe fn reference(piece: Masked<'_>) {
    let Masked { work, x, grad, out, len, group } = piece;
    let each = work.group_len(len);
    for (i, start) in (0..len).step_by(each).enumerate() {
        let n = each.min(len - start);
        // SAFETY: as the caller promises; the group lies inside all three.
        unsafe {
            let x = std::slice::from_raw_parts(x.add(start), n);
            if !std::ptr::eq(grad, out.cast_const()) {
                std::ptr::copy_nonoverlapping(grad.add(start), out.add(start), n);
            }
            let scale = match Inside::of(work).everywhere() {
                Some(_) => GroupScale::step(1.0),
                None => super::group_scale(work, x, group + i),
            };
            mask(work, x, std::slice::from_raw_parts_mut(out.add(start), n), &scale);
        }
    }
}
