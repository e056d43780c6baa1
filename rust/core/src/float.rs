//! Exact helpers on float bits, and the one order of float sums. Exponents are read from the bits, never from a rounded
//! logarithm.

/// Partial sums of every float sum, at every SIMD level: element `k` is added to sum `k mod 16`.
pub const LANES: usize = 16;

/// Sixteen partial sums, added as a tree: 8, 4, 2, 1.
#[inline(always)]
pub fn tree_sum<T: Copy + std::ops::Add<Output = T>>(lanes: [T; LANES]) -> T {
    // Halves of known lengths become vectors; a loop over the lengths does not.
    let eight: [T; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [T; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    let two: [T; 2] = std::array::from_fn(|i| four[i] + four[i + 2]);
    two[0] + two[1]
}

/// `2^e` as a float64; `e` must lie in -1022..=1023.
pub const fn exp2(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// `floor(log2 |v|)` of a finite float64 other than 0; subnormals included.
pub const fn floor_log2(v: f64) -> i32 {
    let bits = v.to_bits() & (u64::MAX >> 1);
    let exponent = (bits >> 52) as i32;
    if exponent > 0 { exponent - 1023 } else { 63 - bits.leading_zeros() as i32 - 1074 }
}

/// `floor(log2 |v|)` of a float32 given by its magnitude bits, not 0; subnormals included.
pub const fn floor_log2_bits(magnitude: u32) -> i32 {
    let exponent = (magnitude >> 23) as i32;
    if exponent > 0 { exponent - 127 } else { 31 - magnitude.leading_zeros() as i32 - 149 }
}

/// Rounds once to float32 (ties to even); finite values beyond the range become the largest float32, NaN stays.
pub const fn to_f32_saturating(v: f64) -> f32 {
    let rounded = v as f32;
    if rounded.is_infinite() && v.is_finite() { f32::MAX.copysign(rounded) } else { rounded }
}

/// Rounds to the bits of a float16 (ties to even); finite values beyond the range become +-65504.
pub fn to_f16_saturating(v: f32) -> u16 {
    let rounded = half::f16::from_f32(v);
    if rounded.is_infinite() && v.is_finite() {
        half::f16::MAX.to_bits() | (rounded.to_bits() & 0x8000)
    } else {
        rounded.to_bits()
    }
}

/// Rounds to the bits of a bfloat16 (ties to even); finite values beyond the range become the largest bfloat16.
pub fn to_bf16_saturating(v: f32) -> u16 {
    let rounded = half::bf16::from_f32(v);
    if rounded.is_infinite() && v.is_finite() {
        half::bf16::MAX.to_bits() | (rounded.to_bits() & 0x8000)
    } else {
        rounded.to_bits()
    }
}
