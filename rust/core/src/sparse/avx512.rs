//! Expansion in registers: a word, which is four columns of sixteen rows, by one instruction.

use std::arch::x86_64::*;

use super::QUAD;
use crate::simd::transpose::transpose;

/// The next codes, 64 of which may be read, at the places of the bits of a word; 0 elsewhere.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VBMI2.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
pub(crate) unsafe fn expanded(word: u64, from: *const u8) -> __m512i {
    let codes: __m512i;
    // A load of its own: the compiler would make it the operand of the expansion, which takes several times as long from
    // memory as from a register (measured on Zen 4).
    // SAFETY: as the caller promises.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 {codes}, [{from}]",
            codes = out(zmm_reg) codes,
            from = in(reg) from,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    _mm512_maskz_expand_epi8(word, codes)
}

/// Writes the bytes of a panel, rows `stride` apart, which is a multiple of 64.
///
/// # Safety
/// The processor must have AVX-512 F, BW and VBMI2, and POPCNT. `stream` must have 64 bytes behind the codes of all words, and `rows`
/// sixteen rows of `stride` bytes, which hold all quads.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
pub(super) unsafe fn expand(stream: &[u8], words: &[u64], rows: &mut [u8], stride: usize) {
    let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    assert!(
        stream.len() >= count + 64 && rows.len() >= 16 * stride && stride >= words.len().next_multiple_of(16) * QUAD
    );
    let mut from = stream.as_ptr();
    for (at, words) in words.chunks(16).enumerate() {
        let mut quads = [_mm512_setzero_ps(); 16];
        for (quad, word) in quads.iter_mut().zip(words) {
            // SAFETY: 64 bytes may be read from every code on.
            *quad = _mm512_castsi512_ps(unsafe { expanded(*word, from) });
            from = from.wrapping_add(word.count_ones() as usize);
        }
        // SAFETY: the instructions are there.
        let turned = unsafe { transpose(quads) };
        for (row, values) in turned.into_iter().enumerate() {
            // SAFETY: each row has whole vectors.
            unsafe {
                _mm512_storeu_si512(rows.as_mut_ptr().add(row * stride + 64 * at).cast(), _mm512_castps_si512(values))
            };
        }
    }
}
