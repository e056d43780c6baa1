//! Products of tiles in int8 and in bfloat16. Each is one block of assembly that leaves no tile alive.

use std::arch::asm;

use super::{LINE, ROWS, Session};
use crate::simd::Line;

/// Tiles of inputs that one pass over the weights is multiplied with, at most.
pub(crate) const ACROSS: usize = 4;

/// Sums of 16 rows of weights and 16 times [`ACROSS`] columns of inputs.
pub(crate) type Sums = [[Line<i32, 16>; ROWS]; ACROSS];

/// Where factors of 64 columns after the other lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// 16 rows of weights, `stride` bytes apart, 64 a step.
    pub(crate) weights: *const u8,
    pub(crate) stride: usize,
    /// For each step, tiles of inputs.
    pub(crate) inputs: *const u8,
    pub(crate) steps: usize,
}

/// Assembly that multiplies one tile of weights with several of inputs, step after step.
macro_rules! across {
    ($run:ident, $sums:ident, [$($zero:literal)*], [$($product:literal)*], [$($store:literal)*], $bytes:literal) => {
        asm!(
            $($zero,)*
            "2:",
            "tileloadd tmm4, [{a} + {stride}]",
            $($product,)*
            "add {a}, 64",
            concat!("add {b}, ", $bytes),
            "dec {n}",
            "jnz 2b",
            $($store,)*
            a = inout(reg) $run.weights => _, b = inout(reg) $run.inputs => _, n = inout(reg) $run.steps => _,
            c = in(reg) $sums.as_mut_ptr(), stride = in(reg) $run.stride, line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, options(nostack)
        )
    };
}

/// What 32 columns of weights in bfloat16 are multiplied with, in bytes from the bases that [`Session::add_products`] is
/// given.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Step {
    /// A tile of 16 rows of weights.
    pub(crate) weights: usize,
    /// Lines of 16 columns of 2 inputs: for each limb one or two tiles.
    pub(crate) inputs: usize,
    /// Limbs of the inputs, at least one.
    pub(crate) limbs: usize,
}

/// The factors of [`Session::add_products`]: two panels of weights, and one or two tiles of columns of inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors<'a> {
    pub(crate) steps: &'a [Step],
    pub(crate) weights: *const u8,
    /// Bytes from the first panel's tiles to the second's.
    pub(crate) panel: usize,
    pub(crate) inputs: *const u8,
    /// Tiles of a limb of the inputs: 1 or 2.
    pub(crate) across: usize,
}

/// Assembly that multiplies two tiles of weights with those of each limb of the inputs, step after step.
macro_rules! products {
    ($factors:ident, $sums:ident, [$($load:literal)*], [$($product:literal)*], [$($store:literal)*], $bytes:literal) => {
        asm!(
            $($load,)*
            "2:",
            "mov {x}, [{list}]",
            "mov {y}, [{list} + 8]",
            "mov {i}, [{list} + 16]",
            "add {x}, {a}",
            "add {y}, {b}",
            "tileloadd tmm4, [{x} + {line}]",
            "add {x}, {panel}",
            "tileloadd tmm5, [{x} + {line}]",
            "3:",
            $($product,)*
            concat!("add {y}, ", $bytes),
            "dec {i}",
            "jnz 3b",
            "add {list}, 24",
            "dec {n}",
            "jnz 2b",
            $($store,)*
            x = out(reg) _, y = out(reg) _, i = out(reg) _,
            list = inout(reg) $factors.steps.as_ptr() => _, n = inout(reg) $factors.steps.len() => _,
            a = in(reg) $factors.weights, b = in(reg) $factors.inputs, c = in(reg) $sums.as_mut_ptr(),
            panel = in(reg) $factors.panel, line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
        )
    };
}

/// Sums of two panels of 16 rows of weights and two tiles of 16 columns of inputs.
pub(crate) type FloatSums = [[[Line<f32, 16>; ROWS]; 2]; 2];

impl Session {
    /// Writes the sums of the products of int8 over all steps: 16 rows of weights times `across` tiles of inputs, which
    /// is 1, 2 or [`ACROSS`].
    ///
    /// # Safety
    /// All that the run names must be readable: at least one step, with `across` tiles of inputs each.
    pub(crate) unsafe fn multiply_across(&self, across: usize, run: Run, sums: &mut Sums) {
        debug_assert!(run.steps > 0 && matches!(across, 1 | 2 | ACROSS));
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            match across {
                1 => across!(
                    run, sums, ["tilezero tmm0"],
                    ["tileloadd tmm5, [{b} + {line}]" "tdpbssd tmm0, tmm4, tmm5"],
                    ["tilestored [{c} + {line}], tmm0"], "1024"
                ),
                2 => across!(
                    run, sums, ["tilezero tmm0" "tilezero tmm1"],
                    ["tileloadd tmm5, [{b} + {line}]" "tdpbssd tmm0, tmm4, tmm5"
                     "tileloadd tmm6, [{b} + {line} + 1024]" "tdpbssd tmm1, tmm4, tmm6"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"], "2048"
                ),
                _ => across!(
                    run, sums, ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                    ["tileloadd tmm5, [{b} + {line}]" "tdpbssd tmm0, tmm4, tmm5"
                     "tileloadd tmm6, [{b} + {line} + 1024]" "tdpbssd tmm1, tmm4, tmm6"
                     "tileloadd tmm5, [{b} + {line} + 2048]" "tdpbssd tmm2, tmm4, tmm5"
                     "tileloadd tmm6, [{b} + {line} + 3072]" "tdpbssd tmm3, tmm4, tmm6"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"], "4096"
                ),
            }
        }
    }
}

impl Session {
    /// Adds the products of bfloat16 of all steps to sums, in order; `fresh` sums begin at zero.
    ///
    /// # Safety
    /// All that the factors name must be readable: tiles of 1024 bytes, of inputs at least one limb a step, with as many
    /// tiles as `across` says.
    pub(crate) unsafe fn add_products(&self, factors: &Factors<'_>, fresh: bool, sums: &mut FloatSums) {
        if factors.steps.is_empty() {
            if fresh {
                *sums = FloatSums::default();
            }
            return;
        }
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            match (factors.across, fresh) {
                (1, false) => products!(
                    factors, sums,
                    ["tileloadd tmm0, [{c} + {line}]" "tileloadd tmm2, [{c} + {line} + 2048]"],
                    ["tileloadd tmm6, [{y} + {line}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 2048], tmm2"], "1024"
                ),
                (1, true) => products!(
                    factors, sums, ["tilezero tmm0" "tilezero tmm2"],
                    ["tileloadd tmm6, [{y} + {line}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 2048], tmm2"], "1024"
                ),
                (_, false) => products!(
                    factors, sums,
                    ["tileloadd tmm0, [{c} + {line}]" "tileloadd tmm1, [{c} + {line} + 1024]"
                     "tileloadd tmm2, [{c} + {line} + 2048]" "tileloadd tmm3, [{c} + {line} + 3072]"],
                    ["tileloadd tmm6, [{y} + {line}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                     "tileloadd tmm7, [{y} + {line} + 1024]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"], "2048"
                ),
                (_, true) => products!(
                    factors, sums, ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                    ["tileloadd tmm6, [{y} + {line}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                     "tileloadd tmm7, [{y} + {line} + 1024]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"],
                    ["tilestored [{c} + {line}], tmm0" "tilestored [{c} + {line} + 1024], tmm1"
                     "tilestored [{c} + {line} + 2048], tmm2" "tilestored [{c} + {line} + 3072], tmm3"], "2048"
                ),
            }
        }
    }
}

const _: () = assert!(size_of::<Step>() == 24 && size_of::<Line<i32, 16>>() == LINE);
