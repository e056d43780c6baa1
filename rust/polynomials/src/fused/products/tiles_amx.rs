//! Products with AMX: tiles of 16 rows of 64 bytes, a thousand multiply-adds a cycle.
//!
//! Rust has no stable intrinsics for it, so the kernels are assembly. Every kernel is one block that leaves no tile
//! alive; a [`Session`] holds the configuration of the tiles, all of the full size.

use octavo_core::simd::amx::{self, Session};

use super::int8::{ByteProducts, Operands};
use super::{Block, PANELS, ROWS};
use crate::fused::lanes::{Avx512, LANES};

/// AVX-512 with AMX for int8 and bfloat16; exists only where machine and system allow it.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Amx(Avx512);

/// Rows of a tile.
pub(super) const TILE: usize = amx::ROWS;
/// Bytes between rows of a block's sums.
pub(super) const SUMS: usize = PANELS * 64;

impl Amx {
    /// The instructions, if machine and system allow them.
    pub(in crate::fused) fn new() -> Option<Self> {
        Avx512::new().filter(|_| is_x86_feature_detected!("avx512bf16") && amx::allowed()).map(Self)
    }

    /// Configures the tiles of this thread.
    pub(in crate::fused) fn session(self) -> Session {
        // SAFETY: `self` exists only where the tiles are allowed.
        unsafe { Session::new() }
    }
}

impl ByteProducts for Amx {
    type Lanes = Avx512;
    type Session = Session;
    const TOGETHER: usize = TILE;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn session(self) -> Session {
        self.session()
    }
    fn multiply(self, operands: &Operands, sums: &mut Block<i32>) {
        let Operands { weights, panels, input, steps, rows } = *operands;
        let tiles = rows.div_ceil(TILE);
        assert!(steps > 0 && panels <= PANELS && rows <= ROWS);
        assert!(tiles * TILE * steps <= input.len() && steps * TILE * panels == weights.len());
        let place = Place { weights: weights.as_ptr().cast(), panels, input: input.as_ptr().cast(), steps };
        let sums = sums.as_mut_ptr().cast();
        // SAFETY: `self` exists only where the instructions do; weights and rows of whole tiles lie in their buffers, as
        // asserted. That a session is alive, as `Arithmetic::multiply` demands, decides whether they run, not what they touch.
        unsafe { of_bytes::block(&place, tiles, sums) };
    }
}

/// Where the factors of a block lie.
pub(in crate::fused) struct Place {
    /// `steps` times 16 rows of `panels` lines.
    pub(super) weights: *const u8,
    pub(super) panels: usize,
    /// Rows of `steps` lines.
    pub(super) input: *const u8,
    pub(super) steps: usize,
}

/// Assembly over all tiles; the operands are those of every kernel here.
macro_rules! tiles {
    ($($line:expr),* ; $($operand:tt)*) => {
        asm!($($line),*, $($operand)*,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack))
    };
}

pub(super) use tiles;

/// Sums of a block by one instruction: a module of its own for each.
macro_rules! kernels {
    ($name:ident, $multiply:literal) => {
        mod $name {
            use std::arch::asm;

            use super::*;

            /// Sums of a block.
            ///
            /// # Safety
            /// The processor must have the instructions; the place must hold what it says, at least one step, with 16
            /// rows for each tile; `sums` must be a [`Block`] of 32-bit numbers, and `tiles` at most 2.
            pub(in super::super) unsafe fn block(place: &Place, tiles: usize, sums: *mut u8) {
                // SAFETY: as the caller promises.
                unsafe {
                    match (tiles, place.panels) {
                        (1, PANELS) => row(place, sums),
                        (2, PANELS) => {
                            square(place, sums, 0);
                            square(place, sums, 2);
                        }
                        _ => {
                            for tile in 0..tiles {
                                for panel in 0..place.panels {
                                    one(place, sums, tile, panel);
                                }
                            }
                        }
                    }
                }
            }

            /// Sums of 16 rows, from tile `tile`, and one panel.
            ///
            /// # Safety
            /// As [`block`]; `tile` must be one of its tiles, `panel` one of the place's panels.
            unsafe fn one(place: &Place, sums: *mut u8, tile: usize, panel: usize) {
                let Place { weights, panels, input, steps } = *place;
                // SAFETY: as the caller promises.
                unsafe {
                    tiles!(
                        "tilezero tmm0",
                        "2:",
                        "tileloadd tmm4, [{a} + {across}]",
                        "tileloadd tmm5, [{b} + {down}]",
                        concat!($multiply, " tmm0, tmm4, tmm5"),
                        "add {a}, 64",
                        "add {b}, {step}",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{c} + {sums}], tmm0";
                        a = inout(reg) input.add(tile * TILE * steps * 64) => _,
                        b = inout(reg) weights.add(panel * 64) => _,
                        n = inout(reg) steps => _,
                        c = in(reg) sums.add(tile * TILE * SUMS + panel * 64),
                        across = in(reg) steps * 64, down = in(reg) panels * 64, step = in(reg) panels * 1024, sums = in(reg) SUMS
                    );
                }
            }

            /// Sums of 16 rows and four panels.
            ///
            /// # Safety
            /// As [`block`]; the place must have four panels.
            unsafe fn row(place: &Place, sums: *mut u8) {
                let Place { weights, input, steps, .. } = *place;
                // SAFETY: as the caller promises.
                unsafe {
                    tiles!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{a} + {across}]",
                        "tileloadd tmm5, [{b} + {sums}]",
                        "tileloadd tmm6, [{b} + {sums} + 64]",
                        concat!($multiply, " tmm0, tmm4, tmm5"),
                        "tileloadd tmm7, [{b} + {sums} + 128]",
                        concat!($multiply, " tmm1, tmm4, tmm6"),
                        "tileloadd tmm5, [{b} + {sums} + 192]",
                        concat!($multiply, " tmm2, tmm4, tmm7"),
                        concat!($multiply, " tmm3, tmm4, tmm5"),
                        "add {a}, 64",
                        "add {b}, 4096",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{c} + {sums}], tmm0",
                        "tilestored [{c} + {sums} + 64], tmm1",
                        "tilestored [{c} + {sums} + 128], tmm2",
                        "tilestored [{c} + {sums} + 192], tmm3";
                        a = inout(reg) input => _, b = inout(reg) weights => _, n = inout(reg) steps => _, c = in(reg) sums,
                        across = in(reg) steps * 64, sums = in(reg) SUMS
                    );
                }
            }

            /// Sums of 32 rows and two panels of four, from `panel`.
            ///
            /// # Safety
            /// As [`block`]; the place must have two tiles of rows and four panels, `panel` be 0 or 2.
            unsafe fn square(place: &Place, sums: *mut u8, panel: usize) {
                let Place { weights, input, steps, .. } = *place;
                // SAFETY: as the caller promises.
                unsafe {
                    tiles!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{a} + {across}]",
                        "tileloadd tmm6, [{b} + {sums}]",
                        "tileloadd tmm5, [{d} + {across}]",
                        "tileloadd tmm7, [{b} + {sums} + 64]",
                        concat!($multiply, " tmm0, tmm4, tmm6"),
                        concat!($multiply, " tmm2, tmm5, tmm6"),
                        concat!($multiply, " tmm1, tmm4, tmm7"),
                        concat!($multiply, " tmm3, tmm5, tmm7"),
                        "add {a}, 64",
                        "add {d}, 64",
                        "add {b}, 4096",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{c} + {sums}], tmm0",
                        "tilestored [{c} + {sums} + 64], tmm1",
                        "tilestored [{e} + {sums}], tmm2",
                        "tilestored [{e} + {sums} + 64], tmm3";
                        a = inout(reg) input => _, d = inout(reg) input.add(TILE * steps * 64) => _,
                        b = inout(reg) weights.add(panel * 64) => _, n = inout(reg) steps => _,
                        c = in(reg) sums.add(panel * 64), e = in(reg) sums.add(TILE * SUMS + panel * 64),
                        across = in(reg) steps * 64, sums = in(reg) SUMS
                    );
                }
            }
        }
    };
}

kernels!(of_bytes, "tdpbusd");
kernels!(of_halves, "tdpbf16ps");
pub(super) use of_halves::block as halves;

// Four panels of a row of weights are as wide as a row of sums: one register holds both strides.
const _: () = assert!(size_of::<Block<i32>>() == ROWS * SUMS && LANES == TILE && SUMS == 256 && ROWS == 2 * TILE);
