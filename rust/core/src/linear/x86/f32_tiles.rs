//! Float32 products for many rows of inputs: rows of weights are the lanes of registers, and rows of inputs are broadcast to
//! all of them; both lie in the order in which they are read.
//!
//! The order of summation is that of [`crate::linear::f32_fma`], and so are the bits: sixteen chains of fused multiply-adds, column
//! `k` in chain `k mod 16`, then a tree. Here a register holds one chain of as many outputs as it has lanes. Chains take
//! turns for a slab of inputs, so that weights of one chain stay in the L1 cache and inputs in the L2 cache; they do so in
//! the order in which the tree adds them, so that few sums wait for others.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::codec::rows::{Rows, Unpacked};
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::float::FloatProduct;
use crate::linear::output::{Biased, Inputs};
use crate::linear::problem::Problem;
use crate::linear::ran;
use crate::pool;
use crate::simd::transpose::transpose_eight;
use crate::simd::{Floats, Job, LANES, Lanes, Level, fast};

/// Rows of inputs that meet one chain of weights.
const SLAB: usize = 48;
/// Units of work at least, where there are as many blocks of weights.
const MIN_UNITS: usize = 8;
/// Values of half a vector.
const HALF: usize = LANES / 2;
/// Chains in the order of the tree: the bits of their numbers reversed.
const ORDER: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];
/// Sums of an output that wait for others, at most: one at each level of the tree.
const WAITING: usize = LANES.ilog2() as usize;

/// True where there are columns.
pub(in crate::linear) const fn takes(problem: &Problem) -> bool {
    problem.depth > 0
}

/// Multiplies with decoded weights and inputs in the order in which they are read.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    let (rows, n) = (&product.rows, product.problem.columns);
    ran::note(if rows.level() == Level::Avx512 { "fma tiles avx512" } else { "fma tiles avx2" });
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the level, `takes` for a column.
        unsafe { multiply(rows, x, m, n, out) }
    })
}

/// What the registers of a level hold.
struct Shape {
    /// Vectors of sixteen rows of weights that are multiplied at once: those of a block.
    vectors: usize,
    /// Rows of inputs that are multiplied at once, and those of which the rest is made, as [`Slab`] takes them.
    inputs: &'static [usize],
    /// Bytes of weights in one unit of work, about.
    unit: usize,
}

impl Shape {
    const fn of(level: Level) -> Self {
        match level {
            // Twenty-four sums, two vectors of weights and one of inputs.
            Level::Avx512 => Self { vectors: 2, inputs: &[12, 8, 4, 2, 1], unit: 512 << 10 },
            // Six, one and one, of two registers each.
            _ => Self { vectors: 1, inputs: &[6, 4, 2, 1], unit: 128 << 10 },
        }
    }

    /// Rows of inputs of a slab of so many, as they are multiplied at once.
    fn groups(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let count = *self.inputs.iter().find(|count| first + **count <= rows)?;
            first += count;
            Some(first - count..first)
        })
    }
}

/// Writes all products of `m` rows of inputs, filled with zeros to whole vectors, with `n` rows of weights.
///
/// # Errors
/// Where memory is short or threads cannot be started.
///
/// # Safety
/// The level of `rows` must be one of this processor, not the scalar one; the matrix must have `n` rows, and a column at
/// least.
unsafe fn multiply(rows: &Rows<'_>, x: &Inputs<'_>, m: usize, n: usize, out: &Biased<'_>) -> Result<()> {
    let (level, stride) = (rows.level(), x.stride);
    let shape = Shape::of(level);
    let mut inputs = zeroed::<f32>(m * stride)?;
    pool::for_each_chunk(&mut inputs, SLAB * stride, |slab, to| {
        let from = &x.values()[slab * SLAB * stride..][..to.len()];
        for group in shape.groups(to.len() / stride) {
            // SAFETY: both levels have AVX2.
            unsafe { arrange_inputs(from, stride, group, to) };
        }
    })?;
    let (width, of_a_block) = (shape.vectors * LANES, shape.vectors * stride);
    let blocks = n.div_ceil(width);
    let together = (shape.unit / (of_a_block * size_of::<Floats>())).min(blocks / MIN_UNITS).max(1);
    pool::try_for_each(blocks.div_ceil(together), m.saturating_mul(n).saturating_mul(stride), |unit| {
        let first = unit * together * width;
        let count = together.min(blocks - unit * together);
        let mut weights = zeroed::<Floats>(count * of_a_block)?;
        let (mut decoded, mut unpacked) = (zeroed::<f32>(HALF * stride)?, Unpacked::default());
        for (block, lines) in weights.chunks_mut(of_a_block).enumerate() {
            for left in (0..width).step_by(HALF) {
                let first = first + block * width + left;
                for (r, row) in decoded.chunks_mut(stride).enumerate() {
                    if first + r < n {
                        rows.decode(first + r, 0..rows.k, row, &mut unpacked);
                    } else {
                        row.fill(0.0);
                    }
                }
                // SAFETY: both levels have AVX2.
                unsafe { arrange_weights(&decoded, left, shape.vectors, lines) };
            }
        }
        let mut waiting = zeroed::<Floats>(WAITING * shape.vectors * SLAB.min(m))?;
        for (slab, x) in inputs.chunks(SLAB * stride).enumerate() {
            let write = |row: usize, block: usize, values: &mut [f32]| {
                let column = first + block * width;
                let values = &mut values[..width.min(n - column)];
                // SAFETY: every unit writes its own columns.
                unsafe { out.write(slab * SLAB + row, column, values) };
            };
            let slab = Slab { shape: &shape, stride, weights: &weights, x, waiting: &mut waiting, write };
            let done = fast(level, slab).is_ok();
            debug_assert!(done, "the level is one of this processor");
        }
        Ok(())
    })
}

/// Puts a group of rows of a slab of inputs in the order in which they are read: by chain, then group, then sixteen columns,
/// then row.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn arrange_inputs(x: &[f32], stride: usize, group: Range<usize>, to: &mut [f32]) {
    let (m, sixteens) = (x.len() / stride, stride / LANES);
    let (first, count) = (group.start, group.len());
    assert!(x.len() == m * stride && to.len() == x.len() && group.end <= m);
    for (at, left) in (0..sixteens).flat_map(|at| [(at, 0), (at, HALF)]) {
        for top in (0..count).step_by(HALF) {
            let rows_here = HALF.min(count - top);
            // SAFETY: eight columns of these rows are inside them, and so is a number of each row for each column.
            unsafe {
                let from = x.as_ptr().add((first + top) * stride + at * LANES + left);
                // Rows beyond the last are not looked at.
                let columns =
                    transpose_eight(std::array::from_fn(|r| _mm256_loadu_ps(from.add(r.min(rows_here - 1) * stride))));
                for (column, values) in columns.into_iter().enumerate() {
                    let chain = ORDER[left + column] * sixteens * m;
                    store_part(to.as_mut_ptr().add(chain + first * sixteens + at * count + top), values, rows_here);
                }
            }
        }
    }
}

/// Writes the first values of a register.
///
/// # Safety
/// The processor must have AVX2; there must be room for as many values.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_part(mut to: *mut f32, values: __m256, count: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if count == HALF {
            return _mm256_storeu_ps(to, values);
        }
        let mut rest = _mm256_castps256_ps128(values);
        if count & 4 != 0 {
            _mm_storeu_ps(to, rest);
            (to, rest) = (to.add(4), _mm256_extractf128_ps::<1>(values));
        }
        if count & 2 != 0 {
            _mm_storel_pd(to.cast(), _mm_castps_pd(rest));
            (to, rest) = (to.add(2), _mm_movehl_ps(rest, rest));
        }
        if count & 1 != 0 {
            _mm_store_ss(to, rest);
        }
    }
}

/// Puts eight rows of weights in the order in which they are read: by chain, then sixteen columns, a column of a block of so
/// many `vectors` of rows after the other; the rows are those of the block from `left` on, a multiple of eight.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn arrange_weights(rows: &[f32], left: usize, vectors: usize, lines: &mut [Floats]) {
    let stride = lines.len() / vectors;
    assert!(left.is_multiple_of(HALF));
    let (sixteens, vector, left) = (stride / LANES, left / LANES, left % LANES);
    assert!(rows.len() == HALF * stride && vector < vectors);
    for (at, first) in (0..sixteens).flat_map(|at| [(at, 0), (at, HALF)]) {
        // SAFETY: eight columns of eight rows are inside the rows, and half a line is there for each.
        unsafe {
            let from = rows.as_ptr().add(at * LANES + first);
            let columns = transpose_eight(std::array::from_fn(|r| _mm256_loadu_ps(from.add(r * stride))));
            for (column, values) in columns.into_iter().enumerate() {
                let line = &mut lines[(ORDER[first + column] * sixteens + at) * vectors + vector];
                _mm256_storeu_ps(line.0.as_mut_ptr().add(left), values);
            }
        }
    }
}

/// Products of a unit's weights with a slab of inputs.
struct Slab<'a, W> {
    shape: &'a Shape,
    /// Columns.
    stride: usize,
    /// By block.
    weights: &'a [Floats],
    /// By chain, then group.
    x: &'a [f32],
    /// Sums that wait: by level of the tree, then row of inputs.
    waiting: &'a mut [Floats],
    /// Takes a row of inputs, a block and its products.
    write: W,
}

/// One chain of a block of weights and of the rows of a slab, from some row on.
#[derive(Clone, Copy)]
struct Chain {
    block: usize,
    /// Its place in the order of the tree.
    turn: usize,
    weights: *const f32,
    x: *const f32,
    row: usize,
}

impl<L: Lanes, W: FnMut(usize, usize, &mut [f32])> Job<L> for Slab<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run(mut self, _: L) {
        let (vectors, sixteens, m) = (self.shape.vectors, self.stride / LANES, self.x.len() / self.stride);
        let blocks = self.weights.len() / (vectors * self.stride);
        assert!(vectors == if L::VECTORS >= 32 { 2 } else { 1 } && self.stride.is_multiple_of(LANES));
        assert!(self.waiting.len() >= WAITING * vectors * m && m * self.stride == self.x.len());
        for (block, turn) in (0..blocks).flat_map(|block| (0..LANES).map(move |turn| (block, turn))) {
            let weights = self.weights[(block * LANES + turn) * sixteens * vectors..].as_ptr().cast();
            let x = self.x[turn * sixteens * m..].as_ptr();
            let mut chain = Chain { block, turn, weights, x, row: 0 };
            // SAFETY: the lanes prove the instructions; weights, inputs and the room for sums are as long as asserted.
            unsafe {
                if L::VECTORS >= 32 {
                    self.add_groups::<L, 2, 12>(&mut chain);
                    self.add_groups::<L, 2, 8>(&mut chain);
                    self.add_groups::<L, 2, 4>(&mut chain);
                    self.add_groups::<L, 2, 2>(&mut chain);
                    self.add_groups::<L, 2, 1>(&mut chain);
                } else {
                    self.add_groups::<L, 1, 6>(&mut chain);
                    self.add_groups::<L, 1, 4>(&mut chain);
                    self.add_groups::<L, 1, 2>(&mut chain);
                    self.add_groups::<L, 1, 1>(&mut chain);
                }
            }
        }
    }
}

impl<W: FnMut(usize, usize, &mut [f32])> Slab<'_, W> {
    /// Adds all groups of `N` rows of inputs, from the chain's on, to the sums that wait, or writes what they come to; the
    /// chain is that of the rows behind them, then.
    ///
    /// # Safety
    /// The processor must have the instructions of `L`; blocks must be of `V` vectors, and the chain one of the slab.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    unsafe fn add_groups<L: Lanes, const V: usize, const N: usize>(&mut self, chain: &mut Chain) {
        let (sixteens, m) = (self.stride / LANES, self.x.len() / self.stride);
        while chain.row + N <= m {
            let (mut w, mut x) = (chain.weights, chain.x);
            // SAFETY: as the caller promises.
            unsafe {
                let mut all = [[L::splat(0.0); V]; N];
                for _ in 0..sixteens {
                    let mut weights = [L::splat(0.0); V];
                    for v in 0..V {
                        weights[v] = L::load(w.add(v * LANES));
                    }
                    for n in 0..N {
                        let input = L::splat(*x.add(n));
                        for v in 0..V {
                            all[n][v] = L::fma(weights[v], input, all[n][v]);
                        }
                    }
                    (w, x) = (w.add(V * LANES), x.add(N));
                }
                // The levels of the tree that this completes: the carries of a binary counter.
                let levels = chain.turn.trailing_ones() as usize;
                let (mut sums, next) = (self.waiting.as_mut_ptr().add(chain.row * V), m * V);
                for _ in 0..levels {
                    for n in 0..N {
                        for v in 0..V {
                            all[n][v] = L::add(L::load((*sums.add(n * V + v)).0.as_ptr()), all[n][v]);
                        }
                    }
                    sums = sums.wrapping_add(next);
                }
                if levels < WAITING {
                    for n in 0..N {
                        for v in 0..V {
                            L::store((*sums.add(n * V + v)).0.as_mut_ptr(), all[n][v]);
                        }
                    }
                } else {
                    let mut values = [[[0.0; LANES]; V]; N];
                    for n in 0..N {
                        for v in 0..V {
                            L::store(values[n][v].as_mut_ptr(), all[n][v]);
                        }
                    }
                    for (n, values) in values.iter_mut().enumerate() {
                        (self.write)(chain.row + n, chain.block, values.as_flattened_mut());
                    }
                }
            }
            (chain.x, chain.row) = (x, chain.row + N);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::f32_fma::Panel;
    use crate::linear::output::Outputs;

    #[test]
    fn products_have_the_bits_of_rows_of_weights() {
        let format = Format::parse("int4:g32").unwrap();
        let sizes = [
            (16, 1, 1),
            (17, 16, 16),
            (18, 17, 67),
            (23, 300, 96),
            (31, 140, 1000),
            (SLAB + 25, 33, 48),
            (193, 70, 40),
        ];
        let levels = [Level::Avx2, Level::Avx512].into_iter().filter(|level| *level <= Level::detect());
        for (level, (m, n, k)) in levels.flat_map(|level| sizes.map(|sizes| (level, sizes))) {
            let weights: Vec<f32> = (0..n * k).map(noise).collect();
            let sample = Sample::new(&weights, k, format);
            let rows = sample.rows(level);
            let mut x: Vec<f32> = (0..m * k).map(|i| noise(i + 999)).collect();
            if let Some(last) = x.last_mut() {
                *last = f32::NAN;
            }
            let x = Inputs::new(Values::F32(&x), m, k, LANES, level).unwrap();
            let (mut found, mut wanted) = (vec![7.0f32; m * n], vec![1.0f32; m * n]);
            let mut values = ValuesMut::F32(&mut found);
            let out = Biased::new(Outputs::new(&mut values, n, level), &[]);
            // SAFETY: the level is one of this processor.
            unsafe { multiply(&rows, &x, m, n, &out).unwrap() };
            for first in (0..n).step_by(16) {
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first, count: 16.min(n - first) };
                panel.run(m, |row, values| wanted[row * n + first..][..values.len()].copy_from_slice(values)).unwrap();
            }
            let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&wanted), "{level:?}, {m} x {n} x {k}");
        }
    }
}
