//! Loops over the groups of a piece: find the scale, make its kernel, run it over the elements.

use super::batch::Batches;
use super::kernels::{Kernel, power};
use super::lanes::Lanes;
use crate::codec::grid::GroupScale;
use crate::codec::scale::{CHUNK, Chooser, FRACTION_CANDIDATES, Query, Stat, tree_sum};
use crate::codec::work::{Scales, Work};
use crate::pack::Code;

const INFINITY: u32 = 0x7f80_0000;
/// Elements between the one in work and the one asked for ahead: choosing scales and rounding alternate, which leaves
/// the hardware's own prefetching too little time.
const AHEAD: usize = 1024;

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
            V::prefetch(x.wrapping_add(i + AHEAD));
            for (j, most) in most.iter_mut().enumerate() {
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

/// Squared error of a block under a kernel: errors times `inverse`.
///
/// # Safety
/// As for [`absmax`].
#[inline(always)]
pub(super) unsafe fn block_error<V: Lanes, K: Kernel<V>>(kernel: &K, x: *const f32, len: usize, inverse: f32) -> f32 {
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
        V::tree_sum(sum)
    }
}

/// The group's kernel, its scale chosen and kept or read. `None`: the scalar code does this group, choice included.
///
/// # Safety
/// The processor must have the features of `V`. `x` must be aligned and readable for `len` values, and the scale of the
/// group be there, as [`Work`] says.
#[inline(always)]
unsafe fn group_kernel<V: Lanes, K: Kernel<V>>(
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
                return K::make(base, &GroupScale { step, zero: 0, levels: [1.0; 4] });
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
            _ => work.choose(std::slice::from_raw_parts(x, len)),
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
                    Some(kernel) if n == 32 => quantize_group(&kernel, x, out, 32),
                    Some(kernel) if n == 16 => quantize_group(&kernel, x, out, 16),
                    Some(kernel) => quantize_group(&kernel, x, out, n),
                    None => scalar_quantize(work, x, out, n, g),
                }
                start += n;
                g += 1;
            }
        }
    }
}

/// Quantizes one group.
///
/// # Safety
/// The processor must have the features of `V`. `x` must be aligned and readable, `out` writable, for `n` elements;
/// where they are not the same address, they must be apart.
#[inline(always)]
unsafe fn quantize_group<V: Lanes, K: Kernel<V>>(kernel: &K, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: as the caller promises; what is read of a vector is read before it is written.
    unsafe {
        let mut i = 0;
        while i + 16 <= n {
            V::prefetch(x.wrapping_add(i + AHEAD));
            V::store(out.add(i), kernel.quantize(V::load(x.add(i))));
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
        let scale = work.group_scale(std::slice::from_raw_parts(x, len), group);
        work.quantize_group(x, out, len, &scale);
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
                let check = !batch.finite;
                let done = match kernel {
                    Some(kernel) if n == 32 => {
                        encode_group::<V, K, C>(&kernel, x.as_ptr(), codes.as_mut_ptr(), 32, check)
                    }
                    Some(kernel) if n == 16 => {
                        encode_group::<V, K, C>(&kernel, x.as_ptr(), codes.as_mut_ptr(), 16, check)
                    }
                    Some(kernel) => encode_group::<V, K, C>(&kernel, x.as_ptr(), codes.as_mut_ptr(), n, check),
                    None => false,
                };
                if !done {
                    let failed = scalar_encode(work, x, codes, g);
                    first = first.or(failed.map(|position| start + position));
                }
                start += n;
                g += 1;
            }
        }
    }
    first
}

#[inline(never)]
pub(super) fn scalar_encode<C: Code>(work: &Work, x: &[f32], codes: &mut [C], group: usize) -> Option<usize> {
    let scale = work.group_scale(x, group);
    work.encode_group(x, codes, &scale, group)
}

/// Codes of a group; false where a value is not finite, and the scalar code must do it again.
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
    check: bool,
) -> bool {
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
                    Some(kernel) if n == 32 => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, 32),
                    Some(kernel) if n == 16 => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, 16),
                    Some(kernel) => decode_group::<V, K, C>(&kernel, codes.as_ptr(), out, n),
                    None => scalar_decode(work, codes, out, &work.resolve(&work.load(g))),
                }
                start += n;
                g += 1;
            }
        }
    }
}

/// Values of a group.
///
/// # Safety
/// The processor must have the features of `V`. `from` must be readable for `n` codes, `out` aligned and writable for
/// `n` values.
#[inline(always)]
unsafe fn decode_group<V: Lanes, K: Kernel<V>, C: Code>(kernel: &K, from: *const C, out: *mut f32, n: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut i = 0;
        while i + 16 <= n {
            let code = match size_of::<C>() {
                1 => V::load_u8(from.add(i).cast()),
                2 => V::load_u16(from.add(i).cast()),
                _ => V::bits(V::load(from.add(i).cast())),
            };
            V::store(out.add(i), kernel.decode(code));
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
    for (i, &code) in codes.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            let value = crate::codec::grid::decode_element(&work.grid, work.width, code.to_u32(), scale);
            out.add(i).write_unaligned(value);
        }
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
                    return crate::codec::scale::stat_chunk(x, query);
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

/// Widens 16-bit floats.
///
/// # Safety
/// The processor must have the features of `V`; `from` must be readable for `to.len()` values.
#[inline(always)]
pub(super) unsafe fn widen<V: Lanes>(from: *const u16, float16: bool, to: &mut [f32]) {
    let whole = to.len() / 16 * 16;
    // SAFETY: as the caller promises.
    unsafe {
        for i in (0..whole).step_by(16) {
            let at = from.add(i);
            let v = if float16 { V::load_f16(at) } else { V::from_bits(V::shl(V::load_u16(at), 16)) };
            V::store(to.as_mut_ptr().add(i), v);
        }
        crate::codec::buffers::widen_reference(from.add(whole), float16, &mut to[whole..]);
    }
}

/// Narrows to 16-bit floats, saturating.
///
/// # Safety
/// The processor must have the features of `V`; `to` must be writable for `from.len()` values.
#[inline(always)]
pub(super) unsafe fn narrow<V: Lanes>(from: &[f32], float16: bool, to: *mut u16) {
    let whole = from.len() / 16 * 16;
    // SAFETY: as the caller promises.
    unsafe {
        let finite = V::splat_i(0x7f80_0000);
        for i in (0..whole).step_by(16) {
            let v = V::load(from.as_ptr().add(i));
            let magnitude = V::abs(v);
            // Finite values stop at the largest number of the type; infinities and NaN pass.
            let passes = V::gt_i(V::bits(magnitude), V::sub_i(finite, V::splat_i(1)));
            if float16 {
                let clipped = V::with_sign(V::min(V::splat(65_504.0), magnitude), v);
                V::store_f16(to.add(i), V::select(passes, v, clipped));
            } else {
                let bits =
                    V::bits(V::select(passes, magnitude, V::min(V::splat(f32::from_bits(0x7f7f_0000)), magnitude)));
                let odd = V::and(V::shr(bits, 16), V::splat_i(1));
                let rounded = V::shr(V::add_i(bits, V::add_i(odd, V::splat_i(0x7fff))), 16);
                // A NaN must not round up into the sign; quieten it instead.
                let nan = V::or(V::shr(V::bits(magnitude), 16), V::splat_i(0x40));
                let magnitude = V::select_i(V::unordered(v), nan, rounded);
                V::store_u16(to.add(i), V::or(magnitude, V::shl(V::shr(V::bits(v), 31), 15)));
            }
        }
        crate::codec::buffers::narrow_reference(&from[whole..], float16, to.add(whole));
    }
}
