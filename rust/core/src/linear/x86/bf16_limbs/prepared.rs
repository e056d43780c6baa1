//! [`PreparedTiles`]: the limbs of weights, all of them from one product to the next or some for a piece of one, and products with
//! them on AMX.
//!
//! Here the inputs are the first factor of the tiles: they are written as they lie, sums come out by row, and a few rows of
//! inputs take a few rows of tiles. Every sum has the summands of [`super::Product`] in the same order, so its bits too.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::inputs::{self, input_limbs};
use super::weights::{self, Pieces, Weights};
use super::{CHUNK, FOLD, PAIR, STEP, UNIT, inside, upper, upper_halves};
use crate::codec::rows::Rows;
use crate::codec::{DType, Values, ValuesMut, set_len};
use crate::error::Result;
use crate::linear::output::{Biased, Inputs, Outputs};
use crate::linear::prepared::{AnyWeights, Preparation, PreparedWeights};
use crate::linear::problem::Problem;
use crate::linear::ran;
use crate::linear::x86::bf16_codes_vbmi::Table;
use crate::linear::x86::code_tables::table;
use crate::linear::x86::output_lanes::BiasedLanes;
use crate::simd::amx::rows::{RowFactors, RowSession};
use crate::simd::tiles::{LINE, ROWS, Tiles};
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Level, Line};

/// Rows of inputs that are multiplied at a time.
const UNROLL_ROWS: usize = 2 * ROWS;
/// Lines of scratch memory, and bytes of weights, that a thread keeps at most.
const CACHED_LINES: usize = 1 << 14;
const CACHED_BYTES: usize = 4 << 20;

thread_local! {
    /// Aligned memory takes longer to get than a small product.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static UNPACKED: RefCell<(weights::Scratch, Vec<Line<u8, LINE>>)> = RefCell::default();
    static PREPARED: RefCell<PreparedTiles> = RefCell::default();
}

/// Scratch memory of one thread.
#[derive(Default)]
struct Scratch {
    /// Sums of products of two panels, and those before.
    products: Vec<Floats>,
    /// What they add up to.
    totals: Vec<Floats>,
    /// Tiles of inputs.
    tiles: Vec<Floats>,
    /// Rows of inputs in float32.
    wide: Vec<f32>,
}

/// A matrix as tiles of bfloat16 limbs.
#[derive(Debug, Default)]
pub(in crate::linear) struct PreparedTiles {
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

impl PreparedTiles {
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
        // SAFETY: as the caller promises.
        unsafe { Self::in_place_of(Self::default(), weights, 0..weights.n) }
    }

    /// The same of some rows of weights, in the memory of others.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// As for [`Self::new`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn in_place_of(others: Self, weights: &Weights<'_>, rows: Range<usize>) -> Result<Option<Self>> {
        let (&Weights { k, limbs, chunk_columns, .. }, n) = (weights, rows.len());
        let (units, steps, pieces) = (n.div_ceil(UNIT), k.div_ceil(STEP), weights.pieces());
        let groups = pieces.groups(k);
        let mut prepared = Self { pieces, n, k, limbs, ..others };
        set_len(&mut prepared.tiles, units * steps * limbs * PAIR)?;
        set_len(&mut prepared.factors, units * UNIT)?;
        set_len(&mut prepared.scales, units * groups * UNIT)?;
        let (mut scratch, mut tiles) = UNPACKED.take();
        at_least(&mut tiles, weights.lines())?;
        for unit in 0..units {
            let (first, count) = (rows.start + unit * UNIT, UNIT.min(n - unit * UNIT));
            // SAFETY: as the caller promises.
            let Some(factors) = (unsafe { weights.begin(first, count, &mut scratch)? }) else { return Ok(None) };
            prepared.factors[unit * UNIT..][..UNIT].copy_from_slice(&factors);
            let scales = &mut prepared.scales[unit * groups * UNIT..][..groups * UNIT];
            scales.copy_from_slice(&scratch.groups.scales[..groups * UNIT]);
            for start in (0..k).step_by(chunk_columns) {
                let columns = start..k.min(start + chunk_columns);
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
                        for (to, line) in prepared.tiles[to..to + ROWS].iter_mut().zip(&transpose(lines)) {
                            _mm512_store_ps(to.0.as_mut_ptr().cast(), *line);
                        }
                    }
                }
            }
        }
        UNPACKED.set((scratch, tiles));
        Ok(Some(prepared))
    }

    /// Calls `work` with the limbs of some rows of weights, in memory that the thread keeps if it is not much; `None` where the
    /// magnitude of some is extreme.
    ///
    /// # Errors
    /// Where memory is short, and those of the work.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(in crate::linear) unsafe fn with<T>(
        weights: &Weights<'_>,
        rows: Range<usize>,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<Option<T>> {
        // SAFETY: as the caller promises.
        let Some(prepared) = (unsafe { Self::in_place_of(PREPARED.take(), weights, rows)? }) else { return Ok(None) };
        let done = work(&prepared)?;
        if prepared.size() <= CACHED_BYTES {
            PREPARED.set(prepared);
        }
        Ok(Some(done))
    }

    /// Bytes that the limbs take.
    fn size(&self) -> usize {
        size_of_val(&*self.tiles) + size_of_val(&*self.factors) + size_of_val(&*self.scales)
    }

    /// Writes the products of some rows of inputs to their outputs, from a column on: not those of rows of extreme magnitude,
    /// which are added to `left`.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, DQ and BF16, and AMX; the inputs must have the rows, of `k` values each, and the
    /// outputs the rows and columns, which nobody else may use meanwhile.
    pub(in crate::linear) unsafe fn multiply_rows(
        &self,
        x: &InputView<'_>,
        rows: Range<usize>,
        column: usize,
        out: &Biased<'_>,
        left: &mut Vec<usize>,
    ) -> Result<()> {
        for first in rows.clone().step_by(UNROLL_ROWS) {
            let chunk = first..rows.end.min(first + UNROLL_ROWS);
            // SAFETY: as the caller promises.
            let bits = unsafe { self.multiply_chunk(x, chunk.clone(), column, out)? };
            left.extend(chunk.filter(|row| bits >> (row - first) & 1 == 1));
        }
        Ok(())
    }

    /// The same of some rows, at most [`UNROLL_ROWS`]: a bit for each that is left.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// As for [`Self::multiply_rows`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn multiply_chunk(
        &self,
        x: &InputView<'_>,
        rows: Range<usize>,
        column: usize,
        out: &Biased<'_>,
    ) -> Result<u32> {
        // SAFETY: as the caller promises.
        let session = unsafe { RowSession::new(rows.len(), x.limbs) };
        let (both, pairs) = (2 * session.lines(), self.n.div_ceil(PAIR));
        let mut scratch = SCRATCH.take();
        let (chunk_columns, count) = self.chunks();
        set_len(&mut scratch.products, 2 * both)?;
        at_least(&mut scratch.totals, if count > 1 { pairs } else { 1 } * both)?;
        at_least(&mut scratch.tiles, chunk_columns.min(self.k).div_ceil(STEP) * session.step_bytes() / LINE)?;
        x.make(rows.clone(), &mut scratch.wide)?;
        let mut to = To { out, column, first: rows.start, rows: u32::MAX >> (u32::BITS as usize - rows.len()) };
        let (all, mut waiting) = (to.rows, None);
        for start in (0..self.k).step_by(chunk_columns) {
            let chunk = start..self.k.min(start + chunk_columns);
            // SAFETY: as the caller promises; there is room for all limbs of these rows, and for their sums.
            unsafe {
                to.rows &= !x.put(rows.clone(), chunk.clone(), &session, &mut scratch);
                self.run(chunk, &session, &mut scratch, &mut waiting, &to);
            }
        }
        // SAFETY: as above.
        unsafe { self.finish(waiting, both, &mut scratch, &to) };
        if scratch.tiles.len() + scratch.totals.len() + scratch.wide.len() / ROWS <= CACHED_LINES {
            SCRATCH.set(scratch);
        }
        Ok(all & !to.rows)
    }

    /// Columns that meet all weights before the next do, and how many times: their inputs stay in the L1 cache, or near it.
    fn chunks(&self) -> (usize, usize) {
        let chunk_columns = match self.pieces {
            Pieces::Plain(columns) => columns,
            Pieces::Scaled { columns, .. } => (FOLD / columns * columns).max(columns),
        };
        (chunk_columns, self.k.div_ceil(chunk_columns))
    }

    /// Columns whose products are added up before they are scaled.
    const fn columns(&self) -> usize {
        match self.pieces {
            Pieces::Plain(columns) | Pieces::Scaled { columns, .. } => columns,
        }
    }

    /// Adds the products of a chunk of columns whose tiles are there, but for those of the last piece, which is `waiting`.
    ///
    /// # Safety
    /// As for [`Self::multiply_rows`]; there must be room for two panels' sums of products, twice, and their totals, of all pairs
    /// if there are several chunks.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn run(
        &self,
        chunk: Range<usize>,
        session: &RowSession,
        scratch: &mut Scratch,
        waiting: &mut Option<Piece>,
        to: &To<'_>,
    ) {
        let both = 2 * session.lines();
        for pair in 0..self.n.div_ceil(PAIR) {
            for start in chunk.clone().step_by(self.columns()) {
                let end = chunk.end.min(start + self.columns());
                let at = (pair * self.k.div_ceil(STEP) + start / STEP) * self.limbs;
                // Products go where those that wait do not lie.
                let half = waiting.map_or(0, |piece| 1 - piece.half);
                // SAFETY: the tiles of weights and inputs of these steps; as the caller promises.
                unsafe {
                    let inputs = scratch.tiles.as_ptr().cast::<u8>();
                    let factors = RowFactors {
                        weights: self.tiles[at * PAIR..].as_ptr().cast(),
                        limbs: self.limbs,
                        inputs: inputs.add((start - chunk.start) / STEP * session.step_bytes()),
                        steps: end.div_ceil(STEP) - start / STEP,
                    };
                    // The products before are added while AMX multiplies these.
                    session.multiply(&factors, &mut scratch.products[half * both..][..both]);
                    self.finish(waiting.replace(Piece { pair, start, half }), both, scratch, to);
                }
            }
        }
    }

    /// Adds the products of a piece of columns to the totals of two panels, each column times its scale; those of the last
    /// piece become outputs.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn finish(&self, piece: Option<Piece>, both: usize, scratch: &mut Scratch, to: &To<'_>) {
        let Some(Piece { pair, start, half }) = piece else { return };
        let (groups, first) = (self.scales.len() / self.factors.len(), pair * PAIR);
        let scales = match self.pieces {
            Pieces::Scaled { group, .. } => two(&self.scales[(pair * groups + start / group) * PAIR..][..PAIR]),
            Pieces::Plain(_) => [_mm512_set1_ps(1.0); 2],
        };
        let products = scratch.products[half * both..][..both].as_ptr();
        let totals = if self.chunks().1 > 1 { &mut scratch.totals[pair * both..] } else { &mut *scratch.totals };
        let totals = totals[..both].as_mut_ptr();
        let sums = Sums { products, totals, scales, rows: both / 2, fresh: start == 0 };
        // SAFETY: there are products and totals of all rows; outputs are as the caller promises.
        unsafe {
            if start + self.columns() < self.k {
                return sums.keep();
            }
            let factors = two(&self.factors[first..first + PAIR]);
            let lanes = u32::MAX >> (PAIR - PAIR.min(self.n - first));
            let out = to.out.lanes(to.first, to.column + first, lanes);
            match (out.out.dtype, lanes) {
                (DType::F32, u32::MAX) => sums.write::<false, true>(factors, to.rows, &out),
                (DType::F32, _) => sums.write::<false, false>(factors, to.rows, &out),
                (_, u32::MAX) => sums.write::<true, true>(factors, to.rows, &out),
                _ => sums.write::<true, false>(factors, to.rows, &out),
            }
        }
    }
}

/// A piece of columns that was multiplied.
#[derive(Clone, Copy)]
struct Piece {
    pair: usize,
    /// Its first column.
    start: usize,
    /// Where its products are: one half of the room for them, or the other.
    half: usize,
}

/// Products of a piece of columns that are to be added, of two panels.
struct Sums {
    products: *const Floats,
    totals: *mut Floats,
    scales: [__m512; 2],
    rows: usize,
    /// True for the first piece.
    fresh: bool,
}

impl Sums {
    /// What a row adds up to.
    ///
    /// # Safety
    /// The row must be there.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn of(&self, row: usize) -> [__m512; 2] {
        // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
        unsafe {
            let load = |line: *const Floats| _mm512_load_ps(line.cast());
            let mut old = [_mm512_setzero_ps(); 2];
            if !self.fresh {
                old = [load(self.totals.add(row)), load(self.totals.add(self.rows + row))];
            }
            let low = _mm512_fmadd_ps(load(self.products.add(row)), self.scales[0], old[0]);
            [low, _mm512_fmadd_ps(load(self.products.add(self.rows + row)), self.scales[1], old[1])]
        }
    }

    /// Keeps what all rows add up to.
    ///
    /// # Safety
    /// All rows must be there.
    #[target_feature(enable = "avx512f")]
    unsafe fn keep(&self) {
        for row in 0..self.rows {
            // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
            unsafe {
                let [low, high] = self.of(row);
                _mm512_store_ps(self.totals.add(row).cast(), low);
                _mm512_store_ps(self.totals.add(self.rows + row).cast(), high);
            }
        }
    }

    /// Writes the outputs of the rows that have a bit.
    ///
    /// # Safety
    /// As for [`PreparedTiles::run`]; all rows must be there.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn write<const HALF: bool, const FULL: bool>(&self, factors: [__m512; 2], rows: u32, out: &BiasedLanes) {
        for row in 0..self.rows {
            if rows >> row & 1 == 0 {
                continue;
            }
            // SAFETY: as the caller promises.
            unsafe {
                let [low, high] = self.of(row);
                out.write::<HALF, FULL>(row, [_mm512_mul_ps(low, factors[0]), _mm512_mul_ps(high, factors[1])]);
            }
        }
    }
}

/// The values of two panels.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
fn two(values: &[f32]) -> [__m512; 2] {
    let (low, high) = values[..PAIR].split_at(ROWS);
    // SAFETY: both have sixteen values.
    unsafe { [_mm512_loadu_ps(low.as_ptr()), _mm512_loadu_ps(high.as_ptr())] }
}

/// Where the outputs of some rows of inputs go.
struct To<'a> {
    out: &'a Biased<'a>,
    /// The column of the first row of weights.
    column: usize,
    /// The first row.
    first: usize,
    /// A bit for each row that is written.
    rows: u32,
}

/// How weights are prepared.
pub(in crate::linear) const PREPARATION: Preparation = Preparation { bytes, prepare };

/// The weights of a problem, for inputs of float32.
fn weights_of<'a>(problem: &Problem, table: Option<&'a Table>, rows: &'a Rows<'a>) -> Weights<'a> {
    Weights::new(problem.weight, table, rows, problem.columns, Tiles::Amx, DType::F32)
}

fn bytes(problem: &Problem, rows: &Rows<'_>) -> usize {
    PreparedTiles::bytes(&weights_of(problem, table(problem.weight).as_deref(), rows))
}

fn prepare(problem: &Problem, rows: &Rows<'_>) -> Result<AnyWeights> {
    let table = table(problem.weight);
    // SAFETY: the table of kernels asks for AMX.
    let tiles = unsafe { PreparedTiles::new(&weights_of(problem, table.as_deref(), rows))? };
    Ok(tiles.map(|tiles| Box::new(tiles) as Box<dyn PreparedWeights>))
}

impl PreparedWeights for PreparedTiles {
    fn nbytes(&self) -> usize {
        self.size()
    }

    fn multiply(&self, level: Level, x: &Inputs<'_>, bias: Option<&[f32]>, out: &mut [f32]) -> Result<bool> {
        ran::note("bfloat16 limbs prepared amx");
        let m = out.len().checked_div(self.n).unwrap_or(0);
        let x = InputView::new(Values::F32(x.values()), self.k, x.stride, DType::F32);
        let mut out = ValuesMut::F32(out);
        let out = Biased::new(Outputs::new(&mut out, self.n, level), bias.unwrap_or(&[]));
        let mut left = Vec::new();
        // SAFETY: weights are prepared where there is AMX, for a level; the caller has checked all lengths.
        unsafe { self.multiply_rows(&x, 0..m, 0, &out, &mut left)? };
        Ok(left.is_empty())
    }
}

/// Makes a vector at least so long.
fn at_least<T: Clone + Default>(all: &mut Vec<T>, count: usize) -> Result<()> {
    if all.len() < count { set_len(all, count) } else { Ok(()) }
}

/// Writes some rows of inputs in float32, one after the other.
pub(in crate::linear) type Fill<'a> = dyn Fn(Range<usize>, &mut [f32]) -> Result<()> + Sync + 'a;

/// Rows of inputs that are multiplied with [`PreparedTiles`].
#[derive(Clone, Copy)]
pub(in crate::linear) struct InputView<'a> {
    from: From<'a>,
    /// Columns.
    k: usize,
    limbs: usize,
}

#[derive(Clone, Copy)]
enum From<'a> {
    /// Rows that lie so many values apart.
    Values(Values<'a>, usize),
    /// Rows that are written when they are needed.
    Written(&'a Fill<'a>),
}

impl<'a> InputView<'a> {
    /// Rows of `k` values, `stride` from one to the next, which are all numbers of the dtype `held`.
    pub(in crate::linear) const fn new(values: Values<'a>, k: usize, stride: usize, held: DType) -> Self {
        Self { from: From::Values(values, stride), k, limbs: input_limbs(held) }
    }

    /// Rows that `fill` writes, of numbers of the dtype `held`.
    pub(in crate::linear) const fn written(fill: &'a Fill<'a>, k: usize, held: DType) -> Self {
        Self { from: From::Written(fill), k, limbs: input_limbs(held) }
    }

    pub(in crate::linear) const fn limbs(&self) -> usize {
        self.limbs
    }

    /// Writes some rows in float32, `stride` values from one to the next.
    ///
    /// # Errors
    /// Those of rows that are written.
    pub(in crate::linear) fn widen(&self, rows: Range<usize>, to: &mut [f32], stride: usize) -> Result<()> {
        for (row, to) in rows.zip(to.chunks_mut(stride)) {
            match self.from {
                // SAFETY: the row is sliced from the values; the level is one of this processor.
                From::Values(values, apart) => unsafe {
                    values.range(row * apart..row * apart + self.k).src().widen(0, &mut to[..self.k], Level::current());
                },
                From::Written(fill) => fill(row..row + 1, &mut to[..self.k])?,
            }
        }
        Ok(())
    }

    /// Makes some rows in float32, where limbs are not made of the values as they lie.
    ///
    /// # Errors
    /// Where memory is short, and those of rows that are written.
    fn make(&self, rows: Range<usize>, wide: &mut Vec<f32>) -> Result<()> {
        match self.from {
            From::Values(Values::F32(_), _) => return Ok(()),
            From::Values(Values::BF16(_), _) if self.limbs == 1 => return Ok(()),
            From::Values(..) | From::Written(_) => at_least(wide, rows.len() * self.k)?,
        }
        match self.from {
            From::Values(..) => self.widen(rows, wide, self.k),
            From::Written(fill) => fill(rows.clone(), &mut wide[..rows.len() * self.k]),
        }
    }

    /// Writes the limbs of some columns of some rows as tiles: by step, limb and row; a bit for each row of extreme magnitude,
    /// which becomes zeros.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW; [`Self::make`] must have made the rows, and there must be room for their
    /// tiles.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(&self, rows: Range<usize>, columns: Range<usize>, session: &RowSession, to: &mut Scratch) -> u32 {
        let mut left = 0;
        let place = Place { limb: session.lines() * LINE, step: session.step_bytes(), limbs: self.limbs };
        for (i, row) in rows.enumerate() {
            let of = |row: usize, stride: usize| row * stride + columns.start..row * stride + columns.end;
            // SAFETY: as the caller promises.
            unsafe {
                let line = to.tiles.as_mut_ptr().cast::<u8>().add(i * LINE);
                let inside = match self.from {
                    From::Values(Values::F32(x), stride) => put_floats(&x[of(row, stride)], &place, line),
                    From::Values(Values::BF16(x), stride) if self.limbs == 1 => {
                        put_halves(&x[of(row, stride)], &place, line)
                    }
                    From::Values(..) | From::Written(_) => put_floats(&to.wide[of(i, self.k)], &place, line),
                };
                if !inside {
                    left |= 1 << i;
                    put_zeros(columns.len(), &place, line);
                }
            }
        }
        left
    }
}

/// Bytes from one limb of a row to the next, and from one step to the next.
struct Place {
    limb: usize,
    step: usize,
    limbs: usize,
}

/// Writes the limbs of a row of zeros.
///
/// # Safety
/// As for [`put_floats`].
#[target_feature(enable = "avx512f")]
unsafe fn put_zeros(columns: usize, place: &Place, to: *mut u8) {
    for step in 0..columns.div_ceil(STEP) {
        for limb in 0..place.limbs {
            // SAFETY: as the caller promises.
            unsafe { _mm512_store_si512(to.add(step * place.step + limb * place.limb).cast(), _mm512_setzero_si512()) };
        }
    }
}

/// Writes the limbs of a row; false, with nothing written, where magnitudes are extreme.
///
/// # Safety
/// The processor must have AVX-512 F and BW; there must be room for all limbs, in cache lines.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn put_floats(row: &[f32], place: &Place, to: *mut u8) -> bool {
    // SAFETY: as the caller promises; masks keep inside the row.
    unsafe {
        if !inside(row, &inputs::MODERATE) {
            return false;
        }
        for (step, columns) in row.chunks(STEP).enumerate() {
            let lanes = u32::MAX >> (STEP - columns.len());
            let mut low = _mm512_maskz_loadu_ps(lanes as u16, columns.as_ptr());
            let mut high = _mm512_maskz_loadu_ps((lanes >> ROWS) as u16, columns.as_ptr().wrapping_add(ROWS));
            for limb in 0..place.limbs {
                _mm512_store_si512(to.add(step * place.step + limb * place.limb).cast(), upper_halves(low, high));
                low = _mm512_sub_ps(low, upper(low));
                high = _mm512_sub_ps(high, upper(high));
            }
        }
    }
    true
}

/// The same of bfloat16.
///
/// # Safety
/// As for [`put_floats`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn put_halves(row: &[u16], place: &Place, to: *mut u8) -> bool {
    // SAFETY: as the caller promises; masks keep inside the row.
    unsafe {
        let magnitude = _mm512_set1_epi16(0x7fff);
        for (chunk, columns) in row.chunks(CHUNK).enumerate() {
            let mut most = _mm512_setzero_si512();
            for (step, columns) in columns.chunks(STEP).enumerate() {
                let bits = _mm512_maskz_loadu_epi16(u32::MAX >> (STEP - columns.len()), columns.as_ptr().cast());
                most = _mm512_max_epu16(most, _mm512_and_si512(bits, magnitude));
                _mm512_store_si512(to.add((chunk * (CHUNK / STEP) + step) * place.step).cast(), bits);
            }
            // As 32 bits, the larger half above the other.
            let most = _mm512_max_epu32(_mm512_slli_epi32::<16>(most), most);
            let most = _mm512_reduce_max_epu32(most) & 0xffff_0000;
            if most != 0 && !inputs::MODERATE.contains(&most) {
                return false;
            }
        }
    }
    true
}
