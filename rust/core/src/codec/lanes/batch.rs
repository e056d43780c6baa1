//! Scales of sixteen groups at a time, chosen from absmax or read, in vector arithmetic.

use super::kernels::{Factors, FloatBase, Floats, Kernel, RealSteps};
use super::neighbours::{Groups, ceil_e4m3, e4m3_steps};
use super::statistics::extremes;
use crate::codec::group_scales::{Scales, Work};
use crate::codec::scale_search::{Chooser, ExponentRule, RawScale, ScaleRule};
use crate::format::{Granularity, Minifloat, ScaleType};
use crate::simd::Lanes;

/// The factors of up to sixteen groups, for [`Kernel::with`].
pub(super) struct Batch {
    /// Groups that follow; 1 where the batch is not used.
    pub(super) groups: usize,
    /// False: the one group that follows finds its own scale.
    pub(super) batched: bool,
    /// All values were seen to be finite.
    pub(super) finite: bool,
    /// One bit for each group that a kernel may do.
    pub(super) valid: u32,
    pub(super) first: [f32; 16],
    pub(super) second: [f32; 16],
    pub(super) zero: [i32; 16],
}

/// Walks over the groups of a piece.
pub(super) struct Batches {
    batch: Batch,
    each: usize,
    factors: Factors,
    /// `code = ((absmax + add) >> 23) + offset`: all rules of a shared exponent, on the bits of the magnitude.
    add: i32,
    offset: i32,
    /// The type of nvfp4's scales.
    e4m3: Option<FloatBase>,
}

impl Batches {
    pub(super) fn new<V: Lanes, K: Kernel<V>>(work: &Work, base: &K::Base, len: usize) -> Self {
        let mut factors = K::factors(base, work.chooser.shift());
        let blocks = matches!(work.format.granularity(), Granularity::Block(_));
        if !blocks {
            factors = Factors::Single;
        }
        let (mut add, mut offset) = (0, 0);
        if let Chooser::Exponent { default, .. } = work.chooser {
            (add, offset) = match default {
                ExponentRule::Floor { emax } => (0, -emax),
                // Half a unit in the last of m bits: the sum reaches the next binade where the magnitude rounds up to it.
                ExponentRule::Fits { m } => (1 << (23 - m), 1),
                ExponentRule::NearestPower => (1 << 22, 0),
            };
            if work.rule == ScaleRule::Ceil {
                let largest = crate::codec::grid::range(&work.grid, &work.resolve(&RawScale::code(127))).1 as f32;
                let bits = largest.to_bits() as i32;
                (add, offset) = (0x007f_ffff - (bits & 0x007f_ffff), 127 - (bits >> 23));
            }
        }
        let batch = Batch {
            groups: 1,
            batched: factors != Factors::Single,
            finite: false,
            valid: 0,
            first: [1.0; 16],
            second: [1.0; 16],
            zero: [0; 16],
        };
        let e4m3 = FloatBase::mini(Minifloat::standard(4, 3)).filter(|_| matches!(work.chooser, Chooser::NvFp4));
        Self { batch, each: work.group_len(len), factors, add, offset, e4m3 }
    }

    /// The scales of the next groups. `x` points to the first of `left` values, or is null where scales are read.
    ///
    /// # Safety
    /// The processor must have the features of `V`; else as for [`Batches::read`] where scales are read, and as for
    /// [`Batches::choose`] where they are chosen.
    #[inline(always)]
    pub(super) unsafe fn next<V: Lanes, K: Kernel<V>>(
        &mut self,
        work: &Work,
        base: &K::Base,
        x: *const f32,
        left: usize,
        group: usize,
    ) -> &Batch {
        if self.batch.batched {
            self.batch.groups = left.div_ceil(self.each).min(16);
            // SAFETY: as the caller promises; `groups` are at most 16, and those that `left` values have.
            unsafe {
                if matches!(work.scales, Scales::Stored) {
                    self.read::<V>(work, group, x.is_null());
                } else {
                    self.choose::<V, K>(work, base, x, left, group);
                }
            }
        }
        &self.batch
    }

    /// The kernel of nvfp4's scales.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn e4m3<V: Lanes>(base: Option<FloatBase>) -> Option<Floats<V, false>> {
        // SAFETY: as the caller promises.
        unsafe { Floats::unscaled(&base?) }
    }

    /// Powers of two for shared exponents; sets `valid`.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn powers<V: Lanes>(&mut self, codes: V::I, sound: V::M, bias: i32, range: (i32, i32)) {
        // SAFETY: as the caller promises; the arrays hold 16 lanes.
        unsafe {
            let low = V::mask_bits(V::gt_i(codes, V::splat_i(range.0 - 1)));
            let high = V::mask_bits(V::gt_i(V::splat_i(range.1 + 1), codes));
            self.batch.valid = low & high & V::mask_bits(sound);
            let e = V::sub_i(codes, V::splat_i(bias));
            let up = V::shl(V::sub_i(V::splat_i(127), e), 23);
            let down = V::shl(V::add_i(V::splat_i(127), e), 23);
            V::store(self.batch.first.as_mut_ptr(), V::from_bits(up));
            V::store(self.batch.second.as_mut_ptr(), V::from_bits(down));
        }
    }

    /// Steps and their inverses; sets `valid`.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn steps<V: Lanes>(&mut self, steps: V::F, any_size: bool) {
        // SAFETY: as the caller promises; the arrays hold 16 lanes.
        unsafe {
            let fits = V::mask_bits(V::ge(steps, V::splat(1e-19))) & V::mask_bits(V::ge(V::splat(1e29), steps));
            self.batch.valid = if any_size { 0xffff } else { fits };
            V::store(self.batch.first.as_mut_ptr(), steps);
            V::store(self.batch.second.as_mut_ptr(), V::div(V::splat(1.0), steps));
        }
    }

    /// Reads stored scales. `decoding` needs no inverse, so integers take any step.
    ///
    /// # Safety
    /// The processor must have the features of `V`; stored scales, and zero points where there are some, must be there
    /// for `groups` groups from `group` on.
    #[inline(always)]
    unsafe fn read<V: Lanes>(&mut self, work: &Work, group: usize, decoding: bool) {
        let count = self.batch.groups;
        // SAFETY: as the caller promises; the arrays hold 16 lanes, and `groups` are at most 16.
        unsafe {
            match (self.factors, work.format.scale_type()) {
                (Factors::Powers { bias, first, last }, _) => {
                    let mut codes = [0u8; 16];
                    std::ptr::copy_nonoverlapping(work.scale_in.add(group), codes.as_mut_ptr(), count);
                    let codes = V::load_u8(codes.as_ptr());
                    self.powers::<V>(codes, V::eq(V::splat(0.0), V::splat(0.0)), bias, (first, last));
                }
                (_, Some(ScaleType::F16)) => {
                    let mut bits = [0u16; 16];
                    let from = work.scale_in.add(2 * group);
                    std::ptr::copy_nonoverlapping(from, bits.as_mut_ptr().cast::<u8>(), 2 * count);
                    let integers = matches!(work.grid, crate::codec::grid::Grid::Integer { .. });
                    self.steps::<V>(V::load_f16(bits.as_ptr()), decoding && integers);
                }
                (_, Some(ScaleType::E4M3)) if let Some(e4m3) = Self::e4m3::<V>(self.e4m3) => {
                    let mut codes = [0u8; 16];
                    std::ptr::copy_nonoverlapping(work.scale_in.add(group), codes.as_mut_ptr(), count);
                    self.steps::<V>(e4m3_steps::<V>(&e4m3, work.tensor, V::load_u8(codes.as_ptr())), false);
                }
                _ => self.batch.valid = 0,
            }
            if !work.zero_in.is_null() {
                for j in 0..count {
                    self.batch.zero[j] = i32::from(*work.zero_in.add(group + j));
                }
            }
        }
    }

    /// Chooses scales from the values and keeps them.
    ///
    /// # Safety
    /// The processor must have the features of `V`; `x` must be aligned and readable for `left` values. Where scales or
    /// zero points are kept, there must be room for those of `groups` groups from `group` on, which nobody else may use
    /// meanwhile.
    #[inline(always)]
    unsafe fn choose<V: Lanes, K: Kernel<V>>(
        &mut self,
        work: &Work,
        base: &K::Base,
        x: *const f32,
        left: usize,
        group: usize,
    ) {
        // SAFETY: as the caller promises; groups lie inside the `left` values, and the arrays hold 16 lanes.
        unsafe {
            if let Chooser::Asymmetric { qmax } = work.chooser {
                return self.choose_asymmetric::<V>(work, x, left, group, qmax);
            }
            let groups = Groups { x, left, each: self.each, count: self.batch.groups };
            let bits = groups.largest::<V>();
            // An all-zero group keeps code 0 or scale 0; any factors give it zeros.
            let empty = V::gt_i(V::splat_i(1), bits);
            // Subnormal magnitudes, infinities and NaN are left to the scalar code.
            let normal = V::mask_bits(V::gt_i(bits, V::splat_i(0x007f_ffff)))
                & V::mask_bits(V::gt_i(V::splat_i(0x7f80_0000), bits));
            self.batch.finite = V::mask_bits(V::gt_i(bits, V::splat_i(0x7f7f_ffff))) == 0;
            match (self.factors, work.chooser) {
                (Factors::Powers { bias, first, last }, _) => {
                    let mut shared =
                        V::add_i(V::sar(V::add_i(bits, V::splat_i(self.add)), 23), V::splat_i(self.offset));
                    if work.rule == ScaleRule::Mse {
                        shared = groups.best_powers::<V, K>(base, bias, shared);
                    }
                    self.powers::<V>(
                        V::select_i(empty, V::splat_i(first), shared),
                        V::eq(V::splat(0.0), V::splat(0.0)),
                        bias,
                        (first, last),
                    );
                    let mut codes = [0u8; 16];
                    V::store_u8(codes.as_mut_ptr(), V::select_i(empty, V::splat_i(0), shared));
                    self.keep(work, group, &codes);
                }
                (_, Chooser::Symmetric { qmax }) => {
                    // Groups keep float16 scales, from the smallest to the largest number of the type.
                    let wanted = V::max(V::splat(SMALLEST_F16), V::div(V::from_bits(bits), V::splat(qmax)));
                    let mut halves = [0u16; 16];
                    V::store_f16(halves.as_mut_ptr(), V::min(V::splat(65_504.0), wanted));
                    let steps = V::load_f16(halves.as_ptr());
                    for (half, most) in halves.iter_mut().zip(V::store_i(bits)) {
                        *half = if most == 0 { 0 } else { *half };
                    }
                    self.keep(work, group, halves.map(u16::to_le_bytes).as_flattened());
                    self.steps::<V>(V::select(empty, V::splat(1.0), steps), false);
                }
                (_, Chooser::NvFp4) if let Some(e4m3) = Self::e4m3::<V>(self.e4m3) => {
                    let absmax = V::from_bits(bits);
                    let mut codes = e4m3.code(V::div(absmax, V::splat(6.0 * work.tensor)));
                    match work.rule {
                        ScaleRule::Floor => {}
                        ScaleRule::Ceil => codes = ceil_e4m3::<V>(&e4m3, work.tensor, absmax, codes),
                        ScaleRule::Mse => codes = groups.best_e4m3::<V, K>(base, (&e4m3, work.tensor), codes),
                    }
                    let codes = V::select_i(empty, V::splat_i(0), codes); // 0 / 0 in an all-zero tensor
                    let mut bytes = [0u8; 16];
                    V::store_u8(bytes.as_mut_ptr(), codes);
                    self.keep(work, group, &bytes);
                    let steps = e4m3_steps::<V>(&e4m3, work.tensor, codes);
                    self.steps::<V>(V::select(empty, V::splat(1.0), steps), false);
                }
                _ => self.batch.valid = 0,
            }
            self.batch.valid &= normal | V::mask_bits(empty);
        }
    }

    /// Ranges of the groups to float16 steps and zero points.
    ///
    /// # Safety
    /// As for [`Batches::choose`].
    #[inline(always)]
    unsafe fn choose_asymmetric<V: Lanes>(&mut self, work: &Work, x: *const f32, left: usize, group: usize, qmax: f64) {
        let (mut least, mut most, mut sizes) = ([0.0f32; 16], [0.0f32; 16], [0u32; 16]);
        // SAFETY: as the caller promises; groups lie inside the `left` values, and the arrays hold 16 lanes.
        unsafe {
            for j in 0..self.batch.groups {
                let x = x.add(j * self.each);
                (least[j], most[j], sizes[j]) = match self.each.min(left - j * self.each) {
                    32 => extremes::<V>(x, 32),
                    n => extremes::<V>(x, n),
                };
            }
            let (least, most) = (V::load(least.as_ptr()), V::load(most.as_ptr()));
            let sizes = V::bits(V::load(sizes.as_ptr().cast()));
            let empty = V::gt_i(V::splat_i(1), sizes);
            let normal = V::mask_bits(V::gt_i(V::splat_i(0x7f80_0000), sizes)) & !V::mask_bits(empty);
            self.batch.finite = V::mask_bits(V::gt_i(sizes, V::splat_i(0x7f7f_ffff))) == 0;
            let mut halves = [0u16; 16];
            let wanted = V::max(V::splat(SMALLEST_F16), V::range_over(most, least, qmax));
            V::store_f16(halves.as_mut_ptr(), V::min(V::splat(65_504.0), wanted));
            let steps = V::load_f16(halves.as_ptr());
            self.steps::<V>(steps, false);
            // The zero point is the exact quotient -least / step, rounded as elements are.
            let inverse = V::load(self.batch.second.as_ptr());
            let zero = RealSteps::<V>::quotient(
                V::sub(V::splat(0.0), least),
                steps,
                inverse,
                V::splat(0.0),
                V::splat(qmax as f32),
            );
            V::store(self.batch.zero.as_mut_ptr().cast(), V::from_bits(V::to_i(zero)));
            self.batch.valid &= normal;
            // Scales and zero points are kept for all; groups that are not valid are written again by the scalar code.
            self.keep(work, group, halves.map(u16::to_le_bytes).as_flattened());
            if !work.zero_out.is_null() {
                for (j, &zero) in self.batch.zero.iter().enumerate().take(self.batch.groups) {
                    *work.zero_out.add(group + j) = zero as u16;
                }
            }
        }
    }

    /// Writes the chosen scales where somebody wants them; invalid ones are written again by the scalar code.
    ///
    /// # Safety
    /// Where scales are kept, there must be room for those of `groups` groups from `group` on, which nobody else may
    /// use meanwhile. `bytes` must be those of sixteen.
    #[inline(always)]
    unsafe fn keep(&self, work: &Work, group: usize, bytes: &[u8]) {
        if !work.scale_out.is_null() {
            let size = bytes.len() / 16;
            // SAFETY: as the caller promises; `groups` are at most 16.
            unsafe {
                let to = work.scale_out.add(size * group);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size * self.batch.groups);
            }
        }
    }
}

/// The smallest positive float16, 2^-24.
const SMALLEST_F16: f32 = 1.0 / 16_777_216.0;
