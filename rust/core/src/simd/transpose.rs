//! Transposes sixteen rows of sixteen values in registers.

use std::arch::x86_64::*;

/// Turns rows into columns.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose(rows: [__m512; 16]) -> [__m512; 16] {
    // Pairs of values, then fours, inside the quarters of the registers; then the quarters themselves.
    let mut pairs = rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        for j in 0..2 {
            let (a, b) = (_mm512_castps_pd(pairs[i + j]), _mm512_castps_pd(pairs[i + j + 2]));
            fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    let mut columns = fours;
    for j in 0..4 {
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let (even_ab, odd_ab) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (even_cd, odd_cd) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        columns[j] = _mm512_shuffle_f32x4::<0x88>(even_ab, even_cd);
        columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even_ab, even_cd);
        columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd_ab, odd_cd);
        columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd_ab, odd_cd);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_rows_afterwards() {
        if crate::simd::Level::detect() < crate::simd::Level::Avx512 {
            return;
        }
        let rows: [[f32; 16]; 16] = std::array::from_fn(|r| std::array::from_fn(|c| (16 * r + c) as f32));
        // SAFETY: the level was detected; arrays of 16 values are registers in memory.
        let turned = unsafe {
            let registers = rows.map(|row| _mm512_loadu_ps(row.as_ptr()));
            transpose(registers).map(|column| std::mem::transmute::<__m512, [f32; 16]>(column))
        };
        for (r, row) in rows.iter().enumerate() {
            for (c, value) in row.iter().enumerate() {
                assert_eq!(turned[c][r], *value);
            }
        }
    }
}
