//! Products of bfloat16 with AVX-512 BF16: a panel's weights of a pair of inputs are a register, the pair is broadcast.

use std::arch::x86_64::*;

use super::bf16::HalfProducts;
use super::tiles_amx::Place;
use super::{Block, PANELS};
use crate::fused::lanes::{Avx512, Floats};

/// Rows of a block of registers.
const CHUNK: usize = 6;

/// AVX-512 with BF16; exists only where the machine has both.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Bf16(Avx512);

impl Bf16 {
    /// The instructions, if the machine has them.
    pub(in crate::fused) fn new() -> Option<Self> {
        Avx512::new().filter(|_| is_x86_feature_detected!("avx512bf16")).map(Self)
    }
}

impl HalfProducts for Bf16 {
    type Session = ();
    const TOGETHER: usize = 4 * CHUNK;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn session(self) {}
    unsafe fn multiply(self, place: &Place, rows: usize, sums: &mut Block<f32>) {
        let row = |chunk: usize| place.input.wrapping_add(chunk * CHUNK * place.steps * 64);
        for (chunk, sums) in sums[..rows].chunks_mut(CHUNK).enumerate() {
            let place = Place { input: row(chunk), ..*place };
            // SAFETY: as the caller promises; `self` exists only where the instructions do.
            unsafe {
                match sums.len() {
                    1 => all::<1>(&place, sums),
                    2 => all::<2>(&place, sums),
                    3 => all::<3>(&place, sums),
                    4 => all::<4>(&place, sums),
                    5 => all::<5>(&place, sums),
                    _ => all::<CHUNK>(&place, sums),
                }
            }
        }
    }
}

/// The sums of `R` rows and all panels.
///
/// # Safety
/// The processor must have AVX-512 F and BF16; the place must hold what it says, with `R` rows, and `sums` have as many.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn all<const R: usize>(place: &Place, sums: &mut [[Floats; PANELS]]) {
    // SAFETY: as the caller promises.
    unsafe {
        if place.panels == PANELS {
            return chains::<R, PANELS>(place, sums, 0);
        }
        for panel in 0..place.panels {
            chains::<R, 1>(place, sums, panel);
        }
    }
}

/// The sums of `R` rows and `P` panels from `panel`.
///
/// # Safety
/// As for [`all`]; `panel + P` must be at most the panels of the place.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn chains<const R: usize, const P: usize>(place: &Place, sums: &mut [[Floats; PANELS]], panel: usize) {
    let mut chains = [[_mm512_setzero_ps(); P]; R];
    for pair in 0..place.steps * 16 {
        // SAFETY: inside, as the caller promises; a register of 32 halves is one of bfloat16.
        unsafe {
            let lines = place.weights.add((pair * place.panels + panel) * 64);
            let w: [__m512bh; P] =
                std::array::from_fn(|p| std::mem::transmute(_mm512_load_si512(lines.add(64 * p).cast())));
            for (r, chain) in chains.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(place.input.add(r * place.steps * 64 + 4 * pair).cast::<i32>().read());
                let x: __m512bh = std::mem::transmute(x);
                for p in 0..P {
                    chain[p] = _mm512_dpbf16_ps(chain[p], x, w[p]);
                }
            }
        }
    }
    for (chain, sums) in chains.iter().zip(sums) {
        for p in 0..P {
            // SAFETY: a line of sums is 64 bytes, aligned.
            unsafe { _mm512_store_ps(sums[panel + p].0.as_mut_ptr(), chain[p]) };
        }
    }
}
