//! Statistics of values: what the rules of scales ask.

use super::kernels::{Kernel, power};
use crate::codec::scale::{CHUNK, FRACTION_CANDIDATES, Query, Stat, stat_chunk};
use crate::float::tree_sum;
use crate::simd::Lanes;

/// Prefetch distance in elements. Choosing scales and rounding alternate, which leaves the hardware prefetcher too little
/// time.
pub(super) const AHEAD: usize = 1024;

/// Bits of the largest magnitude.
///
/// # Safety
/// The processor must have the features of `V`; `x` must be aligned and readable for `len` values.
#[inline(always)]
pub(super) unsafe fn absmax<V: Lanes>(x: *const f32, len: usize) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        let mask = V::splat_i(0x7fff_ffff);
        // Four running maxima hide the latency of loads on long groups.
        let mut most = [V::splat_i(0); 4];
        let mut i = 0;
        while i + 64 <= len {
            for (j, most) in most.iter_mut().enumerate() {
                // Every line: prefetches of some of them stop the prefetcher of AMD's processors, at half of the bandwidth.
                V::prefetch(x.wrapping_add(i + 16 * j + AHEAD));
                *most = V::max_i(*most, V::and(V::bits(V::load(x.add(i + 16 * j))), mask));
            }
            i += 64;
        }
        while i + 16 <= len {
            most[0] = V::max_i(most[0], V::and(V::bits(V::load(x.add(i))), mask));
            i += 16;
        }
        if i < len {
            most[1] = V::max_i(most[1], V::and(V::bits(V::load_part(x.add(i), len - i)), mask));
        }
        V::reduce_max(V::max_i(V::max_i(most[0], most[1]), V::max_i(most[2], most[3])))
    }
}

/// Whether a value is NaN.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
pub(super) unsafe fn has_nan<V: Lanes>(x: &[f32]) -> bool {
    let (blocks, rest) = x.as_chunks::<64>();
    let (vectors, rest) = rest.as_chunks::<16>();
    // SAFETY: as the caller promises; the arrays hold whole vectors.
    unsafe {
        let mask = V::splat_i(0x7fff_ffff);
        let magnitude = |from: *const f32| V::and(V::bits(V::load(from)), mask);
        let mut most = [V::splat_i(0); 4];
        for block in blocks {
            for (j, most) in most.iter_mut().enumerate() {
                *most = V::max_i(*most, magnitude(block.as_ptr().add(16 * j)));
            }
        }
        for vector in vectors {
            most[0] = V::max_i(most[0], magnitude(vector.as_ptr()));
        }
        let most = V::max_i(V::max_i(most[0], most[1]), V::max_i(most[2], most[3]));
        V::any(V::gt_i(most, V::splat_i(0x7f80_0000))) || rest.iter().any(|v| v.is_nan())
    }
}

/// Smallest and largest value, 0 included, and the bits of the largest magnitude.
///
/// # Safety
/// As for [`absmax`].
#[inline(always)]
pub(super) unsafe fn extremes<V: Lanes>(x: *const f32, len: usize) -> (f32, f32, u32) {
    // SAFETY: as the caller promises.
    unsafe {
        let mask = V::splat_i(0x7fff_ffff);
        let (mut least, mut most, mut size) = (V::splat(0.0), V::splat(0.0), V::splat_i(0));
        let mut i = 0;
        while i < len {
            let v = if i + 16 <= len { V::load(x.add(i)) } else { V::load_part(x.add(i), len - i) };
            least = V::min(v, least); // NaN leaves the second operand
            most = V::max(v, most);
            size = V::max_i(size, V::and(V::bits(v), mask));
            i += 16;
        }
        (V::reduce_min_f(least), V::reduce_max_f(most), V::reduce_max(size))
    }
}

/// Squared errors of a block under a kernel, of errors times `inverse`: every sixteenth value in a lane.
///
/// # Safety
/// As for [`absmax`].
#[inline(always)]
pub(super) unsafe fn block_errors<V: Lanes, K: Kernel<V>>(kernel: &K, x: *const f32, len: usize, inverse: f32) -> V::F {
    // SAFETY: as the caller promises.
    unsafe {
        let inverse = V::splat(inverse);
        let mut sum = V::splat(0.0);
        let mut i = 0;
        while i < len {
            let v = if i + 16 <= len { V::load(x.add(i)) } else { V::load_part(x.add(i), len - i) };
            let error = V::mul(V::sub(v, kernel.quantize(v)), inverse);
            sum = V::add(sum, V::mul(error, error));
            i += 16;
        }
        sum
    }
}

/// Magnitudes of what `count` levels leave over.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn residual<V: Lanes>(mut r: V::F, levels: &[V::F; 4], count: u8) -> V::F {
    // SAFETY: as the caller promises.
    unsafe {
        for &level in levels.iter().take(usize::from(count)) {
            r = V::select(V::lt(r, V::splat(0.0)), V::add(r, level), V::sub(r, level));
        }
        V::abs(r)
    }
}

/// Answers a query over one chunk.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
pub(super) unsafe fn stat<V: Lanes>(x: &[f32], query: &Query) -> Stat {
    debug_assert!(x.len() <= CHUNK);
    let mut stat = Stat::default();
    let (from, n) = (x.as_ptr(), x.len());
    // SAFETY: as the caller promises; reads stay inside the slice.
    unsafe {
        match *query {
            Query::AbsMax => stat.absmax = absmax::<V>(from, n),
            Query::Range => (stat.min, stat.max, stat.absmax) = extremes::<V>(from, n),
            Query::Residual { levels, count } => {
                let levels: [V::F; 4] = std::array::from_fn(|i| V::splat(levels[i]));
                let whole = n / 16 * 16;
                let mut sum = V::zero_d();
                for i in (0..whole).step_by(16) {
                    V::prefetch(from.wrapping_add(i + AHEAD));
                    sum = V::accumulate(sum, residual::<V>(V::load(from.add(i)), &levels, count));
                }
                if whole < n {
                    // Lanes behind the end hold 0, whose residual need not be 0.
                    let mut lanes =
                        V::store_i(V::bits(residual::<V>(V::load_part(from.add(whole), n - whole), &levels, count)));
                    lanes[n - whole..].fill(0);
                    sum = V::accumulate(sum, V::load(lanes.as_ptr().cast()));
                }
                stat.sum = tree_sum(V::to_array(sum));
                stat.count = n;
            }
            Query::Above(threshold) => {
                let limit = V::splat(threshold);
                let mut sum = V::zero_d();
                let mut i = 0;
                while i < n {
                    V::prefetch(from.wrapping_add(i + AHEAD));
                    let v = if i + 16 <= n { V::load(from.add(i)) } else { V::load_part(from.add(i), n - i) };
                    let magnitude = V::abs(v);
                    let above = V::lt(limit, magnitude);
                    sum = V::accumulate(sum, V::select(above, magnitude, V::splat(0.0)));
                    stat.count += V::mask_bits(above).count_ones() as usize;
                    i += 16;
                }
                stat.sum = tree_sum(V::to_array(sum));
            }
            Query::FixedError { first, width, signed } => {
                // Steps and their inverses must be normal numbers, and differences exact in float32.
                if width > 16 || first < -126 || first + FRACTION_CANDIDATES as i32 > 127 {
                    return stat_chunk(x, query);
                }
                let top = (1i32 << width) as f32;
                let (lo, hi) = if signed { (-top / 2.0, top / 2.0 - 1.0) } else { (0.0, top - 1.0) };
                let (lo, hi) = (V::splat(lo), V::splat(hi));
                let mut sums = [V::zero_d(); FRACTION_CANDIDATES];
                let mut i = 0;
                while i < n {
                    V::prefetch(from.wrapping_add(i + AHEAD));
                    let v = if i + 16 <= n { V::load(from.add(i)) } else { V::load_part(from.add(i), n - i) };
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let f = first + j as i32;
                        let k = V::round(V::min(hi, V::max(lo, V::mul(v, V::splat(power(f))))));
                        *sum = V::accumulate_squares(*sum, V::sub(v, V::mul(k, V::splat(power(-f)))));
                    }
                    i += 16;
                }
                for (error, sum) in stat.errors.iter_mut().zip(sums) {
                    *error = tree_sum(V::to_array(sum));
                }
            }
        }
    }
    stat
}
