//! AMX: tiles of 16 rows of 64 bytes, and their products in int8 and in bfloat16.
//!
//! Rust has no stable intrinsics for it, so the products are assembly: each is one block that leaves no tile alive. What
//! stays is the configuration of the tiles, which a [`Session`] holds.

use std::arch::asm;
use std::marker::PhantomData;

use crate::level::Level;

/// Rows of a tile of weights.
pub(super) const ROWS: usize = 16;
/// Bytes of a row of a whole tile.
pub(super) const LINE: usize = 64;

/// 64 bytes that begin a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

impl<T: Copy + Default, const N: usize> Default for Line<T, N> {
    fn default() -> Self {
        Self([T::default(); N])
    }
}

/// True where `level` is AVX-512, the processor has AMX for int8 and bfloat16 and the byte permutations that feed it,
/// and the system saves its registers.
pub(super) fn available(level: Level) -> bool {
    level == Level::Avx512 && is_x86_feature_detected!("avx512vbmi") && crate::amx::allowed()
}

/// Holds the tiles of this thread configured, all whole, while it lives.
#[derive(Debug)]
pub(super) struct Session(PhantomData<*const ()>); // no other thread's

/// Tiles of inputs that one pass over the weights is multiplied with, at most.
pub(super) const ACROSS: usize = 4;

/// Sums of 16 rows of weights and 16 times [`ACROSS`] columns of inputs.
pub(super) type Sums = [[Line<i32, 16>; ROWS]; ACROSS];

/// Where factors of 64 columns after the other lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// 16 rows of weights, `stride` bytes apart, 64 a step.
    pub(super) weights: *const u8,
    pub(super) stride: usize,
    /// For each step, tiles of inputs.
    pub(super) inputs: *const u8,
    pub(super) steps: usize,
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
pub(super) struct Step {
    /// A tile of 16 rows of weights.
    pub(super) weights: usize,
    /// Lines of 16 columns of 2 inputs: for each part one or two tiles.
    pub(super) inputs: usize,
    /// Parts of the inputs, at least one.
    pub(super) parts: usize,
}

/// The factors of [`Session::add_products`]: two panels of weights, and one or two tiles of columns of inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<'a> {
    pub(super) steps: &'a [Step],
    pub(super) weights: *const u8,
    /// Bytes from the first panel's tiles to the second's.
    pub(super) panel: usize,
    pub(super) inputs: *const u8,
    /// Tiles of a part of the inputs: 1 or 2.
    pub(super) across: usize,
}

/// Assembly that multiplies two tiles of weights with those of each part of the inputs, step after step.
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
pub(super) type FloatSums = [[[Line<f32, 16>; ROWS]; 2]; 2];

impl Session {
    /// Configures the tiles.
    ///
    /// # Safety
    /// [`available`] must have said yes.
    pub(super) unsafe fn new() -> Self {
        let mut configuration = Line::<u8, 64>::default();
        configuration.0[0] = 1; // palette
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = LINE as u8;
            configuration.0[48 + tile] = ROWS as u8;
        }
        // SAFETY: the instruction exists, as the caller promises; the configuration is a valid one of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration.0.as_ptr(), options(nostack, readonly)) };
        Self(PhantomData)
    }

    /// Writes the sums of the products of int8 over all steps: 16 rows of weights times `across` tiles of inputs, which
    /// is 1, 2 or [`ACROSS`].
    ///
    /// # Safety
    /// All that the run names must be readable: at least one step, with `across` tiles of inputs each.
    pub(super) unsafe fn multiply_across(&self, across: usize, run: Run, sums: &mut Sums) {
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
    /// All that the factors name must be readable: tiles of 1024 bytes, of inputs at least one part a step, with as many
    /// tiles as `across` says.
    pub(super) unsafe fn add_products(&self, factors: &Factors<'_>, fresh: bool, sums: &mut FloatSums) {
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

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: a session exists only where the instruction does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

const _: () = assert!(size_of::<Step>() == 24 && size_of::<Line<i32, 16>>() == LINE);
