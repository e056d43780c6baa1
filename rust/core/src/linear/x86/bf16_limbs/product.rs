//! [`Product`]: weights decoded for each call, a unit of rows at a time.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::inputs::Tiled;
use super::weights::{self, Pieces, Weights, shared};
use super::{FOLD, PAIR, STEP};
use crate::codec::set_len;
use crate::error::Result;
use crate::linear::limbs::MAX_LIMBS;
use crate::linear::output::Inputs;
use crate::pool;
use crate::simd::Line;
use crate::simd::tiles::{Factors, FloatSums, LINE, ROWS, ScaledProducts, Session, Step, TILE, add_scaled};
use crate::simd::transpose::transpose;

/// Pairs of panels in one unit of work, at most: they share inputs, and rows of outputs are written in longer pieces.
const MAX_PAIRS: usize = 8;
/// Bytes of decoded weights that stay in the L2 cache while all inputs pass by: of more, columns take turns.
const STORED: usize = 1 << 20;
/// Bytes of weights that a thread keeps room for, at most.
const MAX_CACHED_BYTES: usize = 4 << 20;
/// Passes over the inputs whose sums stay in the cache while pieces of columns take turns.
const CACHED_PASSES: usize = 8;
/// The same while parts of the weights take turns, which are decoded again for more.
const MAX_CACHED_PASSES: usize = 32;

thread_local! {
    /// Memory that is new takes longer to get than a small product.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A product of packed weights with many rows of inputs.
pub(in crate::linear) struct Product<'a> {
    weights: Weights<'a>,
    x: Tiled,
    m: usize,
    /// Pairs of panels in a unit of work.
    pairs: usize,
    /// Pieces of columns whose weights are decoded at a time.
    part: usize,
}

/// Scratch memory of one thread.
#[derive(Default)]
struct Scratch {
    /// By pair of panels.
    weights: Vec<weights::Scratch>,
    /// By pair of panels, then piece of columns of a part.
    tiles: Vec<Line<u8, LINE>>,
    /// By pass, then pair of panels.
    sums: Vec<FloatSums>,
    /// Those of the last [`FOLD`] columns.
    running: Vec<FloatSums>,
    /// Accumulators before scaling.
    products: ScaledProducts,
    /// Outputs of sixteen rows of inputs, by row.
    values: Vec<f32>,
}

impl<'a> Product<'a> {
    /// Arranges inputs, but for rows of extreme magnitudes.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    pub(in crate::linear) unsafe fn new(weights: Weights<'a>, x: &Inputs<'_>, m: usize) -> Result<Self> {
        // SAFETY: as the caller promises.
        let x = unsafe { Tiled::new(x, m, weights.k, x.dtype)? };
        Ok(Self::of(weights, x, m))
    }

    /// Arranges the codes of inputs that were encoded as `x`, but for rows of extreme scales and those that `skip` tells.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI.
    pub(in crate::linear) unsafe fn encoded(
        weights: Weights<'a>,
        x: &Weights<'_>,
        skip: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        Ok(Self::of(weights, unsafe { Tiled::encoded(x, skip)? }, x.n))
    }

    /// Chooses units of work. No bit of a result depends on them.
    fn of(weights: Weights<'a>, x: Tiled, m: usize) -> Self {
        // Threads wait for one another less where there are several units for each.
        let enough = weights.n.div_ceil(PAIR) / (3 * pool::num_threads());
        let pieces = weights.k.div_ceil(weights.chunk_columns).max(1);
        let piece = weights.lines() * LINE;
        // Parts end where sums are added up.
        let least = match weights.pieces() {
            Pieces::Plain(columns) => columns.div_ceil(weights.chunk_columns),
            Pieces::Scaled { .. } => 1,
        };
        let pairs = enough.min(STORED / (least * piece).max(1)).clamp(1, MAX_PAIRS);
        let part = (STORED / (pairs * piece).max(1) / least * least).max(least).min(pieces);
        Self { weights, x, m, pairs, part }
    }

    /// Rows of weights in a unit of work.
    pub(in crate::linear) const fn unit(&self) -> usize {
        self.pairs * PAIR
    }

    /// Columns whose products are scaled together before they are added up, if they are.
    fn scaled(&self) -> Option<usize> {
        let weights = match self.weights.pieces() {
            Pieces::Plain(_) => None,
            Pieces::Scaled { columns, .. } => Some(columns),
        };
        match (weights, self.x.group) {
            (None, None) => None,
            (columns, group) => Some(shared(columns.unwrap_or(self.weights.chunk_columns), group.unwrap_or(0))),
        }
    }

    /// The rows of inputs of extreme magnitudes, which are left to others.
    pub(in crate::linear) fn left(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.m).filter(|&row| !self.x.has(row))
    }

    /// Rows of inputs, rows of weights, columns.
    pub(in crate::linear) const fn sizes(&self) -> (usize, usize, usize) {
        (self.m, self.weights.n, self.weights.k)
    }

    /// Passes over the inputs.
    const fn passes(&self) -> usize {
        self.m.div_ceil(ROWS * self.x.across)
    }

    /// Passes over the inputs whose sums are kept.
    fn cached_passes(&self) -> usize {
        if self.part < self.pieces().len() { MAX_CACHED_PASSES } else { CACHED_PASSES }
    }

    /// Room for one thread's work: what it had before.
    fn scratch(&self) -> Result<Scratch> {
        let mut scratch = SCRATCH.take();
        scratch.weights.resize_with(self.pairs, weights::Scratch::default);
        set_len(&mut scratch.tiles, self.pairs * self.part * self.weights.lines())?;
        set_len(&mut scratch.sums, self.cached_passes().min(self.passes()) * self.pairs)?;
        set_len(&mut scratch.running, CACHED_PASSES.min(self.passes()) * self.pairs)?;
        set_len(&mut scratch.values, ROWS * self.unit())?;
        Ok(scratch)
    }

    /// Calls `write` with rows of inputs but those [`Self::left`], and their products with rows of weights, which are those of
    /// the unit of work from `first` on. A bit for each pair of panels that were multiplied: the others have weights of extreme
    /// magnitude, and nothing of them is written.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI, and `session` be one for bfloat16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn run(
        &self,
        session: &Session,
        first: usize,
        mut write: impl FnMut(usize, usize, &mut [f32]),
    ) -> Result<u32> {
        let mut scratch = self.scratch()?;
        let count = self.unit().min(self.weights.n - first);
        let pairs = count.div_ceil(PAIR);
        // SAFETY: as the caller promises.
        let mut factors = unsafe { self.begin(first, count, &mut scratch)? };
        let all: Vec<_> = self.pieces().collect();
        for begin in (0..self.passes()).step_by(self.cached_passes()) {
            let passes = begin..self.passes().min(begin + self.cached_passes());
            scratch.sums.fill(FloatSums::default());
            for part in all.chunks(self.part) {
                if begin == 0 || part.len() < all.len() {
                    // SAFETY: as the caller promises.
                    unsafe { self.read(first, count, part, &mut scratch, &mut factors) };
                }
                for begin in passes.clone().step_by(CACHED_PASSES) {
                    let chunk = begin..passes.end.min(begin + CACHED_PASSES);
                    for (piece, columns) in part.iter().enumerate() {
                        let columns = columns.clone();
                        // SAFETY: as the caller promises; the weights were just read.
                        unsafe { self.add(session, &mut scratch, columns, piece, chunk.clone(), &factors[..pairs]) };
                    }
                }
            }
            for (sums, pass) in scratch.sums.chunks(self.pairs).zip(passes) {
                let sums = &sums[..pairs];
                for tile in 0..self.x.across {
                    let row = (pass * self.x.across + tile) * ROWS;
                    if row >= self.m {
                        break;
                    }
                    // SAFETY: as the caller promises.
                    unsafe { self.values(sums, tile, row, &factors, &mut scratch.values) };
                    let values = scratch.values.chunks_mut(self.unit()).enumerate().take(self.m - row);
                    for (i, values) in values.filter(|(i, _)| self.x.has(row + i)) {
                        if factors[..pairs].iter().all(Option::is_some) {
                            write(row + i, first, &mut values[..count]);
                            continue;
                        }
                        for pair in (0..pairs).filter(|pair| factors[*pair].is_some()) {
                            let columns = pair * PAIR..count.min((pair + 1) * PAIR);
                            write(row + i, first + columns.start, &mut values[columns]);
                        }
                    }
                }
            }
        }
        if size_of_val(&*scratch.tiles) <= MAX_CACHED_BYTES {
            SCRATCH.set(scratch);
        }
        Ok(factors.iter().enumerate().fold(0, |bits, (pair, factors)| bits | u32::from(factors.is_some()) << pair))
    }

    /// Columns whose tiles are written together.
    fn pieces(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        let Weights { k, chunk_columns, .. } = self.weights;
        (0..k).step_by(chunk_columns).map(move |start| start..k.min(start + chunk_columns))
    }

    /// Reads the scales of `count` rows of weights from `first` on: the factors of sums by pair of panels, but of pairs of
    /// extreme magnitude.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn begin(&self, first: usize, count: usize, to: &mut Scratch) -> Result<[Option<[f32; PAIR]>; MAX_PAIRS]> {
        let mut all = [None; MAX_PAIRS];
        for ((start, scratch), factors) in (0..count).step_by(PAIR).zip(&mut to.weights).zip(&mut all) {
            // SAFETY: as the caller promises.
            *factors = unsafe { self.weights.begin(first + start, PAIR.min(count - start), scratch)? };
        }
        Ok(all)
    }

    /// Reads some pieces of columns of those rows; pairs of extreme magnitude lose their factors.
    ///
    /// # Safety
    /// As for [`Self::run`]; the rows must be those of [`Self::begin`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn read(
        &self,
        first: usize,
        count: usize,
        pieces: &[Range<usize>],
        to: &mut Scratch,
        factors: &mut [Option<[f32; PAIR]>],
    ) {
        let lines = self.weights.lines();
        let of_pairs = to.tiles.chunks_mut(self.part * lines).zip(&mut to.weights).zip(factors);
        for (start, ((tiles, scratch), factors)) in (0..count).step_by(PAIR).zip(of_pairs) {
            let (first, count) = (first + start, PAIR.min(count - start));
            for (columns, tiles) in pieces.iter().zip(tiles.chunks_mut(lines)) {
                // SAFETY: as the caller promises.
                if factors.is_some() && !unsafe { self.weights.put(first, count, columns.clone(), scratch, tiles) } {
                    *factors = None;
                }
            }
        }
    }

    /// Adds the products of a piece of columns, of a number in its part, to the sums of some passes and of the pairs that
    /// have factors.
    ///
    /// # Safety
    /// As for [`Self::run`]; the weights must be there.
    unsafe fn add(
        &self,
        session: &Session,
        scratch: &mut Scratch,
        columns: Range<usize>,
        piece: usize,
        passes: Range<usize>,
        factors: &[Option<[f32; PAIR]>],
    ) {
        let Weights { k, limbs, chunk_columns, .. } = self.weights;
        let (start, steps) = (columns.start, columns.len().div_ceil(STEP));
        let (panel, list, scaled) = (steps * limbs * TILE, self.steps(steps), self.scaled());
        let group = if let Pieces::Scaled { group, .. } = self.weights.pieces() { Some(group) } else { None };
        // Of the pieces of some columns, the groups of weights and of inputs.
        let of = |group: Option<usize>, column| group.map_or(0, |group| column / group);
        let pieces = columns.clone().step_by(scaled.unwrap_or(chunk_columns));
        let groups: Vec<_> = pieces.map(|column| (of(group, column), of(self.x.group, column))).collect();
        let Scratch { weights, tiles, sums, running, products, .. } = scratch;
        let first_sums = passes.start % self.cached_passes() * self.pairs;
        let all = sums[first_sums..].chunks_mut(self.pairs).zip(running.chunks_mut(self.pairs));
        let lines = self.weights.lines();
        for (pass, (sums, running)) in passes.zip(all) {
            let inputs = &self.x.lines[pass * self.x.pass + start / STEP * self.x.step..];
            let of_pairs = tiles.chunks(lines * self.part).zip(&*weights).zip(factors);
            for (((tiles, weights), factors), (sums, running)) in of_pairs.zip(sums.iter_mut().zip(running)) {
                if factors.is_none() {
                    continue;
                }
                let factors = Factors {
                    steps: &list,
                    weights: tiles[piece * lines..].as_ptr().cast(),
                    panel,
                    inputs: inputs.as_ptr().cast(),
                    across: self.x.across,
                };
                // SAFETY: the steps name tiles of the weights just written and of the inputs of their columns.
                unsafe {
                    match scaled {
                        None => {
                            session.add_products(&factors, start.is_multiple_of(FOLD), running);
                            if (start + chunk_columns).is_multiple_of(FOLD) || columns.end == k {
                                let one = [(&[1.0; PAIR], None)];
                                add_scaled(std::array::from_ref(running), one, self.x.across, sums);
                            }
                        }
                        Some(columns) => {
                            let all = match group {
                                Some(_) => weights.groups.scales.as_chunks::<PAIR>().0,
                                None => &[],
                            };
                            let scales = |at: usize| {
                                let (of_weights, of_inputs) = groups[at];
                                let of_weights = all.get(of_weights).unwrap_or(&[1.0; PAIR]);
                                (of_weights, self.x.scales(pass, of_inputs))
                            };
                            session.add_scaled(&factors, columns / STEP * limbs, scales, products, sums);
                        }
                    }
                }
            }
        }
    }

    /// Writes the products of a tile of inputs, of which `row` is the first, by row: sums times factors.
    ///
    /// # Safety
    /// The processor must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn values(
        &self,
        sums: &[FloatSums],
        tile: usize,
        row: usize,
        factors: &[Option<[f32; PAIR]>],
        to: &mut [f32],
    ) {
        for (pair, (sums, factors)) in sums.iter().zip(factors).enumerate() {
            let Some(factors) = factors else { continue };
            for (panel, (sums, factors)) in sums.iter().zip(factors.as_chunks::<ROWS>().0).enumerate() {
                let mut values = [_mm512_setzero_ps(); ROWS];
                for ((value, line), factor) in values.iter_mut().zip(&sums[tile]).zip(factors) {
                    // SAFETY: lines are aligned and hold sixteen values.
                    let sums = unsafe { _mm512_load_ps(line.0.as_ptr()) };
                    *value = _mm512_mul_ps(sums, _mm512_set1_ps(*factor));
                }
                // SAFETY: as the caller promises; there are sixteen rows of a unit's outputs.
                unsafe {
                    for (i, &(mut values)) in transpose(values).iter().enumerate() {
                        if let Some(factor) = self.x.factors.get(row + i) {
                            values = _mm512_mul_ps(values, _mm512_set1_ps(*factor));
                        }
                        let to = &mut to[i * self.unit() + pair * PAIR + panel * ROWS..][..ROWS];
                        _mm512_storeu_ps(to.as_mut_ptr(), values);
                    }
                }
            }
        }
    }

    /// Pairs of limbs that are multiplied: those whose indices add up to less than three.
    fn steps(&self, steps: usize) -> Vec<Step> {
        let limbs = self.weights.limbs;
        let all = (0..steps).flat_map(|step| (0..limbs).map(move |limb| (step, limb)));
        let list = all.map(|(step, limb)| Step {
            weights: (step * limbs + limb) * TILE,
            inputs: step * self.x.step * LINE,
            limbs: self.x.limbs.min(MAX_LIMBS - limb),
        });
        list.collect()
    }
}
