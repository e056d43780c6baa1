//! Expansion by byte shuffles: two rows of a quad at a time.

use std::arch::x86_64::*;

use super::QUAD;

/// By eight bits of a word, which of the next codes each of eight bytes is; 128, which a shuffle makes 0, where the bit is 0.
static PLACES: [[u8; 8]; 256] = places();

const fn places() -> [[u8; 8]; 256] {
    let mut all = [[128; 8]; 256];
    let mut bits = 0;
    while bits < 256 {
        let (mut at, mut next) = (0, 0);
        while at < 8 {
            if bits >> at & 1 == 1 {
                all[bits][at] = next;
                next += 1;
            }
            at += 1;
        }
        bits += 1;
    }
    all
}

/// Writes the bytes of a panel, rows `stride` apart.
///
/// # Safety
/// The processor must have AVX2. Unless fewer, `stream` must have eight bytes behind the codes of all words, and `rows` sixteen
/// rows of all quads.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn expand(stream: &[u8], words: &[u64], rows: &mut [u8], stride: usize) {
    let count: usize = words.iter().map(|word| word.count_ones() as usize).sum();
    assert!(stream.len() >= count + 8 && rows.len() >= 15 * stride + words.len() * QUAD);
    let (mut from, to) = (stream.as_ptr(), rows.as_mut_ptr());
    for (quad, word) in words.iter().enumerate() {
        for pair in 0..8 {
            let bits = (word >> (8 * pair)) as u8;
            // SAFETY: eight bytes may be read from every code on; four are written to each of two rows.
            unsafe {
                let codes = _mm_loadl_epi64(from.cast());
                let places = _mm_loadl_epi64(PLACES[usize::from(bits)].as_ptr().cast());
                let bytes = _mm_cvtsi128_si64(_mm_shuffle_epi8(codes, places));
                let at = to.add(2 * pair * stride + quad * QUAD);
                at.cast::<u32>().write_unaligned(bytes as u32);
                at.add(stride).cast::<u32>().write_unaligned((bytes >> 32) as u32);
                from = from.add(bits.count_ones() as usize);
            }
        }
    }
}
