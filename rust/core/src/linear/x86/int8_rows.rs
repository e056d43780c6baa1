//! Integer products on AMX for many rows: int8 codes of inputs as they lie, and of weights in tiles, made once for a piece of
//! the product that one thread computes.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::int8_scaling::Scaled;
use super::int8_tiles::{self, arrange};
use super::output_lanes::OutputLanes;
use super::pieces::{Times, min_pieces, piece};
use crate::codec::{set_len, zeroed};
use crate::error::Result;
use crate::linear::integer::{Biases, IntegerProduct};
use crate::linear::output::Outputs;
use crate::linear::problem::Problem;
use crate::linear::ran;
use crate::pool;
use crate::simd::Line;
use crate::simd::amx::rows::{RowFactors, RowSession};
use crate::simd::tiles::{LINE, ROWS};

/// Rows of weights, and of inputs, that are multiplied at a time.
const UNROLL_ROWS: usize = 2 * ROWS;
/// Rows of inputs for each piece of the weights from which on AMX multiplies them as they lie.
const PIECE_ROWS: usize = 128;
/// Columns that meet all weights of a piece before the next do: their inputs stay in the L1 cache.
const CHUNK: usize = 1024;
/// Bytes of weights and lines of sums that a thread keeps at most.
const CACHED_BYTES: usize = 4 << 20;
const CACHED_LINES: usize = 1 << 14;

/// How long the parts of a product take.
const TIMES: Times = Times { weight: 300, input: 150, product: 1 };

/// True for products that [`int8_tiles`] takes, with rows of inputs enough for each piece of the weights.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    int8_tiles::takes(problem) && problem.rows >= PIECE_ROWS.saturating_mul(min_pieces(problem.weights()))
}

/// Multiplies with pieces of weights and of inputs.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &IntegerProduct<'_>) -> Result<()> {
    ran::note("int8 rows amx");
    let Problem { rows: m, columns: n, depth: k, .. } = product.problem;
    let (weight_rows, input_rows) = piece(product.problem.weights(), &TIMES, n, m);
    let (floats, integers);
    let added = match product.added {
        Biases::Nothing => Biases::Nothing,
        Biases::Floats(bias) => {
            floats = padded(bias)?;
            Biases::Floats(&floats)
        }
        Biases::Integers(bias) => {
            integers = padded(bias)?;
            Biases::Integers(&integers)
        }
    };
    let weight_scales = padded(&product.weight_scales)?;
    let parts = m.div_ceil(input_rows);
    pool::try_for_each(n.div_ceil(weight_rows) * parts, product.problem.work(), |at| {
        let (weight, input) = (at / parts * weight_rows, at % parts * input_rows);
        let piece = Piece {
            codes: &product.x.codes,
            k,
            inputs: input..m.min(input + input_rows),
            weights: weight..n.min(weight + weight_rows),
            unpack: |row: usize, codes: &mut [i8]| product.unpack(row, codes),
            finish: Scaled { input_scales: &product.input_scales, weight_scales: &weight_scales, added },
        };
        // SAFETY: the table asks for AMX, and `takes` for sums that fit; each piece has outputs of its own.
        unsafe { piece.run(&product.out) }
    })
}

/// Values and zeros behind them, for panels that are not whole.
fn padded<T: Copy + Default>(values: &[T]) -> Result<Vec<T>> {
    let mut all = zeroed(values.len() + UNROLL_ROWS)?;
    all[..values.len()].copy_from_slice(values);
    Ok(all)
}

/// Sums of sixteen rows of weights.
type Lanes = Line<i32, 16>;

thread_local! {
    /// Aligned memory takes longer to get than a small product.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Scratch memory of one thread.
#[derive(Default)]
struct Scratch {
    /// Rows of weights of a panel, then the tiles of all: by two panels, 64 columns and panel.
    unpacked: Vec<i8>,
    weights: Vec<Line<i8, LINE>>,
    /// Tiles of a chunk of inputs.
    inputs: Vec<Line<i8, LINE>>,
    /// Sums of a chunk of two panels, then those of all before, by two panels.
    sums: Vec<Lanes>,
    totals: Vec<Lanes>,
}

/// Turns exact sums into values.
pub(super) trait Finish {
    /// Values of sixteen rows of weights, from `weight` on, and a row of inputs.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and DQ; scales and biases must be there for whole panels.
    unsafe fn values(&self, row: usize, weight: usize, sums: __m512i) -> __m512;
}

/// A piece of a product: rows of inputs and of weights.
struct Piece<'a, U, F> {
    /// Codes of all inputs, `k` a row.
    codes: &'a [i8],
    k: usize,
    inputs: Range<usize>,
    weights: Range<usize>,
    /// Writes the codes of a row of weights.
    unpack: U,
    finish: F,
}

impl<U: Fn(usize, &mut [i8]), F: Finish> Piece<'_, U, F> {
    /// Writes the products.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, DQ and BF16, and AMX; the outputs must have the rows and columns, which nobody
    /// else may use meanwhile. A row has a column at least, and its sums fit int32.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn run(&self, out: &Outputs) -> Result<()> {
        let mut scratch = SCRATCH.take();
        // SAFETY: as the caller promises.
        unsafe {
            self.arrange_weights(&mut scratch)?;
            for first in self.inputs.clone().step_by(UNROLL_ROWS) {
                self.multiply(first..self.inputs.end.min(first + UNROLL_ROWS), &mut scratch, out)?;
            }
        }
        if scratch.weights.len() * LINE <= CACHED_BYTES && scratch.totals.len() <= CACHED_LINES {
            SCRATCH.set(scratch);
        }
        Ok(())
    }

    const fn steps(&self) -> usize {
        self.k.div_ceil(LINE)
    }

    /// Pairs of panels of sixteen rows of weights.
    fn pairs(&self) -> usize {
        self.weights.len().div_ceil(UNROLL_ROWS)
    }

    /// Writes the tiles of all weights of the piece.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    unsafe fn arrange_weights(&self, to: &mut Scratch) -> Result<()> {
        let (k, steps) = (self.k, self.steps());
        set_len(&mut to.unpacked, ROWS * k)?;
        set_len(&mut to.weights, self.pairs() * steps * UNROLL_ROWS)?;
        for panel in 0..self.weights.len().div_ceil(ROWS) {
            let first = self.weights.start + panel * ROWS;
            let rows = first..self.weights.end.min(first + ROWS);
            let unpacked = &mut to.unpacked[..rows.len() * k];
            rows.zip(unpacked.chunks_mut(k)).for_each(|(row, codes)| (self.unpack)(row, codes));
            for step in 0..steps {
                let columns = step * LINE..k.min((step + 1) * LINE);
                let at = (panel / 2 * steps + step) * UNROLL_ROWS + panel % 2 * ROWS;
                // SAFETY: as the caller promises.
                unsafe {
                    let rows = unpacked.chunks(k).map(|row| &row[columns.clone()]);
                    arrange(rows, &mut to.weights[at..at + ROWS]);
                }
            }
        }
        Ok(())
    }

    /// Writes the products of some rows of inputs, at most [`UNROLL_ROWS`].
    ///
    /// # Safety
    /// As for [`Self::run`]; the tiles of weights must be there.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn multiply(&self, rows: Range<usize>, scratch: &mut Scratch, out: &Outputs) -> Result<()> {
        // SAFETY: as the caller promises.
        let session = unsafe { RowSession::new(rows.len(), 1) };
        let (lines, pairs) = (session.lines(), self.pairs());
        let both = 2 * lines;
        let several = self.k > CHUNK;
        set_len(&mut scratch.inputs, CHUNK.min(self.k).div_ceil(LINE) * lines)?;
        set_len(&mut scratch.sums, 2 * both)?;
        set_len(&mut scratch.totals, if several { pairs * both } else { 0 })?;
        // The sums before are added or written while AMX multiplies the next.
        let mut waiting: Option<(usize, usize)> = None;
        for start in (0..self.k).step_by(CHUNK) {
            let columns = start..self.k.min(start + CHUNK);
            let steps = columns.len().div_ceil(LINE);
            for (i, row) in rows.clone().enumerate() {
                let codes = &self.codes[row * self.k..][columns.clone()];
                for (step, codes) in codes.chunks(LINE).enumerate() {
                    // SAFETY: the mask keeps inside the codes; lines are aligned.
                    unsafe {
                        let codes = _mm512_maskz_loadu_epi8(u64::MAX >> (LINE - codes.len()), codes.as_ptr());
                        let to = &mut scratch.inputs[step * lines + i];
                        _mm512_store_si512(to.0.as_mut_ptr().cast(), codes);
                    }
                }
            }
            for pair in 0..pairs {
                let at = (pair * self.steps() + start / LINE) * UNROLL_ROWS;
                let half = (pair + start / CHUNK * pairs) & 1;
                let factors = RowFactors {
                    weights: scratch.weights[at..].as_ptr().cast(),
                    limbs: 1,
                    inputs: scratch.inputs.as_ptr().cast(),
                    steps,
                };
                // SAFETY: the tiles of weights and inputs of these steps; as the caller promises.
                unsafe {
                    session.multiply_bytes(&factors, &mut scratch.sums[half * both..][..both]);
                    if let Some((pair, start)) = waiting.replace((pair, start)) {
                        self.take(
                            (pair, start),
                            rows.clone(),
                            &mut scratch.sums[(1 - half) * both..][..both],
                            &mut scratch.totals,
                            out,
                        );
                    }
                }
            }
        }
        if let Some((pair, start)) = waiting {
            let half = (pair + start / CHUNK * pairs) & 1;
            // SAFETY: as the caller promises.
            unsafe {
                self.take((pair, start), rows, &mut scratch.sums[half * both..][..both], &mut scratch.totals, out)
            };
        }
        Ok(())
    }

    /// Adds the sums of a chunk to those before, or writes what all come to.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn take(
        &self,
        (pair, start): (usize, usize),
        rows: Range<usize>,
        sums: &mut [Lanes],
        totals: &mut [Lanes],
        out: &Outputs,
    ) {
        let both = sums.len();
        if self.k > CHUNK {
            let totals = &mut totals[pair * both..][..both];
            for (sum, total) in sums.iter_mut().zip(totals) {
                // SAFETY: lines are aligned and hold sixteen sums.
                unsafe {
                    let mut all = _mm512_load_si512(sum.0.as_ptr().cast());
                    if start > 0 {
                        all = _mm512_add_epi32(all, _mm512_load_si512(total.0.as_ptr().cast()));
                    }
                    _mm512_store_si512(total.0.as_mut_ptr().cast(), all);
                    _mm512_store_si512(sum.0.as_mut_ptr().cast(), all);
                }
            }
        }
        if start + CHUNK < self.k {
            return;
        }
        let first = self.weights.start + pair * UNROLL_ROWS;
        let lanes = u32::MAX >> (UNROLL_ROWS - UNROLL_ROWS.min(self.weights.end - first));
        let out = out.lanes(rows.start, first, lanes);
        // SAFETY: as the caller promises.
        unsafe {
            match (out.dtype.bytes(), lanes) {
                (4, u32::MAX) => self.write::<false, true>(first, rows, sums, &out),
                (4, _) => self.write::<false, false>(first, rows, sums, &out),
                (_, u32::MAX) => self.write::<true, true>(first, rows, sums, &out),
                _ => self.write::<true, false>(first, rows, sums, &out),
            }
        }
    }

    /// Writes the outputs of two panels of weights from `first` on.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn write<const HALF: bool, const FULL: bool>(
        &self,
        first: usize,
        rows: Range<usize>,
        sums: &[Lanes],
        out: &OutputLanes,
    ) {
        let (low, high) = sums.split_at(sums.len() / 2);
        for (i, ((row, low), high)) in rows.zip(low).zip(high).enumerate() {
            // SAFETY: as the caller promises; lines are aligned and hold sixteen sums.
            unsafe {
                let low = self.finish.values(row, first, _mm512_load_si512(low.0.as_ptr().cast()));
                let high = self.finish.values(row, first + ROWS, _mm512_load_si512(high.0.as_ptr().cast()));
                out.write::<HALF, FULL>(i, [low, high]);
            }
        }
    }
}
