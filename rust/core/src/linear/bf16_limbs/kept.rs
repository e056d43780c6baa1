//! [`Kept`]: the limbs of all weights, from one product to the next, and products with them.
//!
//! Here the inputs are the first factor of the tiles: they are written as they lie, sums come out by row, and a few rows of
//! inputs take a few rows of tiles. Every sum has the summands of [`super::Product`] in the same order, so its bits too.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::inputs::{self, put_rows};
use super::weights::{self, Pieces, Weights};
use super::{MOST, PAIR, STEP, UNIT, inside};
use crate::codec::{set_len, zeroed};
use crate::error::Result;
use crate::linear::output::Inputs;
use crate::simd::amx::rows::{RowFactors, RowSession};
use crate::simd::tiles::{LINE, ROWS};
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Line};

/// Bytes of two panels of one limb of 32 columns.
const BOTH: usize = PAIR * LINE;
/// Rows of inputs that are multiplied at a time.
const TOGETHER: usize = 2 * ROWS;
/// Lines of sums a row: two panels of totals, of accumulators before scaling, and of those of the piece before.
const SUMS: usize = 6;
/// Lines of scratch memory that a thread keeps at most: 256 KiB.
const KEPT_LINES: usize = 1 << 12;

thread_local! {
    /// Sums and tiles of inputs: aligned memory takes longer to get than a small product.
    static SCRATCH: RefCell<Vec<Floats>> = RefCell::default();
}

/// A matrix as tiles of bfloat16 limbs.
#[derive(Debug)]
pub(in crate::linear) struct Kept {
    /// By two panels, then 32 columns, limb and panel: a line holds two columns of sixteen rows.
    tiles: Vec<Line<u8, LINE>>,
    /// What the sums of each row are multiplied with.
    factors: Vec<f32>,
    /// By two panels, then group and row, where sums are scaled group by group.
    scales: Vec<f32>,
    pieces: Pieces,
    n: usize,
    k: usize,
    limbs: usize,
}

impl Kept {
    /// Bytes that the limbs of weights take.
    pub(in crate::linear) fn bytes(weights: &Weights<'_>) -> usize {
        let rows = weights.n.div_ceil(UNIT) * UNIT;
        let tiles = rows.saturating_mul(weights.k.div_ceil(STEP) * weights.limbs * LINE);
        tiles.saturating_add(rows.saturating_mul((weights.pieces().groups(weights.k) + 1) * size_of::<f32>()))
    }

    /// The limbs of weights; `None` where the magnitude of some is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn new(weights: &Weights<'_>) -> Result<Option<Self>> {
        let &Weights { n, k, limbs, each, .. } = weights;
        let (units, steps, pieces) = (n.div_ceil(UNIT), k.div_ceil(STEP), weights.pieces());
        let groups = pieces.groups(k);
        let mut kept = Self {
            tiles: zeroed(units * steps * limbs * PAIR)?,
            factors: zeroed(units * UNIT)?,
            scales: zeroed(units * groups * UNIT)?,
            pieces,
            n,
            k,
            limbs,
        };
        let (mut scratch, mut tiles) = (weights::Scratch::default(), zeroed(weights.lines())?);
        for unit in 0..units {
            let (first, count) = (unit * UNIT, UNIT.min(n - unit * UNIT));
            // SAFETY: as the caller promises.
            let Some(factors) = (unsafe { weights.begin(first, count, &mut scratch)? }) else { return Ok(None) };
            kept.factors[first..first + UNIT].copy_from_slice(&factors);
            let scales = &mut kept.scales[unit * groups * UNIT..][..groups * UNIT];
            scales.copy_from_slice(&scratch.groups.scales[..groups * UNIT]);
            for start in (0..k).step_by(each) {
                let columns = start..k.min(start + each);
                let (here, before) = (columns.len().div_ceil(STEP), start / STEP);
                // SAFETY: as the caller promises; the rows are those of `begin`.
                if !unsafe { weights.put(first, count, columns, &mut scratch, &mut tiles) } {
                    return Ok(None);
                }
                // By panel, step and limb there, by step, limb and panel here.
                for (at, tile) in tiles.chunks_exact(ROWS).take(2 * here * limbs).enumerate() {
                    let (panel, step_and_limb) = (at / (here * limbs), at % (here * limbs));
                    let to = ((unit * steps + before) * limbs + step_and_limb) * PAIR + panel * ROWS;
                    // SAFETY: the processor has AVX-512 F; lines are aligned and hold sixteen pairs of columns.
                    unsafe {
                        let mut lines = [_mm512_setzero_ps(); ROWS];
                        for (line, row) in lines.iter_mut().zip(tile) {
                            *line = _mm512_load_ps(row.0.as_ptr().cast());
                        }
                        for (to, line) in kept.tiles[to..to + ROWS].iter_mut().zip(transpose(lines)) {
                            _mm512_store_ps(to.0.as_mut_ptr().cast(), line);
                        }
                    }
                }
            }
        }
        Ok(Some(kept))
    }

    /// Bytes that this takes.
    pub(in crate::linear) fn nbytes(&self) -> usize {
        size_of_val(&*self.tiles) + size_of_val(&*self.factors) + size_of_val(&*self.scales)
    }

    /// Writes the products of all rows of float32 inputs, plus the bias if there is one, to `out`, `[rows, n]`; false, with
    /// nothing of use written, where the magnitude of inputs is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW, and AMX. Rows of `x` must be `k` values filled with zeros to whole vectors
    /// of sixteen, and as many as `out` has; a bias must have `n` values.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(in crate::linear) unsafe fn multiply(
        &self,
        x: &Inputs<'_>,
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<bool> {
        let (m, steps) = (out.len().checked_div(self.n).unwrap_or(0), self.k.div_ceil(STEP));
        // SAFETY: as the caller promises.
        if !(0..m).all(|row| unsafe { inside(x.row(row), &inputs::MODERATE) }) {
            return Ok(false);
        }
        let most = if m <= ROWS { m } else { TOGETHER };
        let mut lines = SCRATCH.take();
        if lines.len() < (SUMS + steps * MOST) * most {
            set_len(&mut lines, (SUMS + steps * MOST) * most)?;
        }
        let (sums, tiles) = lines.split_at_mut(SUMS * most);
        for first in (0..m).step_by(TOGETHER) {
            let count = TOGETHER.min(m - first);
            // SAFETY: as the caller promises; the lines have room for all limbs of these rows, and for their sums.
            unsafe {
                let session = RowSession::new(count);
                let rows = session.lines();
                for (step, to) in tiles.chunks_exact_mut(MOST * rows).take(steps).enumerate() {
                    put_rows(x, first..first + count, step * STEP, rows * LINE, to.as_mut_ptr().cast());
                }
                for pair in 0..self.n.div_ceil(PAIR) {
                    let total = self.multiply_pair(&session, pair, tiles.as_ptr().cast(), sums);
                    let out = out.as_mut_ptr().add(first * self.n);
                    self.write(pair, &total[..2 * rows], count, bias, out);
                }
            }
        }
        if lines.len() <= KEPT_LINES {
            SCRATCH.set(lines);
        }
        Ok(true)
    }

    /// The sums of two panels, by panel and row.
    ///
    /// # Safety
    /// As for [`Self::multiply`]; `inputs` must be the tiles of all steps, and `sums` have [`SUMS`] lines a row.
    #[target_feature(enable = "avx512f")]
    unsafe fn multiply_pair<'s>(
        &self,
        session: &RowSession,
        pair: usize,
        inputs: *const u8,
        sums: &'s mut [Floats],
    ) -> &'s [Floats] {
        let steps = self.k.div_ceil(STEP);
        let weights = self.tiles[pair * steps * self.limbs * PAIR..].as_ptr().cast::<u8>();
        let (columns, group) = match self.pieces {
            Pieces::Plain(columns) => (columns, usize::MAX),
            Pieces::Scaled { columns, group } => (columns, group),
        };
        let each = columns / STEP;
        let groups = self.scales.len() / self.factors.len();
        let scales = |piece: usize| match groups {
            0 => None,
            _ => Some(&self.scales[(pair * groups + piece * columns / group) * PAIR..][..PAIR]),
        };
        let (total, products) = sums.split_at_mut(2 * session.lines());
        let (mut now, mut before) = products.split_at_mut(2 * session.lines());
        let pieces = steps.div_ceil(each);
        // The previous accumulators are scaled while AMX multiplies the next.
        for piece in 0..pieces {
            let start = piece * each;
            let factors = RowFactors {
                weights: weights.wrapping_add(start * self.limbs * BOTH),
                limbs: self.limbs,
                inputs: inputs.wrapping_add(start * session.step_bytes()),
                steps: each.min(steps - start),
            };
            // SAFETY: the tiles of weights and inputs of these steps; the processor has AVX-512 F.
            unsafe {
                session.multiply(&factors, now);
                if piece > 0 {
                    add(before, scales(piece - 1), piece == 1, total);
                }
            }
            std::mem::swap(&mut now, &mut before);
        }
        // SAFETY: the processor has AVX-512 F.
        unsafe { add(before, scales(pieces - 1), pieces == 1, total) };
        total
    }

    /// Writes `count` rows of outputs from `out` on: sums of two panels times their factors, plus the bias.
    ///
    /// # Safety
    /// The processor must have AVX-512 F; `out` must have the rows, each of `n` outputs, and a bias `n` values.
    #[target_feature(enable = "avx512f")]
    unsafe fn write(&self, pair: usize, sums: &[Floats], count: usize, bias: Option<&[f32]>, out: *mut f32) {
        let end = self.n.min((pair + 1) * PAIR);
        for (column, sums) in (pair * PAIR..end).step_by(ROWS).zip(sums.chunks_exact(sums.len() / 2)) {
            let lanes = u16::MAX >> (ROWS - ROWS.min(end - column));
            // SAFETY: masks keep inside rows of outputs and biases; factors are padded to panels; lines are aligned.
            unsafe {
                let factors = _mm512_loadu_ps(self.factors.as_ptr().add(column));
                let added = bias.map(|bias| _mm512_maskz_loadu_ps(lanes, bias.as_ptr().add(column)));
                for (row, sums) in sums.iter().enumerate().take(count) {
                    let mut values = _mm512_mul_ps(_mm512_load_ps(sums.0.as_ptr()), factors);
                    if let Some(added) = added {
                        values = _mm512_add_ps(values, added);
                    }
                    _mm512_mask_storeu_ps(out.add(row * self.n + column), lanes, values);
                }
            }
        }
    }
}

/// Adds products, by panel and row, to sums, which begin at zero where they are `fresh`, each column times its scale.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn add(products: &[Floats], scales: Option<&[f32]>, fresh: bool, sums: &mut [Floats]) {
    let rows = sums.len() / 2;
    for (panel, (products, sums)) in products.chunks_exact(rows).zip(sums.chunks_exact_mut(rows)).enumerate() {
        // SAFETY: lines are aligned; they and the scales of a panel hold sixteen values.
        unsafe {
            let scales = match scales {
                Some(scales) => _mm512_loadu_ps(scales[panel * ROWS..][..ROWS].as_ptr()),
                None => _mm512_set1_ps(1.0),
            };
            for (product, sum) in products.iter().zip(sums) {
                let old = if fresh { _mm512_setzero_ps() } else { _mm512_load_ps(sum.0.as_ptr()) };
                let new = _mm512_fmadd_ps(_mm512_load_ps(product.0.as_ptr()), scales, old);
                _mm512_store_ps(sum.0.as_mut_ptr(), new);
            }
        }
    }
}
