//! [`Matrix`]: products of plain float32 matrices whose rows are independent of each other, bit for bit.
//!
//! candle's own product is not used: it reads `/proc/cpuinfo` at every call to choose its threads, hands large products to
//! a pool that is not ours, and may round a row differently when it stands alone.

use octavo_core::Level;

/// Outputs that are computed side by side: two registers of 256 bits.
const LANES: usize = 16;
/// Rows that share a loaded piece of the weights; with [`LANES`] their sums fill the registers.
const ROWS: usize = 6;

/// A matrix `[outputs, inputs]` and a bias, in blocks of [`LANES`] outputs: each block is `[inputs, LANES]`, padded with
/// zeros.
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    blocks: Vec<f32>,
    bias: Vec<f32>,
}

impl Matrix {
    /// Of `weight` `[outputs, inputs]`, row-major, and `bias` `[outputs]`; an empty bias is zero.
    pub fn new(inputs: usize, outputs: usize, weight: &[f32], bias: &[f32]) -> Self {
        let padded = outputs.next_multiple_of(LANES);
        let mut blocks = vec![0.0; padded * inputs];
        for (output, row) in weight.chunks_exact(inputs).enumerate() {
            let start = output / LANES * LANES * inputs + output % LANES;
            for (to, &value) in blocks[start..].iter_mut().step_by(LANES).zip(row) {
                *to = value;
            }
        }
        let mut bias = bias.to_vec();
        bias.resize(padded, 0.0);
        Self { inputs, outputs, blocks, bias }
    }

    /// Writes `x` times the transposed matrix plus the bias, `[rows, outputs]`, for `x` `[rows, inputs]`.
    ///
    /// Every element is the bias and then the products in the order of the inputs, each multiplied and added in two
    /// roundings: the same at every SIMD level, and whatever the other rows are.
    pub fn apply(&self, x: &[f32], out: &mut [f32]) {
        match Level::current() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the current level is one that this processor has.
            Level::Avx2 => unsafe { self.apply_avx2(x, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 => unsafe { self.apply_avx512(x, out) },
            _ => self.apply_any(x, out),
        }
    }

    /// # Safety
    /// The processor must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn apply_avx2(&self, x: &[f32], out: &mut [f32]) {
        self.apply_any(x, out);
    }

    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn apply_avx512(&self, x: &[f32], out: &mut [f32]) {
        self.apply_any(x, out);
    }

    #[inline(always)]
    fn apply_any(&self, x: &[f32], out: &mut [f32]) {
        for (at, block) in self.blocks.chunks_exact(self.inputs * LANES).enumerate() {
            let (block, _) = block.as_chunks::<LANES>();
            let first = at * LANES;
            let bias = &self.bias[first..first + LANES];
            let width = LANES.min(self.outputs - first);
            let groups = x.chunks(self.inputs * ROWS).zip(out.chunks_mut(self.outputs * ROWS));
            for (x, out) in groups {
                if x.len() == self.inputs * ROWS {
                    self.sums::<ROWS>(x, block, bias, first, width, out);
                } else {
                    let rows = x.chunks_exact(self.inputs).zip(out.chunks_exact_mut(self.outputs));
                    for (x, out) in rows {
                        self.sums::<1>(x, block, bias, first, width, out);
                    }
                }
            }
        }
    }

    /// The outputs of one block for `R` rows.
    #[inline(always)]
    fn sums<const R: usize>(
        &self,
        x: &[f32],
        block: &[[f32; LANES]],
        bias: &[f32],
        first: usize,
        width: usize,
        out: &mut [f32],
    ) {
        let mut sums = [[0.0; LANES]; R];
        for row in &mut sums {
            row.copy_from_slice(bias);
        }
        let rows: [&[f32]; R] = std::array::from_fn(|row| &x[row * self.inputs..][..block.len()]);
        for (input, weights) in block.iter().enumerate() {
            for (row, sums) in rows.iter().zip(&mut sums) {
                let value = row[input];
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            out[row * self.outputs + first..][..width].copy_from_slice(&sums[..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_same_in_any_company_and_at_any_level() {
        for (inputs, outputs) in [(1, 1), (3, 5), (16, 16), (65, 33), (130, 100)] {
            let value = |i: usize| ((i * 7919 % 1013) as f32 - 506.0) / 311.0;
            let weight: Vec<f32> = (0..inputs * outputs).map(value).collect();
            let bias: Vec<f32> = (0..outputs).map(|i| value(i + 5)).collect();
            let matrix = Matrix::new(inputs, outputs, &weight, &bias);
            let x: Vec<f32> = (0..14 * inputs).map(|i| value(i + 31)).collect();
            let mut expected = vec![0.0; 14 * outputs];
            for (x, out) in x.chunks(inputs).zip(expected.chunks_mut(outputs)) {
                for (o, out) in out.iter_mut().enumerate() {
                    let row = &weight[o * inputs..][..inputs];
                    *out = x.iter().zip(row).fold(bias[o], |sum, (x, w)| sum + x * w);
                }
            }
            let run = |x: &[f32], apply: &dyn Fn(&[f32], &mut [f32])| {
                let mut out = vec![f32::NAN; x.len() / inputs * outputs];
                apply(x, &mut out);
                out
            };
            for rows in [1, 2, 5, 6, 7, 12, 14] {
                let (x, expected) = (&x[..rows * inputs], &expected[..rows * outputs]);
                assert_eq!(run(x, &|x, out| matrix.apply_any(x, out)), expected);
                assert_eq!(run(x, &|x, out| matrix.apply(x, out)), expected);
            }
        }
    }
}
