//! K-quants of ggml: blocks of 256 whose groups have scales of a few bits under one float16, and offsets under another.
//!
//! The bytes of a block that are no codes are kept as ggml orders them. A group's step and offset are exact float32 products, so
//! values are those of `uintW:gN,offset`: one rounding of the exact sum. Source: ggml, `ggml-quants.c`.

use half::f16;

use crate::format::KQuant;

/// Step and offset of a group of a block.
pub(crate) fn group(kind: KQuant, bytes: &[u8], group: usize) -> (f32, f32) {
    let half = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    match kind {
        KQuant::Q2 => {
            let both = bytes[group];
            (half(16) * f32::from(both & 15), -(half(18) * f32::from(both >> 4)))
        }
        KQuant::Q3 => {
            let low = bytes[group % 8] >> (4 * (group / 8)) & 15;
            let high = bytes[8 + group % 4] >> (2 * (group / 4)) & 3;
            (half(12) * (f32::from(low | high << 4) - 32.0), 0.0)
        }
        KQuant::Q4 | KQuant::Q5 => {
            let six = &bytes[4..];
            let (scale, least) = match group {
                0..4 => (six[group] & 63, six[group + 4] & 63),
                _ => (six[group + 4] & 15 | six[group - 4] >> 6 << 4, six[group + 4] >> 4 | six[group] >> 6 << 4),
            };
            (half(0) * f32::from(scale), -(half(2) * f32::from(least)))
        }
        KQuant::Q6 => (half(16) * f32::from(bytes[group].cast_signed()), 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_blocks_have_the_scales_of_ggml() {
        // Bytes whose fields tell their places; float16 1 and 2.
        let (one, two) = (0x3c00u16.to_le_bytes(), 0x4000u16.to_le_bytes());
        let mut q2: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        q2.extend([one, two].concat());
        assert_eq!(group(KQuant::Q2, &q2, 3), (3.0, -24.0));
        let mut q3 = vec![0; 12];
        (q3[5], q3[9]) = (0x7a, 0b11_10_01_00);
        q3.extend(one);
        assert_eq!(group(KQuant::Q3, &q3, 5), (f32::from(0x0au8 | 1 << 4) - 32.0, 0.0));
        assert_eq!(group(KQuant::Q3, &q3, 13), (f32::from(0x07u8 | 3 << 4) - 32.0, 0.0));
        let mut q4 = [one, two].concat();
        q4.extend([0x81, 0, 0, 0, 0xc3, 0, 0, 0, 0x5a, 0, 0, 0]);
        assert_eq!(group(KQuant::Q4, &q4, 0), (1.0, -6.0));
        assert_eq!(group(KQuant::Q5, &q4, 4), (f32::from(0x0au8 | 2 << 4), -2.0 * f32::from(5u8 | 3 << 4)));
        let mut q6 = vec![0; 16];
        q6[15] = 0x80;
        q6.extend(two);
        assert_eq!(group(KQuant::Q6, &q6, 15), (-256.0, 0.0));
    }
}
