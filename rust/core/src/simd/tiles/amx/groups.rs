//! Products of int8 of groups of columns, scaled by group: assembly that leaves no tile alive, and AVX-512.
//!
//! A group is a tile, or some whole ones. While the processor scales the sums of a group, AMX begins with the next.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{LINE, ROWS, Session};
use crate::simd::tiles::groups::{FOUR, GroupSums, Groups, add_group};
use crate::simd::{Floats, Line};

/// Limbs of inputs, at most.
const MOST_LIMBS: usize = 4;
/// Tiles of a group, at most: sums of two limbs of so many products fit int32.
pub(crate) const MOST_TILES: usize = 4;
/// Rows of weights whose sums are scaled in one loop.
const QUARTER: usize = ROWS / 4;

/// Holds the tiles of its thread configured for groups of some columns, while it lives.
#[derive(Debug)]
pub(crate) struct GroupSession {
    _session: Session,
    /// Columns of a tile, and tiles of a group.
    columns: usize,
    tiles: usize,
    /// Sums of a group by limb.
    products: Box<[GroupSums; MOST_LIMBS]>,
}

/// Assembly that multiplies a group's tiles of weights with those of each limb of the inputs.
macro_rules! products {
    ($session:ident, $factors:ident, $group:ident, $sums:expr, [$($zero:literal)*], [$($product:literal)*], [$($store:literal)*]) => {{
        let all = $session.columns * $session.tiles;
        asm!(
            $($zero,)*
            "2:",
            "tileloadd tmm4, [{a} + {stride}]",
            "mov {x}, {b}",
            $($product,)*
            "add {a}, {columns}",
            "add {b}, {rows}",
            "dec {n}",
            "jnz 2b",
            $($store,)*
            a = inout(reg) $factors.weights.wrapping_add($group * all) => _, x = out(reg) _,
            b = inout(reg) $factors.inputs.as_ptr().wrapping_add($group * $factors.limbs * all / FOUR) => _,
            n = inout(reg) $session.tiles => _, c = in(reg) $sums.as_mut_ptr(),
            columns = in(reg) $session.columns, rows = in(reg) $session.columns / FOUR * LINE,
            limb = in(reg) all / FOUR * LINE, stride = in(reg) $factors.stride, line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
        )
    }};
}

impl GroupSession {
    /// Configures the tiles for groups of so many columns: a multiple of [`FOUR`] up to [`LINE`], or of that up to four of them.
    ///
    /// # Safety
    /// [`super::allowed`] must have said yes.
    pub(crate) unsafe fn new(columns: usize) -> Self {
        assert!(columns <= LINE || columns.is_multiple_of(LINE));
        let (columns, tiles) = if columns > LINE { (LINE, columns / LINE) } else { (columns, 1) };
        assert!(columns > 0 && columns.is_multiple_of(FOUR) && (1..=MOST_TILES).contains(&tiles));
        let (sums, weights, inputs) = ((ROWS, LINE), (ROWS, columns), (columns / FOUR, LINE));
        let sizes = [sums, sums, sums, sums, weights, inputs, inputs, inputs];
        // SAFETY: as the caller promises.
        Self { _session: unsafe { Session::of(sizes) }, columns, tiles, products: Box::default() }
    }

    /// Writes the sums of a group for each of so many limbs.
    ///
    /// # Safety
    /// Weights and inputs of the group, which have so many limbs, must be readable, and a session alive.
    #[inline]
    unsafe fn multiply<const LIMBS: usize>(&mut self, factors: &Groups<'_>, group: usize) {
        let sums = &mut self.products;
        // SAFETY: as the caller promises; no tile outlives the block.
        unsafe {
            match LIMBS {
                1 => products!(
                    self, factors, group, sums, ["tilezero tmm0"],
                    ["tileloadd tmm5, [{x} + {line}]" "tdpbssd tmm0, tmm4, tmm5" "/* {limb} */"],
                    ["tilestored [{c} + {line}], tmm0"]
                ),
                2 => products!(
                    self, factors, group, sums, ["tilezero tmm0" "tilezero tmm1"],
                    ["tileloadd tmm5, [{x} + {line}]" "tdpbssd tmm0, tmm4, tmm5" "add {x}, {limb}"
                     "tileloadd tmm6, [{x} + {line}]" "tdpbssd tmm1, tmm4, tmm6"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"]
                ),
                3 => products!(
                    self, factors, group, sums, ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2"],
                    ["tileloadd tmm5, [{x} + {line}]" "tdpbssd tmm0, tmm4, tmm5" "add {x}, {limb}"
                     "tileloadd tmm6, [{x} + {line}]" "tdpbssd tmm1, tmm4, tmm6" "add {x}, {limb}"
                     "tileloadd tmm7, [{x} + {line}]" "tdpbssd tmm2, tmm4, tmm7"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2"]
                ),
                _ => products!(
                    self, factors, group, sums, ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                    ["tileloadd tmm5, [{x} + {line}]" "tdpbssd tmm0, tmm4, tmm5" "add {x}, {limb}"
                     "tileloadd tmm6, [{x} + {line}]" "tdpbssd tmm1, tmm4, tmm6" "add {x}, {limb}"
                     "tileloadd tmm7, [{x} + {line}]" "tdpbssd tmm2, tmm4, tmm7" "add {x}, {limb}"
                     "tileloadd tmm5, [{x} + {line}]" "tdpbssd tmm3, tmm4, tmm5"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"]
                ),
            }
        }
    }

    /// As [`crate::simd::tiles::groups::GroupSession::add`].
    ///
    /// # Safety
    /// As there.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn add(&mut self, factors: &Groups<'_>, sums: &mut [Floats; ROWS]) {
        let (groups, limbs) = (factors.groups(), factors.limbs);
        assert!((1..=MOST_LIMBS).contains(&limbs) && factors.scales.len() == groups);
        assert!(factors.inputs.len() == groups * limbs * self.columns * self.tiles / FOUR);
        // SAFETY: as the caller promises.
        unsafe {
            match limbs {
                1 => self.add_limbs::<1>(factors, sums),
                2 => self.add_limbs::<2>(factors, sums),
                3 => self.add_limbs::<3>(factors, sums),
                _ => self.add_limbs::<4>(factors, sums),
            }
        }
    }

    /// The same of inputs of so many limbs.
    ///
    /// # Safety
    /// As for [`Self::add`]; the inputs must have as many.
    #[target_feature(enable = "avx512f")]
    unsafe fn add_limbs<const LIMBS: usize>(&mut self, factors: &Groups<'_>, sums: &mut [Floats; ROWS]) {
        // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
        unsafe {
            let mut all = [_mm512_setzero_ps(); ROWS];
            all.iter_mut().zip(&*sums).for_each(|(all, sum)| *all = _mm512_load_ps(sum.0.as_ptr()));
            for group in 0..factors.groups() {
                self.multiply::<LIMBS>(factors, group);
                self.scale::<LIMBS>(factors, group, &mut all);
            }
            sums.iter_mut().zip(all).for_each(|(sum, all)| _mm512_store_ps(sum.0.as_mut_ptr(), all));
        }
    }

    /// Scales the products of a group, and adds them.
    ///
    /// # Safety
    /// As for [`add_group`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn scale<const LIMBS: usize>(&self, factors: &Groups<'_>, group: usize, all: &mut [__m512; ROWS]) {
        // SAFETY: lines are aligned and hold sixteen values.
        let load = |limb: usize, row: usize| unsafe { _mm512_load_si512(self.products[limb][row].0.as_ptr().cast()) };
        // Sums of two limbs: of 256 products they are below 2^31.
        let both =
            |limb: usize, row: usize| _mm512_add_epi32(load(limb, row), _mm512_slli_epi32::<8>(load(limb + 1, row)));
        let rounded = |low: __m512i, high: __m512i| {
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65_536.0), _mm512_cvtepi32_ps(low))
        };
        let sum = |row: usize| match LIMBS {
            1 => _mm512_cvtepi32_ps(load(0, row)),
            2 => _mm512_cvtepi32_ps(both(0, row)),
            3 => rounded(both(0, row), load(2, row)),
            _ => rounded(both(0, row), both(2, row)),
        };
        // A longer loop would not be unrolled, and sums would not stay in registers.
        let [a, b, c, d] = all.as_chunks_mut::<QUARTER>().0 else { unreachable!("sixteen rows are four quarters") };
        // SAFETY: as the caller promises.
        unsafe {
            add_group(factors, group, 0, sum, a);
            add_group(factors, group, QUARTER, |row| sum(QUARTER + row), b);
            add_group(factors, group, 2 * QUARTER, |row| sum(2 * QUARTER + row), c);
            add_group(factors, group, 3 * QUARTER, |row| sum(3 * QUARTER + row), d);
        }
    }
}

const _: () = assert!(size_of::<GroupSums>() == 1024 && size_of::<Line<i8, LINE>>() == LINE);
