//! Products of bytes with AVX-512 VNNI.

use std::arch::x86_64::*;

use super::int8::{ByteProducts, Operands};
use super::{Block, PANELS, ROWS};
use crate::fused::lanes::{Avx512, Bytes, Sums};

/// AVX-512 with VNNI; exists only where the machine has both.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Vnni(Avx512);

impl Vnni {
    /// The instructions, if the machine has them.
    pub(in crate::fused) fn new() -> Option<Self> {
        Avx512::new().filter(|_| is_x86_feature_detected!("avx512vnni")).map(Self)
    }
}

impl ByteProducts for Vnni {
    type Lanes = Avx512;
    type Session = ();

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn session(self) {}
    #[inline(always)]
    fn multiply(self, operands: &Operands, sums: &mut Block<i32>) {
        // SAFETY: `self` exists only where the instructions do.
        unsafe { multiply(operands, sums) }
    }
}

/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI, as a [`Vnni`] proves.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn multiply(operands: &Operands, sums: &mut Block<i32>) {
    let Operands { weights, panels, input, steps, rows } = *operands;
    let groups = steps * 16;
    assert!(panels <= PANELS && rows <= ROWS && rows * steps <= input.len() && panels * groups == weights.len());
    let weights = weights.as_ptr();
    for (chunk, sums) in sums[..rows].chunks_mut(6).enumerate() {
        // SAFETY: rows and panels lie in their buffers, as asserted.
        unsafe {
            let rows = input.as_ptr().add(chunk * 6 * steps).cast::<i32>();
            if panels == PANELS {
                match sums.len() {
                    1 => chains::<1, 4>(weights, panels, rows, groups, sums, 0),
                    2 => chains::<2, 4>(weights, panels, rows, groups, sums, 0),
                    3 => chains::<3, 4>(weights, panels, rows, groups, sums, 0),
                    4 => chains::<4, 4>(weights, panels, rows, groups, sums, 0),
                    5 => chains::<5, 4>(weights, panels, rows, groups, sums, 0),
                    _ => chains::<6, 4>(weights, panels, rows, groups, sums, 0),
                }
            } else {
                for panel in 0..panels {
                    match sums.len() {
                        1 => chains::<1, 1>(weights, panels, rows, groups, sums, panel),
                        2 => chains::<2, 1>(weights, panels, rows, groups, sums, panel),
                        3 => chains::<3, 1>(weights, panels, rows, groups, sums, panel),
                        4 => chains::<4, 1>(weights, panels, rows, groups, sums, panel),
                        5 => chains::<5, 1>(weights, panels, rows, groups, sums, panel),
                        _ => chains::<6, 1>(weights, panels, rows, groups, sums, panel),
                    }
                }
            }
        }
    }
}

/// The sums of `R` rows and `P` panels from `panel`.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI. `weights` must cover `groups` times `panels` lines, `rows` `R`
/// rows of `groups` times four bytes; `sums` must have `R` rows, and `panel + P` be at most `panels`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn chains<const R: usize, const P: usize>(
    weights: *const Bytes,
    panels: usize,
    rows: *const i32,
    groups: usize,
    sums: &mut [[Sums; PANELS]],
    panel: usize,
) {
    let mut chains = [[_mm512_setzero_si512(); P]; R];
    for k in 0..groups {
        let mut w = [_mm512_setzero_si512(); P];
        for (p, w) in w.iter_mut().enumerate() {
            // SAFETY: inside, as the caller promises; lines are aligned.
            *w = unsafe { _mm512_load_si512(weights.add(k * panels + panel + p).cast()) };
        }
        for (r, chain) in chains.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = _mm512_set1_epi32(unsafe { *rows.add(r * groups + k) });
            for p in 0..P {
                chain[p] = _mm512_dpbusd_epi32(chain[p], x, w[p]);
            }
        }
    }
    for (chain, sums) in chains.iter().zip(sums) {
        for p in 0..P {
            // SAFETY: a line of sums is 64 bytes, aligned.
            unsafe { _mm512_store_si512(sums[panel + p].0.as_mut_ptr().cast(), chain[p]) };
        }
    }
}
