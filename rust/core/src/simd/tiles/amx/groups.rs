//! Products of int8 of groups of columns, scaled by group: assembly that leaves no tile alive, and AVX-512.
//!
//! Tiles are as wide as a group. AMX multiplies the next groups while sums of the last ones are scaled.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{LINE, ROWS, Session};
use crate::simd::tiles::groups::{FOUR, GroupSums, Groups, add_group};
use crate::simd::{Floats, Line};

/// Tiles of sums that are made together: of as many groups, or of the limbs of one.
const TOGETHER: usize = 4;

/// Holds the tiles of its thread configured for groups of some columns, while it lives.
#[derive(Debug)]
pub(crate) struct GroupSession {
    _session: Session,
    /// Columns of a group.
    columns: usize,
    /// Sums that are made, and those before.
    products: Box<[[GroupSums; TOGETHER]; 2]>,
}

/// Assembly that multiplies tiles of weights and of inputs, each product in a tile of its own.
macro_rules! apart {
    ($columns:ident, $weights:ident, $stride:expr, $inputs:ident, $sums:ident, [$($product:literal)*], [$($store:literal)*]) => {
        asm!(
            $($product,)*
            $($store,)*
            a = inout(reg) $weights => _, b = inout(reg) $inputs => _, c = in(reg) $sums.as_mut_ptr(),
            columns = in(reg) $columns, rows = in(reg) $columns / FOUR * LINE,
            stride = in(reg) $stride, line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
        )
    };
}

impl GroupSession {
    /// Configures the tiles for groups of so many columns: a multiple of [`FOUR`], at most [`LINE`].
    ///
    /// # Safety
    /// [`super::allowed`] must have said yes.
    pub(crate) unsafe fn new(columns: usize) -> Self {
        assert!(columns > 0 && columns.is_multiple_of(FOUR) && columns <= LINE);
        let (sums, weights, inputs) = ((ROWS, LINE), (ROWS, columns), (columns / FOUR, LINE));
        let sizes = [sums, sums, sums, sums, weights, inputs, weights, inputs];
        // SAFETY: as the caller promises.
        Self { _session: unsafe { Session::of(sizes) }, columns, products: Box::default() }
    }

    /// Writes the sums of groups of so many columns from `first` on: of one after the other of inputs of one limb, else of
    /// each limb of one.
    ///
    /// # Safety
    /// Weights and inputs of these groups must be readable, and tiles configured for them.
    unsafe fn multiply(columns: usize, factors: &Groups<'_>, first: usize, sums: &mut [GroupSums]) {
        let weights = factors.weights.wrapping_add(first * columns);
        let inputs = factors.inputs.as_ptr().wrapping_add(first * factors.limbs * columns / FOUR);
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            match (factors.limbs, sums.len()) {
                (1, TOGETHER) => apart!(
                    columns, weights, factors.stride, inputs, sums,
                    ["tilezero tmm0" "tileloadd tmm4, [{a} + {stride}]" "tileloadd tmm5, [{b} + {line}]"
                     "tdpbssd tmm0, tmm4, tmm5" "add {a}, {columns}" "add {b}, {rows}"
                     "tilezero tmm1" "tileloadd tmm6, [{a} + {stride}]" "tileloadd tmm7, [{b} + {line}]"
                     "tdpbssd tmm1, tmm6, tmm7" "add {a}, {columns}" "add {b}, {rows}"
                     "tilezero tmm2" "tileloadd tmm4, [{a} + {stride}]" "tileloadd tmm5, [{b} + {line}]"
                     "tdpbssd tmm2, tmm4, tmm5" "add {a}, {columns}" "add {b}, {rows}"
                     "tilezero tmm3" "tileloadd tmm6, [{a} + {stride}]" "tileloadd tmm7, [{b} + {line}]"
                     "tdpbssd tmm3, tmm6, tmm7"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"]
                ),
                (3, 3) => apart!(
                    columns, weights, factors.stride, inputs, sums,
                    ["tilezero tmm0" "tileloadd tmm4, [{a} + {stride}]" "tileloadd tmm5, [{b} + {line}]"
                     "tdpbssd tmm0, tmm4, tmm5" "add {b}, {rows}" "add {a}, {columns}"
                     "tilezero tmm1" "tileloadd tmm7, [{b} + {line}]" "tdpbssd tmm1, tmm4, tmm7" "add {b}, {rows}"
                     "tilezero tmm2" "tileloadd tmm5, [{b} + {line}]" "tdpbssd tmm2, tmm4, tmm5"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2"]
                ),
                (4, 4) => apart!(
                    columns, weights, factors.stride, inputs, sums,
                    ["tilezero tmm0" "tileloadd tmm4, [{a} + {stride}]" "tileloadd tmm5, [{b} + {line}]"
                     "tdpbssd tmm0, tmm4, tmm5" "add {b}, {rows}" "add {a}, {columns}"
                     "tilezero tmm1" "tileloadd tmm7, [{b} + {line}]" "tdpbssd tmm1, tmm4, tmm7" "add {b}, {rows}"
                     "tilezero tmm2" "tileloadd tmm5, [{b} + {line}]" "tdpbssd tmm2, tmm4, tmm5" "add {b}, {rows}"
                     "tilezero tmm3" "tileloadd tmm7, [{b} + {line}]" "tdpbssd tmm3, tmm4, tmm7"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"]
                ),
                _ => {
                    for (at, sum) in sums.chunks_mut(1).enumerate() {
                        let group = if factors.limbs == 1 { at } else { 0 };
                        let weights = weights.wrapping_add(group * columns);
                        let inputs = inputs.wrapping_add(at * columns / FOUR);
                        apart!(
                            columns, weights, factors.stride, inputs, sum,
                            ["tilezero tmm0" "tileloadd tmm4, [{a} + {stride}]" "tileloadd tmm5, [{b} + {line}]"
                             "tdpbssd tmm0, tmm4, tmm5" "add {a}, {columns}" "add {b}, {rows}"],
                            ["tilestored [{c} + {line}], tmm0"]
                        );
                    }
                }
            }
        }
    }

    /// As [`crate::simd::tiles::groups::GroupSession::add`].
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn add(&mut self, factors: &Groups<'_>, sums: &mut [Floats; ROWS]) {
        let (columns, groups, limbs) = (self.columns, factors.groups(), factors.limbs);
        assert!((1..=TOGETHER).contains(&limbs) && factors.scales.len() == groups);
        assert!(factors.inputs.len() == groups * limbs * columns / FOUR);
        let each = if limbs == 1 { TOGETHER } else { 1 };
        let [mut now, mut before] = self.products.each_mut();
        // SAFETY: as the caller promises.
        unsafe {
            for first in (0..groups).step_by(each) {
                let count = each.min(groups - first);
                Self::multiply(columns, factors, first, &mut now[..count * limbs]);
                // Those before were whole.
                if first > 0 {
                    add_products(factors, first - each, &before[..each * limbs], sums);
                }
                std::mem::swap(&mut now, &mut before);
            }
            let last = groups.saturating_sub(1) / each * each;
            add_products(factors, last, &before[..(groups - last) * limbs], sums);
        }
    }
}

/// Scales the products of groups from `first` on, and adds them: of several of inputs of one limb, else of one group.
///
/// # Safety
/// As for [`add_group`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_products(factors: &Groups<'_>, first: usize, products: &[GroupSums], sums: &mut [Floats; ROWS]) {
    // SAFETY: lines are aligned and hold sixteen values.
    let load = |sums: &GroupSums, row: usize| unsafe { _mm512_load_si512(sums[row].0.as_ptr().cast()) };
    // Sums of two limbs: of 64 products they are below 2^29.
    let both = |low: &GroupSums, high: &GroupSums, row: usize| {
        _mm512_add_epi32(load(low, row), _mm512_slli_epi32::<8>(load(high, row)))
    };
    let rounded = |low: __m512i, high: __m512i| {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65_536.0), _mm512_cvtepi32_ps(low))
    };
    // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
    unsafe {
        let mut all = [_mm512_setzero_ps(); ROWS];
        all.iter_mut().zip(&*sums).for_each(|(all, sum)| *all = _mm512_load_ps(sum.0.as_ptr()));
        match (factors.limbs, products) {
            (1, groups) => {
                for (at, sums) in groups.iter().enumerate() {
                    add_group(factors, first + at, 0, |row| _mm512_cvtepi32_ps(load(sums, row)), &mut all);
                }
            }
            (_, [a, b]) => add_group(factors, first, 0, |row| _mm512_cvtepi32_ps(both(a, b, row)), &mut all),
            (_, [a, b, c]) => add_group(factors, first, 0, |row| rounded(both(a, b, row), load(c, row)), &mut all),
            (_, [a, b, c, d]) => {
                add_group(factors, first, 0, |row| rounded(both(a, b, row), both(c, d, row)), &mut all);
            }
            _ => {}
        }
        sums.iter_mut().zip(all).for_each(|(sum, all)| _mm512_store_ps(sum.0.as_mut_ptr(), all));
    }
}

const _: () = assert!(size_of::<GroupSums>() == 1024 && size_of::<Line<i8, LINE>>() == LINE);
