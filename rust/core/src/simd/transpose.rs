//! Transposes sixteen rows of sixteen values, or eight of eight, in registers.

use std::arch::x86_64::*;

/// Turns rows into columns.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
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

/// Turns eight rows of eight values into columns.
///
/// # Safety
/// The processor must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn transpose_eight(rows: [__m256; 8]) -> [__m256; 8] {
    let two = |a: usize, b: usize| [_mm256_unpacklo_ps(rows[a], rows[b]), _mm256_unpackhi_ps(rows[a], rows[b])];
    let four = |a: [__m256; 2], b: [__m256; 2]| {
        [
            _mm256_shuffle_ps::<0b01_00_01_00>(a[0], b[0]),
            _mm256_shuffle_ps::<0b11_10_11_10>(a[0], b[0]),
            _mm256_shuffle_ps::<0b01_00_01_00>(a[1], b[1]),
            _mm256_shuffle_ps::<0b11_10_11_10>(a[1], b[1]),
        ]
    };
    let (upper, lower) = (four(two(0, 1), two(2, 3)), four(two(4, 5), two(6, 7)));
    std::array::from_fn(|column| match column < 4 {
        true => _mm256_permute2f128_ps::<0x20>(upper[column], lower[column]),
        false => _mm256_permute2f128_ps::<0x31>(upper[column - 4], lower[column - 4]),
    })
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

    #[test]
    fn columns_of_eight_are_rows_afterwards() {
        if crate::simd::Level::detect() < crate::simd::Level::Avx2 {
            return;
        }
        let rows: [[f32; 8]; 8] = std::array::from_fn(|r| std::array::from_fn(|c| (8 * r + c) as f32));
        // SAFETY: the level was detected; arrays of eight values are registers in memory.
        let turned = unsafe {
            transpose_eight(rows.map(|row| _mm256_loadu_ps(row.as_ptr())))
                .map(|column| std::mem::transmute::<__m256, [f32; 8]>(column))
        };
        assert_eq!(turned, std::array::from_fn(|c| std::array::from_fn(|r| rows[r][c])));
    }
}
