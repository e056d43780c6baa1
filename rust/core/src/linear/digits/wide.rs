//! Many rows of inputs: the columns of the tiles are digits of row after row, and each group of weights is a product.

use std::arch::x86_64::*;

use super::inputs::FixedInputs;
use super::plan::{MOST_DIGITS, Plan, Scale};
use super::scales::Scales;
use super::unpack::{Order, TILE, Unpacker};
use super::{CHUNK, DIGITS};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::tiles::{LINE, Line, Pair, ROWS, Session};

/// Panels of 16 rows of weights that share tiles of inputs in the cache.
pub(in crate::linear) const PANELS: usize = 4;
/// Tiles of 64 columns in a chunk.
const TILES: usize = CHUNK / LINE;
/// Groups in a chunk, at most.
const MOST_GROUPS: usize = CHUNK / 16;

type Sums = [Line<i32, 16>; ROWS];
type Totals = [Line<f32, 16>; ROWS];

/// The product of packed weights with rows of inputs.
pub(in crate::linear) struct Wide<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// Columns of a group: 16, 32, 64, 128 or 256. Longer stored ones are several of these.
    group: usize,
    /// Columns of the tiles that a row of inputs takes.
    places: usize,
    /// Rows of inputs.
    m: usize,
    /// Tiles of 16 columns of inputs.
    across: usize,
    /// A line of zeros, then tiles by chunk, sixteen columns, 64 columns of weights.
    inputs: Vec<Line<i8, LINE>>,
    /// By chunk, group and sixteen columns, what zero points are multiplied with.
    input_sums: Vec<Line<f32, 16>>,
    /// By chunk and sixteen columns, what the sums count.
    units: Vec<Line<f32, 16>>,
}

/// What one thread works in.
pub(in crate::linear) struct Scratch {
    tiles: Vec<Line<u8, LINE>>,
    factors: Vec<f32>,
    zeros: Vec<f32>,
    stored_zeros: Vec<u16>,
    totals: Vec<Totals>,
}

impl<'a> Wide<'a> {
    /// Arranges all rows of `x`.
    pub(in crate::linear) fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs) -> Result<Self> {
        let group = match plan.group {
            group if group >= CHUNK && group.is_multiple_of(CHUNK) => CHUNK,
            usize::MAX => CHUNK,
            group if group.is_multiple_of(128) => 128,
            group => group.min(LINE),
        };
        let places = if plan.digits == 1 { DIGITS } else { DIGITS + 1 };
        let (m, chunks) = (x.rows, x.columns / CHUNK);
        let across = (m * places).div_ceil(16);
        let scales = Scales::new(plan, rows);
        let mut inputs = zeroed::<Line<i8, LINE>>(1 + chunks * across * TILES * ROWS)?;
        let mut units = zeroed::<Line<f32, 16>>(chunks * across)?;
        let groups = CHUNK / group;
        let mut input_sums = zeroed::<Line<f32, 16>>(if plan.zeros { chunks * groups * across } else { 0 })?;
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        for row in 0..m {
            for place in 0..places {
                let (tile, column) = ((row * places + place) / 16, (row * places + place) % 16);
                for chunk in 0..chunks {
                    units[chunk * across + tile].0[column] = x.unit(row, chunk) * raised;
                }
                if place == DIGITS {
                    continue; // room for what a second digit of weights moves up
                }
                for (chunk, plane) in x.plane(row, place).as_chunks::<CHUNK>().0.iter().enumerate() {
                    let lines = &mut inputs[1 + (chunk * across + tile) * TILES * ROWS..][..TILES * ROWS];
                    for (line, quad) in lines.iter_mut().zip(plane.as_chunks::<4>().0) {
                        line.0[4 * column..4 * column + 4].copy_from_slice(quad);
                    }
                    if plan.zeros {
                        for (g, columns) in plane.chunks(group).enumerate() {
                            let sum: i32 = columns.iter().map(|&d| i32::from(d)).sum();
                            input_sums[(chunk * groups + g) * across + tile].0[column] = sum as f32;
                        }
                    }
                }
            }
        }
        Ok(Self { plan, rows, scales, group, places, m, across, inputs, input_sums, units })
    }

    /// Columns in a product of tiles.
    pub(in crate::linear) fn depth(&self) -> usize {
        self.group.min(LINE)
    }

    /// Room for one thread's work.
    pub(in crate::linear) fn scratch(&self) -> Scratch {
        Scratch {
            tiles: vec![Line::default(); PANELS * self.plan.digits * TILES * ROWS],
            factors: vec![0.0; PANELS * ROWS * MOST_GROUPS],
            zeros: vec![0.0; PANELS * ROWS * MOST_GROUPS],
            stored_zeros: Vec::new(),
            totals: vec![Totals::default(); PANELS * self.across],
        }
    }

    /// Computes the products of `count` rows of weights, at most 16 times [`PANELS`], from `first` on, and calls
    /// `write` with each row of inputs and its products; false, with nothing written, where scales are out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI, and `session` be one of [`Self::depth`] columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn run(
        &self,
        session: &Session,
        first: usize,
        count: usize,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, &mut [f32]),
    ) -> bool {
        let (codes, row_bytes) = self.rows.codes();
        let (width, k) = (self.plan.width as usize, self.rows.k);
        let panels = count.div_ceil(ROWS);
        let groups = CHUNK / self.group;
        let unpacker = Unpacker::new(self.plan);
        let tile_bytes = self.plan.digits * TILES * TILE;
        let pairs = self.pairs();
        scratch.totals.fill(Totals::default());
        for chunk in 0..k.div_ceil(CHUNK) {
            let start = chunk * CHUNK * width / 8;
            let tiles = (k - chunk * CHUNK).min(CHUNK).div_ceil(LINE);
            let base = scratch.tiles.as_mut_ptr().cast::<u8>();
            for panel in 0..panels {
                // Rows beyond the last repeat it.
                let row_of = |r: usize| first + (panel * ROWS + r).min(count - 1);
                let at: [*const u8; ROWS] = std::array::from_fn(|r| codes[row_of(r) * row_bytes + start..].as_ptr());
                // SAFETY: rows have `row_bytes` bytes; each panel has room for its tiles.
                unsafe {
                    unpacker.run(Order::Natural, &at, row_bytes - start, tiles, TILES, base.add(panel * tile_bytes));
                }
                for r in 0..ROWS {
                    let place = (panel * ROWS + r) * MOST_GROUPS;
                    let factors = &mut scratch.factors[place..][..groups];
                    // SAFETY: as the caller promises.
                    if !unsafe { self.factors(row_of(r), chunk, factors) } {
                        return false;
                    }
                    if self.plan.zeros {
                        self.rows.zeros(row_of(r), &mut scratch.stored_zeros);
                        for (g, zero) in scratch.zeros[place..][..groups].iter_mut().enumerate() {
                            let stored = (chunk * CHUNK + g * self.group) / self.plan.group;
                            *zero = f32::from(scratch.stored_zeros[stored.min(scratch.stored_zeros.len() - 1)]);
                        }
                    }
                }
            }
            for across in 0..self.across {
                let lines = &self.inputs[1 + (chunk * self.across + across) * TILES * ROWS..];
                for panel in 0..panels {
                    // SAFETY: the tiles were just written; the inputs cover the chunk.
                    unsafe {
                        self.products(
                            session,
                            &pairs,
                            base.add(panel * tile_bytes),
                            lines.as_ptr().cast(),
                            (chunk, across),
                            &scratch.factors[panel * ROWS * MOST_GROUPS..],
                            &scratch.zeros[panel * ROWS * MOST_GROUPS..],
                            &mut scratch.totals[panel * self.across + across],
                        );
                    }
                }
            }
        }
        for row in 0..self.m {
            let mut values = [0.0f32; PANELS * ROWS];
            for (r, value) in values.iter_mut().enumerate().take(count) {
                let places = (0..self.places).rev().map(|place| {
                    let column = row * self.places + place;
                    scratch.totals[r / ROWS * self.across + column / 16][r % ROWS].0[column % 16]
                });
                let sum = places.fold(0.0f32, |sum, place| sum.mul_add(256.0, place));
                *value = match self.plan.scale {
                    Scale::Row => sum * self.rows.row_step(first + r) as f32,
                    _ => sum,
                };
            }
            write(row, &mut values[..count]);
        }
        true
    }

    /// For each group of a chunk and pair of digits, the factors of its product.
    fn pairs(&self) -> Vec<Vec<Pair>> {
        let mut all = Vec::new();
        for group in 0..CHUNK / self.group {
            for pair in 0..self.plan.pairs() {
                let mut list = Vec::new();
                for digit in 0..(self.plan.digits - 2 * pair).min(2) {
                    for step in (0..self.group).step_by(LINE) {
                        let column = group * self.group + step;
                        let tile = (2 * pair + digit) * TILES + column / LINE;
                        list.push(Pair {
                            weights: (tile * TILE + column % LINE) as isize,
                            // A second digit counts 256 times as much: its products belong one column further.
                            inputs: (column / 4 * LINE) as isize - 4 * digit as isize,
                        });
                    }
                }
                all.push(list);
            }
        }
        all
    }

    /// Adds one chunk's products of 16 rows of weights and 16 columns of inputs to their totals.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[expect(clippy::too_many_arguments, reason = "the innermost loop, kept apart for its registers")]
    unsafe fn products(
        &self,
        session: &Session,
        pairs: &[Vec<Pair>],
        weights: *const u8,
        inputs: *const u8,
        (chunk, across): (usize, usize),
        factors: &[f32],
        zeros: &[f32],
        totals: &mut Totals,
    ) {
        let groups = CHUNK / self.group;
        let each = self.plan.pairs();
        let mut sums = [[Sums::default(); 2]; 2];
        let mut chunk_totals = [_mm512_setzero_ps(); ROWS];
        // SAFETY: as the caller promises; factors and zero points are there for 16 rows of all groups.
        unsafe {
            for g in 0..=groups {
                if g < groups {
                    for pair in 0..each {
                        session.multiply(&pairs[g * each + pair], weights, LINE, inputs, &mut sums[g % 2][pair]);
                    }
                }
                // The sums of the group before: the tiles of this one are at work meanwhile.
                let Some(g) = g.checked_sub(1) else { continue };
                for (r, total) in chunk_totals.iter_mut().enumerate() {
                    let sums = &sums[g % 2];
                    let mut sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[0][r].0.as_ptr().cast()));
                    if each == 2 {
                        let high = _mm512_cvtepi32_ps(_mm512_load_si512(sums[1][r].0.as_ptr().cast()));
                        sum = _mm512_fmadd_ps(high, _mm512_set1_ps(65_536.0), sum);
                    }
                    let at = r * MOST_GROUPS + g;
                    if self.plan.zeros {
                        let inputs = &self.input_sums[(chunk * groups + g) * self.across + across];
                        let zero = _mm512_set1_ps(*zeros.get_unchecked(at));
                        sum = _mm512_fnmadd_ps(zero, _mm512_load_ps(inputs.0.as_ptr()), sum);
                    }
                    *total = _mm512_fmadd_ps(sum, _mm512_set1_ps(*factors.get_unchecked(at)), *total);
                }
            }
            let units = _mm512_load_ps(self.units[chunk * self.across + across].0.as_ptr());
            for (total, line) in chunk_totals.iter().zip(totals.iter_mut()) {
                let all = _mm512_fmadd_ps(*total, units, _mm512_load_ps(line.0.as_ptr()));
                _mm512_store_ps(line.0.as_mut_ptr(), all);
            }
        }
    }

    /// Scales of a row in a chunk, by group of ours.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn factors(&self, row: usize, chunk: usize, factors: &mut [f32]) -> bool {
        if self.plan.scale == Scale::Row {
            factors.fill(1.0);
            return true;
        }
        let first = chunk * CHUNK / self.plan.group;
        let last = ((chunk * CHUNK + CHUNK - 1) / self.plan.group).min(self.scales.groups - 1);
        let mut scales = [0.0f32; MOST_GROUPS];
        let scales = &mut scales[..=last - first];
        // SAFETY: as the caller promises; the row has these scales.
        let fits = unsafe { self.scales.read(row, first, scales) };
        for (g, factor) in factors.iter_mut().enumerate() {
            let stored = (chunk * CHUNK + g * self.group) / self.plan.group;
            *factor = scales[(stored - first).min(scales.len() - 1)];
        }
        fits
    }
}

const _: () = assert!(MOST_DIGITS == 4 && MOST_GROUPS == 16);
