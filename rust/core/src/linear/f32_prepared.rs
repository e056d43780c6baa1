//! [`PreparedFloats`]: rows decoded to float32, from one product to the next, and products with them.
//!
//! The order of summation is that of [`super::f32_fma`]: sixteen chains of fused multiply-adds, column `k` in chain
//! `k mod 16`, then a tree. Here a register holds one chain of sixteen outputs, so the tree adds registers.

use super::output::Inputs;
use super::prepared::{AnyWeights, Preparation, PreparedWeights};
use super::problem::Problem;
use super::ran;
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::zeroed;
use crate::error::Result;
use crate::simd::{Floats, Job, LANES, Lanes, Level, fast};

/// Chains that are computed side by side, four apart: the first sums of the tree.
const CHAINS: usize = 4;
/// Passes over a row, for all chains.
const PASSES: usize = LANES / CHAINS;
/// Rows of inputs multiplied at once where there are registers for their sums.
const INPUTS: usize = 4;

/// A matrix as float32.
#[derive(Debug)]
pub(super) struct PreparedFloats {
    /// By sixteen rows, then pass, sixteen columns and chain: a column of the rows a line.
    lines: Vec<Floats>,
    n: usize,
    /// Columns, in sixteens.
    sixteens: usize,
}

impl PreparedFloats {
    /// Decodes `n` rows.
    ///
    /// # Errors
    /// Where memory is short.
    fn new(rows: &Rows<'_>, n: usize) -> Result<Self> {
        let sixteens = rows.k.div_ceil(LANES);
        let columns = sixteens * LANES;
        let mut lines = zeroed::<Floats>(n.div_ceil(LANES) * columns)?;
        let (mut row, mut unpacked) = (zeroed(columns)?, Unpacked::default());
        for r in 0..n {
            rows.decode(r, 0..rows.k, &mut row, &mut unpacked);
            let block = &mut lines[r / LANES * columns..][..columns];
            for (k, value) in row[..rows.k].iter().enumerate() {
                let (pass, chain) = (k % LANES % PASSES, k % LANES / PASSES);
                block[(pass * sixteens + k / LANES) * CHAINS + chain].0[r % LANES] = *value;
            }
        }
        Ok(Self { lines, n, sixteens })
    }
}

/// How weights are prepared.
pub(super) const PREPARATION: Preparation = Preparation { bytes, prepare };

fn bytes(problem: &Problem, _rows: &Rows<'_>) -> usize {
    let lines = problem.columns.div_ceil(LANES).saturating_mul(problem.depth.next_multiple_of(LANES));
    lines.saturating_mul(size_of::<Floats>())
}

fn prepare(problem: &Problem, rows: &Rows<'_>) -> Result<AnyWeights> {
    Ok(Some(Box::new(PreparedFloats::new(rows, problem.columns)?)))
}

impl PreparedWeights for PreparedFloats {
    fn nbytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// False at a level that has no lanes.
    fn multiply(&self, level: Level, x: &Inputs<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<bool> {
        let (x, stride) = (x.values(), self.sixteens * LANES);
        assert!(out.len().is_multiple_of(self.n.max(1)) && x.len() == out.len() / self.n.max(1) * stride);
        assert!(bias.is_none_or(|bias| bias.len() == self.n));
        ran::note(match level {
            Level::Avx512 => "fma prepared avx512",
            Level::Avx2 => "fma prepared avx2",
            _ => "fma prepared neon",
        });
        Ok(fast(level, Multiply { matrix: self, x, stride, bias, out }).is_ok())
    }
}

struct Multiply<'a> {
    matrix: &'a PreparedFloats,
    x: &'a [f32],
    stride: usize,
    bias: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl<L: Lanes> Job<L> for Multiply<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: L) {
        let Self { matrix, x, stride, bias, out } = self;
        let m = x.len().checked_div(stride).unwrap_or(0);
        for (block, weights) in matrix.lines.chunks_exact(stride.max(1)).enumerate() {
            let first = block * LANES;
            let width = LANES.min(matrix.n - first);
            let bias = bias.map(|bias| Floats::part(&bias[first..first + width]));
            let mut write = |row: usize, mut values: Floats| {
                if let Some(bias) = bias {
                    values.0.iter_mut().zip(bias.0).for_each(|(value, bias)| *value += bias);
                }
                let out = &mut out[row * matrix.n + first..][..width];
                match <&mut [f32; LANES]>::try_from(&mut *out) {
                    Ok(out) => *out = values.0,
                    Err(_) => out.copy_from_slice(&values.0[..width]),
                }
            };
            let whole = if L::VECTORS >= 32 { m / INPUTS * INPUTS } else { 0 };
            // SAFETY: the lanes prove the instructions; the weights are a block, and `x` has the rows, as `multiply` asserts.
            unsafe {
                for row in (0..whole).step_by(INPUTS) {
                    let values = outputs::<L, INPUTS>(weights, x.as_ptr().add(row * stride), stride);
                    values.into_iter().enumerate().for_each(|(i, values)| write(row + i, values));
                }
                for row in whole..m {
                    let [values] = outputs::<L, 1>(weights, x.as_ptr().add(row * stride), stride);
                    write(row, values);
                }
            }
        }
    }
}

/// The products of a block of sixteen rows of weights with `N` rows of inputs.
///
/// # Safety
/// The processor must have the instructions of `L`; `x` must have `N` rows, `stride` apart, of as many values as the block
/// has lines, and these be whole sixteens.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn outputs<L: Lanes, const N: usize>(weights: &[Floats], x: *const f32, stride: usize) -> [Floats; N] {
    let mut products = [Floats::default(); N];
    let of_a_pass = weights.len() / PASSES;
    // SAFETY: as the caller promises.
    unsafe {
        // What each pass adds to the tree.
        let mut sums = [[L::splat(0.0); N]; PASSES];
        for pass in 0..PASSES {
            let mut all = [[L::splat(0.0); N]; CHAINS];
            let mut w = weights.as_ptr().add(pass * of_a_pass);
            let (mut x, end) = (x.add(pass), w.add(of_a_pass));
            while w < end {
                for chain in 0..CHAINS {
                    let weight = L::load((*w.add(chain)).0.as_ptr());
                    for n in 0..N {
                        let input = L::splat(*x.add(n * stride + chain * PASSES));
                        all[chain][n] = L::fma(weight, input, all[chain][n]);
                    }
                }
                w = w.add(CHAINS);
                x = x.add(LANES);
            }
            for n in 0..N {
                sums[pass][n] = L::add(L::add(all[0][n], all[2][n]), L::add(all[1][n], all[3][n]));
            }
        }
        for n in 0..N {
            let sum = L::add(L::add(sums[0][n], sums[2][n]), L::add(sums[1][n], sums[3][n]));
            L::store(products[n].0.as_mut_ptr(), sum);
        }
    }
    products
}
