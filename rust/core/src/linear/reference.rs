//! The scalar reference of products: what `y = x W^T + bias` is, in float32 and in integers, of decoded weights.
//!
//! It calls nothing fast, and the dispatch above calls it at the level `scalar`. Kernels that keep its order of summation
//! (`f32_fma`, `int8_tiles`) give its bits; the others stay within the bound of FORMATS.md section 6.

use crate::float::{LANES, tree_sum};

/// Adds the products of a row of weights and a row of inputs to sixteen partial sums: those of column `k` to sum
/// `k mod 16`, each a chain of fused multiply-adds.
pub(super) fn add_products(w: &[f32], x: &[f32], sums: &mut [f32; LANES]) {
    for (k, (&w, &x)) in w.iter().zip(x).enumerate() {
        sums[k % LANES] = w.mul_add(x, sums[k % LANES]);
    }
}

/// The product that partial sums stand for.
pub(super) fn product(sums: [f32; LANES]) -> f32 {
    tree_sum(sums)
}

/// The exact sum of products of integer codes.
pub(super) fn sum_of_codes(w: &[i8], x: &[i8]) -> i64 {
    w.iter().zip(x).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum()
}

/// What is added to a sum of codes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Added {
    /// Nothing.
    Nothing,
    /// A number, to the scaled sum.
    Float(f32),
    /// An integer in units of the product of both scales, to the sum.
    Integer(i32),
}

/// The value of a sum of codes; every operation rounds to float32.
pub(super) fn value(sum: i64, scale: f32, added: Added) -> f32 {
    match added {
        Added::Nothing => sum as f32 * scale,
        Added::Float(bias) => sum as f32 * scale + bias,
        Added::Integer(bias) => (sum + i64::from(bias)) as f32 * scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_run_in_sixteen_chains_and_end_as_a_tree() {
        let w: Vec<f32> = (0..40).map(|k| 1.0 + (k as f32) * 0.37).collect();
        let x: Vec<f32> = (0..40).map(|k| 3.0 - (k as f32) * 0.11).collect();
        let mut sums = [0.0; LANES];
        add_products(&w[..32], &x[..32], &mut sums);
        add_products(&w[32..], &x[32..], &mut sums);
        let chain = |i: usize| (i..40).step_by(16).fold(0.0f32, |sum, k| w[k].mul_add(x[k], sum));
        assert_eq!(sums, std::array::from_fn(chain));
        let four = |i: usize| (sums[i] + sums[i + 8]) + (sums[i + 4] + sums[i + 12]);
        assert_eq!(product(sums), (four(0) + four(2)) + (four(1) + four(3)));
    }

    #[test]
    fn integer_biases_join_the_exact_sum() {
        let sum = sum_of_codes(&[127; 3], &[-128; 3]);
        assert_eq!(sum, -3 * 127 * 128);
        assert_eq!(value(sum, 0.5, Added::Integer(3 * 127 * 128 + 1)), 0.5);
        assert_eq!(value(sum, 0.5, Added::Float(1.0)), -24383.0);
        assert_eq!(value(sum, 0.5, Added::Nothing), -24384.0);
    }
}
