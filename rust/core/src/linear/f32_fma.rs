//! Float32 dot products, with the order of summation of [`reference`] at every SIMD level: sixteen partial sums, each a
//! chain of fused multiply-adds.
//!
//! Chains of several rows are interleaved, which hides latency and changes no result.

use super::float::FloatProduct;
use super::{ran, reference};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::zeroed;
use crate::error::Result;
use crate::pool;
use crate::simd::{Job, LANES, Lanes, Level, fast};

/// Rows of weights in one unit of work.
pub(super) const PANEL: usize = 16;
/// Rows of weights multiplied at once.
const ROWS: usize = 4;
/// Rows of inputs multiplied at once where there are registers for 16 sums and their factors.
const INPUTS: usize = 4;
/// The same with half of [`ROWS`] at a time, where registers hold 6 sums.
const FEW_INPUTS: usize = 3;
/// Rows of inputs whose partial sums are kept between spans of columns.
const SLAB: usize = 16;
/// Columns multiplied at once: [`ROWS`] rows of weights, [`INPUTS`] of inputs and the partial sums stay in the L1 cache.
const SPAN: usize = 768;

/// Multiplies with rows of weights that are decoded, a panel at a time.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn run(product: &FloatProduct<'_>) -> Result<()> {
    let (rows, n, k) = (&product.rows, product.problem.columns, product.problem.depth);
    ran::note(match rows.level() {
        Level::Scalar => "fma scalar",
        Level::Neon => "fma neon",
        Level::Avx2 => "fma avx2",
        Level::Avx512 => "fma avx512",
    });
    product.in_chunks(usize::MAX, |x, m, out| {
        pool::try_for_each(n.div_ceil(PANEL), m.saturating_mul(n).saturating_mul(k), |panel| {
            let first = panel * PANEL;
            let panel = Panel { rows, x: x.values(), stride: x.stride, first, count: PANEL.min(n - first) };
            // SAFETY: every panel writes its own columns.
            panel.run(m, |row, values| unsafe { out.write(row, first, values) })
        })
    })
}

/// Rows of weights, at most [`PANEL`], and rows of inputs.
pub(super) struct Panel<'a> {
    pub(super) rows: &'a Rows<'a>,
    /// Inputs, `stride` values from one row to the next.
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) count: usize,
}

impl Panel<'_> {
    /// Calls `write` with the products of each of `m` rows of inputs.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn run(&self, m: usize, mut write: impl FnMut(usize, &mut [f32])) -> Result<()> {
        let k = self.rows.k;
        let stride = k.next_multiple_of(LANES);
        // Inputs that stay in the L2 cache meet all rows of weights in turn; few of them leave the weights in the L1 cache.
        let unroll_rows = if m > SLAB { PANEL } else { ROWS };
        let mut products = zeroed::<[f32; PANEL]>(m)?;
        let mut chunk = [[0.0; ROWS]; SLAB];
        let mut unpacked = Unpacked::default();
        let mut w = zeroed::<f32>(unroll_rows * stride)?;
        for first in (0..self.count).step_by(unroll_rows) {
            let count = unroll_rows.min(self.count - first);
            for (r, w) in w.chunks_mut(stride.max(1)).enumerate().take(count) {
                self.rows.decode(self.first + first + r, 0..k, w, &mut unpacked);
            }
            for (slab, products) in products.chunks_mut(SLAB).enumerate() {
                let (x, chunk) = (&self.x[slab * SLAB * self.stride..], &mut chunk[..products.len()]);
                for four in (0..count).step_by(ROWS) {
                    multiply(self.rows.level(), &w[four * stride..], stride, x, self.stride, stride, chunk);
                    let columns = first + four..first + count.min(four + ROWS);
                    for (products, chunk) in products.iter_mut().zip(&*chunk) {
                        products[columns.clone()].copy_from_slice(&chunk[..columns.len()]);
                    }
                }
            }
        }
        for (row, products) in products.iter_mut().enumerate() {
            write(row, &mut products[..self.count]);
        }
        Ok(())
    }
}

/// Partial sums of [`ROWS`] rows of weights and one row of inputs.
type Sums = [[f32; LANES]; ROWS];

/// `len` columns, a multiple of [`LANES`]: `w` holds [`ROWS`] rows, `w_stride` apart, and `x` one row for each of
/// `products`, `x_stride` apart.
struct Multiply<'a> {
    w: &'a [f32],
    w_stride: usize,
    x: &'a [f32],
    x_stride: usize,
    len: usize,
    products: &'a mut [[f32; ROWS]],
}

/// Writes the products over `len` columns, a multiple of [`LANES`]: `w` holds [`ROWS`] rows, `w_stride` apart, and `x` one
/// row for each of `products`, `x_stride` apart.
pub(super) fn multiply(
    level: Level,
    w: &[f32],
    w_stride: usize,
    x: &[f32],
    x_stride: usize,
    len: usize,
    products: &mut [[f32; ROWS]],
) {
    assert!(len.is_multiple_of(LANES) && w.len() >= (ROWS - 1) * w_stride + len);
    assert!(products.is_empty() || x.len() >= (products.len() - 1) * x_stride + len);
    if let Err(Multiply { products, .. }) = fast(level, Multiply { w, w_stride, x, x_stride, len, products }) {
        for (m, products) in products.iter_mut().enumerate() {
            for (r, product) in products.iter_mut().enumerate() {
                let mut sums = [0.0; LANES];
                reference::add_products(&w[r * w_stride..][..len], &x[m * x_stride..][..len], &mut sums);
                *product = reference::product(sums);
            }
        }
    }
}

impl<L: Lanes> Job<L> for Multiply<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: L) {
        let Self { w, w_stride, x, x_stride, len, products } = self;
        for (slab, products) in products.chunks_mut(SLAB).enumerate() {
            let mut sums = [[[0.0; LANES]; ROWS]; SLAB];
            let input_rows = if L::VECTORS >= 32 { INPUTS } else { FEW_INPUTS };
            let whole = products.len() / input_rows * input_rows;
            let (sums, rest) = sums[..products.len()].split_at_mut(whole);
            let (products, rest_products) = products.split_at_mut(whole);
            let mut start = 0;
            // Without columns, products are sums of nothing.
            loop {
                let span = SPAN.min(len - start);
                let last = start + span == len;
                // SAFETY: the lanes prove the instructions, and the slices hold what is read, as `multiply` asserts.
                unsafe {
                    let (w, x) = (w.as_ptr().add(start), x.as_ptr().wrapping_add(slab * SLAB * x_stride + start));
                    if L::VECTORS >= 32 {
                        let many = sums.as_chunks_mut::<INPUTS>().0.iter_mut();
                        for (i, (sums, to)) in many.zip(products.as_chunks_mut::<INPUTS>().0).enumerate() {
                            let x = x.wrapping_add(i * INPUTS * x_stride);
                            block::<L, ROWS, INPUTS>(w, w_stride, x, x_stride, span, 0, sums, last.then_some(to));
                        }
                    } else {
                        let many = sums.as_chunks_mut::<FEW_INPUTS>().0.iter_mut();
                        for (i, (sums, to)) in many.zip(products.as_chunks_mut::<FEW_INPUTS>().0).enumerate() {
                            let x = x.wrapping_add(i * FEW_INPUTS * x_stride);
                            for first in [0, ROWS / 2] {
                                let w = w.add(first * w_stride);
                                let to = last.then_some(&mut *to);
                                block::<L, { ROWS / 2 }, FEW_INPUTS>(w, w_stride, x, x_stride, span, first, sums, to);
                            }
                        }
                    }
                    for (i, (sums, to)) in rest.iter_mut().zip(&mut *rest_products).enumerate() {
                        let x = x.wrapping_add((whole + i) * x_stride);
                        let (sums, to) = (std::array::from_mut(sums), std::array::from_mut(to));
                        block::<L, ROWS, 1>(w, w_stride, x, x_stride, span, 0, sums, last.then_some(to));
                    }
                }
                if last {
                    break;
                }
                start += span;
            }
        }
    }
}

/// Adds the products of `R` rows of weights and `N` of inputs to partial sums, or writes what these come to then; the rows of
/// weights are those from `first` on of the sums.
///
/// # Safety
/// The processor must have the instructions of `L`. `w` must hold `R` rows of `len` values, `w_stride` apart, `x` one
/// for each of `sums`, `x_stride` apart; `len` must be a multiple of [`LANES`], and `first + R` at most [`ROWS`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
#[expect(clippy::too_many_arguments, reason = "two matrices with their strides, and where sums go")]
unsafe fn block<L: Lanes, const R: usize, const N: usize>(
    w: *const f32,
    w_stride: usize,
    x: *const f32,
    x_stride: usize,
    len: usize,
    first: usize,
    sums: &mut [Sums; N],
    products: Option<&mut [[f32; ROWS]; N]>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        // Loops over constants: unrolled, they leave the sums in registers.
        let mut all = [[L::splat(0.0); R]; N];
        for n in 0..N {
            for r in 0..R {
                all[n][r] = L::load(sums[n][first + r].as_ptr());
            }
        }
        let mut k = 0;
        while k < len {
            // Inputs stay in registers, weights are loaded as they are used: AVX2 has no registers for more.
            let mut inputs = [L::splat(0.0); N];
            for n in 0..N {
                inputs[n] = L::load(x.add(n * x_stride + k));
            }
            for r in 0..R {
                let w = L::load(w.add(r * w_stride + k));
                for n in 0..N {
                    all[n][r] = L::fma(w, inputs[n], all[n][r]);
                }
            }
            k += LANES;
        }
        let Some(products) = products else {
            for n in 0..N {
                for r in 0..R {
                    L::store(sums[n][first + r].as_mut_ptr(), all[n][r]);
                }
            }
            return;
        };
        if N * R == LANES && R == ROWS {
            let mut flat = [L::splat(0.0); LANES];
            for n in 0..N {
                for r in 0..R {
                    flat[n * R + r] = all[n][r];
                }
            }
            L::store(products.as_mut_ptr().cast(), L::tree_sum_each(flat));
        } else {
            for n in 0..N {
                for r in 0..R {
                    products[n][first + r] = L::tree_sum(all[n][r]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_gives_the_bits_of_the_reference() {
        let noise = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0;
        for len in [0, 96, SPAN, 2 * SPAN + 16] {
            let (w_stride, x_stride) = (len + 16, len + 32);
            let w: Vec<f32> = (0..ROWS * w_stride).map(noise).collect();
            let x: Vec<f32> = (0..(SLAB + 7) * x_stride).map(|i| noise(i + 12_345)).collect();
            for rows in (0..=11).chain([SLAB, SLAB + 7]) {
                let mut wanted = vec![[0.5; ROWS]; rows];
                multiply(Level::Scalar, &w, w_stride, &x, x_stride, len, &mut wanted);
                for level in Level::available() {
                    let mut got = vec![[-0.5; ROWS]; rows];
                    multiply(level, &w, w_stride, &x, x_stride, len, &mut got);
                    assert_eq!(got, wanted, "{rows} rows of {len} at {level:?}");
                }
            }
        }
    }
}
