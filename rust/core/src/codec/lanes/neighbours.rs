//! The rules of block scales on sixteen groups at a time: largest magnitudes, `scale=ceil` and `scale=mse`.

use super::kernels::{Floats, Kernel};
use super::statistics::{absmax, block_errors};
use crate::simd::Lanes;

/// Up to sixteen groups of values: `count` of `each` values from `x` on, aligned and readable, where `left` values are left; the
/// last group may have fewer.
pub(super) struct Groups {
    pub(super) x: *const f32,
    pub(super) left: usize,
    pub(super) each: usize,
    pub(super) count: usize,
}

impl Groups {
    /// Bits of the largest magnitudes of the groups.
    ///
    /// # Safety
    /// The processor must have the features of `V`; the values must be there, as [`Groups`] says.
    #[inline(always)]
    pub(super) unsafe fn largest<V: Lanes>(&self) -> V::I {
        let Self { x, left, each, count } = *self;
        // SAFETY: as the caller promises; groups lie inside the `left` values, and the arrays hold 16 lanes.
        unsafe {
            if left >= 16 * each && matches!(each, 16 | 32) {
                let mask = V::splat_i(0x7fff_ffff);
                let mut rows = [mask; 16];
                for (j, row) in rows.iter_mut().enumerate() {
                    let x = x.add(j * each);
                    *row = V::and(V::bits(V::load(x)), mask);
                    if each == 32 {
                        *row = V::max_i(*row, V::and(V::bits(V::load(x.add(16))), mask));
                    }
                }
                return V::reduce_max_each(rows);
            }
            let mut most = [0u32; 16];
            for (j, most) in most.iter_mut().enumerate().take(count) {
                *most = absmax::<V>(x.add(j * each), each.min(left - j * each));
            }
            V::bits(V::load(most.as_ptr().cast()))
        }
    }

    /// Squared errors of the groups under the factors of each, of errors times its unit.
    ///
    /// # Safety
    /// As for [`Groups::largest`].
    #[inline(always)]
    unsafe fn errors<V: Lanes, K: Kernel<V>>(&self, base: &K::Base, factors: (V::F, V::F), unit: V::F) -> V::F {
        let Self { x, left, each, count } = *self;
        let (mut first, mut second, mut units) = ([0.0f32; 16], [0.0f32; 16], [0.0f32; 16]);
        // SAFETY: as the caller promises; groups lie inside the `left` values, and the arrays hold 16 lanes.
        unsafe {
            V::store(first.as_mut_ptr(), factors.0);
            V::store(second.as_mut_ptr(), factors.1);
            V::store(units.as_mut_ptr(), unit);
            let mut squares = [V::splat(0.0); 16];
            for (j, squares) in squares.iter_mut().enumerate().take(count) {
                let Some(kernel) = K::with(base, first[j], second[j], 0) else { continue };
                let x = x.add(j * each);
                *squares = match each.min(left - j * each) {
                    16 => block_errors::<V, K>(&kernel, x, 16, units[j]),
                    32 => block_errors::<V, K>(&kernel, x, 32, units[j]),
                    n => block_errors::<V, K>(&kernel, x, n, units[j]),
                };
            }
            V::tree_sum_each(squares)
        }
    }

    /// Of default codes of powers of two and their neighbours, those with the least squared errors; -1, which no kernel takes,
    /// leaves a block to the scalar code.
    ///
    /// # Safety
    /// As for [`Groups::largest`].
    #[inline(always)]
    pub(super) unsafe fn best_powers<V: Lanes, K: Kernel<V>>(&self, base: &K::Base, bias: i32, codes: V::I) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let unit = power::<V>(V::sub_i(V::splat_i(254), codes));
            let mut errors = [unit; 3];
            for (error, offset) in errors.iter_mut().zip([0, -1, 1]) {
                let field = V::add_i(codes, V::splat_i(offset - bias + 127));
                let factors = (power::<V>(V::sub_i(V::splat_i(254), field)), power::<V>(field));
                *error = self.errors::<V, K>(base, factors, unit);
            }
            // Far from the ends scaled values stay normal, and dividing by a power of two is exact.
            let (low, high) = (32 + (bias - 127).max(0), 222 + (bias - 127).min(0));
            let best = least::<V>(codes, errors);
            let best = V::select_i(V::gt_i(codes, V::splat_i(low - 1)), best, V::splat_i(-1));
            V::select_i(V::gt_i(V::splat_i(high + 1), codes), best, V::splat_i(-1))
        }
    }

    /// [`Groups::best_powers`] of E4M3 codes, 1 to 126, which multiply the scale of the tensor; 0 leaves a block to the scalar
    /// code.
    ///
    /// # Safety
    /// As for [`Groups::largest`].
    #[inline(always)]
    pub(super) unsafe fn best_e4m3<V: Lanes, K: Kernel<V>>(
        &self,
        base: &K::Base,
        (e4m3, tensor): (&Floats<V, false>, f32),
        codes: V::I,
    ) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let unit = V::div(V::splat(1.0), e4m3_steps::<V>(e4m3, tensor, codes));
            let (mut errors, mut best) = ([unit; 3], codes);
            for (error, offset) in errors.iter_mut().zip([0, -1, 1]) {
                let candidate = V::add_i(codes, V::splat_i(offset));
                let steps = e4m3_steps::<V>(e4m3, tensor, V::max_i(candidate, V::splat_i(0)));
                let inverse = V::div(V::splat(1.0), steps);
                *error = self.errors::<V, K>(base, (steps, inverse), unit);
                let zero = V::gt_i(V::splat_i(1), candidate);
                *error = V::select(zero, V::splat(f32::INFINITY), *error);
                // The scalar code decides about scales that round to 0 or lie at the ends of the range: 127 is no number.
                let steps = if offset < 0 { V::select(zero, V::splat(1.0), steps) } else { steps };
                best = V::select_i(V::ge(steps, V::splat(1e-17)), best, V::splat_i(0));
                best = V::select_i(V::ge(V::splat(1e27), steps), best, V::splat_i(0));
            }
            V::select_i(V::gt_i(best, V::splat_i(0)), least::<V>(codes, errors), V::splat_i(0))
        }
    }
}

/// Of default codes, the codes below and those above, the ones with the least of three errors; the default wins ties, then the
/// lower.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn least<V: Lanes>(codes: V::I, [default, below, above]: [V::F; 3]) -> V::I {
    // SAFETY: as the caller promises.
    unsafe {
        let lower = V::lt(below, default);
        let best = V::select_i(lower, V::sub_i(codes, V::splat_i(1)), codes);
        let error = V::select(lower, below, default);
        V::select_i(V::lt(above, error), V::add_i(codes, V::splat_i(1)), best)
    }
}

/// nvfp4's steps: the tensor scale times values of E4M3 codes, float32 products that stay finite.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
pub(super) unsafe fn e4m3_steps<V: Lanes>(e4m3: &Floats<V, false>, tensor: f32, codes: V::I) -> V::F {
    // SAFETY: as the caller promises.
    unsafe {
        let product = V::mul(V::splat(tensor), e4m3.decode(codes));
        V::max(V::splat(-f32::MAX), V::min(V::splat(f32::MAX), product)) // the second operand where it is NaN
    }
}

/// The smallest E4M3 codes under which magnitudes do not saturate, from the codes nearest to them.
///
/// Those are at most one too large or too small: steps whose groups a kernel takes differ by a sixteenth, and have the
/// precision of float32.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
pub(super) unsafe fn ceil_e4m3<V: Lanes>(e4m3: &Floats<V, false>, tensor: f32, absmax: V::F, codes: V::I) -> V::I {
    // SAFETY: as the caller promises.
    unsafe {
        let one = V::splat_i(1);
        let lower = V::max_i(V::sub_i(codes, one), V::splat_i(0));
        let higher = V::select_i(V::gt_i(V::splat_i(126), codes), V::add_i(codes, one), codes);
        let higher = V::select_i(short::<V>(e4m3, tensor, absmax, codes), higher, codes);
        V::select_i(short::<V>(e4m3, tensor, absmax, lower), higher, lower)
    }
}

/// Where the largest value under a code's step is less than a magnitude.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn short<V: Lanes>(e4m3: &Floats<V, false>, tensor: f32, absmax: V::F, codes: V::I) -> V::M {
    // SAFETY: as the caller promises. The sign of a fused difference is exact.
    unsafe {
        let steps = e4m3_steps::<V>(e4m3, tensor, codes);
        V::lt(V::splat(0.0), V::fnmadd(V::splat(6.0), steps, absmax))
    }
}

/// Powers of two of biased exponents.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn power<V: Lanes>(exponents: V::I) -> V::F {
    // SAFETY: as the caller promises.
    unsafe { V::from_bits(V::shl(exponents, 23)) }
}
