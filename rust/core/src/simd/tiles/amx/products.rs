//! Products of tiles in int8 and in bfloat16. Each is one block of assembly that leaves no tile alive.

use std::arch::asm;

use super::{LINE, Session};
use crate::simd::tiles::{Factors, FloatSums, Run, ScaledProducts, Scales, Sums, add_scaled};

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

impl Session {
    /// As [`crate::simd::tiles::Session::multiply_across`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn multiply_across(&self, across: usize, run: Run, sums: &mut Sums) {
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
    /// As [`crate::simd::tiles::Session::add_products`].
    ///
    /// # Safety
    /// As there.
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

impl Session {
    /// As [`crate::simd::tiles::Session::add_scaled`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn add_scaled<'s>(
        &self,
        factors: &Factors<'_>,
        group: usize,
        scales: impl Fn(usize) -> Scales<'s>,
        products: &mut ScaledProducts,
        sums: &mut FloatSums,
    ) {
        let across = factors.across;
        // Two groups at a time, so that sums are read and written half as often; those before are scaled while AMX
        // multiplies the next.
        let [now, before] = products;
        let (mut now, mut before) = (now, before);
        let mut pairs = factors.steps.chunks_exact(2 * group);
        let mut at = 0;
        // SAFETY: as the caller promises; processors with AMX have AVX-512 F.
        unsafe {
            for pair in &mut pairs {
                for (steps, products) in pair.chunks(group).zip(&mut *now) {
                    self.add_products(&Factors { steps, ..*factors }, true, products);
                }
                if at > 0 {
                    add_scaled(before, [scales(at - 2), scales(at - 1)], across, sums);
                }
                (now, before) = (before, now);
                at += 2;
            }
            let rest = pairs.remainder();
            for (steps, products) in rest.chunks(group).zip(&mut *now) {
                self.add_products(&Factors { steps, ..*factors }, true, products);
            }
            if at > 0 {
                add_scaled(before, [scales(at - 2), scales(at - 1)], across, sums);
            }
            // Of a group that is shorter than the others, too.
            for (products, at) in now.iter().zip(at..at + rest.len().div_ceil(group)) {
                add_scaled(std::array::from_ref(products), [scales(at)], across, sums);
            }
        }
    }
}
