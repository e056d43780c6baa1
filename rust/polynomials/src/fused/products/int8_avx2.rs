//! Products of bytes with AVX2: bytes are widened to 16 bits, whose products `vpmaddwd` adds exactly.

use std::arch::x86_64::*;

use super::int8::{ByteProducts, Operands};
use super::{Block, PANELS, ROWS};
use crate::fused::lanes::{Avx2, Bytes, Sums};

impl ByteProducts for Avx2 {
    type Lanes = Self;
    type Session = ();

    #[inline(always)]
    fn lanes(self) -> Self {
        self
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
/// The processor must have AVX2, as an [`Avx2`] proves.
#[target_feature(enable = "avx2")]
fn multiply(operands: &Operands, sums: &mut Block<i32>) {
    let Operands { weights, panels, input, steps, rows } = *operands;
    let groups = steps * 16;
    assert!(panels <= PANELS && rows <= ROWS && rows * steps <= input.len() && panels * groups == weights.len());
    for panel in 0..panels {
        for done in (0..rows).step_by(2) {
            // SAFETY: rows and panels lie in their buffers, as asserted.
            unsafe {
                let weights = weights.as_ptr();
                let at = input.as_ptr().add(done * steps).cast::<i32>();
                match rows - done {
                    1 => chains::<1>(weights, panels, at, groups, &mut sums[done..], panel),
                    _ => chains::<2>(weights, panels, at, groups, &mut sums[done..], panel),
                }
            }
        }
    }
}

/// The sums of `R` rows and one panel.
///
/// # Safety
/// The processor must have AVX2. `weights` must cover `groups` times `panels` lines, `rows` `R` rows of `groups` times four
/// bytes; `sums` must have `R` rows, and `panel` be less than `panels`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn chains<const R: usize>(
    weights: *const Bytes,
    panels: usize,
    rows: *const i32,
    groups: usize,
    sums: &mut [[Sums; PANELS]],
    panel: usize,
) {
    // Four columns a register, each in two halves: the even and the odd pairs of inputs.
    let mut chains = [[_mm256_setzero_si256(); 4]; R];
    for k in 0..groups {
        let mut w = [_mm256_setzero_si256(); 4];
        for (q, w) in w.iter_mut().enumerate() {
            // SAFETY: inside, as the caller promises.
            *w = _mm256_cvtepi8_epi16(unsafe {
                _mm_load_si128(weights.add(k * panels + panel).cast::<__m128i>().add(q))
            });
        }
        for (r, chain) in chains.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = _mm256_cvtepu8_epi16(_mm_set1_epi32(unsafe { *rows.add(r * groups + k) }));
            for q in 0..4 {
                chain[q] = _mm256_add_epi32(chain[q], _mm256_madd_epi16(x, w[q]));
            }
        }
    }
    for (chain, sums) in chains.iter().zip(sums) {
        for half in 0..2 {
            // Columns 0, 1, 4, 5 and 2, 3, 6, 7 of eight.
            let pairs = _mm256_hadd_epi32(chain[2 * half], chain[2 * half + 1]);
            let whole = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
            // SAFETY: a line of sums is 64 bytes.
            unsafe { _mm256_store_si256(sums[panel].0.as_mut_ptr().cast::<__m256i>().add(half), whole) };
        }
    }
}
