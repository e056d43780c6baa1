//! The definition: elements one by one, in the order of FORMATS.md section 5.

use super::{PANEL, QUAD};

/// Appends the bytes of a panel that are not 0, rows `stride` apart, and writes the words that tell where they are.
pub(super) fn compress(rows: &[u8], stride: usize, words: &mut [u64], kept: &mut Vec<u8>) {
    for (quad, word) in words.iter_mut().enumerate() {
        *word = 0;
        for row in 0..PANEL {
            for column in 0..QUAD {
                let code = rows[row * stride + quad * QUAD + column];
                if code != 0 {
                    *word |= 1 << (row * QUAD + column);
                    kept.push(code);
                }
            }
        }
    }
}

/// Writes the bytes of a panel, rows `stride` apart.
pub(super) fn expand(stream: &[u8], words: &[u64], rows: &mut [u8], stride: usize) {
    let mut next = stream.iter();
    for (quad, word) in words.iter().enumerate() {
        for row in 0..PANEL {
            for column in 0..QUAD {
                let there = word >> (row * QUAD + column) & 1 == 1;
                let code = if there { next.next().copied().unwrap_or(0) } else { 0 };
                rows[row * stride + quad * QUAD + column] = code;
            }
        }
    }
}
