//! Products of bfloat16 or int8 of rows of inputs with weights, in assembly that leaves no tile alive.
//!
//! The inputs are the first factor: with few rows of them, tiles have few rows. The weights are the second, two columns of
//! sixteen rows a line, or four of int8.

use std::arch::asm;

use super::{LINE, ROWS, Session};
use crate::simd::{Floats, Line};

/// Holds the tiles of its thread configured for some rows of inputs, while it lives.
pub(crate) struct RowSession {
    _session: Session,
    rows: usize,
    across: usize,
    limbs: usize,
}

/// Factors of [`RowSession::multiply`], step after step of 32 columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowFactors {
    /// By step, then limb, then panel of two: tiles of 1024 bytes.
    pub(crate) weights: *const u8,
    /// Limbs of the weights, 1 to 3.
    pub(crate) limbs: usize,
    /// By step, then limb, then tile: rows of 64 bytes.
    pub(crate) inputs: *const u8,
    /// At least one.
    pub(crate) steps: usize,
}

/// Assembly that multiplies one or two tiles of each limb of the inputs with two of the weights, step after step: those
/// pairs of limbs whose numbers add up to less than three. `$load` loads weights.
macro_rules! rows {
    ($self:ident, $factors:ident, $sums:ident, $load:literal, [$($zero:expr),*], [$($product:expr),*], [$($store:expr),*]) => {
        asm!(
            $($zero,)*
            "2:",
            "mov {pairs}, 3",
            "3:",
            concat!($load, " tmm4, [{a} + {line}]"),
            concat!($load, " tmm5, [{a} + {line} + 1024]"),
            "add {a}, 2048",
            "mov {y}, {b}",
            "mov {i}, {pairs}",
            "cmp {i}, {most}",
            "cmovg {i}, {most}",
            "4:",
            $($product,)*
            "add {y}, {limb}",
            "dec {i}",
            "jnz 4b",
            "dec {pairs}",
            "cmp {pairs}, {stop}",
            "jne 3b",
            "add {b}, {step}",
            "dec {n}",
            "jnz 2b",
            $($store,)*
            pairs = out(reg) _, i = out(reg) _, y = out(reg) _,
            a = inout(reg) $factors.weights => _, b = inout(reg) $factors.inputs => _,
            n = inout(reg) $factors.steps => _, c = inout(reg) $sums.as_mut_ptr() => _, stop = in(reg) 3 - $factors.limbs,
            most = in(reg) $self.limbs, limb = in(reg) $self.lines() * LINE, step = in(reg) $self.step_bytes(), line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack)
        )
    };
}

/// The same of one tile of inputs, by an instruction.
macro_rules! one_across {
    ($self:ident, $factors:ident, $sums:ident, $by:literal) => {
        rows!(
            $self,
            $factors,
            $sums,
            "tileloadd",
            ["tilezero tmm0", "tilezero tmm2"],
            ["tileloadd tmm6, [{y} + {line}]", concat!($by, " tmm0, tmm6, tmm4"), concat!($by, " tmm2, tmm6, tmm5")],
            ["tilestored [{c} + {line}], tmm0", "add {c}, {limb}", "tilestored [{c} + {line}], tmm2"]
        )
    };
}

/// The same of two tiles.
macro_rules! two_across {
    ($self:ident, $factors:ident, $sums:ident, $load:literal, $by:literal) => {
        rows!(
            $self,
            $factors,
            $sums,
            $load,
            ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
            [
                "tileloadd tmm6, [{y} + {line}]",
                concat!($by, " tmm0, tmm6, tmm4"),
                concat!($by, " tmm2, tmm6, tmm5"),
                "tileloadd tmm7, [{y} + {line} + 1024]",
                concat!($by, " tmm1, tmm7, tmm4"),
                concat!($by, " tmm3, tmm7, tmm5")
            ],
            [
                "tilestored [{c} + {line}], tmm0",
                "tilestored [{c} + {line} + 1024], tmm1",
                "tilestored [{c} + {line} + 2048], tmm2",
                "tilestored [{c} + {line} + 3072], tmm3"
            ]
        )
    };
}

impl RowSession {
    /// Configures the tiles for 1 to 32 rows of inputs of 1 to 3 limbs: one tile of up to sixteen rows, or two whole ones.
    ///
    /// # Safety
    /// [`super::allowed`] must have said yes.
    pub(crate) unsafe fn new(rows: usize, limbs: usize) -> Self {
        assert!((1..=2 * ROWS).contains(&rows) && (1..=3).contains(&limbs));
        let (rows, across) = if rows <= ROWS { (rows, 1) } else { (ROWS, 2) };
        let mut all = [(rows, LINE); 8];
        all[4..6].fill((ROWS, LINE));
        // SAFETY: as the caller promises.
        Self { _session: unsafe { Session::of(all) }, rows, across, limbs }
    }

    /// Rows of all tiles: lines of a limb of the inputs of a step, and of the sums of a panel.
    pub(crate) const fn lines(&self) -> usize {
        self.across * self.rows
    }

    /// Bytes of the inputs of a step.
    pub(crate) const fn step_bytes(&self) -> usize {
        self.limbs * self.lines() * LINE
    }

    /// Writes the sums of the products over all steps, by panel, tile and row.
    ///
    /// # Safety
    /// All that the factors name must be readable.
    pub(crate) unsafe fn multiply(&self, factors: &RowFactors, sums: &mut [Floats]) {
        debug_assert!(factors.steps > 0 && (1..=3).contains(&factors.limbs));
        assert!(sums.len() >= 2 * self.lines());
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            match (self.across, self.limbs) {
                (1, _) => one_across!(self, factors, sums, "tdpbf16ps"),
                // Inputs of one limb stay in the L1 cache if weights pass it by.
                (_, 1) => two_across!(self, factors, sums, "tileloaddt1", "tdpbf16ps"),
                _ => two_across!(self, factors, sums, "tileloadd", "tdpbf16ps"),
            }
        }
    }

    /// The same of int8 of one limb, 64 columns a step: exact sums.
    ///
    /// # Safety
    /// All that the factors name must be readable.
    pub(crate) unsafe fn multiply_bytes(&self, factors: &RowFactors, sums: &mut [Line<i32, 16>]) {
        debug_assert!(factors.steps > 0 && factors.limbs == 1 && self.limbs == 1);
        assert!(sums.len() >= 2 * self.lines());
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            match self.across {
                1 => one_across!(self, factors, sums, "tdpbssd"),
                _ => two_across!(self, factors, sums, "tileloaddt1", "tdpbssd"),
            }
        }
    }
}
